"""smallNORB's file format: written as published, read back exactly, refused in a message when not whole.

That whole files are written as published is tested by their MD5 in ``standins/test_toynorb_files.py``.
"""

import gzip
import struct

import numpy as np
import pytest

from capsule_lab.data.formats.binary_matrix import read_matrix, write_matrix
from capsule_lab.errors import DataError

CUBE = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
BYTES = struct.pack("<5i", 0x1E3D4C55, 3, 2, 3, 4) + CUBE.tobytes()


def test_header_of_four_dimensions_is_that_of_the_real_images(tmp_path):
    """The first bytes of the real images, as published, with 3 images in place of 24,300."""
    path = tmp_path / "a.mat"
    write_matrix(path, np.zeros((3, 2, 96, 96), np.uint8))
    header = path.read_bytes()[:24]
    published = "554C3D1E 04000000 03000000 02000000 60000000 60000000"
    assert header == bytes.fromhex(published)


SHAPES = [(7,), (3, 4), (2, 3, 4), (2, 2, 3, 5), (0,), (0, 2, 3, 3)]


@pytest.mark.parametrize("suffix", [".mat", ".mat.gz"])
@pytest.mark.parametrize("kind", ["u1", "i2", "i4", "f4", "f8", ">i4", ">f8"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matrix_is_read_back_as_written(tmp_path, shape, kind, suffix):
    numbers = np.arange(np.prod(shape)).reshape(shape)
    assert_read_back(tmp_path, numbers.astype(kind), suffix)


@pytest.mark.parametrize("suffix", [".mat", ".mat.gz"])
def test_matrix_with_gaps_in_memory_is_read_back_as_written(tmp_path, suffix):
    numbers = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    strided = numbers.transpose(2, 0, 1)[::2]
    assert_read_back(tmp_path, strided, suffix)


def assert_read_back(folder, array, suffix):
    path = folder / f"matrix{suffix}"
    write_matrix(path, array)
    read = read_matrix(path)
    assert read.dtype == array.dtype.newbyteorder("<")
    assert read.shape == array.shape
    np.testing.assert_array_equal(read, array)
    assert not read.flags.writeable
    is_mapped = suffix == ".mat" and array.size > 0
    assert isinstance(read, np.memmap) is is_mapped, "a .mat is mapped, not loaded"
    assert [*folder.iterdir()] == [path]


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


def assert_refused(path):
    message = r"^[^\n]*cannot be read \([^\n]*\); expected a complete binary matrix [^\n]*: replace[^\n]*$"
    with pytest.raises(DataError, match=message) as caught:
        read_matrix(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("kind", BROKEN)
def test_damaged_file_is_refused_with_one_message(tmp_path, kind):
    path = tmp_path / "a.mat"
    path.write_bytes(BROKEN[kind])
    assert_refused(path)


@pytest.mark.parametrize("kind", [kind for kind in BROKEN if kind != "empty"])
def test_damaged_file_in_an_archive_is_refused_with_one_message(tmp_path, kind):
    path = tmp_path / "a.mat.gz"
    path.write_bytes(gzip.compress(BROKEN[kind]))
    assert_refused(path)


@pytest.mark.parametrize("kind", BROKEN_ARCHIVES)
def test_damaged_archive_is_refused_with_one_message(tmp_path, kind):
    path = tmp_path / "a.mat.gz"
    path.write_bytes(BROKEN_ARCHIVES[kind])
    assert_refused(path)


@pytest.mark.parametrize("name", ["no.mat", "no.mat.gz"])
def test_missing_file_is_refused_with_one_message(tmp_path, name):
    assert_refused(tmp_path / name)
