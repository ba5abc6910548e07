"""CIFAR10 from files as Python 2 wrote them, its augmentation, its stand-in, and the network of its experiment."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from torchvision import datasets

from capsule_lab import build
from capsule_lab.command import compose
from capsule_lab.data import CIFAR10DataModule, DataError, cifar10
from capsule_lab.data.coloured_digits import coloured_digits
from capsule_lab.data.transforms import sample_key
from capsule_lab.train import train
from tests.conftest import NO_PICTURES

IMAGES = 12  # in each file
RANDOM = np.random.default_rng(0)
BATCHES = {
    name: (RANDOM.integers(0, 256, (IMAGES, 3072), dtype=np.uint8), RANDOM.integers(0, 10, IMAGES).tolist())
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")
}
TRAINING = [name for name in BATCHES if name != "test_batch"]
PHOTOGRAPHS = torch.from_numpy(RANDOM.integers(0, 256, (400, 3, 32, 32), dtype=np.uint8))
KEYS = sample_key(0, 0, torch.arange(400))


def text(written: bytes) -> bytes:
    return b"U" + bytes([len(written)]) + written


def array(values: np.ndarray, kind: bytes = b"u1") -> bytes:
    """As Python 2 pickles an array: its making, then its state."""
    sizes = b"".join(b"M" + size.to_bytes(2, "little") for size in values.shape)
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R(K\x01("
        + sizes + b"tcnumpy\ndtype\n" + text(kind) + b"K\x00K\x01\x87R(K\x03" + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + values.nbytes.to_bytes(4, "little") + values.tobytes() + b"tb"
    )  # fmt: skip


def pickled(pixels: bytes, labels: list[int], *, key: bytes = b"labels") -> bytes:
    """A batch in protocol 2, entry by entry as in the genuine files."""
    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    names = b"".join(text(b"leptodactylus_s_%06d.png" % number) for number in range(len(labels)))
    return (
        b"\x80\x02}(" + text(b"batch_label") + text(b"training batch 1 of 5") + text(key) + b"](" + numbers + b"e"
        + text(b"data") + pixels + text(b"filenames") + b"](" + names + b"eu."
    )  # fmt: skip


def write(folder: Path, monkeypatch, **instead: bytes) -> None:
    """The six files, some of them others, which count as the genuine ones."""
    folder.mkdir(parents=True)
    contents = {name: pickled(array(pixels), labels) for name, (pixels, labels) in BATCHES.items()} | instead
    checksums = {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in contents.items()}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    monkeypatch.setattr(cifar10, "CHECKSUMS", checksums)


@pytest.fixture
def genuine(tmp_path, monkeypatch) -> Path:
    """A data directory with small files that count as the genuine ones."""
    write(tmp_path / cifar10.FOLDER, monkeypatch)
    return tmp_path


@pytest.fixture(params=[URLError("no network in tests"), RuntimeError("File not found or corrupted.")], ids=repr)
def offline(request, monkeypatch) -> str:
    def refuse(*_, **__):
        raise request.param

    monkeypatch.setattr(cifar10, "download_and_extract_archive", refuse)
    return str(request.param)


@pytest.fixture
def no_download(monkeypatch) -> None:
    def refuse(*_, **__):
        pytest.fail("the network was asked")

    monkeypatch.setattr(cifar10, "download_and_extract_archive", refuse)


@pytest.fixture
def not_standardised(monkeypatch) -> None:
    """What the network would see before its last step."""
    monkeypatch.setattr(cifar10, "standardise", lambda images: images)


def stored(*names: str) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([BATCHES[name][0] for name in names]).reshape(-1, 3, 32, 32))


def seen(training: bool = True, images: torch.Tensor = PHOTOGRAPHS, key: torch.Tensor = KEYS, **options):
    data = CIFAR10DataModule(source="standin", **options)
    return data.transform(images, key[: len(images)], augment=training)


# --- the files --------------------------------------------------------------------------------------------------------


def test_checksums_are_those_that_torchvision_has():
    assert dict([*datasets.CIFAR10.train_list, *datasets.CIFAR10.test_list]) == cifar10.CHECKSUMS


@pytest.mark.parametrize("source", ["auto", "real"])
@pytest.mark.usefixtures("no_download")
def test_training_files_are_read_back_exactly(genuine, source):
    data = CIFAR10DataModule(directory=str(genuine), source=source, validation="none")
    data.setup("fit")
    images, labels, factors = data.sets["train"]
    assert factors is None
    assert images.dtype == torch.uint8
    assert images.equal(stored(*TRAINING))
    assert labels.tolist() == [label for name in TRAINING for label in BATCHES[name][1]]


@pytest.mark.parametrize("source", ["auto", "real"])
@pytest.mark.usefixtures("no_download")
def test_test_file_is_read_back_exactly(genuine, source):
    data = CIFAR10DataModule(directory=str(genuine), source=source)
    data.setup("test")
    assert set(data.sets) == {"test"}
    assert data.sets["test"].images.equal(stored("test_batch"))
    assert data.sets["test"].labels.tolist() == BATCHES["test_batch"][1]


def test_pixels_are_red_then_green_then_blue_row_by_row(tmp_path, monkeypatch):
    counted = (np.arange(3072) // 16).astype(np.uint8)[None]  # half a row each: 0 to 191
    write(tmp_path / cifar10.FOLDER, monkeypatch, test_batch=pickled(array(counted), [3]))
    data = CIFAR10DataModule(directory=str(tmp_path), source="real")
    data.setup("test")
    (image,) = data.sets["test"].images
    assert [int(image[place]) for place in [(0, 0, 0), (0, 0, 16), (0, 1, 0), (1, 0, 0), (2, 31, 31)]] == [
        0, 1, 2, 64, 191
    ]  # fmt: skip


def test_training_never_reads_the_test_file(genuine):
    data = CIFAR10DataModule(directory=str(genuine), source="real")
    data.prepare_data()
    (genuine / cifar10.FOLDER / "test_batch").write_bytes(b"poison")
    data.setup("fit")
    assert set(data.sets) == {"train", "validation"}


@pytest.mark.parametrize("source", ["auto", "real"])
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("change", [lambda c: c[:-100], lambda c: c[:-1] + b"x", lambda c: b""], ids=["cut", "x", "0"])
@pytest.mark.usefixtures("no_download")
def test_a_file_with_another_checksum_is_named_not_replaced(genuine, source, name, change):
    path = genuine / cifar10.FOLDER / name
    path.write_bytes(change(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(DataError) as caught:
        CIFAR10DataModule(directory=str(genuine), source=source).setup("fit")
    assert f"{path} ({len(before)} bytes" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("source", ["auto", "real"])
@pytest.mark.usefixtures("no_download")
def test_a_missing_file_is_named(genuine, source):
    (genuine / cifar10.FOLDER / "data_batch_3").unlink()
    with pytest.raises(DataError, match="holds 5 of the 6 files of CIFAR10; missing data_batch_3: add them"):
        CIFAR10DataModule(directory=str(genuine), source=source).setup("fit")


WHOLE = array(BATCHES["test_batch"][0])
BROKEN = {
    "truncated": (
        pickled(WHOLE, BATCHES["test_batch"][1])[:-200],
        r"cannot be read \(.+\); expected a file of CIFAR10",
    ),
    "empty": (b"", r"cannot be read \(Ran out of input\)"),
    "another file": (b"<html>a login page</html>", r"cannot be read \(.+\)"),
    "no labels": (
        pickled(WHOLE, [0] * IMAGES, key=b"etikett"),
        r"cannot be read \(it has batch_label, etikett, data, filenames, not data and labels\)",
    ),
    "label of CIFAR100": (pickled(WHOLE, [*range(10), 0, 10]), "has label 10; expected 0 to 9: remove it"),
    "too few labels": (pickled(WHOLE, [0] * 11), r"of shape \(12, 3072\) and labels of shape \(11,\); expected uint8"),
    "grey": (pickled(array(BATCHES["test_batch"][0][:, :1024]), [0] * IMAGES), r"uint8 of shape \(12, 1024\)"),
    "flat": (pickled(array(BATCHES["test_batch"][0][0]), [0] * IMAGES), r"uint8 of shape \(3072,\)"),
    "signed": (pickled(array(BATCHES["test_batch"][0], b"i1"), [0] * IMAGES), r"int8 of shape \(12, 3072\)"),
}


@pytest.mark.parametrize(("content", "sentence"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_is_no_batch_is_named_whatever_its_checksum(tmp_path, monkeypatch, content, sentence):
    write(tmp_path / cifar10.FOLDER, monkeypatch, test_batch=content)
    data = CIFAR10DataModule(directory=str(tmp_path), source="real")
    with pytest.raises(DataError, match=sentence) as caught:
        data.setup("test")
    assert str(tmp_path / cifar10.FOLDER / "test_batch") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert data.sets == {}


@pytest.mark.parametrize("call", [b"cposix\nsystem\n", b"c__builtin__\neval\n", b"cnumpy.core.multiarray\nscalar\n"])
def test_a_file_runs_nothing(tmp_path, monkeypatch, call):
    written = tmp_path / "written"
    command = text(b"touch " + str(written).encode())
    write(tmp_path / cifar10.FOLDER, monkeypatch, test_batch=b"\x80\x02" + call + command + b"\x85R.")
    with pytest.raises(DataError, match=r"it asks for .+, and may ask for numpy's arrays only"):
        CIFAR10DataModule(directory=str(tmp_path), source="real").setup("test")
    assert not written.exists()


# --- the network ------------------------------------------------------------------------------------------------------


def test_auto_without_network_falls_back_with_one_loud_line(tmp_path, caplog, offline):
    data = CIFAR10DataModule(directory=str(tmp_path), source="auto")
    with caplog.at_level(logging.DEBUG, "capsule_lab"):
        data.setup("fit")
        data.setup("test")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert [word for word in ("STAND-IN", str(tmp_path / cifar10.FOLDER)) if word not in record.getMessage()] == []
    assert "\n" not in record.getMessage()
    assert data.provenance["source"] == "stand-in"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stage", ["fit", "test"])
def test_real_without_network_says_what_to_put_where(tmp_path, offline, stage):
    data = CIFAR10DataModule(directory=str(tmp_path), source="real")
    with pytest.raises(DataError) as caught:
        data.setup(stage)
    words = [str(tmp_path / cifar10.FOLDER), *cifar10.CHECKSUMS, "CAPSULE_LAB_DATA", offline]
    assert [word for word in words if word not in str(caught.value)] == []
    assert "\n" not in str(caught.value)
    assert data.sets == {}


def unpacks(content: dict[str, bytes]):
    """A download of an archive that holds these files."""

    def download(url, root, *, filename, md5):
        assert (url, filename, md5) == (
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
        )
        (Path(root) / filename).write_bytes(b"archive")
        (Path(root) / cifar10.FOLDER).mkdir()
        for name, written in content.items():
            (Path(root) / cifar10.FOLDER / name).write_bytes(written)
        print("100 %")  # noqa: T201 - as torchvision does

    return download


@pytest.mark.parametrize("source", ["auto", "real"])
def test_download_goes_into_place_and_is_verified(tmp_path, genuine, monkeypatch, capfd, source):
    content = {name: (genuine / cifar10.FOLDER / name).read_bytes() for name in BATCHES}
    monkeypatch.setattr(cifar10, "download_and_extract_archive", unpacks(content))
    data = CIFAR10DataModule(directory=str(tmp_path / "elsewhere"), source=source)
    data.setup("test")
    assert data.provenance["source"] == "real"
    assert sorted(path.name for path in data.folder.iterdir()) == sorted(BATCHES)
    assert list(data.directory.iterdir()) == [data.folder]
    assert data.sets["test"].images.equal(stored("test_batch"))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("source", ["auto", "real"])
def test_a_download_that_brings_another_file_is_named(tmp_path, genuine, monkeypatch, source):
    content = {name: (genuine / cifar10.FOLDER / name).read_bytes() for name in BATCHES}
    monkeypatch.setattr(cifar10, "download_and_extract_archive", unpacks(content | {"data_batch_2": b"a login page"}))
    with pytest.raises(DataError, match=r"data_batch_2 \(12 bytes"):
        CIFAR10DataModule(directory=str(tmp_path / "elsewhere"), source=source).setup("fit")


def test_a_download_that_breaks_off_leaves_nothing(tmp_path, monkeypatch):
    def break_off(url, root, *, filename, md5):
        (Path(root) / filename).write_bytes(b"half an arch")
        raise URLError("timed out")

    monkeypatch.setattr(cifar10, "download_and_extract_archive", break_off)
    with pytest.raises(DataError, match="timed out"):
        CIFAR10DataModule(directory=str(tmp_path), source="real").setup("fit")
    assert list(tmp_path.iterdir()) == []


# --- provenance and the stand-in --------------------------------------------------------------------------------------


def test_genuine_files(genuine):
    data = CIFAR10DataModule(directory=str(genuine), source="auto")
    data.setup("fit")
    split = data.provenance.pop("split")
    assert data.provenance == {"source": "real", "name": "genuine CIFAR10", "md5": cifar10.CHECKSUMS}
    assert (split["validation"], split["train_images"], split["validation_images"]) == ("first", 54, 6)
    assert data.sets["validation"].images.unique(dim=0).equal(stored("data_batch_1")[:6].unique(dim=0))
    assert data.spec.classes == (  # in the order of the files' batches.meta
        "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"
    )  # fmt: skip


@pytest.mark.usefixtures("no_download")
def test_standin_says_what_it_is(tmp_path, caplog):
    data = CIFAR10DataModule(directory=str(tmp_path / "nowhere"), source="standin")
    data.setup("fit")
    data.setup("test")
    assert data.provenance["source"] == "stand-in"
    assert data.provenance["name"].startswith("stand-in for CIFAR10: scikit-learn's 1797 handwritten digits")
    assert json.loads(json.dumps(data.provenance)) == data.provenance
    assert data.spec.classes == (), "a digit is no airplane"
    assert data.spec.num_classes == 10
    assert data.sets["test"].images.equal(coloured_digits(train=False).images)
    (record,) = caplog.records
    assert record.getMessage() == "STAND-IN DATA, not the genuine set: data.source is standin"
    assert list(tmp_path.iterdir()) == []


# --- what the network sees --------------------------------------------------------------------------------------------


def standardised(image: np.ndarray) -> np.ndarray:
    return (image - image.mean()) / max(image.std(), image.size**-0.5)


@pytest.mark.parametrize(("crop", "corner"), [(24, 4), (32, 0), (23, 4), (1, 15)])
def test_evaluation_is_on_the_centre_standardised(crop, corner):
    expected = PHOTOGRAPHS[:20, :, corner : corner + crop, corner : corner + crop].double().numpy()
    images = seen(training=False, images=PHOTOGRAPHS[:20], crop=crop)
    assert images.dtype == torch.float32
    assert images.is_contiguous() or crop == 32
    np.testing.assert_allclose(images, np.stack([standardised(image) for image in expected]), atol=1e-5)


@pytest.mark.parametrize("crop", [8, 24, 32])
def test_size_is_that_of_the_spec(crop):
    assert seen(crop=crop).shape[1:] == CIFAR10DataModule(crop=crop).spec.image_shape == (3, crop, crop)


def test_training_patches_are_standardised():
    images = seen()
    torch.testing.assert_close(images.mean(dim=(1, 2, 3)), torch.zeros(400), atol=1e-5, rtol=0)
    torch.testing.assert_close(images.std(dim=(1, 2, 3), correction=0), torch.ones(400))


def test_a_blank_image_stays_finite():
    images = seen(images=torch.full((20, 3, 32, 32), 255, dtype=torch.uint8))
    assert images.isfinite().all()


@pytest.mark.usefixtures("not_standardised")
def test_training_patches_come_from_everywhere_and_half_of_them_are_mirrored():
    """Of images that say where each of their pixels was."""
    places = torch.arange(32 * 32).reshape(1, 1, 32, 32).expand(5000, 3, 32, 32).float()
    data = CIFAR10DataModule(source="standin", brightness=0.0, contrast=0.0)
    corners = data.transform(places, sample_key(0, 0, torch.arange(5000)), augment=True)[:, 0, 0].round().long()
    left, right = corners[:, 0], corners[:, -1]
    mirrored = left > right
    assert 0.45 < mirrored.float().mean() < 0.55
    first = torch.minimum(left, right)
    assert torch.cartesian_prod(torch.arange(9), torch.arange(9)).tolist() == [
        [place // 32, place % 32] for place in first.unique().tolist()
    ]
    assert (left - right).abs().unique().tolist() == [23]


@pytest.mark.usefixtures("not_standardised")
@pytest.mark.parametrize(("options", "largest"), [({}, 63), ({"brightness": 20.0}, 20), ({"brightness": 0.0}, 0)])
def test_brightness_is_within_its_range(options, largest):
    images = seen(crop=32, flip=False, contrast=0.0, **options)
    added = images - PHOTOGRAPHS
    torch.testing.assert_close(added, added[:, :1, :1, :1].expand_as(added), atol=1e-3, rtol=0)
    assert added.abs().max() <= largest + 1e-3
    assert largest == 0 or added.min() < -0.9 * largest < 0.9 * largest < added.max()


@pytest.mark.usefixtures("not_standardised")
@pytest.mark.parametrize(
    ("options", "low", "high"), [({}, 0.2, 1.8), ({"contrast": 0.1}, 0.9, 1.1), ({"contrast": 0.0}, 1.0, 1.0)]
)
def test_contrast_is_within_its_range_about_the_mean_of_each_channel(options, low, high):
    pixels = PHOTOGRAPHS.float()
    images = seen(crop=32, flip=False, brightness=0.0, **options)
    torch.testing.assert_close(images.mean(dim=(2, 3)), pixels.mean(dim=(2, 3)), atol=1e-2, rtol=0)
    factor = images.std(dim=(2, 3)) / pixels.std(dim=(2, 3))
    torch.testing.assert_close(factor, factor[:, :1].expand(-1, 3), atol=1e-3, rtol=0)
    assert low - 1e-3 <= factor.min() <= low + 0.05
    assert high - 0.05 <= factor.max() <= high + 1e-3


@pytest.mark.usefixtures("not_standardised")
def test_contrast_is_about_the_mean_of_the_patch():
    """Cut first: what is cut away does not matter."""
    framed = PHOTOGRAPHS[:50].clone()
    corners = cifar10.random_integers(KEYS[:50], 0, 0, 8), cifar10.random_integers(KEYS[:50], 1, 0, 8)
    rows = torch.arange(32)
    inside = [((rows >= corner[:, None]) & (rows < corner[:, None] + 24)) for corner in corners]
    framed[~(inside[0][:, None, :, None] & inside[1][:, None, None, :]).expand_as(framed)] = 0
    assert seen(images=framed).equal(seen(images=PHOTOGRAPHS[:50]))


def test_what_is_drawn_depends_on_the_key_alone():
    together = seen()
    torch.testing.assert_close(torch.cat([seen(images=PHOTOGRAPHS[:7]), seen(images=PHOTOGRAPHS)[7:]]), together)
    alone = CIFAR10DataModule(source="standin").transform(PHOTOGRAPHS[5:6], KEYS[5:6], augment=True)
    torch.testing.assert_close(alone, together[5:6])
    assert seen().equal(together)
    assert not seen(key=sample_key(0, 1, torch.arange(400))).allclose(together)


@pytest.mark.parametrize(
    ("training", "options", "same"), [(True, {}, False), (False, {}, True), (True, {"augment": False}, True)], ids=str
)
def test_training_images_alone_are_augmented(training, options, same):
    data = CIFAR10DataModule(source="standin", **options)
    data.trainer = SimpleNamespace(
        training=training, global_rank=0, world_size=1, strategy=SimpleNamespace(root_device=torch.device("cpu"))
    )
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    still = data.transform(batch.images, batch.key, augment=False)
    assert data.on_after_batch_transfer(batch, 0).images.equal(still) is same


CHANGED = {"crop": 20, "flip": False, "brightness": 5.0, "contrast": 0.3, "eval_batch_size": 7, "validation_share": 0.5}


@pytest.mark.parametrize(
    "option", [name for name in inspect.signature(CIFAR10DataModule).parameters if name != "options"]
)
@pytest.mark.usefixtures("not_standardised")
def test_every_option_does_something(option):
    found = []
    for options in ({}, {option: CHANGED[option]}):  # with and without
        data = CIFAR10DataModule(source="standin", **options)
        data.setup("fit")
        images = data.transform(PHOTOGRAPHS, KEYS, augment=True)
        found.append(
            (images.shape, images[..., 0].sum().item(), len(data.val_dataloader()), len(data.sets["train"].labels))
        )
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"crop": 0}, r"data\.crop is 0; expected 1 to 32 pixels"),
        ({"crop": 33}, r"data\.crop is 33; expected 1 to 32 pixels"),
        ({"brightness": -1.0}, r"data\.brightness is -1.0; expected 0 \(none\) or more"),
        ({"brightness": float("nan")}, r"data\.brightness is nan; expected 0"),
        ({"contrast": 1.5}, r"data\.contrast is 1.5; expected 0 \(none\) to 1"),
        ({"contrast": -0.1}, r"data\.contrast is -0.1; expected 0"),
        ({"source": "genuine"}, r"data\.source is 'genuine'"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked_types")
def test_options_that_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        CIFAR10DataModule(**options)


# --- the experiment ---------------------------------------------------------------------------------------------------


def test_network_of_the_experiment_is_as_large_as_published():
    config = compose("train", ["experiment=sabour2017/cifar10"])
    build.check(config)
    spec = build.build_data(config).spec
    with torch.device("meta"):
        network = instantiate(config.model, _partial_=True, _convert_="all")(spec.image_shape, spec.num_classes)
    assert sum(parameter.numel() for parameter in network.parameters()) == 22_476_448
    assert network.decoder is None
    assert network.digits.routing.leaky
    assert network.primary.scale == 1 / 65


def test_experiment_trains_without_a_decoder(tmp_path):
    small = ["model.channels=4", "model.primary_types=2", "model.class_dim=4", "trainer.accelerator=cpu"]
    config = compose("train", ["experiment=sabour2017/cifar10", "debug=smoke", *small, *NO_PICTURES])
    result = train(config, tmp_path / "run")
    assert result["test"].keys() == {"error", "loss", "margin"}
    assert result["test"]["loss"] == pytest.approx(result["test"]["margin"])
    assert result["provenance"]["source"] == "stand-in"
