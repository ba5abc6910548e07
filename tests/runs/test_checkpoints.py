"""A checkpoint that is damaged is noticed before anything in it is used."""

from __future__ import annotations

import os
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from capsule_lab import runs
from capsule_lab.callbacks import AtomicCheckpointIO
from capsule_lab.errors import RunError
from tests.helpers.damage import damages, with_a_flipped_bit
from tests.helpers.training import checkpoint

CENTRAL_DIRECTORY = -4000  # bytes; with the end of a small archive, where no checksum is


@pytest.fixture
def last(a_copy: Path) -> Path:
    return a_copy / "checkpoints" / "last.ckpt"


def are_equal(a: Any, b: Any) -> bool:
    """The same types, keys and tensors, to the last bit and stride."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(are_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(are_equal, a, b))
    return bool(a == b)


def assert_noticed(last: Path, count: int, first: int = 0) -> None:
    """Noticed by us and in what Lightning loads, or the content is what it was."""
    whole = checkpoint(last.parent.parent)
    messages = []
    for position in with_a_flipped_bit(last, count, seed=count, first=first):
        try:
            loaded = AtomicCheckpointIO().load_checkpoint(last, weights_only=True)
        except RunError as error:
            messages.append(str(error))
            with pytest.raises(RunError):
                runs.checkpoints.read(last)
        else:
            assert are_equal(loaded, whole), f"byte {position} of {last.stat().st_size}"
            assert are_equal(runs.checkpoints.read(last), whole), position
    assert len(messages) > count / 2
    assert [message for message in messages if f"{last} cannot be read as a checkpoint (" not in message] == []
    assert are_equal(runs.checkpoints.read(last), whole)


def test_flipped_bit_is_noticed_or_harmless(last: Path) -> None:
    assert_noticed(last, 20)
    assert_noticed(last, 10, first=CENTRAL_DIRECTORY)


def test_damaged_header_is_noticed_by_whatever_reads(last: Path) -> None:
    """torch's reader of mapped files does not look at the signature of a file in the archive."""
    with zipfile.ZipFile(last) as archive:
        offset = archive.infolist()[-1].header_offset
    content = bytearray(last.read_bytes())
    content[offset] ^= 1
    last.write_bytes(content)
    for load in (runs.checkpoints.read, AtomicCheckpointIO().load_checkpoint):
        with pytest.raises(RunError, match="the checksum of"):
            load(last)


@pytest.mark.slow
def test_any_flipped_bit_is_noticed_or_harmless(last: Path) -> None:
    assert_noticed(last, 200)
    assert_noticed(last, 1000, first=CENTRAL_DIRECTORY)


def test_damaged_checkpoint_is_noticed(last: Path) -> None:
    whole = last.read_bytes()
    for name, content in damages(whole):
        if name in ("not text", "twice"):  # bytes before an archive, which zip allows
            continue
        last.write_bytes(content)
        with pytest.raises(RunError, match=r"ckpt=\S+/best\.ckpt, or remove it and train again$"):
            runs.checkpoints.read(last)
        with pytest.raises(RunError):
            AtomicCheckpointIO().load_checkpoint(last)
        assert name


def test_tensors_of_a_record_that_is_read_are_those_of_the_file_at_that_time(last: Path) -> None:
    """They are read when they are used, and a checkpoint may have been replaced by then."""
    before, read = checkpoint(last.parent.parent), runs.checkpoints.read(last)
    AtomicCheckpointIO().save_checkpoint({"another": torch.zeros(1)}, last)
    assert are_equal(read, before)


def test_checkpoint_that_has_not_changed_is_verified_once(last: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run reads the record, then Lightning loads the file."""
    archives: list[Any] = []
    real = zipfile.ZipFile
    monkeypatch.setattr(zipfile, "ZipFile", lambda file: archives.append(file) or real(file))
    now = time.time()
    for age, count in ((0, 2), (60, 1)):
        os.utime(last, (now - age, now - age))
        runs.checkpoints.read(last)
        AtomicCheckpointIO().load_checkpoint(last, weights_only=True)
        assert len(archives) == count
        archives.clear()
    whole = last.read_bytes()
    last.write_bytes(bytes([*whole[:5000], whole[5000] ^ 1, *whole[5001:]]))
    with pytest.raises(RunError, match=r"the checksum of \S+ is wrong"):
        AtomicCheckpointIO().load_checkpoint(last, weights_only=True)
