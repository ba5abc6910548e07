"""affNIST's file format: small files are read back exactly or refused with a message."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from capsule_lab.data.download import fetch
from capsule_lab.data.formats import affnist
from capsule_lab.data.formats.affnist import check, download, load
from capsule_lab.errors import DataError
from tests.helpers.affnist_files import (
    CASES,
    IMAGES,
    LABELS,
    TRANSFORMS,
    count_as_real,
    fields,
    write_affnist,
    zipped,
)
from tests.helpers.data_modules import answer_downloads
from tests.helpers.matlab import matlab

PUBLISHED = affnist.SHA256, sum(affnist.TEST_DIGITS)  # before a fixture replaces them


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    return write_affnist(tmp_path_factory.mktemp("affNIST"))


@pytest.fixture(autouse=True)
def counts_as_real(written, monkeypatch) -> None:
    count_as_real(written, monkeypatch)


def refusal(function: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(DataError) as caught:
        function(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", ["test.mat", "test.mat.zip"])
def test_file_and_archive_are_read_back_exactly(written, tmp_path, name):
    shutil.copy(written / name, tmp_path)
    images, labels, factors = load(tmp_path)
    assert_array_equal(images[:, 0].numpy(), IMAGES)
    assert_array_equal(labels.numpy(), LABELS)
    assert_array_equal(factors.numpy(), TRANSFORMS.astype(np.float32))
    assert check(tmp_path) == {name: hashlib.sha256((written / name).read_bytes()).hexdigest()}


def test_archive_is_preferred_to_the_unpacked_file(written, tmp_path):
    shutil.copy(written / "test.mat.zip", tmp_path)
    (tmp_path / "test.mat").write_bytes(b"not looked at")
    assert list(check(tmp_path)) == ["test.mat.zip"]
    assert len(load(tmp_path).labels) == CASES
    assert check(tmp_path / "nowhere") == {}
    assert PUBLISHED == ("2cde38ec83ee2ebfd7b901f8be5a09efb17a1bda04771f9b4905751eb945c01a", 10_000)


def changed(**change: Any) -> bytes:
    return matlab(affNISTdata=fields() | change)


def without_labels() -> bytes:
    content = fields()
    del content["label_int"]
    return matlab(affNISTdata=content)


WHOLE = matlab(affNISTdata=fields())
BAD = {
    "truncated": (WHOLE[:-100], "cannot be read"),
    "empty": (b"", "cannot be read"),
    "MATLAB 7.3": (b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\x89HDF", "cannot be read"),
    "other variable": (matlab(image=IMAGES), "cannot be read ('affNISTdata')"),
    "no struct": (matlab(affNISTdata=IMAGES), "cannot be read"),
    "no labels": (without_labels(), "no field of name label_int"),
    "images transposed": (changed(image=IMAGES.reshape(CASES, -1)), "uint8 of shape (320, 1600), "),
    "fewer labels": (changed(label_int=LABELS[None, 1:]), "uint8 of shape (1, 319)"),
    "labels of halves": (changed(label_int=LABELS[None] + 0.5), "labels that are not integers"),
    "labels of nothing": (changed(label_int=LABELS[None] * np.nan), "cannot be read"),
    "labels in words": (changed(label_int="two"), "<U3 of shape (1,)"),
    "label 10": (changed(label_int=LABELS[None] + np.uint8(1)), "320 images, [32, 32, 32, 32, 32, 32, 32, 32, 32, 32]"),
    "other counts": (changed(label_int=LABELS[None] // 2), "holds 320 images, [64, 64, 64, 64, 64] of the labels [0, "),
    "fewer transforms": (changed(human_readable_transform=TRANSFORMS.T[:, 1:]), "of shape (6, 319)"),
    "transforms of nothing": (changed(human_readable_transform=TRANSFORMS.T * np.nan), "transforms that are not"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("read", [load, check], ids=["load", "check before training"])
def test_invalid_file_is_named_with_the_reason(tmp_path, kind, read):
    content, expected = BAD[kind]
    file = tmp_path / "test.mat"
    file.write_bytes(content)
    message = refusal(read, tmp_path)
    assert message.startswith(f"{file} ")
    assert expected in message


def test_invalid_file_in_an_archive_is_named(tmp_path):
    archive = tmp_path / "test.mat.zip"
    archive.write_bytes(zipped({"test.mat": WHOLE[:-100]}))
    assert refusal(load, tmp_path).startswith(f"{archive / 'test.mat'} cannot be read")


def test_missing_file_is_named(tmp_path):
    message = refusal(load, tmp_path)
    assert message.startswith(f"{tmp_path / 'test.mat'} cannot be read (No such file")


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:-1], lambda _: b"", lambda _: b"<!DOCTYPE html>"]
)
def test_archive_with_a_wrong_checksum_is_refused(written, tmp_path, damage):
    path = tmp_path / "test.mat.zip"
    path.write_bytes(damage((written / path.name).read_bytes()))
    message = refusal(check, tmp_path)
    assert message.startswith(f"{path} (")
    assert affnist.SHA256 in message
    assert refusal(load, tmp_path).startswith(f"{path} cannot be read")


URL = "https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/test.mat.zip"


def test_complete_download_is_kept(written, tmp_path, monkeypatch):
    archive = (written / "test.mat.zip").read_bytes()
    asked = answer_downloads(monkeypatch, lambda url: archive)
    assert fetch(tmp_path / "affNIST", download) is None
    assert asked == [URL]
    assert [path.name for path in tmp_path.rglob("*")] == ["affNIST", "test.mat.zip"]
    images = load(tmp_path / "affNIST").images
    assert_array_equal(images[:, 0].numpy(), IMAGES)


def test_incomplete_download_leaves_nothing(written, tmp_path, monkeypatch):
    archive = (written / "test.mat.zip").read_bytes()
    asked = answer_downloads(monkeypatch, lambda url: archive[:-1])
    assert "does not match the known hash" in fetch(tmp_path / "affNIST", download)
    assert asked == [URL]
    assert [*tmp_path.iterdir()] == []
