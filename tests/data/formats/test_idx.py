"""IDX files, against torchvision's reader."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.datasets import mnist

from capsule_lab.data.formats.idx import read_idx
from capsule_lab.errors import DataError
from tests.helpers.mnist_files import ARRAYS, idx


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_read_as_torchvision_reads_them(tmp_path, name):
    (tmp_path / name).write_bytes(idx(ARRAYS[name]))
    read = mnist.read_image_file if "images" in name else mnist.read_label_file
    found = torch.from_numpy(read_idx(tmp_path / name, "MNIST", ARRAYS[name].shape[1:]))
    assert found.dtype == torch.uint8
    assert found.equal(read(str(tmp_path / name)).to(torch.uint8))


WHOLE = idx(np.zeros((3, 4), np.uint8))


BROKEN = {
    "empty": b"",
    "no header": WHOLE[:3],
    "no sizes": WHOLE[:9],
    "truncated": WHOLE[:-1],
    "too long": WHOLE + b"0",
    "web page": b"<html></html>",
    "floats": bytes([0, 0, 13, 1]) + WHOLE[4:],
    "negative": b"\0\0\x08\2\xff\xff\xff\xff" + WHOLE[8:],
    "another size": idx(np.zeros((3, 5), np.uint8)),
    "vector": idx(np.zeros(3, np.uint8)),
    "no dimensions": bytes([0, 0, 8, 0, 1]),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DataError, match=r"file cannot be read \(.+\); expected a file of MNIST: remove it"):
        read_idx(tmp_path / "file", "MNIST", (4,))
