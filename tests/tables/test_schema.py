"""What a table's file may say, and what the shipped ones do."""

from __future__ import annotations

from pathlib import Path

import pytest

from capsule_lab.build import build_without_weights
from capsule_lab.config import compose, conf_dir, sweeps_dir
from capsule_lab.errors import ConfigError, TableError
from capsule_lab.tables.cells import Cell, expand, verify
from capsule_lab.tables.schema import Published, chosen, read

SHIPPED = sorted(file.stem for file in sweeps_dir().glob("*.yaml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_cell_is_checked_and_built_without_weights(name: str) -> None:
    cells = expand(chosen(read(name), seeds=[0]))
    assert min(sum(p.numel() for p in _network(cell).parameters()) for cell in cells) > 10_000
    assert len({cell.fingerprint for cell in cells}) == len({cell.overrides for cell in cells})


def _network(cell: Cell):
    network = build_without_weights(verify(cell)).network
    assert {p.device.type for p in network.parameters()} == {"meta"}
    return network


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("word", ["Command:", "Cost:", "Expected:", "make sweep table={name}"])
def test_head_says_command_cost_and_expectation(name: str, word: str) -> None:
    head = read(name).head
    assert len([line for line in head.splitlines() if word.format(name=name) in line]) >= 1


PUBLISHED = {
    ("sabour2017_table1", "mnist"): [0.39, 0.34, 0.29, 0.35, 0.25],
    ("sabour2017_table1", "multimnist"): [8.1, None, 7.5, None, 5.2],
    ("sabour2017_affnist", "affnist"): [34, 21],
    ("sabour2017_routing_iterations", "mnist"): [0.29, None, 0.25, None, None],
    ("hinton2018_table1", "smallnorb"): [9.7, 2.2, 1.8, 3.9, 2.9, 2.6, 3.2, 3.2, 5.8, 5.2, 2.2, 4.5, 1.4, 2.56, 2.7],
    ("hinton2018_viewpoints", "familiar"): [3.7, 3.7, 4.3, 4.3],
    ("hinton2018_viewpoints", "novel"): [20, 13.5, 17.8, 12.3],
}


@pytest.mark.parametrize(("name", "column"), PUBLISHED, ids="/".join)
def test_published_values(name: str, column: str) -> None:
    found = [row.published.get(column) for row in read(name).rows]
    assert [value and value.mean for value in found] == PUBLISHED[name, column]


@pytest.mark.parametrize("deviations", [[None, 0.032, 0.011, 0.036, 0.005]])
def test_published_deviations(deviations: list[float | None]) -> None:
    assert [row.published["mnist"].std for row in read("sabour2017_table1").rows] == deviations


ROUTINGS = {file.stem for file in (conf_dir() / "routing").glob("*.yaml")} - {"none"}
COMPARED = read("routing_algorithms")


def test_rows_of_the_table_of_routings_are_routings() -> None:
    assert {row.name: row.overrides["smallnorb"] for row in COMPARED.rows}.items() <= {
        name: (f"routing={name}",) for name in ROUTINGS
    }.items()


@pytest.mark.parametrize("routing", sorted(ROUTINGS - {row.name for row in COMPARED.rows}))
def test_what_is_not_in_the_table_of_routings_is_refused_by_its_network(routing: str) -> None:
    with pytest.raises(ConfigError, match=r"^model: routing\.\w+ is .*; expected "):
        build_without_weights(compose("train", [*COMPARED.base, f"routing={routing}"]))


def test_rows_without_overrides_are_only_reported() -> None:
    reported = [row.name for row in read("hinton2018_table1").rows if not row.overrides]
    assert reported == ["several_crops", "ciresan2011", "sabour2017"]


def test_overrides_and_published_values_may_differ_by_column(table_file) -> None:
    row = {"name": "a", "overrides": {"x": ["a=1"], "y": ["a=2"]}, "published": {"y": [1, 0.5]}}
    (found,) = read(table_file(columns={"x": {}, "y": {"metric": "test/novel/error"}}, rows=[row])).rows
    assert found.overrides == {"x": ("a=1",), "y": ("a=2",)}
    assert found.published == {"y": Published(1.0, 0.5)}


def test_selection_keeps_the_order_and_the_rows_that_others_need() -> None:
    table = chosen(read("hinton2018_viewpoints"), rows=["capsules_azimuth"], columns=["novel"], seeds=[7])
    assert [row.name for row in table.rows] == ["cnn_azimuth", "capsules_azimuth"]
    assert ([column.name for column in table.columns], table.seeds) == (["novel"], (7,))


def test_one_row_and_one_seed_need_no_brackets() -> None:
    table = chosen(read("smoke"), rows="uniform", seeds=0)
    assert ([row.name for row in table.rows], table.seeds) == (["uniform"], (0,))


@pytest.mark.parametrize(
    ("selection", "sentence"),
    [
        ({"rows": ["dynamc"]}, r"rows: dynamc is not in smoke; did you mean dynamic\?"),
        ({"columns": ["x"]}, "columns: x is not in smoke"),
        ({"rows": "dynamc"}, r"rows: dynamc is not in smoke; did you mean dynamic\?"),
        ({"rows": []}, "rows is empty; expected some of "),
        ({"seeds": []}, r"seeds is \[\]; expected a list of whole numbers"),
        ({"seeds": -1}, r"seeds is \[-1\]; expected a list of whole numbers"),
        ({"seeds": [-1]}, r"seeds is \[-1\]; expected a list of whole numbers"),
        ({"seeds": ["a"]}, r"seeds is \['a'\]; expected a list of whole numbers"),
        ({"seeds": "a"}, "seeds is a; expected a list of whole numbers"),
    ],
    ids=str,
)
def test_wrong_selection_is_refused(selection, sentence: str) -> None:
    with pytest.raises(TableError, match=sentence):
        chosen(read("smoke"), **selection)


ROW = {"name": "a", "overrides": []}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"row": []}, "has row; did you mean rows?"),
        ({"rows": [{"name": "a", "overides": []}]}, "has overides; did you mean overrides?"),
        ({"rows": [{"overrides": []}]}, "a row has no name; expected one"),
        ({"rows": [{"name": "a", "overrides": ["seed"]}]}, "overrides are ['seed']; expected a list of key=value"),
        ({"rows": [{"name": "a", "overrides": {"x": []}}]}, "has x; Options: "),
        ({"rows": [{**ROW, "published": [1, 2, 3]}]}, "published is [1, 2, 3]; expected a number, or [mean,"),
        ({"rows": [ROW, ROW]}, "has two rows of one name among a, a"),
        ({"rows": [{**ROW, "takes": {"seed": ["b", "test/error"]}}, {**ROW, "name": "b"}]}, "takes seed from b; exp"),
        ({"rows": [{**ROW, "takes": {"seed": "b"}}]}, "takes is {'seed': 'b'}; expected key: [row, metric]"),
        ({"rows": {"a": []}}, "rows is {'a': []}; expected a list"),
        ({"rows": []}, "has no rows; expected some"),
        ({"rows": [{"name": "a (b), c"}]}, "is named 'a (b), c'; expected letters, digits"),
        ({"columns": ["a"]}, "columns is ['a']; expected a mapping"),
        ({"seeds": 3}, "seeds is 3; expected a list of whole numbers"),
        ({"seeds": ["a"]}, "seeds is ['a']; expected a list of whole numbers"),
        ({"base": ["seed=1"]}, "base has seed=1; leave it out, seeds=[…] are those of a table"),
        ({"rows": [{"name": "a", "overrides": ["+ckpt=x"]}]}, "has +ckpt=x; leave it out, a table knows where"),
        ({"columns": {"x": {"metrics": "a"}}}, "has metrics; did you mean metric?"),
        ({"base": "seed=1"}, "base: overrides are seed=1"),
    ],
    ids=str,
)
def test_wrong_file_is_refused(table_file, content, sentence: str) -> None:
    with pytest.raises(TableError) as caught:
        read(table_file(**content))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("- 1", "holds list; expected"), ("a: [", "cannot be read: "), ("paper: p\nseeds: [0]", "has no rows")],
)
def test_file_that_is_no_table_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(TableError, match=sentence):
        read(tmp_path / "mine.yaml")


@pytest.mark.parametrize("name", ["smok", "nowhere.yaml"])
def test_table_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(TableError, match=rf"table={name} does not exist; .*smoke.*, or a \.yaml file"):
        read(name)


def test_table_that_is_not_named_is_asked_for() -> None:
    with pytest.raises(TableError, match=r"^table is missing; expected table=<name>, one of .*smoke, or a \.yaml file"):
        read(None)
