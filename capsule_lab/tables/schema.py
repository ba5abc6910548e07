"""A paper's table, read from ``sweeps/<name>.yaml``.

::

    paper: title of the table
    metric: test/error                 from metrics.json
    seeds: [0, 1, 2]
    folds: 5                           every row is trained on each of the folds 0 to 4 of data.folds=5, and each seed
    base: [experiment=sabour2017/mnist]
    columns:                           default: one column without a name
      mnist: {label: MNIST, overrides: [], metric: test/error, statistic: mean}      or median
    rows:
      - name: three_iterations
        label: CapsNet, 3 iterations
        overrides: [routing.iterations=3]      or a list per column, or by a pattern: {"epsilon_*": […]}
                                               none: published values only
        published: {mnist: [0.25, 0.005]}      or one number; [mean, standard deviation]; null
        takes: {some.key: [row, val/error]}    value of a key: the result of another row with the same seed
        note: a footnote
      - name: several_crops                    not trained: evaluates
        of: three_iterations                   the weights of that row with the same seed,
        evaluate: [data.test_crops=13]         with these overrides of its command; or a list per column
      - name: attacked
        of: three_iterations
        by: attack                             measured by another command; shown in columns with its metrics
        evaluate: [attack=pgd]
        takes: {source: [cnn, checkpoint]}     weights of another row with the same seed; checkpoint_of_next_seed
                                               for the next selected seed, also of the row itself

    comparisons:                              tests between rows, see ``capsule_lab.tables.comparisons``
      - {name: iterations, rows: [three_iterations], against: one_iteration, columns: [mnist], pairing: seed,
         unit: seeds, family: routing, margin: 0.1}

A column whose metric begins with a name that a command declares, such as ``attack/<epsilon>/<quantity>``, shows the
rows that this command measures; other columns show all others.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)

from capsule_lab.config.declaration import Command
from capsule_lab.errors import suggest

_NOT_FOR_TRAINING = {
    "seed": "leave it out, seeds=[…] sets the seeds of a table",
    **dict.fromkeys(
        ("ckpt", "train.directory", "train.resume"),
        "leave it out, a table finds its runs and continues them",
    ),
}
CHECKPOINT, NEXT_CHECKPOINT = "checkpoint", "checkpoint_of_next_seed"
"""Weights of other rows for an evaluation; the first seed of a table follows its last."""


def check_override(text: str, refused: Mapping[str, str] = _NOT_FOR_TRAINING) -> str:
    """Check that ``text`` is an override, and its key not in ``refused``, which tables set; ``ValueError`` if not."""
    key, is_pair, _ = text.partition("=")
    if not (is_pair and key) and not text.startswith("~"):
        raise ValueError("expected key=value")
    if reason := refused.get(key.lstrip("+~")):
        raise ValueError(reason)
    if key.lstrip("+~").startswith("hydra") and not text.startswith("hydra.searchpath=[file://"):
        raise ValueError(
            "leave it out, options of Hydra can run code and are allowed only on the command line"
        )
    return text


@dataclass(frozen=True, order=True)
class Fold:
    """A fold of a cross-validation: its index from 0, and the number of folds."""

    index: int
    folds: int

    @property
    def overrides(self) -> list[str]:
        """The overrides of a run that tests on this fold."""
        return [f"data.folds={self.folds}", f"data.fold={self.index}"]


class Repetition(NamedTuple):
    """What repeats the rows of a table: runs of two rows with the same fold and seed can be paired."""

    fold: Fold | None
    seed: int

    def __str__(self) -> str:
        return (
            f"seed {self.seed}" if self.fold is None else f"fold {self.fold.index} seed {self.seed}"
        )


def check_no_fold(where: str, overrides: Sequence[str], folds: int | None) -> None:
    """Raise a ``ValueError`` if a table has ``folds``, and ``overrides`` choose others."""
    for override in overrides:
        key, _, _ = override.partition("=")
        if folds is not None and key.lstrip("+~") in ("data.fold", "data.folds"):
            raise ValueError(
                f"{where} has {override}; leave it out, folds: {folds} of the table sets the folds"
            )


class Commands(NamedTuple):
    """The commands that make the results of a table.

    Attributes:
        training: trains the rows with ``overrides``.
        measuring: the commands for rows with ``of``, by name; one of them measures what training also tests.
    """

    training: Command
    measuring: Mapping[str, Command]

    @property
    def default(self) -> Command:
        """The command of a row without ``by``, which tests weights as training does."""
        return next(each for each in self.measuring.values() if "test" in metrics_of(each))

    def of(self, row: Row) -> Command:
        """Return the command that measures a row."""
        return self.measuring[row.by] if row.by else self.default

    def show(self, row: Row, column: Column) -> bool:
        """Return whether the row belongs to the column: it has the column's command, or only published values."""
        first = column.metric.partition("/")[0]
        commands = [each for each in self.measuring.values() if first in metrics_of(each)]
        return not row.has_runs or self.of(row) in (commands or [self.default])

    @property
    def other_weights(self) -> list[str]:
        """The options of evaluations whose values are weights of other rows."""
        return sorted({key for each in self.measuring.values() for key in each.other_weights})


def metrics_of(command: Command) -> tuple[str, ...]:
    """Return the first parts of the names of the metrics that a command measures."""
    return command.measures.metrics if command.measures else ()


def _published(value: Any) -> Any:
    parts = value if isinstance(value, list) else [value]
    return dict(zip(("mean", "std"), parts, strict=True)) if len(parts) == 2 else {"mean": value}


def _check_command(by: str, info: ValidationInfo[Commands]) -> str:
    """Return the name of a measuring command; an empty string for the default one."""
    commands = info.context
    if by not in commands.measuring:
        raise ValueError(suggest(by, commands.measuring))
    return "" if by == commands.default.name else by


def _check_evaluation_override(text: str, info: ValidationInfo[Commands]) -> str:
    commands = info.context
    refused = {"ckpt": "leave it out and name the row with of:"}
    for key in commands.other_weights:
        refused[key] = f"leave it out and name the row with takes: {{{key}: [<row>, checkpoint]}}"
    return check_override(text, refused)


class _Part(BaseModel):
    """A part of the file. Error messages contain the descriptions of fields as the expected values."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


class Published(_Part):
    """Published value: a mean over trials, and their standard deviation if the paper reports one."""

    mean: float = Field(allow_inf_nan=False)
    std: float | None = Field(None, allow_inf_nan=False)

    def __str__(self) -> str:
        return (
            f"{self.mean:g}" if self.std is None else f"{self.mean:g} ± {self.std:g}"
        )  # the digits of the paper


_OVERRIDES = "a list of key=value"
_NAME = "only letters, digits, _ - and .; other characters belong in the label"
Seeds = Annotated[
    tuple[Annotated[int, Field(strict=True, ge=0, lt=2**32)], ...],  # numpy's limit
    Field(min_length=1, description="a list of whole numbers, 0 to 4294967295, such as [0, 1, 2]"),
    AfterValidator(lambda seeds: tuple(dict.fromkeys(seeds))),
]
Overrides = tuple[Annotated[str, AfterValidator(check_override)], ...]
EvaluationOverrides = tuple[Annotated[str, AfterValidator(_check_evaluation_override)], ...]
PublishedValue = Annotated[Published, BeforeValidator(_published)]


class Column(_Part):
    """A column: its overrides, and the metric of ``metrics.json`` that it compares.

    Attributes:
        statistic: over seeds. A median also works if a run did not reach a threshold, as in
            ``time_to_accuracy/99.5/seconds``: such a run counts as longer than all others.
    """

    name: str = Field(pattern=r"^[\w.-]*$", description=_NAME)
    label: str = Field(min_length=1)
    overrides: Overrides = Field((), description=_OVERRIDES)
    metric: str
    statistic: Literal["mean", "median"] = Field("mean", description="mean or median")


class Row(_Part):
    """One line of a table: training, an evaluation of another row's weights, or only published values.

    ``overrides`` of training and of the evaluation (``evaluate``) are by column. ``takes``: keys of the configuration
    whose values are metrics of a row above; ``of``: the row above whose weights are evaluated; ``by``: the command,
    empty for the one that tests weights as training does.
    """

    name: str = Field(pattern=r"^[\w.-]+$", description=_NAME)
    label: str = Field(min_length=1)
    overrides: Mapping[str, Overrides] = Field({}, description=_OVERRIDES)
    published: Mapping[str, PublishedValue] = Field(
        {}, description="a number, or [mean, standard deviation]"
    )
    note: str = ""
    takes: Mapping[str, tuple[str, str]] = Field({}, description="key: [row, metric]")
    of: str = ""
    by: Annotated[str, AfterValidator(_check_command)] = Field("", description="a command")
    evaluate: Mapping[str, EvaluationOverrides] = Field({}, description=_OVERRIDES)

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if bool(self.of) is not bool(self.evaluate) or (self.of and self.overrides):
            raise ValueError(
                f"row {self.name} has {', '.join(sorted(self.model_fields_set))}; expected of and evaluate together "
                "for an evaluation, overrides (and takes) for training, or neither"
            )
        if self.by and not self.of:
            raise ValueError(
                f"row {self.name} has by: {self.by}; expected of and evaluate beside it"
            )
        return self

    @model_validator(mode="after")
    def _check_taken(self, info: ValidationInfo[Commands]) -> Self:
        commands = info.context
        for key, (other, metric) in self.takes.items():
            if (metric in (CHECKPOINT, NEXT_CHECKPOINT)) is not bool(self.of):
                expected = (
                    f"[{other}, {CHECKPOINT}]"
                    if self.of
                    else f"a metric of {other}, such as val/error"
                )
                raise ValueError(
                    f"row {self.name}: takes has {key}: [{other}, {metric}]; expected {expected}"
                )
            if self.of and key not in commands.other_weights:
                expected = f"{' or '.join(commands.other_weights)} of an evaluation"
                raise ValueError(f"row {self.name}: takes has {key}; expected {expected}")
        return self

    @property
    def has_runs(self) -> bool:
        """Whether the row is trained or evaluated."""
        return bool(self.overrides or self.evaluate)

    @property
    def needs(self) -> set[str]:
        """Names of the rows whose results this row needs."""
        return {row for row, _ in self.takes.values()} | ({self.of} if self.of else set())


class Comparison(_Part):
    """A question that a table answers: do these rows differ from another row?

    Attributes:
        rows: each of them is compared with ``against``; by default every other row.
        against: a row; if left out, each row is compared with itself in the column ``against_column``.
        columns: the columns in which rows are compared; by default all.
        against_column: the column of ``against``, if it is another one.
        pairing: whether runs with the same ``seed`` are compared with each other. In a table with folds, ``fold``:
            runs with the same fold and seed.
        unit: what the interval generalises to: other ``seeds``; or other seeds and test ``images`` or ``clusters`` of
            them, such as other toys.
        family: comparisons with the same family share a Holm correction; without one, the rows and columns of the
            comparison do.
        margin: the largest difference, in the unit of the column, that counts as none.
    """

    name: str = Field(pattern=r"^[\w.-]+$", description=_NAME)
    rows: tuple[str, ...] = Field((), description="a list of names of rows")
    against: str = ""
    columns: tuple[str, ...] = Field((), description="a list of names of columns")
    against_column: str = ""
    pairing: Literal["none", "seed", "fold"] = Field("none", description="none, seed or fold")
    unit: Literal["seeds", "images", "clusters"] = Field(
        "seeds", description="seeds, images or clusters"
    )
    family: str = ""
    margin: float | None = Field(None, gt=0, allow_inf_nan=False, description="a number above 0")

    @model_validator(mode="after")
    def _check_other_side(self) -> Self:
        if not (self.against or self.against_column):
            raise ValueError(
                f"comparison {self.name} has no other side; expected against: <row>, or against_column"
            )
        return self


class Content(_Part):
    """The content of the file."""

    paper: str
    metric: str = "test/error"
    seeds: Seeds
    folds: int | None = Field(None, strict=True, ge=2, description="a whole number from 2")
    base: Overrides = Field((), description=_OVERRIDES)
    columns: tuple[Column, ...] = Field(
        description="a mapping of names to {label, overrides, metric}"
    )
    rows: tuple[Row, ...] = Field(min_length=1, description="a list of rows, each with a name")
    comparisons: tuple[Comparison, ...] = Field(
        (), description="a list of comparisons, each with a name"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, content: Any) -> Any:
        """Copy the defaults of the file into every column and row that does not set them."""
        columns, rows = content.get("columns") or {"": {"label": "error"}}, content.get("rows")
        content = {**content, "columns": columns}
        if isinstance(columns, dict):
            standard = {"metric": content.get("metric", "test/error")}
            content["columns"] = [
                {**standard, "label": str(name), "name": str(name), **given}
                if isinstance(given, dict)
                else given
                for name, given in columns.items()
            ]
            if isinstance(rows, list):
                content["rows"] = [_by_column(row, [*map(str, columns)]) for row in rows]
        return content

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names, labels = [row.name for row in self.rows], [column.label for column in self.columns]
        if len({*names}) < len(names):
            raise ValueError(
                f"two rows have the same name among {', '.join(names)}; expected different names"
            )
        if len({*labels}) < len(labels):
            raise ValueError(
                f"two columns have the same label among {', '.join(labels)}; expected different labels"
            )
        return self

    @model_validator(mode="after")
    def _check_statistics(self) -> Self:
        for column in self.columns:
            if column.metric.startswith("time_to_accuracy/") and column.statistic == "mean":
                raise ValueError(
                    f"column {column.name}: {column.metric} has no mean, because a run may not reach it; expected "
                    "statistic: median"
                )
        return self

    @model_validator(mode="after")
    def _check_comparisons(self) -> Self:
        names = [each.name for each in self.comparisons]
        if len({*names}) < len(names):
            raise ValueError(
                f"two comparisons have the same name among {', '.join(names)}; expected different names"
            )
        rows, columns = [row.name for row in self.rows], [column.name for column in self.columns]
        for each in self.comparisons:
            for key, given, known in (
                ("rows", [*each.rows, *filter(None, [each.against])], rows),
                ("columns", [*each.columns, *filter(None, [each.against_column])], columns),
            ):
                for unknown in (name for name in given if name not in known):
                    raise ValueError(
                        f"comparison {each.name}: {key} has {unknown}; {suggest(unknown, known)}"
                    )
        return self

    @model_validator(mode="after")
    def _check_folds(self) -> Self:
        """Check that only ``folds`` chooses folds, and that comparisons pair them if there are any."""
        for where, overrides in self._all_overrides():
            check_no_fold(where, overrides, self.folds)
        for each in self.comparisons:
            if (each.pairing == "fold") is not (self.folds is not None):
                expected = (
                    "fold in a table with folds" if self.folds else "none or seed without folds"
                )
                raise ValueError(
                    f"comparison {each.name}: pairing is {each.pairing}; expected {expected}"
                )
        return self

    def _all_overrides(self) -> Iterator[tuple[str, Overrides]]:
        """Yield the overrides of training, with the part of the file they are in."""
        yield "base", self.base
        for column in self.columns:
            yield f"column {column.name}", column.overrides
        for row in self.rows:
            for overrides in row.overrides.values():
                yield f"row {row.name}", overrides

    @model_validator(mode="after")
    def _check_columns_of_rows(self) -> Self:
        columns = [column.name for column in self.columns]
        for row in self.rows:
            for key in ("overrides", "published", "evaluate"):
                for unknown in (name for name in getattr(row, key) if name not in columns):
                    raise ValueError(
                        f"row {row.name}: {key} has {unknown}; {suggest(unknown, columns)}"
                    )
        return self

    @model_validator(mode="after")
    def _check_needed_rows(self) -> Self:
        above: dict[str, Row] = {}
        for row in self.rows:
            for other in sorted(row.needs - above.keys()):
                key = "of" if other == row.of else "takes"
                raise ValueError(f"row {row.name}: {key} names {other}; expected a row above it")
            if row.of and not above[row.of].overrides:
                raise ValueError(
                    f"row {row.name}: of is {row.of}, which is not trained; expected a row with overrides"
                )
            above[row.name] = row
        return self


class Table(Content):
    """Rows, columns, seeds and published values of a paper's table, with the name of its file and its comments."""

    name: str
    head: str
    file: Path
    commands: Commands

    @property
    def repetitions(self) -> list[Repetition]:
        """Every fold, if there are folds, with every seed."""
        folds: list[Fold | None] = [None]
        if self.folds is not None:
            folds = [Fold(index, self.folds) for index in range(self.folds)]
        return [Repetition(fold, seed) for fold in folds for seed in self.seeds]


def _by_column(row: Any, columns: list[str]) -> Any:
    """Return a row with overrides and published values by column, without null values."""
    if not isinstance(row, dict):
        return row
    row = {
        "label": str(row.get("name")),
        **{key: value for key, value in row.items() if value is not None},
    }
    for key in ("overrides", "published", "evaluate"):
        if key in row and not isinstance(row[key], dict):
            row[key] = dict.fromkeys(columns, row[key])
        elif key in row:
            row[key] = {
                column: value
                for pattern, value in row[key].items()
                for column in fnmatch.filter(columns, str(pattern)) or [str(pattern)]
            }
    if "published" in row:
        row["published"] = {
            column: value for column, value in row["published"].items() if value is not None
        }
    return row
