import itertools
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from capsule_lab.analysis import plotting
from capsule_lab.analysis.plotting import (
    Column,
    Group,
    add_heading,
    folded_grid,
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
    columns = [
        Column("column 0", [plain(0.1), plain(0.2)]),
        Column("column 1", [plain(0.3), plain(0.4)]),
        Column("column 2", [plain(0.5), plain(0.6)], colour="red"),
    ]
    groups = [
        Group("one", columns[:2]),
        Group("nothing", []),
        Group("two", columns[2:]),
    ]
    return picture_grid(groups, ROWS, title="title", note="note")


def frames_of(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def picture_bounds(figure: Figure) -> np.ndarray:
    """Left, bottom, width and height in inches of each picture, after drawing, column by column."""
    figure.draw_without_rendering()
    bounds = []
    for axes in figure.axes:
        bounds += [frame.get_window_extent().bounds for frame in frames_of(axes)]
    return np.array(bounds) / figure.dpi


def test_pictures_and_texts_are_there(grid: Figure) -> None:
    greys = {(0, 0): 0.1, (1, 0): 0.2, (0, 1): 0.3, (1, 2): 0.6}
    for (row, column), grey in greys.items():
        picture = picture_at(grid, row, column)
        np.testing.assert_allclose(picture, 1 - grey, rtol=1e-6)
    assert captions(grid) == ["column 0", "column 1", "column 2"]
    assert texts(grid) == ["one", "two", "note"]
    assert row_names(grid) == list(ROWS)
    assert grid.get_suptitle() == "title"
    assert colours(grid) == ["black", "black", "red"]


def test_pictures_are_framed_aligned_and_of_one_size(grid: Figure) -> None:
    for axes in grid.axes:
        for image, frame in zip(axes.images, frames_of(axes), strict=True):
            left, right, bottom, top = image.get_extent()
            extents = frame.get_bbox().extents
            assert extents == pytest.approx([left, top, right, bottom])
    by_column = picture_bounds(grid).reshape(3, 2, 4)
    lefts, bottoms, widths, heights = by_column.transpose(2, 0, 1)
    ratio = SHAPE[0] / SHAPE[1]
    assert widths == pytest.approx(np.full((3, 2), widths[0, 0]))
    assert heights == pytest.approx(ratio * widths), "pixels are square"
    assert lefts[:, 0] == pytest.approx(lefts[:, 1])
    assert bottoms == pytest.approx(np.tile(bottoms[0], (3, 1)))
    first, second, third = lefts[:, 0]
    assert third - second > second - first + 0.2, "groups are apart"
    assert second - first == pytest.approx(plotting._CELL, rel=0.15)


def test_heading_stands_above_and_leaves_the_pictures_as_they_are(grid: Figure) -> None:
    before = picture_bounds(grid)
    width, height = grid.get_size_inches()
    add_heading(grid, "run: images of data")
    title = grid.get_suptitle().replace("\n", " ")
    assert title == "run: images of data title"
    new_width, new_height = grid.get_size_inches()
    assert new_width == width
    assert new_height > height + 0.1
    after = picture_bounds(grid)
    np.testing.assert_allclose(after[:, 2:], before[:, 2:], rtol=0.1)


ONE_GREY = 0.5 + 0.05 * torch.rand(4, 1, 8, 8)
ALIKE = torch.rand(1, 1, 8, 8).expand(4, -1, -1, -1)


@pytest.mark.parametrize(
    ("decoded", "expected"),
    [
        (ONE_GREY, "nearly one grey"),
        (ALIKE, "nearly the same"),
        (torch.rand(4, 1, 8, 8), ""),
        (torch.rand(1, 1, 8, 8), ""),
    ],
)
def test_note_on_a_decoder_that_draws_nothing_yet(decoded: Tensor, expected: str) -> None:
    note = note_on_decoder(decoded)
    assert bool(note) == bool(expected)
    assert expected in note


@pytest.mark.parametrize(("lowest", "many"), [(0.05, True), (1e-7, False)])
def test_labels_of_a_logarithmic_axis_are_plain_and_few_over_many_decades(
    lowest: float, many: bool
) -> None:
    figure = Figure()
    axis = figure.subplots()
    axis.plot([1, 2], [lowest, 1])
    plotting.label_log_axis(axis)
    figure.draw_without_rendering()
    major = [label.get_text() for label in axis.get_yticklabels()]
    minor = [label.get_text() for label in axis.get_yticklabels(minor=True)]
    assert "0.1" in major
    assert any(minor) == many


STEREO = torch.cat([plain(0.25), plain(1.0)])
COLOURED = torch.cat([plain(0.25), plain(0.5), plain(0.0)])


@pytest.mark.parametrize(
    ("picture", "expected"),
    [
        (plain(0.25), (0.75, 0.75, 0.75)),
        (STEREO, (0.75, 0.75, 0.75)),
        (COLOURED, (0.25, 0.5, 0)),
        (plain(1.5), (0, 0, 0)),
        (plain(-3.0), (1, 1, 1)),
        (plain(2.0, 3), (1, 1, 1)),
        (plain(0.25).bfloat16(), (0.75, 0.75, 0.75)),
    ],
)
def test_colours_of_pictures(picture: Tensor, expected: tuple[float, ...]) -> None:
    group = Group("", [Column("", [picture])])
    figure = picture_grid([group], [""])
    pixel = picture_at(figure, 0, 0)[3, 4]
    np.testing.assert_allclose(pixel, expected)


LONG = "L:(4,5)\nR:(4,5)(P)"
NOTE = "First line.\nA second one, " + "long " * 20


@pytest.mark.parametrize(
    ("columns", "caption", "shape", "below"),
    [
        pytest.param(1, LONG, (96, 96), "", marks=pytest.mark.whole),
        pytest.param(2, "4 → 4", (28, 28), "", marks=pytest.mark.whole),
        (16, LONG, (28, 28), ""),
        pytest.param(16, "4 → 4", (96, 96), "", marks=pytest.mark.whole),
        pytest.param(3, "4 → 4", (28, 28), "trousers", marks=pytest.mark.whole),
        (3, LONG, (20, 60), "true bag\npredicted ankle boot"),
        (1, "", (60, 20), "as 5, 88 %"),
    ],
)
@pytest.mark.parametrize(
    "heading",
    ["a run with a long name: 128 images of the data", pytest.param("", marks=pytest.mark.whole)],
)
@pytest.mark.parametrize("stacked", [False, True])
def test_no_text_is_cut_off_or_overlaps(
    tmp_path: Path,
    columns: int,
    caption: str,
    shape: tuple[int, int],
    below: str,
    heading: str,
    stacked: bool,
) -> None:
    pictures = [torch.rand(1, *shape)] * 2
    column = Column(caption, pictures, below=[(below, "red"), (below, "black")])
    groups = [
        Group("overlapping most", [column] * columns),
        Group("not recognised", [column]),
    ]
    rows = ["class 6, dimension 12", "input"]
    title = "A title of some length"
    figure = picture_grid(groups, rows, title=title, note=NOTE, stacked=stacked)
    if heading:
        add_heading(figure, heading)
    figure.savefig(tmp_path / "grid.png")
    drawn = matplotlib.image.imread(tmp_path / "grid.png")
    assert drawn[..., :3].std() > 0

    labels = [*figure.texts]
    frames: list[Rectangle] = []
    for axes in figure.axes:
        labels += [axes.title, *axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels()]
        frames += frames_of(axes)
    boxes = [label.get_window_extent() for label in labels if label.get_text()]
    boxes += [frame.get_window_extent() for frame in frames]
    for box in boxes:
        assert 0 <= box.x0 <= box.x1 <= figure.bbox.x1
        assert 0 <= box.y0 <= box.y1 <= figure.bbox.y1
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)


@pytest.mark.parametrize(
    ("columns", "blocks"), [(1, [1]), (3, [3]), (13, [7, 6]), (16, [8, 8]), (36, [9] * 4)]
)
def test_many_columns_are_folded_into_blocks_of_equal_pictures(
    columns: int, blocks: list[int]
) -> None:
    greys = np.arange(columns) / columns
    folded = [Column(f"{grey:.2f}", [plain(grey), plain(grey)]) for grey in greys]
    figure = folded_grid(folded, ROWS, note="note")
    assert [len(axes.get_xticks()) for axes in figure.axes] == blocks
    assert captions(figure) == [column.caption for column in folded]
    for number, grey in enumerate(greys):
        np.testing.assert_allclose(picture_at(figure, 1, number), 1 - grey, rtol=1e-6)
    for axes in figure.axes:
        assert [label.get_text() for label in axes.get_yticklabels()] == list(ROWS)
    sizes = picture_bounds(figure)[:, 2:]
    np.testing.assert_allclose(sizes, np.tile(sizes[0], (len(sizes), 1)), rtol=1e-3)
    width, height = figure.get_size_inches()
    assert columns < 9 or width < 2 * height


def test_rows_in_the_range_of_the_last() -> None:
    standardised = torch.tensor([-1.0, 3.0]).view(1, 1, 1, 2).expand(2, 1, 4, 2)
    beyond = torch.full((2, 1, 4, 2), 7.0)
    figure = image_rows({"first": standardised, "drawn": beyond, "second": standardised})
    first = picture_at(figure, 0, 0)
    assert first[0, 0, 0] == 1  # dark on white: the smallest is white
    assert first[0, 1, 0] == 0
    assert picture_at(figure, 1, 0)[0, 0, 0] == 0  # beyond the range
    assert row_names(figure) == ["first", "drawn", "second"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.25, 0.5, 0.75], [0.25, 0.5, 0.75]), ([-1.0, 0.0, 1.0], [0.0, 0.5, 1.0])],
    ids=["in [0, 1]", "standardised"],
)
def test_an_image_of_three_channels_is_drawn_in_colour(
    values: list[float], expected: list[float]
) -> None:
    colour = torch.tensor(values).view(3, 1, 1)
    axis = Figure().subplots()
    plotting.draw_image(axis, colour.expand(3, *SHAPE))
    (shown,) = axis.images
    drawn = np.asarray(shown.get_array())
    assert drawn.shape == (*SHAPE, 3)
    np.testing.assert_allclose(drawn[0, 0], expected, atol=1e-6)


def test_an_image_of_one_channel_is_drawn_dark_on_white() -> None:
    axis = Figure().subplots()
    plotting.draw_image(axis, torch.tensor([[[0.0, 1.0]]]))
    (shown,) = axis.images
    colours = shown.to_rgba(shown.get_array())
    light, dark = colours[0, :, 0]
    assert light > dark
