"""YAML of others: aliases do not multiply, and nothing but plain values is read."""

from pathlib import Path

import pytest
import yaml

from capsule_lab.commands.tables import read_table
from capsule_lab.config import plain_yaml
from capsule_lab.config.folders import sweeps_dir
from capsule_lab.errors import TableError
from capsule_lab.tables import comparisons
from capsule_lab.tables.schema import Comparison


def multiplied(levels: int, width: int, opening: str, closing: str, part: str) -> str:
    """Lists or mappings of aliases of the level above; ``part`` is one entry, by its number and its value."""
    lines = []
    value = "x"
    for level in range(levels):
        parts = [part.format(number, value) for number in range(width)]
        content = ", ".join(parts)
        lines.append(f"a{level}: &a{level} {opening}{content}{closing}")
        value = f"*a{level}"
    return "\n".join(lines)


def merged(mappings: int, width: int) -> str:
    """Mappings that merge the first one, each with a list of aliases of it."""
    aliases = ", ".join(["*a"] * width)
    lines = ["a: &a {k: x}"]
    for number in range(mappings):
        lines.append(f"a{number}: &a{number} {{<<: *a, j: [{aliases}]}}")
    return "\n".join(lines)


BOMBS = {
    "lists": multiplied(10, 9, "[", "]", "{1}"),
    "mappings": multiplied(10, 9, "{", "}", "k{0}: {1}"),
    "two levels": multiplied(2, 700, "[", "]", "{1}"),
    "long text": f"a: &a {'x' * 50_000}\nb: [*a, *a, *a, *a, *a]",
    "merged": merged(90, 900),
    "itself": "a: &a [*a]",
    "itself in a mapping": "a: &a {b: {c: *a}}",
    "unknown": "a: *b",
    "large": f"a: {'x' * 200_001}",
    "deep": "[" * 100_000,
    "deep on one line": "- " * 90_000,
    "deep in keys": "? " * 90_000,
    "deep mapping": "a: " + "{a: " * 2000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_file_that_expands_without_end_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r".+") as caught:
        plain_yaml.parse(BOMBS[name])
    assert "\n" not in str(caught.value)


ODD = {
    "tag": "!!python/object/apply:os.mkdir [MARKER]",
    "path": "!!python/object/apply:pathlib.Path [a]",
    "own tag": "!a b",
    "set": "!!set {a, b}",
    "binary": "!!binary aGk=",
    "time": "a: !!timestamp x",
    "bool": "a: !!bool x",
    "int": "!!int x",
    "interpolation": "a: ${oc.env:HOME}",
    "escaped": '"\\x24{oc.env:HOME}": 1',
    "two documents": "a: 1\n---\nb: 2",
    "two keys": "a: 1\na: 2",
    "key of a list": "? [a]\n: b",
    "control": "a: \x00",
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_plain_value_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r".+") as caught:
        plain_yaml.parse(ODD[name])
    assert "\n" not in str(caught.value)
    assert not Path("MARKER").exists()


def test_aliases_in_measure_are_read() -> None:
    value = ["b", 1e-3]
    parsed = plain_yaml.parse("a: &x [b, 1e-3]\nc: *x\nd: *x")
    assert parsed == {"a": value, "c": value, "d": value}


def test_tables_of_this_repository_are_far_below_the_limit() -> None:
    text = max((file.read_text() for file in sweeps_dir().glob("*.yaml")), key=len)
    comment = "\n# " + "x" * 150_000
    assert plain_yaml.parse(text + comment) == plain_yaml.parse(text)


@pytest.mark.parametrize("name", BOMBS)
def test_table_that_expands_without_end_is_one_sentence(name: str) -> None:
    Path("mine.yaml").write_text(BOMBS[name])
    with pytest.raises(TableError, match=r"mine\.yaml cannot be read: "):
        read_table(Path("mine.yaml"))


COMPARISON = Comparison.model_construct()


def test_comparison_of_a_commit_is_read_as_the_table_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparisons, "_at_commit", lambda *_: BOMBS["lists"])
    assert comparisons._was_in_commit("1234567", Path("mine.yaml"), COMPARISON) is False
    assert yaml.safe_load("a: 1e-3") == {"a": "1e-3"}, "PyYAML alone reads another value"
