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
    assert_array_equal(images[:, 0], IMAGES)
    assert_array_equal(labels, LABELS)
    assert_array_equal(factors, TRANSFORMS.astype(np.float32))
    content = (written / name).read_bytes()
    assert check(tmp_path) == {name: hashlib.sha256(content).hexdigest()}


def test_archive_is_preferred_to_the_unpacked_file(written, tmp_path):
    shutil.copy(written / "test.mat.zip", tmp_path)
    (tmp_path / "test.mat").write_bytes(b"not looked at")
    assert list(check(tmp_path)) == ["test.mat.zip"]
    images = load(tmp_path)
    assert len(images.labels) == CASES
    assert check(tmp_path / "nowhere") == {}


def changed(**change: Any) -> bytes:
    return matlab(affNISTdata=fields() | change)


def without_labels() -> bytes:
    content = fields()
    del content["label_int"]
    return matlab(affNISTdata=content)


WHOLE = matlab(affNISTdata=fields())


def test_checksum_and_number_of_digits_are_the_published_ones():
    sha256, digits = PUBLISHED
    assert sha256 == "2cde38ec83ee2ebfd7b901f8be5a09efb17a1bda04771f9b4905751eb945c01a"
    assert digits == 10_000


def with_labels(labels: Any) -> bytes:
    return changed(label_int=labels)


def with_transforms(transforms: np.ndarray) -> bytes:
    return changed(human_readable_transform=transforms)


ONE_ROW = LABELS[None]


HDF = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\x89HDF"


BAD = {
    "truncated": (WHOLE[:-100], "cannot be read"),
    "empty": (b"", "cannot be read"),
    "MATLAB 7.3": (HDF, "cannot be read"),
    "other variable": (matlab(image=IMAGES), "cannot be read ('affNISTdata')"),
    "no struct": (matlab(affNISTdata=IMAGES), "cannot be read"),
    "no labels": (without_labels(), "cannot be read ('label_int')"),
    "images transposed": (changed(image=IMAGES.reshape(CASES, -1)), "uint8 of shape (320, 1600), "),
    "fewer labels": (with_labels(ONE_ROW[:, 1:]), "uint8 of shape (1, 319)"),
    "labels of halves": (with_labels(ONE_ROW + 0.5), "labels that are not integers"),
    "labels of nothing": (with_labels(ONE_ROW * np.nan), "cannot be read"),
    "labels in words": (with_labels("two"), "<U3 of shape (1,)"),
    "label 10": (with_labels(ONE_ROW + np.uint8(1)), f"320 images, {[32] * 10}"),
    "other counts": (with_labels(ONE_ROW // 2), f"320 images, {[64] * 5} of the labels [0, "),
    "fewer transforms": (with_transforms(TRANSFORMS.T[:, 1:]), "of shape (6, 319)"),
    "transforms of nothing": (with_transforms(TRANSFORMS.T * np.nan), "transforms that are not"),
}


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
    message = refusal(load, tmp_path)
    assert message.startswith(f"{archive}/test.mat cannot be read")


def test_missing_file_is_named(tmp_path):
    message = refusal(load, tmp_path)
    assert message.startswith(f"{tmp_path}/test.mat cannot be read (No such file")


@pytest.mark.parametrize("damage", ["truncated", "empty", "a web page"])
def test_archive_with_a_wrong_checksum_is_refused(written, tmp_path, damage):
    whole = (written / "test.mat.zip").read_bytes()
    contents = {"truncated": whole[:-1], "empty": b"", "a web page": b"<!DOCTYPE html>"}
    path = tmp_path / "test.mat.zip"
    path.write_bytes(contents[damage])
    message = refusal(check, tmp_path)
    assert message.startswith(f"{path} (")
    assert affnist.SHA256 in message
    message = refusal(load, tmp_path)
    assert message.startswith(f"{path} cannot be read")


URL = "https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/test.mat.zip"


def test_complete_download_is_kept(written, tmp_path, monkeypatch):
    archive = (written / "test.mat.zip").read_bytes()
    asked = answer_downloads(monkeypatch, lambda url: archive)
    folder = tmp_path / "affNIST"
    assert fetch(folder, download) is None
    assert asked == [URL]
    assert [*tmp_path.rglob("*")] == [folder, folder / "test.mat.zip"]
    images = load(folder).images
    assert_array_equal(images[:, 0], IMAGES)


def test_incomplete_download_leaves_nothing(written, tmp_path, monkeypatch):
    archive = (written / "test.mat.zip").read_bytes()
    asked = answer_downloads(monkeypatch, lambda url: archive[:-1])
    reason = fetch(tmp_path / "affNIST", download)
    assert "does not match the known hash" in reason
    assert asked == [URL]
    assert [*tmp_path.iterdir()] == []
