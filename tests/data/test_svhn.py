"""SVHN from files as MATLAB wrote them, its stand-in, and the network of its experiment."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import scipy.io
import torch
from hydra.utils import instantiate
from torchvision import datasets

from capsule_lab import build
from capsule_lab.command import compose
from capsule_lab.data import DataError, SVHNDataModule, svhn
from capsule_lab.data.coloured_digits import coloured_digits
from capsule_lab.data.transforms import sample_key
from capsule_lab.train import train
from tests.conftest import NO_PICTURES

RANDOM = np.random.default_rng(0)
TRAIN, TEST = "train_32x32.mat", "test_32x32.mat"


def drawn(number: int) -> dict[str, np.ndarray]:
    """What a file holds: labels 1 to 10, which is how the digit 0 is labelled."""
    pixels = RANDOM.integers(0, 256, (32, 32, 3, number), dtype=np.uint8)
    return {"X": pixels, "y": RANDOM.permutation(np.arange(number, dtype=np.uint8) % 10 + 1)[:, None]}


ARRAYS = {TRAIN: drawn(60), TEST: drawn(20)}


def matlab(arrays: dict[str, Any]) -> bytes:
    """MATLAB's format 5, as the genuine files."""
    written = io.BytesIO()
    scipy.io.savemat(written, arrays, do_compression=True)
    return written.getvalue()


def write(folder: Path, monkeypatch, **instead: bytes) -> None:
    """The two files, some of them others, which count as the genuine ones."""
    folder.mkdir(parents=True)
    contents = {name: matlab(arrays) for name, arrays in ARRAYS.items()}
    contents |= {f"{part}_32x32.mat": content for part, content in instead.items()}
    checksums = {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in contents.items()}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    monkeypatch.setattr(svhn, "CHECKSUMS", checksums)


@pytest.fixture
def genuine(tmp_path, monkeypatch) -> Path:
    """A data directory with small files that count as the genuine ones."""
    write(tmp_path / "SVHN", monkeypatch)
    return tmp_path


@pytest.fixture(params=[URLError("no network in tests"), RuntimeError("File not found or corrupted.")], ids=repr)
def offline(request, monkeypatch) -> str:
    def refuse(*_, **__):
        raise request.param

    monkeypatch.setattr(svhn, "download_url", refuse)
    return str(request.param)


@pytest.fixture
def no_download(monkeypatch) -> None:
    def refuse(*_, **__):
        pytest.fail("the network was asked")

    monkeypatch.setattr(svhn, "download_url", refuse)


# --- the files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["train", "test"])
def test_checksums_are_those_that_torchvision_has(part):
    _, name, md5 = datasets.SVHN.split_list[part]
    assert svhn.CHECKSUMS[name] == md5
    assert len(svhn.CHECKSUMS) == 2


def same(images: Any, name: str) -> bool:
    """Image by image, and the digit that it shows."""
    pixels, labels = ARRAYS[name]["X"], ARRAYS[name]["y"]
    expected = np.stack([pixels[:, :, :, n].transpose(2, 0, 1) for n in range(len(labels))])
    return np.array_equal(images.images, expected) and images.labels.tolist() == [
        0 if label == 10 else label for label in labels[:, 0].tolist()
    ]


@pytest.mark.parametrize("source", ["auto", "real"])
@pytest.mark.usefixtures("no_download")
def test_training_file_is_read_back_exactly(genuine, source):
    data = SVHNDataModule(directory=str(genuine), source=source, validation="none")
    data.setup("fit")
    assert data.sets["train"].factors is None
    assert data.sets["train"].images.dtype == torch.uint8
    assert data.sets["train"].images.is_contiguous()
    assert same(data.sets["train"], TRAIN)


@pytest.mark.parametrize("source", ["auto", "real"])
@pytest.mark.usefixtures("no_download")
def test_test_file_is_read_back_exactly(genuine, source):
    data = SVHNDataModule(directory=str(genuine), source=source)
    data.setup("test")
    assert set(data.sets) == {"test"}
    assert same(data.sets["test"], TEST)


def test_validation_is_on_the_first_images(genuine):
    """Which are of other houses."""
    data = SVHNDataModule(directory=str(genuine), source="real")
    data.setup("fit")
    found = data.sets["validation"].images
    assert len(found) == 6
    first = torch.from_numpy(np.moveaxis(ARRAYS[TRAIN]["X"][..., :6], (3, 2), (0, 1)).copy())
    assert found.unique(dim=0).equal(first.unique(dim=0))


def test_training_never_reads_the_test_file(genuine):
    data = SVHNDataModule(directory=str(genuine), source="real")
    data.prepare_data()
    (genuine / "SVHN" / TEST).write_bytes(b"poison")
    data.setup("fit")
    assert set(data.sets) == {"train", "validation"}


@pytest.mark.parametrize("source", ["auto", "real"])
@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("change", [lambda c: c[:-100], lambda c: c[:-1] + b"x", lambda c: b""], ids=["cut", "x", "0"])
@pytest.mark.usefixtures("no_download")
def test_a_file_with_another_checksum_is_named_not_replaced(genuine, source, name, change):
    path = genuine / "SVHN" / name
    path.write_bytes(change(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(DataError) as caught:
        SVHNDataModule(directory=str(genuine), source=source).setup("fit")
    assert f"{path} ({len(before)} bytes" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("source", ["auto", "real"])
@pytest.mark.usefixtures("no_download")
def test_a_missing_file_is_named(genuine, source):
    (genuine / "SVHN" / TEST).unlink()
    with pytest.raises(DataError, match=r"holds 1 of the 2 files of SVHN; missing test_32x32\.mat: add them"):
        SVHNDataModule(directory=str(genuine), source=source).setup("fit")


WHOLE = ARRAYS[TEST]
BROKEN = {
    "truncated": (matlab(WHOLE)[:-500], r"cannot be read \(.+\); expected a file of SVHN: remove it"),
    "corrupt": (matlab(WHOLE)[:5000] + bytes(20) + matlab(WHOLE)[5020:], r"cannot be read \(.+\)"),
    "empty": (b"", r"cannot be read \(.+\)"),
    "another file": (b"<html>a login page</html>" * 20, r"cannot be read \(.+\)"),
    "of MATLAB 7.3": (b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(100), r"cannot be read \(.+\)"),
    "no labels": (matlab({"X": WHOLE["X"]}), r"cannot be read \(it has no X or no y\)"),
    "no images": (matlab({"y": WHOLE["y"]}), r"cannot be read \(it has no X or no y\)"),
    "label 0": (matlab(WHOLE | {"y": WHOLE["y"] - 1}), "has label 0; expected 1 to 10: remove it"),
    "label 11": (matlab(WHOLE | {"y": WHOLE["y"] + 1}), "has label 11; expected 1 to 10"),
    "too few labels": (matlab(WHOLE | {"y": WHOLE["y"][:19]}), r"labels of shape \(19, 1\); expected uint8"),
    "labels in a row": (matlab(WHOLE | {"y": WHOLE["y"].T}), r"labels of shape \(1, 20\); expected uint8"),
    "one after the other": (matlab(WHOLE | {"X": np.moveaxis(WHOLE["X"], 3, 0)}), r"uint8 of shape \(20, 32, 32, 3\)"),
    "small": (matlab(WHOLE | {"X": WHOLE["X"][:24, :24]}), r"uint8 of shape \(24, 24, 3, 20\)"),
    "scaled": (matlab(WHOLE | {"X": WHOLE["X"] / 255}), r"float64 of shape \(32, 32, 3, 20\)"),
}


@pytest.mark.parametrize(("content", "sentence"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_is_not_svhn_is_named_whatever_its_checksum(tmp_path, monkeypatch, content, sentence):
    write(tmp_path / "SVHN", monkeypatch, test=content)
    data = SVHNDataModule(directory=str(tmp_path), source="real")
    with pytest.raises(DataError, match=sentence) as caught:
        data.setup("test")
    assert str(tmp_path / "SVHN" / TEST) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert data.sets == {}


# --- the network ------------------------------------------------------------------------------------------------------


def test_auto_without_network_falls_back_with_one_loud_line(tmp_path, caplog, offline):
    data = SVHNDataModule(directory=str(tmp_path), source="auto")
    with caplog.at_level(logging.DEBUG, "capsule_lab"):
        data.setup("fit")
        data.setup("test")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert [word for word in ("STAND-IN", str(tmp_path / "SVHN")) if word not in record.getMessage()] == []
    assert "\n" not in record.getMessage()
    assert data.provenance["source"] == "stand-in"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stage", ["fit", "test"])
def test_real_without_network_says_what_to_put_where(tmp_path, offline, stage):
    data = SVHNDataModule(directory=str(tmp_path), source="real")
    with pytest.raises(DataError) as caught:
        data.setup(stage)
    words = [str(tmp_path / "SVHN"), TRAIN, TEST, "CAPSULE_LAB_DATA", offline]
    assert [word for word in words if word not in str(caught.value)] == []
    assert "\n" not in str(caught.value)
    assert data.sets == {}


def brings(content: dict[str, bytes]):
    """A download of these files, that breaks off where there are no more."""

    def download(url, root, filename, md5):
        assert url == f"http://ufldl.stanford.edu/housenumbers/{filename}"
        assert md5 in [known for _, name, known in datasets.SVHN.split_list.values() if name == filename]
        Path(root).mkdir(exist_ok=True)
        print("100 %")  # noqa: T201 - as torchvision does
        if filename not in content:
            (Path(root) / filename).write_bytes(b"half a f")
            raise URLError("timed out")
        (Path(root) / filename).write_bytes(content[filename])

    return download


@pytest.mark.parametrize("source", ["auto", "real"])
def test_download_goes_into_place_and_is_verified(tmp_path, genuine, monkeypatch, capfd, source):
    content = {name: (genuine / "SVHN" / name).read_bytes() for name in ARRAYS}
    monkeypatch.setattr(svhn, "download_url", brings(content))
    data = SVHNDataModule(directory=str(tmp_path / "elsewhere"), source=source)
    data.setup("test")
    assert data.provenance["source"] == "real"
    assert sorted(path.name for path in data.folder.iterdir()) == sorted(ARRAYS)
    assert list(data.directory.iterdir()) == [data.folder]
    assert same(data.sets["test"], TEST)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("source", ["auto", "real"])
def test_a_download_that_brings_another_file_is_named(tmp_path, genuine, monkeypatch, source):
    content = {TRAIN: (genuine / "SVHN" / TRAIN).read_bytes(), TEST: b"a login page"}
    monkeypatch.setattr(svhn, "download_url", brings(content))
    with pytest.raises(DataError, match=r"test_32x32\.mat \(12 bytes"):
        SVHNDataModule(directory=str(tmp_path / "elsewhere"), source=source).setup("fit")


def test_a_download_that_breaks_off_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(svhn, "download_url", brings({TRAIN: b"whole"}))
    with pytest.raises(DataError, match="timed out"):
        SVHNDataModule(directory=str(tmp_path), source="real").setup("fit")
    assert list(tmp_path.iterdir()) == []


# --- provenance and the stand-in --------------------------------------------------------------------------------------


def test_provenance_of_the_genuine_files(genuine):
    data = SVHNDataModule(directory=str(genuine), source="auto")
    data.prepare_data()
    assert data.provenance == {"source": "real", "name": "genuine SVHN", "md5": svhn.CHECKSUMS}


@pytest.mark.usefixtures("no_download")
def test_standin_says_what_it_is(tmp_path, caplog):
    data = SVHNDataModule(directory=str(tmp_path / "nowhere"), source="standin")
    data.setup("fit")
    data.setup("test")
    assert data.provenance["source"] == "stand-in"
    assert data.provenance["name"].startswith("stand-in for SVHN: scikit-learn's 1797 handwritten digits")
    assert json.loads(json.dumps(data.provenance)) == data.provenance
    assert data.sets["test"].images.equal(coloured_digits(train=False).images)
    (record,) = caplog.records
    assert record.getMessage() == "STAND-IN DATA, not the genuine set: data.source is standin"
    assert list(tmp_path.iterdir()) == []


# --- what the network sees --------------------------------------------------------------------------------------------


def standin(*, training: bool = True, **options: Any) -> SVHNDataModule:
    data = SVHNDataModule(source="standin", **options)
    data.trainer = SimpleNamespace(
        training=training, global_rank=0, world_size=1, strategy=SimpleNamespace(root_device=torch.device("cpu"))
    )
    data.setup("fit")
    return data


@pytest.mark.parametrize(
    ("training", "options", "moved"),
    [
        (True, {}, False),
        (True, {"shift": 2}, True),
        (False, {"shift": 2}, False),
        (True, {"shift": 2, "augment": False}, False),
    ],
    ids=str,
)
def test_pixels_are_in_the_unit_interval_and_stay_where_they_are_unless_asked(training, options, moved):
    data = standin(training=training, **options)
    batch = next(iter(data.train_dataloader()))
    images = data.on_after_batch_transfer(batch, 0).images
    assert images.dtype == torch.float32
    assert 0 <= images.min() < 0.1 < 0.9 < images.max() <= 1
    assert images.shape[1:] == data.spec.image_shape == (3, 32, 32)
    assert images.equal(batch.images / 255) is not moved


@pytest.mark.parametrize("largest", [1, 3])
def test_every_training_image_is_moved_by_at_most_shift(largest):
    point = torch.zeros(500, 3, 32, 32, dtype=torch.uint8)
    point[:, :, 16, 16] = 255
    data = SVHNDataModule(source="standin", shift=largest)
    moved = data.transform(point, sample_key(0, 0, torch.arange(500)), augment=True)
    places = {(down, right) for _, _, down, right in moved.nonzero().tolist()}
    around = range(16 - largest, 16 + largest + 1)
    assert places == {(down, right) for down in around for right in around}
    assert moved.sum() == 500 * 3


def test_what_is_drawn_depends_on_the_key_alone():
    images, key = coloured_digits(train=True).images[:50], sample_key(0, 0, torch.arange(50))
    data = SVHNDataModule(source="standin", shift=3)
    together = data.transform(images, key, augment=True)
    assert together.equal(data.transform(images, key, augment=True))
    assert data.transform(images[5:9], key[5:9], augment=True).equal(together[5:9])
    assert not data.transform(images, key + 1, augment=True).equal(together)


CHANGED = {"shift": 2, "validation_share": 0.5}


@pytest.mark.parametrize("option", [name for name in inspect.signature(SVHNDataModule).parameters if name != "options"])
def test_every_option_does_something(option):
    plain, changed = standin(), standin(**{option: CHANGED[option]})
    images, key = coloured_digits(train=True).images[:50], sample_key(0, 0, torch.arange(50))
    seen, other = (data.transform(images, key, augment=True) for data in (plain, changed))
    assert not seen.equal(other) or len(plain.sets["train"].labels) != len(changed.sets["train"].labels)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"shift": -1}, r"data\.shift is -1; expected 0 \(no shift\) or more pixels"),
        ({"source": "genuine"}, r"data\.source is 'genuine'"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked_types")
def test_options_that_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        SVHNDataModule(**options)


# --- the experiment ---------------------------------------------------------------------------------------------------


def test_network_of_the_experiment_is_as_large_as_published():
    config = compose("train", ["experiment=sabour2017/svhn"])
    build.check(config)
    spec = build.build_data(config).spec
    with torch.device("meta"):
        network = instantiate(config.model, _partial_=True, _convert_="all")(spec.image_shape, spec.num_classes)
    assert sum(parameter.numel() for parameter in network.parameters()) == 1_004_976
    assert network.decoder is None
    assert not network.digits.routing.leaky


@pytest.mark.parametrize(
    ("decoder", "terms"), [("null", {"margin"}), ("[8]", {"margin", "reconstruction"})], ids=["without", "with"]
)
def test_experiment_trains_with_and_without_a_decoder(tmp_path, decoder, terms):
    small = ["model.channels=4", "model.primary_types=2", f"model.decoder={decoder}", "trainer.accelerator=cpu"]
    config = compose("train", ["experiment=sabour2017/svhn", "debug=smoke", *small, *NO_PICTURES])
    result = train(config, tmp_path / "run")
    assert result["test"].keys() == {"error", "loss", *terms}
    assert result["test"]["loss"] == pytest.approx(sum(result["test"][term] for term in terms))
    assert result["provenance"]["source"] == "stand-in"
