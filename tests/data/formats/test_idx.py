"""IDX files, packed and unpacked: the same numbers, and one error for anything else, without unpacking more."""

import gzip
import os
import re
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from capsule_lab.data.download import md5, verify
from capsule_lab.data.formats.idx import read_idx
from capsule_lab.errors import DataError
from tests.helpers.mnist_files import idx

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
WHOLE = idx(ARRAY)
LARGEST = len(WHOLE)
HEADER = WHOLE[:16]
FLOATS = WHOLE[:2] + b"\x0d" + WHOLE[3:]
LABELS = idx(np.zeros(4, np.uint8))
HUGE = HEADER[:12] + b"\xff" * 4
WRONG = {
    "empty": (b"", "it begins with , not with that of unsigned bytes in 3 dimensions"),
    "another type": (FLOATS, "it begins with 00000d03, not with that of unsigned bytes"),
    "labels": (LABELS, "it begins with 00000801, not with that of unsigned bytes in 3"),
    "half a header": (HEADER[:10], "requires a buffer of 12 bytes"),
    "truncated": (WHOLE[:-1], "its header states 24 bytes, but 23 follow"),
    "a byte too many": (WHOLE + b"\0", "its header states 24 bytes, but more follow"),
    "too large": (HUGE, f"states 25769803770 bytes; a file of this data set has at most {LARGEST}"),
}
BOMB = 2**26  # unpacked bytes; as many packed ones as MNIST's labels


@pytest.fixture(params=["", ".gz"], ids=["unpacked", "packed"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"file{request.param}"


def write(path: Path, content: bytes) -> None:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def test_numbers_are_read_back(path: Path) -> None:
    write(path, WHOLE)
    np.testing.assert_array_equal(read_idx(path, 3, LARGEST).numpy(), ARRAY)
    assert md5(path) == md5_of(WHOLE, path.parent)


def md5_of(content: bytes, folder: Path) -> str:
    (folder / "content").write_bytes(content)
    return md5(folder / "content")


@pytest.mark.parametrize("kind", WRONG)
def test_another_file_is_refused(path: Path, kind: str) -> None:
    content, message = WRONG[kind]
    write(path, content)
    with pytest.raises((ValueError, struct.error), match=re.escape(message)):
        read_idx(path, 3, LARGEST)


def test_fifo_is_refused_without_waiting(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        read_idx(path, 3, LARGEST)


@pytest.mark.parametrize(
    "header", [HEADER, HEADER[:12] + (BOMB // 6).to_bytes(4, "big")], ids=["small", "large"]
)
def test_bomb_is_not_unpacked(tmp_path: Path, header: bytes) -> None:
    """The checksum is computed of at most so many bytes; of these, at most a block is in memory."""
    path = tmp_path / "file.gz"
    write(path, header + bytes(BOMB))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="its header states"):
            read_idx(path, 3, LARGEST)
        too_large = rf"\(it has more than {LARGEST} bytes\)"
        message = rf"^{re.escape(str(path))} cannot be read {too_large}; expected a file of Toys"
        with pytest.raises(DataError, match=message):
            verify(tmp_path, {path.name: "0" * 32}, "Toys", largest=LARGEST)
        assert tracemalloc.get_traced_memory()[1] < BOMB / 8
    finally:
        tracemalloc.stop()
