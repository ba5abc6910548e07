"""A paper's table, read from ``sweeps/<name>.yaml``.

::

    paper: what it is
    metric: test/error                 of metrics.json
    seeds: [0, 1, 2]
    base: [experiment=sabour2017/mnist]
    columns:                           default: one, without a name
      mnist: {label: MNIST, overrides: [], metric: test/error}
    rows:
      - name: three_iterations
        label: CapsNet, 3 iterations
        overrides: [routing.iterations=3]      or one list per column; none: reported, not trained here
        published: {mnist: [0.25, 0.005]}      or one number; [mean, standard deviation]; null
        takes: {some.key: [row, validation/error]}     what another row of the same seed must give first
        note: a footnote
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from capsule_lab.command import options_in_words


class TableError(ValueError):
    """A table that cannot be read, or asks for what is not there."""


@dataclass(frozen=True)
class Published:
    """What the paper prints: a mean over its trials, and their standard deviation if it says so."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Column:
    """What a table asks of every row: overrides, and which quantity of ``metrics.json`` is compared."""

    name: str
    label: str
    overrides: tuple[str, ...]
    metric: str


@dataclass(frozen=True)
class Row:
    """One line of a table. ``overrides`` by column; none at all for a value that is only reported."""

    name: str
    label: str
    overrides: Mapping[str, tuple[str, ...]]
    published: Mapping[str, Published]
    note: str = ""
    takes: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """Rows, columns, seeds and published values of one table of one paper."""

    name: str
    paper: str
    head: str
    seeds: tuple[int, ...]
    base: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def row(self, name: str) -> Row:
        """The row of that name, which there is."""
        return next(row for row in self.rows if row.name == name)


_KEYS = {"paper", "metric", "seeds", "base", "columns", "rows"}
_KEYS_OF_A_COLUMN = {"label", "overrides", "metric"}
_KEYS_OF_A_ROW = {"name", "label", "overrides", "published", "note", "takes"}


def sweeps_dir() -> Path:
    """The folder of tables: inside an installed wheel, or beside the package in a source tree."""
    package = Path(__file__).parents[1]
    return next(folder for folder in (package / "sweeps", package.parent / "sweeps") if folder.is_dir())


def read(table: str | Path) -> Table:
    """A table by its name in ``sweeps/``, or from a file of one's own.

    Raises:
        TableError: if there is none, or it is not what a table is.
    """
    file = Path(table) if str(table).endswith(".yaml") else sweeps_dir() / f"{table}.yaml"
    if not file.is_file():
        names = [path.stem for path in sweeps_dir().glob("*.yaml")]
        raise TableError(f"table={table} does not exist; {options_in_words(str(table), names)}, or a .yaml file")
    text = file.read_text()
    try:
        content = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
    except (YAMLError, OmegaConfBaseException) as error:
        raise TableError(f"{file} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise TableError(f"{file} holds {type(content).__name__}; expected {', '.join(sorted(_KEYS))}")
    head = [line.removeprefix("#").removeprefix(" ") for line in text.splitlines() if line.startswith("#")]
    return _table(file, content, "\n".join(head))


def chosen(
    table: Table,
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> Table:
    """Those rows, columns and seeds of a table; ``None`` for all. Rows that others take from stay.

    Raises:
        TableError: if it has no such row or column, or a seed is no whole number.
    """
    for what, wanted, there in (("rows", rows, table.rows), ("columns", columns, table.columns)):
        names = [one.name for one in there]
        for name in wanted or ():
            if name not in names:
                raise TableError(f"{what}: {name} is not in {table.name}; {options_in_words(str(name), names)}")
    for seed in seeds or ():
        if not isinstance(seed, int) or seed < 0:
            raise TableError(f"seeds has {seed}; expected whole numbers, 0 or more")
    needed = {other for row in table.rows if not rows or row.name in rows for other, _ in row.takes.values()}
    return replace(
        table,
        rows=tuple(row for row in table.rows if not rows or row.name in {*rows, *needed}),
        columns=tuple(column for column in table.columns if not columns or column.name in columns),
        seeds=tuple(seeds) if seeds else table.seeds,
    )


def _table(file: Path, content: dict[Any, Any], head: str) -> Table:
    _check_keys(str(file), content, _KEYS, required={"paper", "seeds", "rows"})
    metric = content.get("metric", "test/error")
    columns = []
    for name, given in (content.get("columns") or {"": {"label": "error"}}).items():
        _check_keys(f"{file}: column {name}", given, _KEYS_OF_A_COLUMN)
        columns.append(
            Column(
                name,
                str(given.get("label", name)),
                _words(f"{file}: column {name}", given.get("overrides", ())),
                given.get("metric", metric),
            )
        )
    rows: list[Row] = []
    for given in content["rows"]:
        _check_keys(f"{file}: a row", given, _KEYS_OF_A_ROW, required={"name"})
        rows.append(_row(f"{file}: row {given['name']}", given, [column.name for column in columns]))
    names = [row.name for row in rows]
    if len({*names}) < len(names):
        raise TableError(f"{file} has two rows of one name among {', '.join(names)}; expected a name for each")
    for row in rows:
        for key, (other, _) in row.takes.items():
            if other not in names[: names.index(row.name)]:
                raise TableError(f"{file}: row {row.name} takes {key} from {other}; expected a row above it")
    return Table(
        name=file.stem,
        paper=str(content["paper"]),
        head=head,
        seeds=tuple(content["seeds"]),
        base=_words(f"{file}: base", content.get("base", ())),
        columns=tuple(columns),
        rows=tuple(rows),
    )


def _row(where: str, given: dict[Any, Any], columns: list[str]) -> Row:
    overrides = given.get("overrides")
    if isinstance(overrides, dict):
        _check_keys(f"{where}: overrides", overrides, {*columns})
        by_column = {name: _words(where, words) for name, words in overrides.items()}
    else:
        by_column = {} if overrides is None else dict.fromkeys(columns, _words(where, overrides))
    published = given.get("published")
    if not isinstance(published, dict):
        published = dict.fromkeys(columns, published)
    _check_keys(f"{where}: published", published, {*columns})
    takes = {key: (str(other), str(metric)) for key, (other, metric) in (given.get("takes") or {}).items()}
    return Row(
        name=str(given["name"]),
        label=str(given.get("label", given["name"])),
        overrides=by_column,
        published={name: _published(where, value) for name, value in published.items() if value is not None},
        note=str(given.get("note", "")),
        takes=takes,
    )


def _published(where: str, value: Any) -> Published:
    parts = value if isinstance(value, list) else [value]
    if len(parts) not in (1, 2) or not all(isinstance(part, (int, float)) for part in parts):
        raise TableError(f"{where}: published is {value}; expected a number, or [mean, standard deviation]")
    return Published(*map(float, parts))


def _words(where: str, words: Any) -> tuple[str, ...]:
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) and "=" in word for word in words):
        raise TableError(f"{where}: overrides are {words}; expected a list of key=value")
    return tuple(words)


def _check_keys(where: str, given: Any, known: Iterable[str], required: Iterable[str] = ()) -> None:
    if not isinstance(given, dict):
        raise TableError(f"{where} is {given}; expected some of {', '.join(sorted(known))}")
    for name in given:
        if name not in known:
            raise TableError(f"{where} has {name}; {options_in_words(str(name), known)}")
    for name in required:
        if name not in given:
            raise TableError(f"{where} has no {name}; expected one")
