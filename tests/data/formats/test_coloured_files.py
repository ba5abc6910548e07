"""What CIFAR10 and SVHN have in common: real files, their download, the stand-in where there are none."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from urllib.error import URLError

import pytest
import torch

from capsule_lab.data import CIFAR10DataModule, SVHNDataModule, cifar10, svhn
from capsule_lab.data.base import AbstractDataModule
from capsule_lab.data.standins.coloured_digits import coloured_digits
from capsule_lab.errors import DataError
from tests.data import test_cifar10, test_svhn


@dataclass(frozen=True)
class DataSet:
    """A data set, and small files that count as its real ones."""

    name: str
    code: ModuleType
    module: type[AbstractDataModule]
    folder: str
    download: str  # name of torchvision's function in the code
    files: ModuleType  # tests of their format, which have CONTENTS, TRAINING, TEST, BROKEN and brings()
    classes: tuple[str, ...] = ()

    @property
    def test_file(self) -> str:
        return list(self.files.CONTENTS)[-1]  # all others are for training


CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")  # of batches.meta
DATA_SETS = (
    DataSet(
        "CIFAR10", cifar10, CIFAR10DataModule, "cifar-10-batches-py", "download_and_extract_archive", test_cifar10,
        CLASSES,
    ),
    DataSet("SVHN", svhn, SVHNDataModule, "SVHN", "download_url", test_svhn),
)  # fmt: skip
EACH_FILE = [pytest.param(of, file, id=f"{of.name}-{file}") for of in DATA_SETS for file in of.files.CONTENTS]
EACH_BROKEN = [
    pytest.param(of, *broken, id=f"{of.name}-{kind}") for of in DATA_SETS for kind, broken in of.files.BROKEN.items()
]


@pytest.fixture(params=DATA_SETS, ids=lambda data_set: data_set.name)
def data_set(request) -> DataSet:
    return request.param


@pytest.fixture(params=["auto", "real"])
def source(request) -> str:
    return request.param


def checksum(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@pytest.fixture
def real(tmp_path, monkeypatch, data_set) -> Path:
    """A data directory with the small files."""
    (tmp_path / data_set.folder).mkdir()
    for file, content in data_set.files.CONTENTS.items():
        (tmp_path / data_set.folder / file).write_bytes(content)
    checksums = {file: checksum(content) for file, content in data_set.files.CONTENTS.items()}
    monkeypatch.setattr(data_set.code, "CHECKSUMS", checksums)
    return tmp_path


@pytest.fixture(params=[URLError("no network in tests"), RuntimeError("File not found or corrupted.")], ids=repr)
def offline(request, monkeypatch, data_set) -> str:
    def refuse(*_, **__):
        raise request.param

    monkeypatch.setattr(data_set.code, data_set.download, refuse)
    return str(request.param)


@pytest.fixture
def no_download(monkeypatch, data_set) -> None:
    def refuse(*_, **__):
        pytest.fail("the network was asked")

    monkeypatch.setattr(data_set.code, data_set.download, refuse)


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
    data = data_set.module(directory=str(real), source=source)
    data.setup("fit")
    split, found = data.provenance["split"], data.sets["validation"].images
    assert (split["validation"], split["train_images"], split["validation_images"]) == ("first", 54, 6)
    assert len(found) == 6
    assert found.unique(dim=0).equal(data_set.files.TRAINING.images[:6].unique(dim=0))


def test_training_never_reads_the_test_file(data_set, real):
    data = data_set.module(directory=str(real), source="real")
    data.prepare_data()
    (real / data_set.folder / data_set.test_file).write_bytes(b"poison")
    data.setup("fit")
    assert set(data.sets) == {"train", "validation"}


@pytest.mark.parametrize(("data_set", "file"), EACH_FILE)
@pytest.mark.parametrize("change", [lambda c: c[:-100], lambda c: c[:-1] + b"x", lambda c: b""], ids=["cut", "x", "0"])
@pytest.mark.usefixtures("no_download")
def test_a_file_with_another_checksum_is_named_not_replaced(data_set, file, real, source, change):
    path = real / data_set.folder / file
    path.write_bytes(change(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(DataError) as caught:
        data_set.module(directory=str(real), source=source).setup("fit")
    assert f"{path} ({len(before)} bytes" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize(("data_set", "file"), EACH_FILE)
@pytest.mark.usefixtures("no_download")
def test_a_missing_file_is_named(data_set, file, real, source):
    (real / data_set.folder / file).unlink()
    all_of_them = len(data_set.files.CONTENTS)
    sentence = f"holds {all_of_them - 1} of the {all_of_them} files of {data_set.name}; missing {file}: add them"
    with pytest.raises(DataError, match=re.escape(sentence)):
        data_set.module(directory=str(real), source=source).setup("fit")


@pytest.mark.parametrize(("data_set", "content", "sentence"), EACH_BROKEN)
def test_a_file_of_another_kind_is_named_whatever_its_checksum(data_set, real, monkeypatch, content, sentence):
    path = real / data_set.folder / data_set.test_file
    path.write_bytes(content)
    monkeypatch.setitem(data_set.code.CHECKSUMS, path.name, checksum(content))
    data = data_set.module(directory=str(real), source="real")
    with pytest.raises(DataError, match=sentence) as caught:
        data.setup("test")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert data.sets == {}


# --- the network ------------------------------------------------------------------------------------------------------


def test_auto_without_network_falls_back_with_one_loud_line(data_set, tmp_path, caplog, offline):
    data = data_set.module(directory=str(tmp_path), source="auto")
    with caplog.at_level(logging.DEBUG, "capsule_lab"):
        data.setup("fit")
        data.setup("test")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert [word for word in ("STAND-IN", str(tmp_path / data_set.folder)) if word not in record.getMessage()] == []
    assert "\n" not in record.getMessage()
    assert data.provenance["source"] == "standin"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stage", ["fit", "test"])
def test_real_without_network_says_what_to_put_where(data_set, tmp_path, offline, stage):
    data = data_set.module(directory=str(tmp_path), source="real")
    with pytest.raises(DataError) as caught:
        data.setup(stage)
    words = [str(tmp_path / data_set.folder), *data_set.files.CONTENTS, "CAPSULE_LAB_DATA", offline]
    assert [word for word in words if word not in str(caught.value)] == []
    assert "\n" not in str(caught.value)
    assert data.sets == {}


def test_download_goes_into_place_and_is_verified(data_set, tmp_path, real, monkeypatch, capfd, source):
    monkeypatch.setattr(data_set.code, data_set.download, data_set.files.brings(data_set.files.CONTENTS))
    data = data_set.module(directory=str(tmp_path / "elsewhere"), source=source)
    data.setup("test")
    assert data.provenance["source"] == "real"
    assert sorted(path.name for path in data.folder.iterdir()) == sorted(data_set.files.CONTENTS)
    assert list(data.directory.iterdir()) == [data.folder]
    assert data.sets["test"].images.equal(data_set.files.TEST.images)
    assert data.sets["test"].labels.equal(data_set.files.TEST.labels)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("data_set", "file"), EACH_FILE)
@pytest.mark.usefixtures("real")
def test_a_download_that_brings_another_file_is_named(data_set, file, tmp_path, monkeypatch, source):
    content = data_set.files.CONTENTS | {file: b"a login page"}
    monkeypatch.setattr(data_set.code, data_set.download, data_set.files.brings(content))
    with pytest.raises(DataError, match=rf"{re.escape(file)} \(12 bytes"):
        data_set.module(directory=str(tmp_path / "elsewhere"), source=source).setup("fit")


def test_a_download_that_breaks_off_leaves_nothing(data_set, tmp_path, monkeypatch):
    content = {file: whole for file, whole in data_set.files.CONTENTS.items() if file != data_set.test_file}
    monkeypatch.setattr(data_set.code, data_set.download, data_set.files.brings(content))
    with pytest.raises(DataError, match="timed out"):
        data_set.module(directory=str(tmp_path), source="real").setup("fit")
    assert list(tmp_path.iterdir()) == []


# --- provenance and the stand-in --------------------------------------------------------------------------------------


def test_provenance_of_the_real_files(data_set, real):
    data = data_set.module(directory=str(real), source="auto")
    data.prepare_data()
    said = {"source": "real", "name": f"real {data_set.name}", "md5": data_set.code.CHECKSUMS}
    assert data.provenance == said
    data.setup("fit")
    assert data.provenance == said | {"split": data.provenance["split"]}
    assert data.spec.classes == data_set.classes


@pytest.mark.usefixtures("no_download")
def test_standin_says_what_it_is(data_set, tmp_path, caplog):
    data = data_set.module(directory=str(tmp_path / "nowhere"), source="standin")
    data.setup("fit")
    data.setup("test")
    assert data.provenance["source"] == "standin"
    name = f"stand-in for {data_set.name}: scikit-learn's 1797 handwritten digits"
    assert data.provenance["name"].startswith(name)
    assert json.loads(json.dumps(data.provenance)) == data.provenance
    assert data.spec.classes == (), "a digit is no airplane"
    assert data.spec.num_classes == 10
    assert data.sets["test"].images.equal(coloured_digits(train=False).images)
    (record,) = caplog.records
    assert record.getMessage() == "STAND-IN DATA, not the real set: data.source is standin"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("unchecked_types")
def test_an_unknown_source_is_refused(data_set):
    with pytest.raises(ValueError, match=r"data\.source is 'real'"):
        data_set.module(source="real")
