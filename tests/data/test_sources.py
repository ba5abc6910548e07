"""The contract of data sets with published files and a stand-in; each data set is a row of ``DATA_SETS``."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch

from capsule_lab.data import CIFAR10DataModule, MNISTDataModule, SVHNDataModule, cifar10, mnist
from capsule_lab.data.base import AbstractDataModule
from capsule_lab.data.cifar10 import CIFAR10Files
from capsule_lab.data.mnist import MNISTFiles
from capsule_lab.data.sources import PublishedFiles, tensor_hash
from capsule_lab.data.svhn import SVHNFiles
from capsule_lab.errors import DataError
from tests.helpers import cifar10_files, mnist_files, svhn_files
from tests.helpers.data_modules import forbid_downloads, serve, without_network
from tests.helpers.mnist_files import md5


class DataSet(NamedTuple):
    """A data set, and small files that count as its real ones."""

    source: type[PublishedFiles]
    module: type[AbstractDataModule]
    files: ModuleType  # a helper, which has CONTENTS, TRAINING, TEST, BROKEN and downloads()
    classes: tuple[str, ...] = ()


# of batches.meta
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
DATA_SETS = (
    DataSet(CIFAR10Files, CIFAR10DataModule, cifar10_files, CLASSES),
    DataSet(MNISTFiles, MNISTDataModule, mnist_files),
    DataSet(SVHNFiles, SVHNDataModule, svhn_files),
)


@pytest.fixture(params=DATA_SETS, ids=lambda data_set: data_set.source.name)
def data_set(request) -> DataSet:
    return request.param


@pytest.fixture(params=["auto", "real"])
def source(request) -> str:
    return request.param


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def real(tmp_path, monkeypatch, data_set) -> Path:
    """A data directory with the small files; a download fails the test."""
    folder = tmp_path / data_set.source.path
    folder.mkdir(parents=True)
    checksums = {}
    for file, content in data_set.files.CONTENTS.items():
        (folder / file).write_bytes(content)
        checksums[file] = md5(content)
    monkeypatch.setattr(data_set.source, "checksums", checksums)
    forbid_downloads(monkeypatch)
    return tmp_path


@pytest.fixture
def downloads(real, monkeypatch, data_set) -> Callable[..., list[str]]:
    """A function that serves the small files with some changes and returns the requested addresses."""

    def make(**changes: bytes) -> list[str]:
        contents = data_set.files.CONTENTS | changes
        served = data_set.files.downloads(contents)
        if data_set.source is CIFAR10Files:  # SVHN's files are what is checked
            archive_md5 = md5(served[cifar10.ARCHIVE])
            monkeypatch.setattr(cifar10, "ARCHIVE_MD5", archive_md5)
        sums = {name.removesuffix(".gz"): md5(content) for name, content in served.items()}
        monkeypatch.setattr(mnist, "ARCHIVES", sums)
        return serve(monkeypatch, served)

    return make


def test_training_files_are_read_back_exactly(data_set, real, source):
    data = data_set.module(directory=str(real), source=source, validation="none")
    data.setup("fit")
    images, labels, factors = data.sets["train"]
    expected = data_set.files.TRAINING
    assert factors is None
    assert images.dtype == torch.uint8
    assert images.is_contiguous()
    assert images.equal(expected.images)
    assert labels.equal(expected.labels)
    assert data.spec.classes == data_set.classes
    assert data.provenance == {
        "source": "real",
        "name": f"real {data_set.source.name}",
        "md5": data_set.source.checksums,
        "split": data.provenance["split"],
    }


def test_test_file_is_read_back_exactly(data_set, real, source):
    data = data_set.module(directory=str(real), source=source)
    data.setup("test")
    assert set(data.sets) == {"test"}
    found = data.sets["test"]
    expected = data_set.files.TEST
    assert found.images.equal(expected.images)
    assert found.labels.equal(expected.labels)


def test_validation_is_on_the_first_images(data_set, real):
    """SVHN's first images are of other houses than the rest."""
    data = data_set.module(directory=str(real), source="real", validation_share="1/10")
    data.setup("fit")
    split = data.provenance["split"]
    assert split["validation"] == "first"
    assert split["train_images"] == 54
    assert split["val_images"] == 6
    images = data.sets["val"].images
    expected = data_set.files.TRAINING.images[:6]
    assert len(images) == 6
    assert images.unique(dim=0).equal(expected.unique(dim=0))


def test_training_never_reads_the_test_file(data_set, real):
    data = data_set.module(directory=str(real), source="real")
    data.prepare_data()
    *_, test_file = data_set.files.CONTENTS  # all others are for training
    (data.real_source.folder / test_file).write_bytes(b"poison")
    data.setup("fit")
    assert set(data.sets) == {"train", "val"}


def test_missing_or_damaged_file_is_named_and_kept(data_set, real, source):
    def set_up() -> None:
        data_set.module(directory=str(real), source=source).setup("fit")

    number = len(data_set.files.CONTENTS)
    found = f"{number - 1} of the {number} files of {data_set.source.name}"
    for file, whole in data_set.files.CONTENTS.items():
        path = real / data_set.source.path / file
        *_, last = whole
        another_byte = bytes([last ^ 1])
        for content in (whole[:-100], whole[:-1] + another_byte, b""):
            path.write_bytes(content)
            message = rf"^{re.escape(str(path))} \({len(content)} bytes[^\n]*$"
            with pytest.raises(DataError, match=message):
                set_up()
            assert path.read_bytes() == content
        path.unlink()
        message = f"holds {found}; missing {file}: add them"
        with pytest.raises(DataError, match=re.escape(message)):
            set_up()
        path.write_bytes(whole)


def test_file_of_another_format_is_refused_despite_its_checksum(data_set, real, monkeypatch):
    files = data_set.files
    *_, test_file = files.CONTENTS
    path = real / data_set.source.path / test_file
    for kind, (content, message) in files.BROKEN.items():
        path.write_bytes(content)
        monkeypatch.setitem(data_set.source.checksums, path.name, md5(content))
        data = data_set.module(directory=str(real), source="real")
        with pytest.raises(DataError, match=message) as caught:
            data.setup("test")
        error = str(caught.value)
        assert str(path.parent) in error or "the test set of" in error, kind
        assert "\n" not in error, kind
        assert data.sets == {}


@pytest.mark.parametrize("stage", ["fit", "test"])
def test_source_real_without_network_names_the_missing_files(
    data_set, tmp_path, monkeypatch, stage
):
    without_network(monkeypatch)
    data = data_set.module(directory=str(tmp_path), source="real")
    with pytest.raises(DataError) as caught:
        data.setup(stage)
    error = str(caught.value)
    assert str(tmp_path / data_set.source.path) in error
    assert "CAPSULE_LAB_DATA" in error
    assert "no network in tests" in error
    for file in data_set.files.CONTENTS:
        assert file in error
    assert "\n" not in error
    assert data.sets == {}


def test_download_goes_into_place_and_is_verified(data_set, tmp_path, downloads, capfd, source):
    asked = downloads()
    contents = data_set.files.CONTENTS
    data = data_set.module(directory=str(tmp_path / "elsewhere"), source=source)
    data.setup("test")
    assert data.provenance["source"] == "real"
    assert len(asked) == len(data_set.files.downloads(contents))
    folder = data.real_source.folder
    assert files_below(data.directory) == sorted(folder / name for name in contents)
    assert data.sets["test"].images.equal(data_set.files.TEST.images)
    assert capfd.readouterr() == ("", "")


def test_download_of_a_wrong_file_is_named(data_set, tmp_path, downloads):
    reason = ": .*known hash" if data_set.source is SVHNFiles else r" \(12 bytes"
    for file in data_set.files.CONTENTS:
        downloads(**{file: b"a login page"})
        directory = tmp_path / f"without {file}"
        data = data_set.module(directory=str(directory), source="real")
        with pytest.raises(DataError, match=re.escape(file) + reason):
            data.setup("fit")


@pytest.mark.parametrize("option", ["auto", "standin"])
def test_standin_has_one_warning_and_its_own_provenance(
    data_set, tmp_path, monkeypatch, caplog, option
):
    if option == "auto":
        without_network(monkeypatch)
        reason = f"{data_set.source.name} is not in {tmp_path}"
    else:
        forbid_downloads(monkeypatch)
        reason = "data.source is standin"
    data = data_set.module(directory=str(tmp_path), source=option)
    with caplog.at_level(logging.WARNING, "capsule_lab"):
        data.setup("fit")
        data.setup("test")
    (message,) = caplog.messages
    name = type(data).__name__.removesuffix("DataModule")
    assert message.startswith(f"stand-in data for {name}, not the real set: {reason}")
    assert "\n" not in message
    another = data_set.module(directory=str(tmp_path), source=option)
    with caplog.at_level(logging.WARNING, "capsule_lab"):
        another.setup("test")
    assert len(caplog.messages) == 1, "another module of the same data is not announced again"
    digits = "scikit-learn's 1797 handwritten digits"
    training = data.standin_source.load(train=True)
    test = data.standin_source.load(train=False)
    provenance = data.provenance
    assert provenance["source"] == "standin"
    assert provenance["name"].startswith(f"stand-in for {data_set.source.name}: {digits}")
    assert provenance["generator"].startswith("capsule_lab.data.standins.")
    assert provenance["version"] >= 1
    assert provenance["sha256"] == tensor_hash(training)
    assert json.loads(json.dumps(provenance)) == provenance
    assert data.spec.classes == (), "digits do not have the names of the real classes"
    assert data.spec.num_classes == 10
    assert data.sets["test"].images.equal(test.images)
    assert files_below(tmp_path) == []
