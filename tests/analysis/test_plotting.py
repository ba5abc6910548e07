from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.analysis import plotting
from capsule_lab.analysis.plotting import (
    Column,
    Group,
    add_heading,
    image_rows,
    note_on_decoder,
    picture_grid,
)
from tests.helpers.fakes import captions, colours, picture_at, row_names, texts

SHAPE = (30, 20)
ROWS = ("upper", "lower")


def plain(value: float, channels: int = 1) -> Tensor:
    return torch.full((channels, *SHAPE), value)


@pytest.fixture
def grid() -> Figure:
    """Three groups, the middle one empty; every picture has another grey."""
    greys = [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]
    columns = [
        Column(f"column {n}", [plain(grey) for grey in each]) for n, each in enumerate(greys)
    ]
    red = columns[2]._replace(colour="red")
    return picture_grid(
        [Group("one", columns[:2]), Group("nothing", []), Group("two", [red])],
        ROWS,
        title="title",
        note="note",
    )


def test_pictures_and_texts_are_there(grid: Figure) -> None:
    for row, column, grey in [(0, 0, 0.1), (1, 0, 0.2), (0, 1, 0.3), (1, 2, 0.6)]:
        np.testing.assert_allclose(picture_at(grid, row, column, SHAPE), 1 - grey, rtol=1e-6)
    assert captions(grid) == ["column 0", "column 1", "column 2"]
    assert texts(grid) == ["one", "two", "note"]
    assert row_names(grid) == list(ROWS)
    assert grid.get_suptitle() == "title"
    assert colours(grid) == ["black", "black", "red"]
    first, second, third = (float(x) for x in grid.axes[0].get_xticks())
    assert third - second > second - first > SHAPE[1], "groups are apart"
    frames = {(frame.get_x() + 0.5, frame.get_y() + 0.5) for frame in grid.axes[0].patches}
    lefts, tops = (
        [float(each) for each in get()]
        for get in (grid.axes[0].get_xticks, grid.axes[0].get_yticks)
    )
    assert frames == {(x - (SHAPE[1] - 1) / 2, y - (SHAPE[0] - 1) / 2) for x in lefts for y in tops}
    down, across = np.asarray(grid.axes[0].images[0].get_array()).shape[:2]
    width, height = np.array(grid.axes[0].get_position().bounds[2:]) * grid.get_size_inches()
    assert width / across == pytest.approx(height / down), "pixels are square"


def test_heading_stands_above_and_leaves_the_pictures_as_they_are(grid: Figure) -> None:
    def inches() -> np.ndarray:
        return np.array(grid.axes[0].get_position().bounds) * np.tile(grid.get_size_inches(), 2)

    before, (width, height) = inches(), grid.get_size_inches()
    add_heading(grid, "run: images of data")
    assert grid.get_suptitle().replace("\n", " ") == "run: images of data title"
    np.testing.assert_allclose(inches(), before)
    assert grid.get_size_inches()[0] == width
    assert grid.get_size_inches()[1] > height + 0.1


def test_note_on_a_decoder_that_draws_nothing_yet() -> None:
    for decoded, note in [
        (0.5 + 0.05 * torch.rand(4, 1, 8, 8), "nearly one grey"),
        (torch.rand(1, 1, 8, 8).expand(4, -1, -1, -1), "nearly the same"),
        (torch.rand(4, 1, 8, 8), ""),
        (torch.rand(1, 1, 8, 8), ""),
    ]:
        assert bool(note_on_decoder(decoded)) == bool(note)
        assert note in note_on_decoder(decoded)


def test_labels_of_a_logarithmic_axis_are_plain_and_few_over_many_decades() -> None:
    for lowest, many in ((0.05, True), (1e-7, False)):
        figure = Figure()
        axis = figure.subplots()
        axis.plot([1, 2], [lowest, 1])
        plotting.label_log_axis(axis)
        figure.draw_without_rendering()
        assert "0.1" in [label.get_text() for label in axis.get_yticklabels()]
        assert any(label.get_text() for label in axis.get_yticklabels(minor=True)) == many


def test_colours_of_pictures() -> None:
    for picture, expected in [
        (plain(0.25), (0.75, 0.75, 0.75)),
        (torch.cat([plain(0.25), plain(1.0)]), (0.75, 0.75, 0.75)),  # stereo
        (torch.cat([plain(0.25), plain(0.5), plain(0.0)]), (0.25, 0.5, 0)),
        (plain(1.5), (0, 0, 0)),
        (plain(-3.0), (1, 1, 1)),
        (plain(2.0, 3), (1, 1, 1)),
        (plain(0.25).bfloat16(), (0.75, 0.75, 0.75)),
    ]:
        figure = picture_grid([Group("", [Column("", [picture])])], [""])
        np.testing.assert_allclose(picture_at(figure, 0, 0, SHAPE)[3, 4], expected)


def test_no_text_is_cut_off_or_overlaps(tmp_path: Path) -> None:
    long = "L:(4,5)\nR:(4,5)(P)"
    for columns, caption, width in (
        (1, long, 96),
        (2, "4 → 4", 28),
        (16, long, 28),
        (16, "4 → 4", 96),
    ):
        column = Column(caption, [torch.rand(1, width, width)] * 2)
        groups = [Group("overlapping most", [column] * columns), Group("not recognised", [column])]
        rows = ["class 6, dimension 12", "input"]
        figure = picture_grid(
            groups,
            rows,
            title="A title of some length",
            note="First line.\nA second one, " + "long " * 20,
        )
        FigureCanvasAgg(figure).draw()
        axes = figure.axes[0]
        labels = [*axes.get_xticklabels(), *axes.get_yticklabels()]
        boxes = [text.get_window_extent() for text in (*labels, *axes.texts, *figure.texts)]
        assert min(box.x0 for box in boxes) >= 0
        assert min(box.y0 for box in boxes) >= 0
        assert max(box.x1 for box in boxes) <= figure.bbox.x1
        assert max(box.y1 for box in boxes) <= figure.bbox.y1
        assert [
            (a, b) for a, box in enumerate(boxes) for b in range(a) if box.overlaps(boxes[b])
        ] == []
        figure.savefig(tmp_path / "grid.png")
        assert matplotlib.image.imread(tmp_path / "grid.png")[..., :3].std() > 0


def test_rows_in_the_range_of_the_last() -> None:
    standardised = torch.tensor([-1.0, 3.0]).view(1, 1, 1, 2).expand(2, 1, 4, 2)
    figure = image_rows(
        {"first": standardised, "drawn": torch.full((2, 1, 4, 2), 7.0), "second": standardised}
    )
    (image,) = figure.axes[0].images
    shown = np.asarray(image.get_array())
    assert shown[0, 0, 0] == 1  # dark on white: the smallest is white
    assert shown[0, 1, 0] == 0
    assert shown[5, 0, 0] == 0  # beyond the range
    assert [each.get_text() for each in figure.axes[0].get_yticklabels()] == [
        "first",
        "drawn",
        "second",
    ]
