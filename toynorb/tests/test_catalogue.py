from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from toynorb.catalogue import toy_sheet

SIZE = 8
TRAINING = (4, 6, 7, 8, 9)
INSTANCES = [
    "0 test", "1 test", "2 test", "3 test", "4 train", "5 test", "6 train", "7 train", "8 train", "9 train",
]  # fmt: skip
DEGREES = [
    "0°", "20°", "40°", "60°", "80°", "100°", "120°", "140°", "160°",
    "180°", "200°", "220°", "240°", "260°", "280°", "300°", "320°", "340°",
]  # fmt: skip


def images(rows: int, columns: int) -> np.ndarray:
    """Images of one grey each, numbered row by row."""
    greys = np.arange(rows * columns, dtype=np.uint8).reshape(rows, columns, 1, 1)
    return np.broadcast_to(greys, (rows, columns, SIZE, SIZE))


@pytest.fixture(scope="module")
def sheet() -> Figure:
    return toy_sheet(
        images(2, 10),
        images(3, 18),
        images(1, 6),
        categories=("animal", "car"),
        training=TRAINING,
        title="toys",
    )


def column_captions(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


@pytest.mark.parametrize(
    ("block", "title", "rows", "captions"),
    [
        (0, "instance", 2, INSTANCES),
        (1, "azimuth", 3, DEGREES),
        (2, "lighting", 1, ["0", "1", "2", "3", "4", "5"]),
    ],
)
def test_contact_sheet_shows_every_image_below_its_caption(
    sheet: Figure, block: int, title: str, rows: int, captions: list[str]
) -> None:
    axes = sheet.axes[block]
    assert axes.get_title(loc="left") == title
    assert column_captions(axes) == captions
    mosaic = np.asarray(axes.images[0].get_array())
    row_middles = np.arange(rows) * (SIZE + 2) + SIZE // 2
    column_middles = axes.get_xticks().round().astype(int)
    found = mosaic[np.ix_(row_middles, column_middles)]
    assert found.ravel().tolist() == list(range(rows * len(captions)))
    assert (mosaic == 255).any()


def test_contact_sheet_has_categories_and_a_title_and_can_be_saved(
    sheet: Figure, tmp_path: Path
) -> None:
    toys, _, lightings = sheet.axes
    assert [label.get_text() for label in toys.get_yticklabels()] == ["animal", "car"]
    assert sheet.get_suptitle() == "toys"
    toys_width = toys.images[0].get_array().shape[1]
    assert lightings.images[0].get_array().shape[1] == toys_width, "they have the same scale"
    sheet.savefig(tmp_path / "sheet.png")
    assert matplotlib.image.imread(tmp_path / "sheet.png")[..., :3].std() > 0
