"""Forged CIFAR10 pickles: numpy's own code is not called, and nothing crashes."""

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsule_lab.data.formats.cifar10 import read_batch
from capsule_lab.errors import DataError
from tests.helpers.cifar10_files import BATCHES, CONTENTS, array, pickled, text

DTYPE = b"cnumpy\ndtype\n"
OLD_STATE = b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
PIXELS = np.zeros((2, 3072), np.uint8)
WHOLE = pickled(array(PIXELS), [0, 1])


def code(value: object) -> bytes:
    """The instructions of a value, without the beginning and the end of a pickle."""
    return pickle.dumps(value, 2)[2:-1]


# what numpy writes before the state of an array
HEAD = (
    b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + code((0,)) + code("b") + b"\x87R"
)
SHAPE = code((2, 3072))
CONTENT = code("A" * 6144)


def forged(dtype: bytes, shape: bytes = SHAPE, content: bytes = CONTENT) -> bytes:
    """A batch whose array has another dtype, shape or content, each as instructions."""
    state = b"(" + code(1) + shape + dtype + b"\x89" + content + b"tb"
    return pickled(HEAD + state, [0, 1])


def with_labels(labels: bytes) -> bytes:
    """A batch with other labels, as instructions."""
    return WHOLE.replace(b"](K\x00K\x01e", labels)


ARGUMENTS = b"K\x00K\x01\x87R"
UINT8_ALONE = DTYPE + text(b"u1") + ARGUMENTS
UINT8 = UINT8_ALONE + OLD_STATE
NEGATIVE_ALIGNMENT = OLD_STATE.replace(b"K\x00t", b"J\x00\x00\x00\x80t")
FIELDS = b"}" + code("a") + DTYPE + code(("O", 0, 1)) + b"RK\x00\x86s"
POINTERS = (
    DTYPE
    + code(("V8", 0, 1))
    + b"R("
    + code(3)
    + code("|")
    + b"N"
    + code(("a",))
    + FIELDS
    + b"K\x08K\x01K\x00tb"
)
RECONSTRUCT = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n"
SET_CODE = b"N}(" + code("__code__") + b"Nu\x86b."
SET_NAME = b"}(" + code("name") + code("x") + b"ub."
FORGED = {
    "bytes as object pointers": forged(POINTERS),
    "labels as object pointers": with_labels(array(PIXELS).replace(OLD_STATE, POINTERS[-60:])),
    "array of objects": forged(UINT8.replace(b"u1", b"O8")),
    "unknown dtype": forged(DTYPE + text(b"zz") + ARGUMENTS + OLD_STATE),
    "state of a dtype is text": forged(UINT8_ALONE + code("state") + b"b"),
    "dtype without state": forged(UINT8_ALONE),
    "alignment of a negative size": forged(UINT8_ALONE + NEGATIVE_ALIGNMENT),
    "no dtype": forged(b"N"),
    "negative shape": forged(UINT8, code((-1, 3072))),
    "shape larger than the content": forged(UINT8, code((2**31 - 1, 3072))),
    "shape of overflowing size": forged(UINT8, code((2**31 - 1, 2**31 - 1))),
    "shape of text": forged(UINT8, code("shape")),
    "content is a list": forged(UINT8, content=b"]"),
    "content is no latin-1": forged(UINT8, content=b"X\x03\x00\x00\x00\xe2\x82\xac"),
    "state is set on a function": b"\x80\x02cnumpy\ndtype\n" + SET_NAME,
    "attributes of a function": RECONSTRUCT + SET_CODE,
    "state is set on a list": b"\x80\x02]N}\x86b.",
    "hash of deeply nested tuples": b"\x80\x02}N" + b"\x85" * 300_000 + b"Ns.",
    "huge number of an object": b"\x80\x02}r\x00\x00\x00\x7f.",
    "class as the batch": b"\x80\x02cnumpy\nndarray\n.",
    "instance of a class": b"\x80\x02(inumpy\nndarray\n.",
    "new object": b"\x80\x02cnumpy\nndarray\n)\x81.",
    "extension registry": b"\x80\x02\x82\x01.",
    "persistent object": b"\x80\x02N\x51.",
    "empty stack": b"\x80\x02\x85.",
    "get of an unknown object": b"\x80\x02h\x05.",
    "labels nested without end": with_labels(b"]q\x01h\x01a"),
    "labels that share items": with_labels(b"]q\x00" + b"](h\x00h\x00eq\x00" * 60),
    "labels of true": with_labels(b"](K\x00Ne"),
    "numbers of any length": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "no end": WHOLE[:-1],
    "nothing": b"",
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_pickle_is_refused_in_one_sentence(tmp_path: Path, name: str, capfd: Any) -> None:
    """In this process: a crash would end the tests. Numpy's own errors would be printed."""
    file = tmp_path / "data_batch_1"
    file.write_bytes(FORGED[name])
    with pytest.raises(
        DataError, match=r"data_batch_1 cannot be read \(.+\); expected a file of CIFAR10"
    ) as caught:
        read_batch(file)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(tmp_path))
    assert capfd.readouterr() == ("", "")


def test_numpy_is_not_called_by_a_pickle(tmp_path: Path) -> None:
    called = []
    watched = ("dtype", "ndarray", "_reconstruct", "__setstate__", "frombuffer")

    def record(_: Any, event: str, argument: Any) -> None:
        name = getattr(argument, "__name__", "")
        if event == "c_call" and name in watched:
            called.append(name)

    (tmp_path / "test_batch").write_bytes(CONTENTS["test_batch"])
    sys.setprofile(record)
    try:
        read_batch(tmp_path / "test_batch")
    finally:
        sys.setprofile(None)
    assert called == ["frombuffer"]


@pytest.mark.parametrize("name", BATCHES)
def test_published_format_is_read(tmp_path: Path, name: str) -> None:
    """Python 2 wrote the files; ``tests/helpers/cifar10_files.py`` has the same instructions."""
    (tmp_path / name).write_bytes(CONTENTS[name])
    pixels, labels = read_batch(tmp_path / name)
    expected_pixels, expected_labels = BATCHES[name]
    np.testing.assert_array_equal(pixels.reshape(len(pixels), -1), expected_pixels)
    assert labels.tolist() == expected_labels
    assert pixels.dtype == np.uint8
    assert labels.dtype == np.int64
    assert pixels.flags.writeable
