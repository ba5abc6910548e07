"""Published files and their stand-ins: what every data set of them promises; a data set is a row of ``DATA_SETS``."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest
import torch

from capsule_lab.data import CIFAR10DataModule, MNISTDataModule, SVHNDataModule, cifar10, mnist
from capsule_lab.data.base import AbstractDataModule
from capsule_lab.data.cifar10 import CIFAR10Files
from capsule_lab.data.mnist import MNISTFiles
from capsule_lab.data.sources import PublishedFiles
from capsule_lab.data.svhn import SVHNFiles
from capsule_lab.errors import DataError
from tests.helpers import cifar10_files, mnist_files, svhn_files
from tests.helpers.data_modules import forbid_downloads, serve, without_network


@dataclass(frozen=True)
class DataSet:
    """A data set, and small files that count as its real ones."""

    source: type[PublishedFiles]
    module: type[AbstractDataModule]
    files: ModuleType  # a helper, which has CONTENTS, TRAINING, TEST, BROKEN and downloads()
    classes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def folder(self) -> str:
        return self.source.path

    @property
    def test_file(self) -> str:
        return list(self.files.CONTENTS)[-1]  # all others are for training


CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")  # of batches.meta
DATA_SETS = (
    DataSet(CIFAR10Files, CIFAR10DataModule, cifar10_files, CLASSES),
    DataSet(MNISTFiles, MNISTDataModule, mnist_files),
    DataSet(SVHNFiles, SVHNDataModule, svhn_files),
)


@pytest.fixture(params=DATA_SETS, ids=lambda data_set: data_set.name)
def data_set(request) -> DataSet:
    return request.param


@pytest.fixture(params=["auto", "real"])
def source(request) -> str:
    return request.param


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def checksum(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@pytest.fixture
def real(tmp_path, monkeypatch, data_set) -> Path:
    """A data directory with the small files."""
    (tmp_path / data_set.folder).mkdir(parents=True)
    for file, content in data_set.files.CONTENTS.items():
        (tmp_path / data_set.folder / file).write_bytes(content)
    checksums = {file: checksum(content) for file, content in data_set.files.CONTENTS.items()}
    monkeypatch.setattr(data_set.source, "checksums", checksums)
    return tmp_path


@pytest.fixture
def offline(monkeypatch) -> str:
    without_network(monkeypatch)
    return "no network in tests"


@pytest.fixture
def no_download(monkeypatch) -> None:
    forbid_downloads(monkeypatch)


@pytest.fixture
def downloads(monkeypatch, data_set) -> Callable[[dict[str, bytes]], list[str]]:
    """Gives the server these files; returns the addresses asked for."""

    def make(contents: dict[str, bytes]) -> list[str]:
        served = data_set.files.downloads(contents)
        if data_set.source is CIFAR10Files:  # SVHN's files are what is checked
            monkeypatch.setattr(cifar10, "ARCHIVE_MD5", checksum(served[cifar10.ARCHIVE]))
        sums = {name.removesuffix(".gz"): checksum(content) for name, content in served.items()}
        monkeypatch.setattr(mnist, "ARCHIVES", sums)
        return serve(monkeypatch, served)

    return make


# --- the files --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_download")
def test_training_files_are_read_back_exactly(data_set, real, source):
    data = data_set.module(directory=str(real), source=source, validation="none")
    data.setup("fit")
    images, labels, factors = data.sets["train"]
    assert factors is None
    assert images.dtype == torch.uint8
    assert images.is_contiguous()
    assert images.equal(data_set.files.TRAINING.images)
    assert labels.equal(data_set.files.TRAINING.labels)


@pytest.mark.usefixtures("no_download")
def test_test_file_is_read_back_exactly(data_set, real, source):
    data = data_set.module(directory=str(real), source=source)
    data.setup("test")
    assert set(data.sets) == {"test"}
    assert data.sets["test"].images.equal(data_set.files.TEST.images)
    assert data.sets["test"].labels.equal(data_set.files.TEST.labels)


@pytest.mark.usefixtures("no_download")
def test_validation_is_on_the_first_images(data_set, real, source):
    """Which for SVHN are of other houses."""
    data = data_set.module(directory=str(real), source=source, validation_share="1/10")
    data.setup("fit")
    split, found = data.provenance["split"], data.sets["val"].images
    assert (split["validation"], split["train_images"], split["val_images"]) == ("first", 54, 6)
    assert len(found) == 6
    assert found.unique(dim=0).equal(data_set.files.TRAINING.images[:6].unique(dim=0))


def test_training_never_reads_the_test_file(data_set, real):
    data = data_set.module(directory=str(real), source="real")
    data.prepare_data()
    (real / data_set.folder / data_set.test_file).write_bytes(b"poison")
    data.setup("fit")
    assert set(data.sets) == {"train", "val"}


@pytest.mark.usefixtures("no_download")
def test_a_file_with_another_checksum_is_named_not_replaced(data_set, real, source):
    changes = (lambda c: c[:-100], lambda c: c[:-1] + bytes([c[-1] ^ 1]), lambda c: b"")
    for file, change in product(data_set.files.CONTENTS, changes):
        path = real / data_set.folder / file
        whole = path.read_bytes()
        path.write_bytes(change(whole))
        with pytest.raises(DataError, match=rf"^{re.escape(str(path))} \({len(change(whole))} bytes[^\n]*$"):
            data_set.module(directory=str(real), source=source).setup("fit")
        assert path.read_bytes() == change(whole)
        path.write_bytes(whole)


@pytest.mark.usefixtures("no_download")
def test_a_missing_file_is_named(data_set, real, source):
    number = len(data_set.files.CONTENTS)
    for file, content in data_set.files.CONTENTS.items():
        (real / data_set.folder / file).unlink()
        message = f"holds {number - 1} of the {number} files of {data_set.name}; missing {file}: add them"
        with pytest.raises(DataError, match=re.escape(message)):
            data_set.module(directory=str(real), source=source).setup("fit")
        (real / data_set.folder / file).write_bytes(content)


def test_a_file_of_another_kind_is_refused_whatever_its_checksum(data_set, real, monkeypatch):
    path = real / data_set.folder / data_set.test_file
    for kind, (content, message) in data_set.files.BROKEN.items():
        path.write_bytes(content)
        monkeypatch.setitem(data_set.source.checksums, path.name, checksum(content))
        data = data_set.module(directory=str(real), source="real")
        with pytest.raises(DataError, match=message) as caught:
            data.setup("test")
        assert str(path.parent) in str(caught.value) or "the test set of" in str(caught.value), kind
        assert "\n" not in str(caught.value), kind
        assert data.sets == {}


# --- the network ------------------------------------------------------------------------------------------------------


def test_auto_without_network_falls_back_with_one_warning(data_set, tmp_path, caplog, offline):
    data = data_set.module(directory=str(tmp_path), source="auto")
    with caplog.at_level(logging.DEBUG, "capsule_lab"):
        data.setup("fit")
        data.setup("test")
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [word for word in ("STAND-IN", str(tmp_path / data_set.folder)) if word not in record.getMessage()] == []
    assert "\n" not in record.getMessage()
    assert data.provenance["source"] == "standin"
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("stage", ["fit", "test"])
def test_real_without_network_names_the_missing_files(data_set, tmp_path, offline, stage):
    data = data_set.module(directory=str(tmp_path), source="real")
    with pytest.raises(DataError) as caught:
        data.setup(stage)
    parts = [str(tmp_path / data_set.folder), *data_set.files.CONTENTS, "CAPSULE_LAB_DATA", offline]
    assert [part for part in parts if part not in str(caught.value)] == []
    assert "\n" not in str(caught.value)
    assert data.sets == {}


def test_download_goes_into_place_and_is_verified(data_set, tmp_path, real, downloads, capfd, source):
    asked = downloads(data_set.files.CONTENTS)
    data = data_set.module(directory=str(tmp_path / "elsewhere"), source=source)
    data.setup("test")
    assert data.provenance["source"] == "real"
    assert len(asked) == len(data_set.files.downloads(data_set.files.CONTENTS))
    folder = data.real_source.folder
    assert sorted(path.name for path in folder.iterdir()) == sorted(data_set.files.CONTENTS)
    assert sorted(files_below(data.directory)) == sorted(folder.iterdir())
    assert data.sets["test"].images.equal(data_set.files.TEST.images)
    assert data.sets["test"].labels.equal(data_set.files.TEST.labels)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("real")
def test_a_download_that_brings_another_file_is_named(data_set, tmp_path, downloads):
    for number, file in enumerate(data_set.files.CONTENTS):
        downloads(data_set.files.CONTENTS | {file: b"a login page"})
        found = re.escape(file) + (": .*known hash" if data_set.source is SVHNFiles else r" \(12 bytes")
        with pytest.raises(DataError, match=found):
            data_set.module(directory=str(tmp_path / str(number)), source="real").setup("fit")


def test_a_download_that_breaks_off_leaves_nothing(data_set, tmp_path, monkeypatch, real):
    served = data_set.files.downloads(data_set.files.CONTENTS)
    serve(monkeypatch, served | {list(served)[-1]: TimeoutError("timed out")})
    monkeypatch.setattr(mnist, "ARCHIVES", {name.removesuffix(".gz"): checksum(c) for name, c in served.items()})
    with pytest.raises(DataError, match="timed out"):
        data_set.module(directory=str(tmp_path / "elsewhere"), source="real").setup("fit")
    assert files_below(tmp_path / "elsewhere") == []


# --- provenance and the stand-in --------------------------------------------------------------------------------------


def test_provenance_of_the_real_files(data_set, real):
    data = data_set.module(directory=str(real), source="auto")
    data.prepare_data()
    expected = {"source": "real", "name": f"real {data_set.name}", "md5": data_set.source.checksums}
    assert data.provenance == expected
    data.setup("fit")
    assert data.provenance == expected | {"split": data.provenance["split"]}
    assert data.spec.classes == data_set.classes


@pytest.mark.usefixtures("no_download")
def test_provenance_of_the_standin(data_set, tmp_path, caplog):
    data = data_set.module(directory=str(tmp_path / "nowhere"), source="standin")
    data.setup("fit")
    data.setup("test")
    assert data.provenance["source"] == "standin"
    name = f"stand-in for {data_set.name}: scikit-learn's 1797 handwritten digits"
    assert data.provenance["name"].startswith(name)
    assert json.loads(json.dumps(data.provenance)) == data.provenance
    assert data.spec.classes == (), "a digit is no airplane"
    assert data.spec.num_classes == 10
    assert data.sets["test"].images.equal(data.standin_source.load(train=False).images)
    (record,) = caplog.records
    assert record.getMessage() == "STAND-IN DATA, not the real set: data.source is standin"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("unchecked_types")
def test_an_unknown_source_is_refused(data_set):
    with pytest.raises(ValueError, match=r"data\.source is 'reel'"):
        data_set.module(source="reel")
