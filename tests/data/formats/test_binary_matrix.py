"""smallNORB's file format: written as published, read back exactly, refused in a message when not whole."""

from __future__ import annotations

import gzip
import hashlib
import re
import struct
from itertools import product

import numpy as np
import pytest

from capsule_lab.data.download import md5
from capsule_lab.data.formats.binary_matrix import read_matrix, write_matrix
from capsule_lab.errors import DataError

CATEGORIES = np.tile(np.arange(5, dtype=np.int32), 4860)
TEST_INFO = np.array(
    [
        (instance, elevation, azimuth, lighting)
        for instance, elevation, azimuth, lighting, _ in product(
            (0, 1, 2, 3, 5), range(9), range(0, 36, 2), range(6), range(5)
        )
    ],
    dtype=np.int32,
)
CUBE = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
BYTES = struct.pack("<5i", 0x1E3D4C55, 3, 2, 3, 4) + CUBE.tobytes()


@pytest.mark.parametrize(
    ("array", "published"),
    [(CATEGORIES, "fd5120d3f770ad57ebe620eb61a0b633"), (TEST_INFO, "7c5b871cc69dcadec1bf6a18141f5edc")],
    ids=["cat", "testing-info"],
)
def test_the_writer_reproduces_published_files(tmp_path, array, published):
    """Two of the real files follow from their description: every byte of the format is right."""
    write_matrix(tmp_path / "real.mat", array)
    assert md5(tmp_path / "real.mat") == published


def test_header_of_four_dimensions(tmp_path):
    """The first bytes of the real images, as published."""
    write_matrix(tmp_path / "a.mat", np.zeros((3, 2, 96, 96), np.uint8))
    published = "554C3D1E 04000000 EC5E0000 02000000 60000000 60000000"
    assert (tmp_path / "a.mat").read_bytes()[:24] == bytes.fromhex(published.replace("EC5E", "0300"))


@pytest.mark.parametrize("suffix", [".mat", ".mat.gz"])
@pytest.mark.parametrize("kind", ["u1", "i2", "i4", "f4", "f8", ">i4", ">f8"])
@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 4), (2, 2, 3, 5), (0,), (0, 2, 3, 3)], ids=str)
def test_written_and_read_back(tmp_path, suffix, kind, shape):
    array = np.random.default_rng(0).integers(0, 100, shape).astype(kind)
    path = tmp_path / f"matrix{suffix}"
    write_matrix(path, array)
    read = read_matrix(path)
    assert read.dtype == np.dtype(kind).newbyteorder("<")
    assert read.shape == shape
    np.testing.assert_array_equal(read, array)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_strided_arrays_are_written_in_order(tmp_path):
    array = np.arange(60, dtype=np.int32).reshape(3, 4, 5).transpose(2, 0, 1)[::2]
    write_matrix(tmp_path / "a.mat", array)
    np.testing.assert_array_equal(read_matrix(tmp_path / "a.mat"), array)


def test_mat_is_mapped_not_loaded(tmp_path):
    (tmp_path / "a.mat").write_bytes(BYTES)
    assert isinstance(read_matrix(tmp_path / "a.mat"), np.memmap)


@pytest.mark.parametrize("suffix", [".mat", ".mat.gz"])
def test_what_is_read_cannot_be_changed(tmp_path, suffix):
    write_matrix(tmp_path / f"a{suffix}", CUBE)
    assert not read_matrix(tmp_path / f"a{suffix}").flags.writeable


def test_compressed_bytes_are_the_same_every_time(tmp_path):
    write_matrix(tmp_path / "a.mat.gz", CUBE)
    write_matrix(tmp_path / "b.mat.gz", CUBE)
    assert (tmp_path / "a.mat.gz").read_bytes() == (tmp_path / "b.mat.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.mat.gz").read_bytes()) == BYTES


@pytest.mark.parametrize("suffix", [".mat", ".mat.gz"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BYTES[:-1], r"is truncated: 43 bytes unpacked; expected 44 for 2x3x4 numbers of uint8"),
        (BYTES + b"\0", r"is too long: 45 bytes or more unpacked; expected 44"),
        (BYTES[:19], r"begins with 55 4c 3d 1e 03 00 00 00, another kind of file"),
        (b"", r"begins with nothing, another kind of file"),
        (b"<!DOCTYPE html><html>", r"begins with 3c 21 44 4f 43 54 59 50, another kind of file"),
        (struct.pack("<5i", 0x1E3D4C52, 3, 2, 3, 4), r"another kind of file"),
        (struct.pack("<2i", 0x1E3D4C55, 2_000_000_000), r"another kind of file"),
        (struct.pack("<5i", 0x1E3D4C55, 3, 2, -3, 4), r"another kind of file"),
        (struct.pack("<5i", 0x1E3D4C55, 1, 2, 3, 4), r"another kind of file"),
        (struct.pack("<5i", 0x1E3D4C55, 3, 2**31 - 1, 2**31 - 1, 4), r"is truncated: 20 bytes unpacked; expected 1844"),
    ],
    ids=["truncated", "long", "header", "empty", "web", "packed", "dimensions", "negative", "filler", "huge"],
)
def test_incomplete_files_are_refused_with_one_message(tmp_path, suffix, content, message):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(content) if suffix == ".mat.gz" else content)
    with pytest.raises(DataError, match=message) as caught:
        read_matrix(path)
    assert str(caught.value).startswith(str(path))
    assert "replace" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_archive_without_gz_in_its_name_is_refused(tmp_path):
    (tmp_path / "a.mat").write_bytes(gzip.compress(BYTES))
    with pytest.raises(DataError, match=r"begins with 1f 8b .*a gzip archive \(\.gz is missing from its name\)"):
        read_matrix(tmp_path / "a.mat")


@pytest.mark.parametrize(
    "content",
    [BYTES, gzip.compress(BYTES)[:-1], gzip.compress(BYTES)[:-8] + bytes(8), gzip.compress(BYTES)[:10] + b"\xff" * 30],
    ids=["not compressed", "truncated", "checksum", "corrupt"],
)
def test_incomplete_archives_are_refused_with_one_message(tmp_path, content):
    (tmp_path / "a.mat.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.mat\.gz cannot be read \(.*\); expected a whole binary matrix") as caught:
        read_matrix(tmp_path / "a.mat.gz")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".mat", ".mat.gz"])
def test_file_that_is_not_there(tmp_path, suffix):
    with pytest.raises(DataError, match=r"cannot be read \(No such file or directory\)"):
        read_matrix(tmp_path / f"a{suffix}")


@pytest.mark.parametrize("array", [np.zeros(3, np.int64), np.zeros(3, bool), np.array(1, np.uint8)], ids=repr)
def test_arrays_that_the_format_does_not_have(tmp_path, array):
    with pytest.raises(ValueError, match=r"the array for a\.mat is .* expected one of float32, float64, int32, uint8"):
        write_matrix(tmp_path / "a.mat", array)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".mat", ".mat.gz"])
def test_writing_that_fails_leaves_what_was_there(tmp_path, monkeypatch, suffix):
    path = tmp_path / f"a{suffix}"
    write_matrix(path, CUBE)
    before = hashlib.sha256(path.read_bytes()).digest()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("capsule_lab.data.download.os.replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write_matrix(path, CUBE[:1])
    assert hashlib.sha256(path.read_bytes()).digest() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_no_more_is_unpacked_than_the_header_promises(tmp_path):
    path = tmp_path / "a.mat.gz"
    path.write_bytes(gzip.compress(BYTES + bytes(2**23), compresslevel=1))
    with pytest.raises(DataError, match=r"is too long: (\d+) bytes or more unpacked") as caught:
        read_matrix(path)
    found = re.search(r"too long: (\d+)", str(caught.value))
    assert found
    assert int(found[1]) < 2**21
