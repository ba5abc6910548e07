from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

from capsule_lab.commands.tables import read_table as read
from capsule_lab.tables import formats
from capsule_lab.tables.expand import STANDIN
from capsule_lab.tables.figure import error_against_time
from tests.helpers.tables import cells_of, entries_of, write_run, write_table

ROWS = [
    {"name": "em_1", "label": "EM 2018, 1 iteration", "overrides": ["data.source=auto"]},
    {
        "name": "em_3",
        "label": "EM 2018, 3 iterations",
        "overrides": ["data.source=auto", "routing.iterations=2"],
    },
    {"name": "cnn", "label": "a CNN", "overrides": ["data.source=auto", "routing.iterations=1"]},
    {"name": "theirs", "published": 1.0},
]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAPSULE_LAB_RUNS", str(tmp_path / "runs"))
    return write_table(tmp_path, rows=ROWS)


def points(axis: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """Seconds and errors of the drawn points, by label."""
    found = {}
    _, labels = axis.get_legend_handles_labels()
    for bar, label in zip(axis.containers, labels, strict=True):
        seconds, errors = bar[0].get_data()
        found[label] = (list(seconds), list(errors))
    return found


def texts(found: list[Any]) -> list[str]:
    return [each.get_text() for each in found]


def test_row_is_a_point_and_iterations_of_a_row_share_a_line(file: Path) -> None:
    errors = [4.0, 6.0, 3.0, 3.0, 9.0, 9.0]
    times = [10, 30, 40, 40, 5, 5]
    for cell, error, seconds in zip(cells_of(file), errors, times, strict=True):
        write_run(cell, error=error, training_cpu_seconds=seconds)
    figure = error_against_time(entries_of(file))
    (axis,) = figure.axes
    (legend,) = figure.legends
    assert points(axis) == {"EM 2018": ([20, 40], [5, 3]), "a CNN": ([5], [9])}
    assert texts(axis.texts) == ["1", "3"]
    assert texts(legend.get_texts()) == ["EM 2018", "a CNN"]
    assert "processor" in axis.get_xlabel()
    assert axis.get_xlim() == (0, pytest.approx(1.05 * 40)), "no point lies on the frame"
    colours = {line.get_color() for line, *_ in axis.containers}
    assert len(colours) == 2


def test_rows_whose_labels_share_no_start_have_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPSULE_LAB_RUNS", str(tmp_path / "runs"))
    rows = [
        {"name": "capsules_4", "label": "4 capsules", "overrides": ["data.batch_size=4"]},
        {"name": "capsules_2", "label": "2 capsules", "overrides": ["data.batch_size=2"]},
    ]
    file = write_table(tmp_path, rows=rows)
    for cell in cells_of(file):
        write_run(cell, error=1.0)
    figure = error_against_time(entries_of(file))
    assert texts(figure.legends[0].get_texts()) == ["capsules"]


def test_standins_are_drawn_in_a_panel_of_their_own(file: Path) -> None:
    standin = {"source": "standin", "name": "bundled digits"}
    for cell in cells_of(file):
        write_run(cell, error=1.0, training_cpu_seconds=None)
    for cell in cells_of(file, [STANDIN]):
        write_run(cell, error=1.0, training_cpu_seconds=None, provenance=standin)
    figure = error_against_time(entries_of(file))
    of_real_data, of_standin = figure.axes
    assert of_real_data.get_title() == "error"
    assert of_standin.get_title() == "error, stand-in"
    for axis in figure.axes:
        assert axis.get_xlabel() == "seconds, training"
    assert points(of_standin)["a CNN"] == ([90], [1])


def test_runs_on_different_hardware_are_not_drawn(file: Path) -> None:
    hardware = {"em_1": "a machine", "em_3": "a machine", "cnn": "another machine"}
    for cell in cells_of(file):
        write_run(cell, hardware=hardware[cell.row.name])
    assert error_against_time(entries_of(file)) is None


@pytest.mark.whole
def test_figure_needs_two_rows(file: Path) -> None:
    table = read(file)
    first, *_, last = cells_of(file)
    write_run(first)
    entries = entries_of(file)
    page = formats.as_page(table, entries, "make report")
    assert error_against_time(entries) is None
    assert "Error against time" not in page
    write_run(last)
    entries = entries_of(file)
    costs = error_against_time(entries)
    page = formats.as_page(table, entries, "make report", costs)
    assert '<h2>Error against time</h2>\n<figure><img src="data:image/svg+xml;base64,' in page
