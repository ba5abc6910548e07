"""smallNORB's file format: written as published, read back exactly, refused in a message when not whole.

That whole files are written as published is tested by their MD5 in ``standins/test_toynorb_files.py``.
"""

import gzip
import struct
from itertools import product

import numpy as np
import pytest

from capsule_lab.data.formats.binary_matrix import read_matrix, write_matrix
from capsule_lab.errors import DataError

CUBE = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
BYTES = struct.pack("<5i", 0x1E3D4C55, 3, 2, 3, 4) + CUBE.tobytes()


def test_header_of_four_dimensions_is_that_of_the_real_images(tmp_path):
    """The first bytes of the real images, as published."""
    write_matrix(tmp_path / "a.mat", np.zeros((3, 2, 96, 96), np.uint8))
    published = "554C3D1E 04000000 EC5E0000 02000000 60000000 60000000"
    assert (tmp_path / "a.mat").read_bytes()[:24] == bytes.fromhex(
        published.replace("EC5E", "0300")
    )


@pytest.mark.parametrize("suffix", [".mat", ".mat.gz"])
def test_matrix_is_read_back_as_written(tmp_path, suffix):
    kinds = ["u1", "i2", "i4", "f4", "f8", ">i4", ">f8"]
    shapes = [(7,), (3, 4), (2, 3, 4), (2, 2, 3, 5), (0,), (0, 2, 3, 3)]
    strided = np.arange(60, dtype=np.int32).reshape(3, 4, 5).transpose(2, 0, 1)[::2]
    path = tmp_path / f"matrix{suffix}"
    arrays = [
        np.arange(np.prod(shape)).reshape(shape).astype(kind)
        for kind, shape in product(kinds, shapes)
    ]
    for array in (*arrays, strided):
        write_matrix(path, array)
        read = read_matrix(path)
        assert read.dtype == array.dtype.newbyteorder("<")
        assert read.shape == array.shape
        np.testing.assert_array_equal(read, array)
        assert not read.flags.writeable
        assert isinstance(read, np.memmap) is (suffix == ".mat" and array.size > 0), (
            "a .mat is mapped, not loaded"
        )
        del read
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


BROKEN = {
    "truncated": BYTES[:-1],
    "long": BYTES + b"\0",
    "header": BYTES[:19],
    "empty": b"",
    "web": b"<!DOCTYPE html><html>",
    "packed": struct.pack("<5i", 0x1E3D4C52, 3, 2, 3, 4),
    "dimensions": struct.pack("<2i", 0x1E3D4C55, 2_000_000_000),
    "negative": struct.pack("<5i", 0x1E3D4C55, 3, 2, -3, 4) + bytes(24),
    "to infer": struct.pack("<5i", 0x1E3D4C55, 3, 2, -1, 4) + bytes(24),
    "huge": struct.pack("<5i", 0x1E3D4C55, 3, 2**31 - 1, 2**31 - 1, 4),
    "archive without .gz": gzip.compress(BYTES),
}
BROKEN_ARCHIVES = {
    "not compressed": BYTES,
    "truncated archive": gzip.compress(BYTES)[:-1],
    "checksum": gzip.compress(BYTES)[:-8] + bytes(8),
    "corrupt": gzip.compress(BYTES)[:10] + b"\xff" * 30,
}


def test_damaged_or_missing_file_is_refused_with_one_message(tmp_path):
    files = [("a.mat", content, kind) for kind, content in BROKEN.items()]
    files += [
        ("a.mat.gz", gzip.compress(content), kind) for kind, content in BROKEN.items() if content
    ]
    files += [("a.mat.gz", content, kind) for kind, content in BROKEN_ARCHIVES.items()]
    files += [("no.mat", None, "No such file"), ("no.mat.gz", None, "No such file")]
    for name, content, kind in files:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        message = r"^[^\n]*cannot be read \([^\n]*\); expected a complete binary matrix [^\n]*: replace[^\n]*$"
        with pytest.raises(DataError, match=message) as caught:
            read_matrix(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path / name)), kind
