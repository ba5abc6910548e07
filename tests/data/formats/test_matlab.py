"""Files of MATLAB's format 5: every array is that of SciPy, and damage is refused."""

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st

from capsule_lab.data.formats.matlab import map_path, read_heads, read_matrix
from tests.helpers.generated import GENERATED, damaged
from tests.helpers.matlab import matlab, matlab_6

RANDOM = np.random.default_rng(0)
HEADER = 128
NUMBERS = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]
ARRAYS = {kind: (100 * RANDOM.normal(size=(2, 3, 4))).astype(kind) for kind in NUMBERS} | {
    "a row": np.arange(5.0),
    "one number": 3.5,
    "whole numbers in few bytes": np.arange(300),
    "no image": np.zeros((0, 3)),
    "a word": "word",
    "no letters": "",
    "words": ["one", "three"],
    "a table of words": np.array([["a", "bc"], ["d", "e"]]),
    "letters of other languages": "é€😀",
}

WRITERS = pytest.mark.parametrize("write", [matlab, matlab_6])


@WRITERS
@pytest.mark.parametrize("kind", ARRAYS)
def test_array_is_that_of_scipy(write: Callable[..., bytes], kind: str) -> None:
    content = write(other=np.eye(3), array=ARRAYS[kind])
    expected = scipy.io.loadmat(io.BytesIO(content))["array"]
    found = read_matrix(content, "array").values()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    assert found.flags.writeable
    other, head = read_heads(content)
    shape = head.shape[:-1] if head.kind == "char" else head.shape  # SciPy counts words
    heads = [(other.name, other.shape, other.kind), (head.name, shape, head.kind)]
    assert heads == scipy.io.whosmat(io.BytesIO(content))


@WRITERS
def test_fields_of_a_struct_are_those_of_scipy(write: Callable[..., bytes]) -> None:
    content = write(first=np.eye(2), struct={"pixels": ARRAYS["u1"], "a_name": "word"})
    fields = read_matrix(content, "struct").fields()
    expected = scipy.io.loadmat(io.BytesIO(content))["struct"][0, 0]
    assert [*fields] == [*expected.dtype.names]
    for name, field in fields.items():
        np.testing.assert_array_equal(field.values(), expected[name])


def element(kind: int, content: bytes, order: str = "<") -> bytes:
    padding = b"" if kind == 15 else bytes(-len(content) % 8)
    return struct.pack(f"{order}II", kind, len(content)) + content + padding


def written(kind: int, content: bytes, *shape: int, order: str = "<", stored: int = 2) -> bytes:
    """A file with the matrix ``a``, of bytes that SciPy does not write."""
    parts = [
        element(6, struct.pack(f"{order}II", kind, 0), order),
        element(5, struct.pack(f"{order}{len(shape)}i", *shape), order),
        struct.pack(f"{order}I4s", 1 << 16 | 1, b"a"),  # in the short form
        element(stored, content, order),
    ]
    mark = b"\0\x01IM" if order == "<" else b"\x01\0MI"
    return bytes(HEADER - 4) + mark + element(14, b"".join(parts), order)


def test_bytes_in_the_other_order_are_read() -> None:
    content = written(6, struct.pack(">2d", 1.5, -2.0), 1, 2, order=">", stored=9)
    values = read_matrix(content, "a").values()
    assert values.dtype.isnative
    assert values.tolist() == [[1.5, -2.0]]


@pytest.mark.parametrize("order", ["<", ">"])
def test_text_of_matlab_itself_is_utf_16(order: str) -> None:
    codec = "utf-16-le" if order == "<" else "utf-16-be"
    content = written(4, "né".encode(codec), 1, 2, order=order, stored=4)
    assert read_matrix(content, "a").values().tolist() == ["né"]


def test_words_without_letters_take_no_memory() -> None:
    content = written(4, b"", 2**31 - 1, 0, stored=16)
    assert read_matrix(content, "a").values().shape == (0,)


def of_cells() -> bytes:
    return matlab_6(a=np.array([1, "b"], dtype=object))


def bomb() -> bytes:
    """A compressed matrix that states more bytes than it has."""
    whole = written(9, bytes(8), 8, 1)
    damage = struct.pack("<II", 14, 2**32 - 1) + whole[HEADER + 8 :]
    return whole[:HEADER] + element(15, zlib.compress(damage))


class Refused(NamedTuple):
    """A file, and a part of the message."""

    content: bytes
    message: str


REFUSED = {
    "another file": Refused(
        b"no file of MATLAB",
        "not a file of MATLAB's format 5",
    ),
    "an end in the head": Refused(
        matlab_6(a=1)[: HEADER + 4],
        "it ends early",
    ),
    "an end in the numbers": Refused(
        matlab_6(a=ARRAYS["f8"])[:-8],
        "it ends early",
    ),
    "an end in packed numbers": Refused(
        matlab(a=ARRAYS["f8"])[:-8],
        "it ends early",
    ),
    "an early end that is packed": Refused(
        bomb(),
        "it ends early",
    ),
    "more numbers": Refused(
        written(9, bytes(8), 7, 1),
        r"shape \(7, 1\), but 8 numbers follow",
    ),
    "fewer numbers": Refused(
        written(9, bytes(8), 2**31 - 1, 2**31 - 1),
        "but 8 numbers follow",
    ),
    "a negative length": Refused(
        written(9, bytes(8), -2, -4),
        r"a matrix of shape \(-2, -4\)",
    ),
    "an unknown type": Refused(
        written(99, bytes(8), 8, 1),
        "a matrix of type 99",
    ),
    "unknown numbers": Refused(
        written(9, bytes(8), 8, 1, stored=8),
        "type uint8, stored as 8",
    ),
    "other text": Refused(
        written(4, b"\xff\xff", 1, 2, stored=16),
        "codec can't decode",
    ),
    "complex numbers": Refused(
        matlab_6(a=1j),
        "is of MATLAB's type complex double",
    ),
    "cells": Refused(
        of_cells(),
        "is of MATLAB's type cell",
    ),
    "loose numbers": Refused(
        matlab_6()[:HEADER] + element(2, b"1"),
        "an element of type 2 where a mat",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_other_content_is_refused_in_one_sentence(kind: str) -> None:
    refused = REFUSED[kind]
    with pytest.raises(ValueError, match=refused.message):
        read_matrix(refused.content, "a").values()


def test_array_that_is_not_there_is_named() -> None:
    with pytest.raises(KeyError, match="b"):
        read_matrix(matlab(a=1), "b")


def test_no_more_is_unpacked_than_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads are read without the numbers, and an array only up to the limit."""
    content = matlab(a=np.zeros((100, 1000)))
    (head,) = read_heads(content)
    assert len(head.body) < 4096
    monkeypatch.setattr("capsule_lab.data.formats.matlab._LARGEST", 10_000)
    with pytest.raises(ValueError, match="it ends early"):
        read_matrix(content, "a").values()


def read_all(content: bytes) -> None:
    for head in [*read_heads(content)]:
        matrix = read_matrix(content, head.name)
        found = matrix.fields().values() if matrix.kind == "struct" else [matrix]
        for each in found:
            each.values()


@GENERATED
@given(data=st.data())
def test_damage_inside_of_a_packed_matrix_is_an_error_of_reading(data: Any) -> None:
    variables = {"images": ARRAYS["u1"], "text": ["a", "bc"], "struct": {"a": 1.0}}
    name = data.draw(st.sampled_from([*variables]))
    whole = matlab_6(**{name: variables[name]})
    body = data.draw(damaged(whole[HEADER:]))
    message = ""
    try:
        read_all(whole[:HEADER] + element(15, zlib.compress(body)))
    except (ValueError, KeyError, struct.error, zlib.error) as error:
        message = str(error)
    assert "\n" not in message


def test_path_is_mapped(tmp_path: Any) -> None:
    path = tmp_path / "a.mat"
    path.write_bytes(matlab_6(a=ARRAYS["f4"]))
    values = read_matrix(map_path(path), "a").values()
    path.unlink()
    np.testing.assert_array_equal(values, ARRAYS["f4"])
