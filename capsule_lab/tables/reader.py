"""Reading of tables, and selection of their rows, columns and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from capsule_lab.config import plain_yaml
from capsule_lab.config.folders import sweeps_dir
from capsule_lab.errors import TableError, closest, one_line, printable, suggest
from capsule_lab.tables.schema import (
    Column,
    Commands,
    Comparison,
    Content,
    Row,
    Seeds,
    Table,
    check_no_fold,
    check_override,
)


def read(table: str | Path | None, commands: Commands, overrides: Sequence[str] = ()) -> Table:
    """Read a table by its name in ``sweeps/``, or from another file; its overrides may include a mistyped ``table=``.

    Raise a ``TableError`` if the table does not exist or is invalid.
    """
    names = sorted(path.stem for path in sweeps_dir().glob("*.yaml"))
    if table is None:
        for key, _, value in (override.partition("=") for override in overrides):
            if closest(key, ["table"]):
                raise TableError(f"{key} does not exist; did you mean table={value}?")
        raise TableError(
            f"table is missing; expected table=<name>, one of {', '.join(names)}, or a .yaml file"
        )
    file = Path(table) if str(table).endswith(".yaml") else sweeps_dir() / f"{table}.yaml"
    if not file.is_file() or not (str(table).endswith(".yaml") or table in names):
        raise TableError(
            f"table={table} does not exist; {suggest(str(table), names)}, or a .yaml file"
        )
    try:
        text = file.read_text(encoding="utf-8")
        content = plain_yaml.parse(text)
    except (OSError, ValueError) as error:
        raise TableError(f"{file} cannot be read: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise TableError(
            f"{file} holds a {type(content).__name__}; expected {', '.join(Content.model_fields)}"
        )
    head = [
        line.removeprefix("#").removeprefix(" ")
        for line in text.splitlines()
        if line.startswith("#")
    ]
    try:
        checked = Content.model_validate(content, context=commands)
    except ValidationError as error:
        raise TableError(printable(f"{file}: {_message(error, content)}")) from error
    return Table.model_construct(
        **dict(checked), name=file.stem, head="\n".join(head), file=file, commands=commands
    )


def select(
    table: Table,
    *,
    rows: Sequence[str | int | float] | str | int | float | None = None,
    columns: Sequence[str | int | float] | str | int | float | None = None,
    seeds: Sequence[int] | int | None = None,
) -> Table:
    """Return a table with only these rows, columns and seeds, or all for ``None``; rows that others need remain.

    Raise a ``TableError`` if a row or column does not exist, or a seed is not a whole number.
    """
    selected = {*_among("rows", rows, [row.name for row in table.rows], table.name)}
    selected_columns = _among(
        "columns", columns, [column.name for column in table.columns], table.name
    )
    for row in reversed(table.rows):  # a row needs only rows above it
        selected |= row.needs if row.name in selected else set()
    return table.model_copy(
        update={
            "rows": tuple(row for row in table.rows if row.name in selected),
            "columns": tuple(column for column in table.columns if column.name in selected_columns),
            "seeds": table.seeds if seeds is None else _checked_seeds(seeds),
        }
    )


def check_overrides(
    where: str, overrides: Sequence[str], folds: int | None = None
) -> tuple[str, ...]:
    """Return overrides of training runs; raise a ``TableError`` for other text, and for a key that the table sets."""
    try:
        check_no_fold(where, overrides, folds)
    except ValueError as error:
        raise TableError(printable(str(error))) from error
    for override in overrides:
        try:
            check_override(override)
        except ValueError as error:
            raise TableError(printable(f"{where} has {override}; {error}")) from error
    return tuple(overrides)


def listed_of(chosen: Any) -> list[Any]:
    """Return the entries of a list in an override; any other value is the only entry."""
    return [*chosen] if isinstance(chosen, (list, tuple)) else [chosen]


def _checked_seeds(seeds: Any) -> tuple[int, ...]:
    listed = listed_of(seeds)
    try:
        return TypeAdapter(Seeds).validate_python(listed)
    except ValidationError as error:
        raise TableError(
            f"seeds is {seeds}; expected {Content.model_fields['seeds'].description}"
        ) from error


def _message(error: ValidationError, content: dict[Any, Any]) -> str:
    """Return the first error in one sentence: place, value, and expected value."""
    first = error.errors(include_url=False)[0]
    path: list[Any] = [*first["loc"]]
    part: type[Content | Column | Comparison | Row] = Content
    where = ""
    if path[:1] == ["columns"] and len(path) > 2:
        part, where, path = Column, f"column {[*content['columns']][path[1]]}", path[2:]
    elif path[:1] == ["rows"] and len(path) > 2:
        part, where, path = (
            Row,
            f"row {content['rows'][path[1]].get('name', '')}".rstrip(),
            path[2:],
        )
    elif path[:1] == ["comparisons"] and len(path) > 2:
        given = content["comparisons"][path[1]]
        part, where, path = Comparison, f"comparison {given.get('name', '')}".rstrip(), path[2:]
    field, value = str(path[0]) if path else "", first["input"]
    place = ": ".join(filter(None, (where, field)))
    match first["type"]:
        case "extra_forbidden":
            return f"{where} has {field}; {suggest(field, part.model_fields)}".lstrip()
        case "missing":
            return f"{where} has no {field}; expected one".lstrip()
        case "value_error":
            of_row = first["loc"][:1] in (("rows",), ("comparisons",)) and len(first["loc"]) == 2
            return (
                f"{place} has {value}; {first['ctx']['error']}"
                if field and not of_row
                else str(first["ctx"]["error"])
            )
        case _:
            return (
                f"{place} is {value!r}; expected {part.model_fields[field].description or 'text'}"
            )


def _among(
    what: str,
    chosen: Sequence[str | int | float] | str | int | float | None,
    names: list[str],
    table: str,
) -> Sequence[str]:
    if chosen is None:
        return names
    if names == [""]:
        raise TableError(
            f"{what} is {chosen}, but {table} has one without a name; leave {what}= out"
        )
    listed = [*map(str, listed_of(chosen))]  # a name such as 99.5 is a number in an override
    if not listed:
        raise TableError(f"{what} is empty; expected some of {', '.join(names)}")
    for name in listed:
        if name not in names:
            raise TableError(f"{what}: {name} is not in {table}; {suggest(name, names)}")
    return listed
