from pathlib import Path

import matplotlib.image
import numpy as np

from toynorb.catalogue import toy_sheet

SIZE = 8


def images(rows: int, columns: int) -> np.ndarray:
    """Each of a grey of its own."""
    greys = np.arange(rows * columns, dtype=np.uint8).reshape(rows, columns, 1, 1)
    return np.broadcast_to(greys, (rows, columns, SIZE, SIZE))


def test_contact_sheet_shows_every_image_below_its_caption(tmp_path: Path) -> None:
    blocks = [
        ("instance", 2, [f"{i} {'train' if i in (4, 6, 7, 8, 9) else 'test'}" for i in range(10)]),
        ("azimuth", 3, [f"{20 * i}°" for i in range(18)]),
        ("lighting", 1, list("012345")),
    ]
    greys = [images(rows, len(captions)) for _, rows, captions in blocks]
    sheet = toy_sheet(*greys, categories=("animal", "car"), training=(4, 6, 7, 8, 9), title="toys")
    for axes, (name, rows, captions) in zip(sheet.axes, blocks, strict=True):
        mosaic = np.asarray(axes.images[0].get_array())
        middles = [round(float(x)) for x in axes.get_xticks()]
        assert axes.get_title(loc="left") == name
        assert [label.get_text() for label in axes.get_xticklabels()] == captions
        found = mosaic[np.arange(rows) * (SIZE + 2) + SIZE // 2][:, middles]
        assert found.ravel().tolist() == list(range(rows * len(captions)))
        assert (mosaic == 255).any()
    assert [label.get_text() for label in sheet.axes[0].get_yticklabels()] == ["animal", "car"]
    assert sheet.get_suptitle() == "toys"
    widths = [axes.images[0].get_array().shape[1] for axes in sheet.axes]
    assert widths[2] == widths[0], "lightings are shown as large as toys"
    sheet.savefig(tmp_path / "sheet.png")
    assert matplotlib.image.imread(tmp_path / "sheet.png")[..., :3].std() > 0
