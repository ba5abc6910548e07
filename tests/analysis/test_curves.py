"""Curves that cannot be read count as missing; what is drawn of whole ones is in tests/commands/test_figures.py."""

import hashlib
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from capsule_lab.analysis import curves
from capsule_lab.runs.files import save_figure
from tests.helpers.damage import damages

CONTENT = b"epoch,step,train/loss,val/loss\n0.0,3,,0.5\n0.0,3,0.25,\n1.0,7,,nan\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.csv"
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize("sha256", [None, SHA256])
def test_whole_file_is_read(sha256: str | None, metrics: Path) -> None:
    table = curves.read_curves(metrics, sha256)
    assert list(table["step"]) == [3, 3, 7]
    assert table.numbers("val/loss") == [0.5]


def test_missing_file_is_empty(tmp_path: Path) -> None:
    assert curves.read_curves(tmp_path / "missing.csv").empty


def test_damaged_file_counts_as_missing(metrics: Path, caplog: pytest.LogCaptureFixture) -> None:
    damaged = [content for name, content in damages(CONTENT) if name != "cut in half"]
    not_a_number = CONTENT.replace(b"0.25", b"0.2s")
    descending = CONTENT.replace(b"7", b"2")
    without_steps = b"a,b\n1,2\n"
    for content in [*damaged, not_a_number, descending, without_steps]:
        metrics.write_bytes(content)
        assert list(curves.figures(metrics)) == [], content
        assert f"{metrics} is damaged (" in caplog.messages[-1]


def test_run_without_curves_is_left_out(metrics: Path) -> None:
    figures = dict(curves.figures(metrics))
    assert [*figures] == ["curves"]
    missing = metrics.with_name("missing.csv")
    figure = curves.curves_of_runs({"whole": metrics, "missing": missing})
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["whole"]


def test_every_flipped_bit_is_found_by_the_checksum_of_a_finished_run(metrics: Path) -> None:
    for position in range(len(CONTENT)):
        damaged = bytearray(CONTENT)
        damaged[position] ^= 1 << position % 8
        metrics.write_bytes(damaged)
        assert curves.read_curves(metrics, SHA256).empty, position


def test_no_two_curves_look_the_same() -> None:
    looks = [curves.look(number) for number in range(176)]
    different = {tuple(look.values()) for look in looks}
    colours = {look["color"] for look in looks[:16]}
    assert len(different) == 176
    assert len(colours) == 16


@pytest.mark.parametrize("width", [4, 12])
def test_a_legend_is_whole(width: int) -> None:
    height = 3
    figure = Figure(figsize=(width, height), layout="constrained")
    axis = figure.add_subplot()
    for number in range(13):
        label = f"a routing of a long name (Author 2019), {number}"
        axis.plot([0, 1], [0, number], label=label)
    curves.legend_below(figure)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert 0 < box.x0 < box.x1 < figure.bbox.width
    assert box.y0 >= 0
    height_of_curves = axis.get_window_extent().height / figure.dpi
    assert height_of_curves > 0.4 * height


@pytest.mark.parametrize(
    "rows",
    [
        "step,train/loss,train/error\n1,inf,nan\n2,-inf,1e308\n",
        pytest.param("step,val/error,affine/error\n1,inf,nan\n", marks=pytest.mark.whole),
        "step,val/error,affine/error\n1,1e200,5\n",
        pytest.param(
            "step,val/activation_a,val/activation_std_a\n1,0.5,0.1\n", marks=pytest.mark.whole
        ),
        "step,val/activation_$\\frac{$,val/activation_std_$\\frac{$,val/dead_$\\frac{$\n1,0.5,0.1,1\n",
        "step,val/activation_\x01,val/activation_std_\x01,val/dead_\x01\n1,0.5,inf,1\n",
        "step,train/loss\n1e308,1\n",
        "step,train/loss\n-5,1\n",
        "step,train/loss\n1,1\ninf,2\n",
    ],
)
def test_numbers_and_columns_that_cannot_be_drawn_are_left_out(tmp_path: Path, rows: str) -> None:
    (tmp_path / "metrics.csv").write_text(rows)
    for name, figure in curves.figures(tmp_path / "metrics.csv"):
        save_figure(figure, tmp_path / f"{name}.png")


def test_curves_of_many_seeds_leave_room_for_the_panels(metrics: Path) -> None:
    """The legend of twenty seeds covered the panels, whose layout was given up."""
    figure = curves.curves_of_runs({f"seed {number}": metrics for number in range(20)})
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 20
    top = legend.get_window_extent().y1
    for axis in figure.axes:
        assert axis.get_window_extent().y0 > top
