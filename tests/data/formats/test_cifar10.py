"""CIFAR10's files as Python 2 wrote them; broken ones are in ``tests/data/test_sources.py``."""

from __future__ import annotations

import numpy as np
import pytest

from capsule_lab.data.formats.cifar10 import read_batch
from capsule_lab.errors import DataError
from tests.helpers.cifar10_files import array, pickled, text


def test_pixels_are_red_then_green_then_blue_row_by_row(tmp_path):
    counted = (np.arange(3072) // 16).astype(np.uint8)[None]  # half a row each: 0 to 191
    (tmp_path / "test_batch").write_bytes(pickled(array(counted), [3]))
    ((image,), _) = read_batch(tmp_path / "test_batch")
    assert [int(image[place]) for place in [(0, 0, 0), (0, 0, 16), (0, 1, 0), (1, 0, 0), (2, 31, 31)]] == [
        0, 1, 2, 64, 191
    ]  # fmt: skip


def test_a_file_runs_nothing(tmp_path):
    for call in [b"cposix\nsystem\n", b"c__builtin__\neval\n", b"cnumpy.core.multiarray\nscalar\n"]:
        written, path = tmp_path / "written", tmp_path / "test_batch"
        path.write_bytes(b"\x80\x02" + call + text(b"touch " + str(written).encode()) + b"\x85R.")
        with pytest.raises(DataError, match=r"it asks for .+, and may ask for numpy's arrays only"):
            read_batch(path)
        assert not written.exists()
