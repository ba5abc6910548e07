"""The contact sheet of toys."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from capsule_lab.data.standins.toynorb.catalogue import toy_sheet

CATEGORIES = ("animal", "car")
SIZE = 8


def images(rows: int, columns: int) -> np.ndarray:
    """Each of a grey of its own."""
    greys = np.arange(rows * columns, dtype=np.uint8).reshape(rows, columns, 1, 1)
    return np.broadcast_to(greys, (rows, columns, SIZE, SIZE))


@pytest.fixture
def sheet() -> Figure:
    return toy_sheet(
        images(2, 10), images(3, 18), images(1, 6), categories=CATEGORIES, training=(4, 6, 7, 8, 9), title="toys"
    )


def test_blocks_have_names(sheet: Figure) -> None:
    for block, name in [(0, "instance"), (1, "azimuth"), (2, "lighting")]:
        assert len(sheet.axes) == 3
        assert sheet.axes[block].get_title(loc="left") == name


def test_columns_are_captioned(sheet: Figure) -> None:
    for block, captions in [
        (0, [f"{i} {'train' if i in (4, 6, 7, 8, 9) else 'test'}" for i in range(10)]),
        (1, [f"{20 * i}°" for i in range(18)]),
        (2, list("012345")),
    ]:
        assert [label.get_text() for label in sheet.axes[block].get_xticklabels()] == captions


def test_rows_of_toys_are_captioned(sheet: Figure) -> None:
    assert [label.get_text() for label in sheet.axes[0].get_yticklabels()] == list(CATEGORIES)
    assert sheet.get_suptitle() == "toys"


def test_every_image_is_under_its_caption(sheet: Figure) -> None:
    for block, rows, columns in [(0, 2, 10), (1, 3, 18), (2, 1, 6)]:
        (shown,) = sheet.axes[block].images
        mosaic = np.asarray(shown.get_array())
        middles = [round(float(x)) for x in sheet.axes[block].get_xticks()]
        for row in range(rows):
            assert mosaic[row * (SIZE + 2) + SIZE // 2, middles].tolist() == list(
                range(row * columns, (row + 1) * columns)
            )
        assert (mosaic == 255).any()


def test_lightings_are_shown_as_large_as_toys(sheet: Figure) -> None:
    widths = [np.asarray(axes.images[0].get_array()).shape[1] for axes in sheet.axes]
    assert widths[2] == widths[0]


def test_sheet_is_drawn(sheet: Figure, tmp_path: Path) -> None:
    sheet.savefig(tmp_path / "sheet.png")
    assert matplotlib.image.imread(tmp_path / "sheet.png")[..., :3].std() > 0
