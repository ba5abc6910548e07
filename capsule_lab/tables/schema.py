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
        takes: {some.key: [row, val/error]}     what another row of the same seed must give first
        note: a footnote
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from capsule_lab.config import sweeps_dir
from capsule_lab.errors import TableError, suggest


@dataclass(frozen=True)
class Published:
    """What the paper prints: a mean over its trials, and their standard deviation if it says so."""

    mean: float
    std: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:g}" if self.std is None else f"{self.mean:g} ± {self.std:g}"  # no digit more, none less


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


_KEYS = {"paper", "metric", "seeds", "base", "columns", "rows"}
_KEYS_OF_A_COLUMN = {"label", "overrides", "metric"}
_KEYS_OF_A_ROW = {"name", "label", "overrides", "published", "note", "takes"}
_NAME = re.compile(r"[\w.-]+")  # it becomes part of directories, of overrides, of names in dashboards
_KINDS = {dict: "mapping", list: "list"}
_NOT_FOR_RUNS = {
    "seed": "leave it out, seeds=[…] are those of a table",
    **dict.fromkeys(
        ("ckpt", "train.directory", "train.resume"),
        "leave it out, a table knows where its runs are and goes on with each",
    ),
}


def read(table: str | Path | None) -> Table:
    """A table by its name in ``sweeps/``, or from a file of one's own.

    Raises:
        TableError: if there is none, or it is not what a table is.
    """
    if table is None:
        names = sorted(path.stem for path in sweeps_dir().glob("*.yaml"))
        raise TableError(f"table is missing; expected table=<name>, one of {', '.join(names)}, or a .yaml file")
    file = Path(table) if str(table).endswith(".yaml") else sweeps_dir() / f"{table}.yaml"
    if not file.is_file():
        names = [path.stem for path in sweeps_dir().glob("*.yaml")]
        raise TableError(f"table={table} does not exist; {suggest(str(table), names)}, or a .yaml file")
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
    rows: Sequence[str] | str | None = None,
    columns: Sequence[str] | str | None = None,
    seeds: Sequence[int] | int | None = None,
) -> Table:
    """Those rows, columns and seeds of a table, or that one; ``None`` for all. Rows that others take from stay.

    Raises:
        TableError: if it has no such row or column, or a seed is no whole number.
    """
    rows_chosen = _among("rows", rows, [row.name for row in table.rows], table.name)
    columns_chosen = _among("columns", columns, [column.name for column in table.columns], table.name)
    needed = {other for row in table.rows if row.name in rows_chosen for other, _ in row.takes.values()}
    return replace(
        table,
        rows=tuple(row for row in table.rows if row.name in {*rows_chosen, *needed}),
        columns=tuple(column for column in table.columns if column.name in columns_chosen),
        seeds=table.seeds if seeds is None else _seeds("seeds", [seeds] if isinstance(seeds, int) else seeds),
    )


def for_runs(where: str, words: Any) -> tuple[str, ...]:
    """Overrides for training runs.

    Raises:
        TableError: if they are none, or are for the table to decide.
    """
    if not isinstance(words, Sequence) or not all(isinstance(word, str) and re.match("~|.+=", word) for word in words):
        raise TableError(f"{where}: overrides are {words}; expected a list of key=value")
    for word in words:
        why = _NOT_FOR_RUNS.get(word.partition("=")[0].lstrip("+~"))
        if why:
            raise TableError(f"{where} has {word}; {why}")
    return tuple(words)


def _among(what: str, wanted: Sequence[str] | str | None, names: list[str], table: str) -> Sequence[str]:
    if wanted is None:
        return names
    listed = [wanted] if isinstance(wanted, str) else wanted
    if not listed:
        raise TableError(f"{what} is empty; expected some of {', '.join(names)}")
    for name in listed:
        if name not in names:
            raise TableError(f"{what}: {name} is not in {table}; {suggest(str(name), names)}")
    return listed


def _seeds(where: str, given: Any) -> tuple[int, ...]:
    whole = isinstance(given, Sequence) and all(type(seed) is int and seed >= 0 for seed in given)
    if not whole or not given:
        raise TableError(f"{where} is {given}; expected a list of whole numbers, 0 or more, such as [0, 1, 2]")
    return tuple(dict.fromkeys(given))


def _table(file: Path, content: dict[Any, Any], head: str) -> Table:
    _check_keys(str(file), content, _KEYS, required={"paper", "seeds", "rows"})
    metric = content.get("metric", "test/error")
    for key, kind in (("columns", dict), ("rows", list)):
        if not isinstance(content.get(key) or kind(), kind):
            raise TableError(f"{file}: {key} is {content[key]}; expected a {_KINDS[kind]}")
    if not content["rows"]:
        raise TableError(f"{file} has no rows; expected some, each with a name and overrides")
    columns = []
    for name, given in (content.get("columns") or {"": {"label": "error"}}).items():
        _check_name(f"{file}: column", name or "-")
        _check_keys(f"{file}: column {name}", given, _KEYS_OF_A_COLUMN)
        columns.append(
            Column(
                str(name),
                str(given.get("label", name)),
                for_runs(f"{file}: column {name}", given.get("overrides", ())),
                given.get("metric", metric),
            )
        )
    rows: list[Row] = []
    for given in content["rows"]:
        _check_keys(f"{file}: a row", given, _KEYS_OF_A_ROW, required={"name"})
        _check_name(f"{file}: row", given["name"])
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
        seeds=_seeds(f"{file}: seeds", content["seeds"]),
        base=for_runs(f"{file}: base", content.get("base", ())),
        columns=tuple(columns),
        rows=tuple(rows),
    )


def _row(where: str, given: dict[Any, Any], columns: list[str]) -> Row:
    overrides = given.get("overrides")
    if isinstance(overrides, dict):
        _check_keys(f"{where}: overrides", overrides, {*columns})
        by_column = {name: for_runs(where, words) for name, words in overrides.items()}
    else:
        by_column = {} if overrides is None else dict.fromkeys(columns, for_runs(where, overrides))
    published = given.get("published")
    if not isinstance(published, dict):
        published = dict.fromkeys(columns, published)
    _check_keys(f"{where}: published", published, {*columns})
    takes = given.get("takes") or {}
    if not isinstance(takes, dict) or not all(isinstance(pair, list) and len(pair) == 2 for pair in takes.values()):
        raise TableError(f"{where}: takes is {takes}; expected key: [row, metric]")
    return Row(
        name=str(given["name"]),
        label=str(given.get("label", given["name"])),
        overrides=by_column,
        published={name: _published(where, value) for name, value in published.items() if value is not None},
        note=str(given.get("note", "")),
        takes={str(key): (str(other), str(metric)) for key, (other, metric) in takes.items()},
    )


def _published(where: str, value: Any) -> Published:
    parts = value if isinstance(value, list) else [value]
    if len(parts) not in (1, 2) or not all(isinstance(part, (int, float)) for part in parts):
        raise TableError(f"{where}: published is {value}; expected a number, or [mean, standard deviation]")
    return Published(*map(float, parts))


def _check_name(where: str, name: Any) -> None:
    if not _NAME.fullmatch(str(name)):
        raise TableError(
            f"{where} is named {name!r}; expected letters, digits, _ - and . only, and a label for the rest"
        )


def _check_keys(where: str, given: Any, known: Iterable[str], required: Iterable[str] = ()) -> None:
    if not isinstance(given, dict):
        raise TableError(f"{where} is {given}; expected some of {', '.join(sorted(known))}")
    for name in given:
        if name not in known:
            raise TableError(f"{where} has {name}; {suggest(str(name), known)}")
    for name in required:
        if name not in given:
            raise TableError(f"{where} has no {name}; expected one")
