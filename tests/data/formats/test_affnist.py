"""affNIST's files, small ones in the real format: read back exactly, or refused in a message."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsule_lab.data.download import fetch
from capsule_lab.data.formats import affnist
from capsule_lab.data.formats.affnist import check, download, find, load, load_mat
from capsule_lab.errors import DataError
from tests.helpers.affnist_files import (
    CASES,
    IMAGES,
    LABELS,
    TRANSFORMS,
    ZIPS,
    count_as_affnist,
    fields,
    mat,
    write_affnist,
    zipped,
)
from tests.helpers.data_modules import answer_downloads


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    return write_affnist(tmp_path_factory.mktemp("affNIST"))


@pytest.fixture(autouse=True)
def counts_as_real(written, monkeypatch) -> None:
    count_as_affnist(written, monkeypatch)


@pytest.fixture
def of(written, tmp_path) -> Callable[..., Path]:
    """A folder that holds some of ``written``: ``of("test.mat")``."""

    def make(*names: str) -> Path:
        folder = tmp_path / "affNIST"
        folder.mkdir()
        for name in names:
            (shutil.copytree if (written / name).is_dir() else shutil.copy)(written / name, folder / name)
        return folder

    return make


def everything_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# --- what is there is read back


@pytest.mark.parametrize("name", affnist.CHOICES)
def test_every_form_is_read_back_exactly(of, name):
    images, labels, factors = load(of(name))
    np.testing.assert_array_equal(images[:, 0].numpy(), IMAGES)
    np.testing.assert_array_equal(labels.numpy(), LABELS)
    np.testing.assert_array_equal(factors.numpy(), TRANSFORMS.astype(np.float32))


def test_columns_are_images_row_by_row(tmp_path):
    for compressed in [True, False]:
        path = tmp_path / "one.mat"
        one = fields(slice(3, 4))
        one["image"] = (np.arange(1600) % 251).astype(np.uint8)[:, None]
        path.write_bytes(mat({"affNISTdata": one}, compressed=compressed))
        images, labels, factors = load_mat(path)
        assert images.shape == (1, 1, 40, 40)
        assert images[0, 0, 0, :3].tolist() == [0, 1, 2]
        assert images[0, 0, 1, :3].tolist() == [40, 41, 42]
        assert labels.tolist() == [LABELS[3]]
        assert factors.shape == (1, 6)


def test_labels_may_be_of_any_kind_of_whole_number(tmp_path):
    path, kind = tmp_path / "some.mat", np.float64
    path.write_bytes(mat({"affNISTdata": fields() | {"label_int": LABELS[None].astype(kind)}}))
    np.testing.assert_array_equal(load_mat(path).labels.numpy(), LABELS)


@pytest.mark.parametrize(
    ("there", "found"),
    [
        ((), None),
        (("test.mat",), "test.mat"),
        (("test_batches", "test.mat"), "test.mat"),
        (("test.mat", "test.mat.zip"), "test.mat.zip"),
        (("test_batches.zip", "test_batches"), "test_batches.zip"),
    ],
)
def test_files_with_a_published_checksum_are_preferred(of, there, found):
    path = find(of(*there))
    assert (path and path.name) == found


@pytest.mark.parametrize("name", affnist.CHOICES)
def test_check_gives_hashes_of_what_would_be_read(of, written, name):
    path = written / name
    files = [path] if path.is_file() else [path / f"{number}.mat" for number in range(1, 33)]
    expected = {str(f.relative_to(written)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
    assert check(of(name)) == expected


def test_check_of_nothing(of, tmp_path):
    assert check(of()) is None
    assert check(tmp_path / "nowhere") is None


# --- what is not right ends in a message


def refusal(function: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(DataError) as caught:
        function(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def changed(**change: Any) -> bytes:
    content = fields() | change
    return mat({"affNISTdata": {name: value for name, value in content.items() if value is not None}})


WHOLE = mat({"affNISTdata": fields()})
BAD = {
    "truncated": (WHOLE[:-100], "cannot be read"),
    "half": (WHOLE[: len(WHOLE) // 2], "cannot be read"),
    "header only": (WHOLE[:128], "cannot be read"),
    "empty": (b"", "cannot be read"),
    "web page": (b"<!DOCTYPE html><html><body>Service unavailable</body></html>" * 9, "cannot be read"),
    "MATLAB 7.3": (b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\x89HDF", "cannot be read"),
    "other variable": (mat({"image": IMAGES}), "cannot be read ('affNISTdata')"),
    "no struct": (mat({"affNISTdata": IMAGES}), "cannot be read"),
    "no image": (changed(image=None), "no field of name image"),
    "no labels": (changed(label_int=None), "no field of name label_int"),
    "no transforms": (changed(human_readable_transform=None), "no field of name human_readable_transform"),
    "images transposed": (changed(image=IMAGES.reshape(CASES, -1)), "uint8 of shape (320, 1600), "),
    "images of 28x28": (changed(image=IMAGES.reshape(CASES, -1).T[:784]), "uint8 of shape (784, 320), "),
    "images of floats": (changed(image=IMAGES.reshape(CASES, -1).T / 255), "float64 of shape (1600, 320)"),
    "images of 3 dimensions": (changed(image=IMAGES.reshape(1600, 40, -1)), "uint8 of shape (1600, 40"),
    "fewer labels": (changed(label_int=LABELS[None, 1:]), "uint8 of shape (1, 319)"),
    "labels in a column": (changed(label_int=LABELS[:, None]), "uint8 of shape (320, 1)"),
    "labels of halves": (changed(label_int=LABELS[None] + 0.5), "labels that are not whole"),
    "labels of nothing": (changed(label_int=LABELS[None] * np.nan), "cannot be read"),
    "labels in words": (changed(label_int="two"), "<U3 of shape (1,)"),
    "label 10": (changed(label_int=LABELS[None] + np.uint8(1)), "has label 10; expected 0 to 9"),
    "label -1": (changed(label_int=LABELS[None].astype(np.int16) - 1), "has label -1; expected 0 to 9"),
    "fewer transforms": (changed(human_readable_transform=TRANSFORMS.T[:, 1:]), "of shape (6, 319)"),
    "transforms of nothing": (changed(human_readable_transform=TRANSFORMS.T * np.nan), "transforms that are not"),
}  # fmt: skip


def test_bad_file_is_named_with_what_is_wrong(tmp_path):
    for kind, (content, expected) in BAD.items():
        (tmp_path / "test.mat").write_bytes(content)
        for reading in (load, check):  # check is what runs before training
            message = refusal(reading, tmp_path)
            assert message.startswith(f"{tmp_path / 'test.mat'} "), kind
            assert expected in message, kind
    for kind in ("truncated", "no image", "label 10"):
        (tmp_path / "test.mat.zip").write_bytes(zipped({"test.mat": BAD[kind][0]}))
        message = refusal(load, tmp_path)
        assert message.startswith(f"{tmp_path / 'test.mat.zip' / 'test.mat'} ")
        assert BAD[kind][1] in message


def test_bad_batch_is_named(of):
    folder = of("test_batches")
    (folder / "test_batches" / "7.mat").write_bytes(b"a login page")
    assert refusal(load, folder).startswith(f"{folder / 'test_batches' / '7.mat'} cannot be read")


@pytest.mark.parametrize("name", ["test_batches", "test_batches.zip"])
def test_missing_batches_are_named(of, name):
    folder = of("test_batches")
    (folder / "test_batches" / "7.mat").unlink()
    (folder / "test_batches" / "31.mat").unlink()
    if name.endswith(".zip"):
        contents = {path.name: path.read_bytes() for path in (folder / "test_batches").iterdir()}
        (folder / name).write_bytes(zipped(contents))
    message = refusal(load, folder)
    assert message.startswith(f"{folder / name} lacks 7.mat, 31.mat; expected all files of affNIST")


def test_batches_of_different_kinds_are_refused(of):
    folder = of("test_batches")
    other = fields(slice(10)) | {"human_readable_transform": TRANSFORMS[:10, :5].T}
    (folder / "test_batches" / "1.mat").write_bytes(mat({"affNISTdata": other}))
    assert "different numbers of transform parameters" in refusal(load, folder)


def test_zip_that_is_not_the_published_one_or_cannot_be_opened_is_refused(of):
    folder = of(*ZIPS)
    for name in ZIPS:
        whole = (folder / name).read_bytes()
        for damaged in (whole[:-1], b"", b"<!DOCTYPE html>"):
            (folder / name).write_bytes(damaged)
            message = refusal(check, folder)
            assert message.startswith(f"{folder / name} (")
            assert affnist.SHA256[name] in message
            assert refusal(load, folder).startswith(f"{folder / name} cannot be read")
        (folder / name).unlink()


@pytest.mark.parametrize(("digits", "count"), [((1,) * 9 + (2,), 352), ((2,) * 10, 640)])
def test_other_counts_than_of_the_test_set_are_refused(of, monkeypatch, digits, count):
    monkeypatch.setattr(affnist, "TEST_DIGITS", digits)
    message = refusal(load, of("test.mat"))
    assert f"holds 320 images, {[32] * 10} of the digits 0 to 9; expected {count}" in message


def test_missing_files_are_named(tmp_path):
    message = refusal(load, tmp_path)
    assert message.startswith(f"{tmp_path} holds no test set of affNIST; expected test.mat.zip, ")


def test_published_facts():
    # the fixture replaces them, so they are looked up in the source
    source = Path(affnist.__file__).read_text()
    (counts,) = re.findall(r"TEST_DIGITS = \(([\d, ]+)\)", source)
    assert sum(map(int, counts.split(","))) == 10_000
    assert set(re.findall(r'"(test\S+)": "([0-9a-f]{64})"', source)) == {
        ("test.mat.zip", "2cde38ec83ee2ebfd7b901f8be5a09efb17a1bda04771f9b4905751eb945c01a"),
        ("test_batches.zip", "83f829c01c021fa731e062e7671b0075a3e8de0a511fb6b5d403458528d0e0d1"),
    }


# --- the download


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda path: path.read_bytes(), None),
        (lambda path: path.read_bytes()[:-1], "does not match the known hash"),
        (lambda path: b"", "does not match the known hash"),
        (lambda path: OSError("no network in tests"), "no network in tests"),
    ],
    ids=["whole", "truncated", "empty", "no network"],
)
def test_download_is_complete_or_leaves_nothing(written, tmp_path, monkeypatch, answer, expected):
    asked = answer_downloads(monkeypatch, lambda url: answer(written / url.rpartition("/")[2]))
    folder = tmp_path / "data" / "affNIST"
    problem = fetch(folder, download)
    assert asked == ["https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/test.mat.zip"]
    if expected is None:
        assert problem is None
        assert everything_below(tmp_path) == ["data", "data/affNIST", "data/affNIST/test.mat.zip"]
        np.testing.assert_array_equal(load(folder).images[:, 0].numpy(), IMAGES)
    else:
        assert expected in problem
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
