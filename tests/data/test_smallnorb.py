"""smallNORB: tiny files in the real format, the stand-in, splits, augmentation and crops."""

import hashlib
import json
import logging
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch.testing import assert_close

from capsule_lab.data import SmallNORBDataModule
from capsule_lab.data.download import md5
from capsule_lab.data.formats import smallnorb
from capsule_lab.data.formats.binary_matrix import write_matrix
from capsule_lab.data.formats.smallnorb import FACTORS, Published
from capsule_lab.data.loader import Images
from capsule_lab.data.splits import FAMILIAR, index_hash, split_by_instance, split_by_viewpoint
from capsule_lab.data.standins import toynorb_files
from capsule_lab.data.transforms import random_integers, random_uniform
from capsule_lab.errors import DataError
from tests.helpers.data_modules import answer_downloads, trainer, without_network
from tests.helpers.smallnorb_files import (
    TESTING,
    TRAINING,
    labels_and_factors,
    write_record,
    write_set,
    write_standin,
)

HELD_OUT = {(0, 7), (1, 6), (2, 9), (3, 8), (4, 7)}
SPLIT = ("9b0d69f4a5f0bf20", "90c510726811b6ac")


@pytest.fixture
def standin(toynorb):
    """A function that returns a DataModule on the stand-in: ``standin("fit", split="azimuth")``."""

    def make(
        *stages: str, training: bool = True, testing: bool = False, **options
    ) -> SmallNORBDataModule:
        data = norb(toynorb, "standin", **options)
        data.trainer = trainer(training=training, testing=testing)
        for stage in stages:
            data.setup(stage)
        return data

    return make


def count_as_real(folder: Path, monkeypatch) -> None:
    """Replace the published checksums by those of the files in ``folder``."""
    sums = {}
    for path in sorted(folder.glob("*.mat*")):
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        sums[path.name.removesuffix(".gz")] = Published(md5(path), sha256)
    monkeypatch.setattr(smallnorb, "PUBLISHED", sums)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    """The files of ``real``, by suffix."""
    folder = tmp_path_factory.mktemp("written")
    return {
        ".mat": write_set(folder / "unpacked", side=96, suffix=".mat"),
        ".mat.gz": write_set(folder / "packed", side=96, suffix=".mat.gz"),
    }


@pytest.fixture(params=[".mat", ".mat.gz"])
def real(request, written, tmp_path, monkeypatch) -> Path:
    """A data directory with small files that count as the real ones."""
    folder = Path(shutil.copytree(written[request.param], tmp_path / "data" / "smallNORB"))
    count_as_real(folder, monkeypatch)
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def no_network_and_no_rendering(monkeypatch) -> None:
    def refuse(*_, **__) -> None:
        pytest.fail("toys were rendered")

    without_network(monkeypatch)
    monkeypatch.setattr(toynorb_files, "render_files", refuse)


def stored(folder: Path, part: str, content: str) -> np.ndarray:
    (path,) = folder.glob(f"*-{part}-{content}.mat*")
    return np.array(smallnorb.read_matrix(path))


def norb(directory: Path, source: str = "real", **options) -> SmallNORBDataModule:
    return SmallNORBDataModule(directory=str(directory), source=source, **options)


def assert_read_back(images, folder: Path, part: str) -> None:
    every_second_pixel = stored(folder, part, "dat")[:, :, ::2, ::2]
    labels = stored(folder, part, "cat")
    factors = stored(folder, part, "info")
    assert_array_equal(images.images, every_second_pixel)
    assert_array_equal(images.labels, labels)
    assert_array_equal(images.factors, factors)


# --- the real files


@pytest.mark.parametrize("source", ["auto", "real"])
def test_training_files_are_read_back_exactly(real, source):
    data = norb(real, source, validation="none")
    data.prepare_data()
    sums = {name: published.md5 for name, published in smallnorb.PUBLISHED.items()}
    expected = {"source": "real", "name": "real smallNORB", "md5": sums}
    assert data.provenance == expected
    data.setup("fit")
    assert_read_back(data.sets["train"], real / "smallNORB", "training")
    assert data.val_dataloader() == []


def test_test_files_are_read_back_exactly(real):
    data = norb(real)
    data.setup("test")
    assert set(data.sets) == {"test"}
    assert_read_back(data.sets["test"], real / "smallNORB", "testing")


@pytest.mark.parametrize("stage", ["fit", "validate"])
def test_training_never_reads_the_test_files(real, stage):
    data = norb(real)
    data.prepare_data()
    for path in (real / "smallNORB").glob("*testing*"):
        path.write_bytes(b"poison")
    data.setup(stage)
    assert set(data.sets) == {"train", "val"}


def test_resize_area_is_the_rounded_mean_of_four_pixels(real):
    data = norb(real, validation="none", resize="area")
    data.setup("fit")
    pixels = stored(real / "smallNORB", "training", "dat").astype(float)
    squares = pixels.reshape(100, 2, 48, 2, 48, 2)
    rounded = np.floor(squares.mean(axis=(3, 5)) + 0.5)
    assert_array_equal(data.sets["train"].images, rounded)


@pytest.mark.parametrize("source", ["auto", "real"])
def test_damaged_or_missing_file_is_named_and_kept(real, source):
    (path,) = (real / "smallNORB").glob("*-training-cat.mat*")
    whole = path.read_bytes()
    named = rf"^{re.escape(str(path))} [^\n]*remove[^\n]*$"
    for damaged in (whole[:-1], b"<!DOCTYPE html>"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=named):
            norb(real, source).setup("fit")
    path.unlink()
    missing = r"holds 5 of the 6 files of smallNORB; missing .*-training-cat\.mat"
    with pytest.raises(DataError, match=missing):
        norb(real, source).setup("fit")


# --- without the real files


@pytest.fixture
def published(written, tmp_path, monkeypatch) -> Path:
    """A folder with archives that count as the real ones."""
    folder = Path(shutil.copytree(written[".mat.gz"], tmp_path / "server"))
    count_as_real(folder, monkeypatch)
    return folder


@pytest.mark.parametrize("down", range(3))
def test_download_goes_into_place_and_is_verified(tmp_path, published, monkeypatch, down):
    def answer(url: str) -> bytes | Exception:
        if url.startswith(smallnorb.SERVERS[:down]):
            return ConnectionError("no answer")
        _, _, name = url.rpartition("/")
        return (published / name).read_bytes()

    asked = answer_downloads(monkeypatch, answer)
    directory = tmp_path / "data"
    data = norb(directory)
    data.setup("fit")
    assert data.provenance["source"] == "real"
    assert len(asked) == 6 * (down + 1)
    names = {path.name for path in data.real_source.folder.iterdir()}
    assert names == {*smallnorb.PUBLISHED}
    assert [*directory.iterdir()] == [directory / "smallNORB"]


def test_source_real_without_network_names_the_missing_files(tmp_path):
    data = norb(tmp_path)
    with pytest.raises(DataError, match=r"no network in tests.*CAPSULE_LAB_DATA") as caught:
        data.setup("fit")
    message = str(caught.value)
    for part in (str(tmp_path / "smallNORB"), *smallnorb.PUBLISHED):
        assert part in message
    assert data.sets == {}


@pytest.mark.parametrize(
    ("source", "size", "folder"),
    [
        ("auto", "full", "48x48"),
        ("standin", "small", "48x48-small"),
    ],
)
def test_provenance_of_the_standin_is_its_record(toynorb, caplog, source, size, folder):
    data = norb(toynorb, source, standin=size)
    with caplog.at_level(logging.WARNING, "capsule_lab"):
        data.prepare_data()
    (message,) = caplog.messages
    assert message.startswith("stand-in data for SmallNORB")
    record = toynorb / "toynorb" / folder / "provenance.json"
    assert data.provenance == {
        "source": "standin",
        "name": toynorb_files.STANDIN_NAME,
        "generator": "toynorb",
        **json.loads(record.read_text()),
    }


def flip_bit(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.fixture
def rendered(tmp_path) -> Path:
    """The folder of a rendered set, which is unchanged."""
    return write_standin(tmp_path) / "toynorb" / "48x48"


def read_rendered(folder: Path, stage: str = "fit") -> None:
    directory = folder.parent.parent
    norb(directory, "standin").setup(stage)


@pytest.mark.parametrize(("stage", "part"), [("fit", "training"), ("test", "testing")])
@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("dat", -1),
        ("dat", 30),
        ("cat", 20),
        ("info", 20),
        ("info", -8),
    ],
)
def test_rendered_files_must_match_their_record(rendered, stage, part, content, place):
    read_rendered(rendered, stage)
    (path,) = rendered.glob(f"*-{part}-{content}.mat")
    flip_bit(path, place)
    message = rf"({part} files that do not match their SHA-256|among its {part} labels)"
    with pytest.raises(DataError, match=message):
        read_rendered(rendered, stage)


@pytest.mark.parametrize("name", ["sha256", "elevations", "azimuths"])
@pytest.mark.parametrize("value", [None, {}, [99], "x"], ids=repr)
def test_damaged_value_of_a_record_is_refused(rendered, name, value):
    file = rendered / "provenance.json"
    record = json.loads(file.read_text())
    record[name] = value
    file.write_text(json.dumps(record))
    with pytest.raises(DataError, match="do not match their SHA-256"):
        read_rendered(rendered)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"provenance\.json cannot be read"),
        ("[]", r"provenance\.json cannot be read"),
        ("{", r"provenance\.json cannot be read"),
        ('{"version": -1}', r"48x48 was rendered by version -1 of toynorb; .*: remove the folder"),
    ],
)
def test_record_of_another_form_or_version_is_refused(rendered, content, message):
    (rendered / "provenance.json").write_text(content)
    with pytest.raises(DataError, match=message):
        read_rendered(rendered)


SMALL = {"elevations": (0, 4, 8), "azimuths": (0, 3, 6, 9, 12, 15), "lightings": (0, 3)}


@pytest.mark.parametrize(
    ("size", "folder", "levels"), [("full", "48x48", {}), ("small", "48x48-small", SMALL)]
)
def test_standin_is_rendered_once_or_again_after_a_failure(
    tmp_path, monkeypatch, caplog, size, folder, levels
):
    asked = []

    def render_files(folder: Path, **how) -> None:
        asked.append(how)
        write_set(folder, side=48, size="48x48")
        if len(asked) == 1:
            raise OSError(28, "No space left on device")
        write_record(folder)

    def set_up(stage: str) -> None:
        data = SmallNORBDataModule(directory=str(tmp_path), source="standin", standin=size)
        data.setup(stage)

    monkeypatch.setattr(toynorb_files, "render_files", render_files)
    message = r"cannot be written into .*48x48.* \(No space left on device\)"
    with pytest.raises(DataError, match=message):
        set_up("fit")
    caplog.clear()
    with caplog.at_level(logging.INFO, "capsule_lab"):
        set_up("fit")
        set_up("test")
    assert asked == 2 * [{"size": 48, "seed": 0, **levels}]
    toys = tmp_path / "toynorb"
    assert [path.name for path in toys.iterdir()] == [folder]
    assert caplog.messages == [
        f"rendering toys into {toys / folder}, once; this takes about half a minute"
    ], "the stand-in was announced before the failure, once"


# --- inconsistent files


SMALL_IMAGES = np.zeros((100, 2, 32, 32), np.uint8)
FLOAT_IMAGES = np.zeros((100, 2, 48, 48), np.float32)
FEWER_LABELS = np.zeros(99, np.int32)
UNKNOWN_LABELS = np.full(100, 5, np.int32)
UNKNOWN_FACTORS = np.full((100, 4), 1, np.int32)


@pytest.mark.parametrize(
    ("content", "array", "message"),
    [
        ("dat", SMALL_IMAGES, r"holds uint8 of shape \(100, 2, 32, 32\); expected uint8 of"),
        ("dat", FLOAT_IMAGES, r"holds float32 of shape"),
        ("cat", FEWER_LABELS, r"categories of shape \(99,\) and info of shape \(100, 4\)"),
        ("cat", UNKNOWN_LABELS, r"category 5 among its training labels; expected one of 0, 1, 2"),
        ("info", UNKNOWN_FACTORS, r"azimuth 1 among its training labels; expected one of 0, 2, 4"),
    ],
)
def test_mislabelled_files_are_refused_with_one_message(rendered, content, array, message):
    (path,) = rendered.glob(f"*-training-{content}.mat")
    write_matrix(path, array)
    with pytest.raises(DataError, match=message) as caught:
        read_rendered(rendered)
    assert "\n" not in str(caught.value)


def test_unpacked_file_is_preferred_to_the_archive(tmp_path):
    folder = write_set(tmp_path, side=48)
    archive = folder / "smallnorb-5x46789x9x18x6x2x96x96-training-dat.mat.gz"
    archive.write_bytes(b"not looked at")
    images = smallnorb.load_part(folder, "training", "subsample").images
    assert images.shape == (100, 2, 48, 48)
    write_set(folder, side=48, size="48x48")
    message = r"holds .*48x48-training-cat\.mat.* expected one such file"
    with pytest.raises(DataError, match=message):
        smallnorb.load_part(folder, "training", "subsample")


# --- splits


FULL_LABELS, FULL_FACTORS = labels_and_factors(TRAINING)
COLUMN = {"azimuth": 2, "elevation": 1}


def assert_is_split(one: np.ndarray, other: np.ndarray) -> None:
    """Every image is on one of the two sides."""
    both = np.sort(np.concatenate([one, other]))
    assert_array_equal(both, np.arange(24_300))


@pytest.mark.parametrize(
    ("viewpoints", "published"),
    [
        ("azimuth", {30, 32, 34, 0, 2, 4}),  # 300 to 40 degrees
        ("elevation", {0, 1, 2}),  # 30 to 40 degrees
    ],
)
def test_a_third_of_the_viewpoints_is_familiar(viewpoints, published):
    values = FULL_FACTORS[:, COLUMN[viewpoints]].astype(np.int64)
    familiar, novel = split_by_viewpoint(values, viewpoints)
    assert_is_split(familiar, novel)
    assert len(familiar) == 8_100
    assert set(values[familiar]) == published
    assert published.isdisjoint(values[novel])


def test_all_viewpoints_are_familiar_without_a_split():
    azimuths = FULL_FACTORS[:, 2].astype(np.int64)
    familiar, novel = split_by_viewpoint(azimuths, "full")
    assert len(familiar) == 24_300
    assert len(novel) == 0


def by_instance(held_out: int = 1, seed: int = 0, fold: int = 0) -> tuple[np.ndarray, np.ndarray]:
    labels = FULL_LABELS.astype(np.int64)
    instances = FULL_FACTORS[:, 0].astype(np.int64)
    return split_by_instance(labels, instances, held_out, seed, fold)


def toys(indices: np.ndarray) -> set[tuple[int, int]]:
    """Label and instance of the toys in these images."""
    labels = FULL_LABELS[indices].tolist()
    instances = FULL_FACTORS[indices, 0].tolist()
    return set(zip(labels, instances, strict=True))


def toys_of(images: Images) -> set[tuple[int, int]]:
    return set(zip(images.labels.tolist(), images.factors[:, 0].tolist(), strict=True))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("held_out", [1, 2, 4])
def test_no_toy_is_in_training_and_validation(seed, held_out):
    train, validation = by_instance(held_out, seed)
    assert_is_split(train, validation)
    assert len(validation) == 4_860 * held_out
    held_out_toys = toys(validation)
    assert toys(train).isdisjoint(held_out_toys)
    toys_of_class = Counter(label for label, _ in held_out_toys)
    assert toys_of_class == dict.fromkeys(range(5), held_out)


def test_split_by_instance_is_the_one_we_publish():
    train, validation = by_instance()
    # the toys of the real set too, whose rows are in another order
    assert toys(validation) == HELD_OUT
    assert (index_hash(train), index_hash(validation)) == SPLIT


@pytest.mark.parametrize(("held_out", "folds"), [(1, 5), (2, 2)])
def test_folds_hold_out_different_toys(held_out, folds):
    seen: set[tuple[int, int]] = set()
    for fold in range(folds):
        _, validation = by_instance(held_out, fold=fold)
        assert seen.isdisjoint(toys(validation))
        seen |= toys(validation)
    assert len(seen) == 5 * held_out * folds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fold": -1}, "data.validation_fold is -1; expected 0 to 4"),
        ({"fold": 5}, "data.validation_fold is 5; expected 0 to 4"),
        ({"held_out": 0}, r"data\.validation_instances is 0; expected 1 to 4"),
        ({"held_out": 5}, r"data\.validation_instances is 5; expected 1 to 4"),
    ],
)
def test_invalid_folds_and_instances_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        by_instance(**options)


@pytest.mark.parametrize("stereo", ["channels", "separate"])
@pytest.mark.parametrize(("split", "share"), [("full", 1), ("azimuth", 2), ("elevation", 2)])
def test_training_and_validation_come_from_the_training_viewpoints(standin, stereo, split, share):
    data = standin("fit", split=split, stereo=stereo)
    train = data.sets["train"]
    validation = data.sets["val"]
    samples = (100 if stereo == "channels" else 200) // share
    assert len(train.labels) == samples * 4 // 5
    assert len(validation.labels) == samples // 5
    assert toys_of(train).isdisjoint(toys_of(validation))
    if split != "full":
        familiar = {*FAMILIAR[split]}
        assert viewpoints_of(train, split) <= familiar
        assert viewpoints_of(validation, split) <= familiar


def viewpoints_of(images: Images, split: str) -> set[int]:
    """The azimuths or elevations of images."""
    return set(images.factors[:, COLUMN[split]].tolist())


def assert_same_images(images: Images, expected: Images) -> None:
    assert images.images.equal(expected.images)


@pytest.mark.parametrize("split", ["azimuth", "elevation"])
def test_validation_from_novel_viewpoints(standin, split):
    """Its toys are the held-out ones; a network that trains on all viewpoints has the same validation sets."""
    validation = "instance_all_viewpoints"
    plain = standin("fit", split=split).sets
    data = standin("fit", split=split, validation=validation)
    upper = standin("fit", split=f"{split}_all", validation=validation)
    assert data.val_names == ("val", "novel_val")
    assert upper.val_names == ("val", "novel_val")
    assert_same_images(data.sets["train"], plain["train"])
    assert_same_images(data.sets["val"], plain["val"])
    assert_same_images(data.sets["val"], upper.sets["val"])
    assert_same_images(data.sets["novel_val"], upper.sets["novel_val"])
    assert toys_of(data.sets["novel_val"]) == toys_of(data.sets["val"])
    viewpoints = {name: viewpoints_of(images, split) for name, images in upper.sets.items()}
    assert viewpoints["novel_val"].isdisjoint(FAMILIAR[split])
    assert viewpoints["train"] == viewpoints["val"] | viewpoints["novel_val"]
    size = len(data.sets["train"].labels)
    assert len(upper.sets["train"].labels) == 2 * size
    for loader, name in zip(data.val_dataloader(), data.val_names, strict=True):
        assert len(loader.dataset) == len(data.sets[name].labels)


def test_validation_from_novel_viewpoints_needs_a_split(standin):
    message = r"data\.validation is instance_all_viewpoints with data\.split=full"
    with pytest.raises(ValueError, match=message):
        standin("fit", validation="instance_all_viewpoints")


@pytest.mark.parametrize("split", ["azimuth", "elevation"])
def test_familiar_and_novel_viewpoints_are_separate_test_sets(standin, split):
    data = standin("test", training=False, testing=True, split=split, eval_batch_size=20)
    assert set(data.sets) == {"familiar", "novel"}
    assert set(data.test_parts) == {"familiar", "novel"}
    familiar, novel = data.test_dataloader()
    assert len(familiar) == 3
    assert len(novel) == 3
    assert viewpoints_in(familiar, split) <= {*FAMILIAR[split]}
    assert viewpoints_in(novel, split).isdisjoint(FAMILIAR[split])


def viewpoints_in(loader, split: str) -> set[int]:
    factors = torch.cat([batch.factors for batch in loader])
    return set(factors[:, COLUMN[split]].tolist())


SPLITS = [  # options, and numbers of training and of validation images
    ({}, 80, 20),
    ({"train_images": 25}, 25, 20),
    ({"seed": 1}, 80, 20),
    ({"validation_instances": 2}, 60, 40),
    ({"split": "azimuth"}, 40, 10),
    ({"stereo": "separate"}, 160, 40),
]


@pytest.mark.parametrize(("options", "train", "val"), SPLITS)
def test_provenance_states_the_split(standin, options, train, val):
    data = standin("fit", **options)
    split = dict(data.provenance["split"])
    del split["hash"]
    assert split == {"validation": "instance", "train_images": train, "val_images": val}
    of_each_class = data.sets["train"].labels.bincount()
    assert of_each_class.tolist() == [train // 5] * 5
    assert json.loads(json.dumps(data.provenance)) == data.provenance


def test_provenance_distinguishes_splits(standin):
    hashes = set()
    for options, _, _ in SPLITS:
        data = standin("fit", **options)
        hashes.add(data.provenance["split"]["hash"])
    assert len(hashes) == len(SPLITS)


# --- what the network sees


def first_batch(data: SmallNORBDataModule, name: str):
    stored = next(iter(getattr(data, f"{name}_dataloader")()))
    return stored, data.on_after_batch_transfer(stored, 0)


@pytest.mark.parametrize("name", ["train", "val", "test"])
@pytest.mark.parametrize("preprocessing", ["official", "paper"])
@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, (2, 32, 32)),
        ({"stereo": "separate"}, (1, 32, 32)),
        ({"crop": 48}, (2, 48, 48)),
        ({"crop": 1}, (2, 1, 1)),
    ],
)
def test_batch_has_the_shape_and_the_factors_of_the_spec(
    standin, name, preprocessing, options, shape
):
    data = standin("fit", "test", training=name == "train", preprocessing=preprocessing, **options)
    stored, seen = first_batch(data, name)
    assert data.spec.image_shape == seen.images.shape[1:] == shape
    assert stored.images.dtype == torch.uint8
    assert seen.images.dtype == torch.float32
    assert seen.images.isfinite().all()
    assert seen.labels.equal(stored.labels)
    assert seen.factors.equal(stored.factors)
    assert data.spec.classes == ("animal", "human", "airplane", "truck", "car")
    assert data.spec.factors == (FACTORS if shape[0] == 2 else (*FACTORS, "eye"))
    instance, elevation, azimuth, lighting, *_ = seen.factors.T.tolist()
    assert set(instance) <= set(TESTING if name == "test" else TRAINING)
    assert set(elevation) == {0, 4}
    assert set(azimuth) == {0, 12}
    assert set(lighting) == {1}


def test_separate_eyes_are_samples_with_the_factors_of_their_pair(standin):
    pairs = standin("test", stereo="channels").sets["test"]
    eyes = standin("test", stereo="separate").sets["test"]
    number = 2 * len(pairs.labels)
    assert len(eyes.labels) == number
    for eye in (0, 1):
        of_eye = eyes.subset(torch.arange(eye, number, 2))
        factors = of_eye.factors
        assert of_eye.images[:, 0].equal(pairs.images[:, eye])
        assert of_eye.labels.equal(pairs.labels)
        assert factors[:, :4].equal(pairs.factors)
        assert (factors[:, 4] == eye).all()


def standardised(image: np.ndarray) -> np.ndarray:
    return (image - image.mean()) / image.std()


def jittered(image: np.ndarray, added: float, factor: float) -> np.ndarray:
    brighter = image + added
    mean = brighter.mean(axis=(1, 2), keepdims=True)
    return mean + factor * (brighter - mean)


def cropped(image: np.ndarray, top: int, left: int) -> np.ndarray:
    return image[:, top : top + 32, left : left + 32]


def still(image: np.ndarray, preprocessing: str, top: int = 8, left: int = 8) -> np.ndarray:
    """The crop without augmentation."""
    if preprocessing == "official":
        return standardised(cropped(image, top, left))
    return cropped(standardised(image), top, left)


@pytest.mark.parametrize("preprocessing", ["official", "paper"])
@pytest.mark.parametrize("name", ["val", "test", "train"])
def test_image_without_augmentation_is_the_standardised_central_crop(standin, name, preprocessing):
    training = name == "train"
    options = {"augment": False, "preprocessing": preprocessing}
    data = standin("fit", "test", training=training, **options)
    stored, seen = first_batch(data, name)
    for image, pixels in zip(seen.images, stored.images.double(), strict=True):
        expected = still(pixels.numpy(), preprocessing)
        assert_allclose(image, expected, atol=1e-5)


def augmented(pixels: np.ndarray, key: torch.Tensor, preprocessing: str) -> np.ndarray:
    """A training image as published; each sample has four random numbers, which both eyes share."""
    is_official = preprocessing == "official"
    brightness, contrast = (63.0, 0.8) if is_official else (2.0, 0.5)
    added = random_uniform(key, 0, -brightness, brightness).item()
    factor = random_uniform(key, 1, 1 - contrast, 1 + contrast).item()
    top = random_integers(key, 2, 0, 16).item()
    left = random_integers(key, 3, 0, 16).item()
    if is_official:
        crop = cropped(jittered(pixels, added, factor), top, left)
        return standardised(crop)
    crop = cropped(standardised(pixels), top, left)
    return jittered(crop, added, factor)


@pytest.mark.parametrize("preprocessing", ["official", "paper"])
def test_training_images_equal_the_published_steps_one_by_one(standin, preprocessing):
    data = standin("fit", preprocessing=preprocessing)
    stored, seen = first_batch(data, "train")
    samples = zip(seen.images, stored.images.double(), stored.key, strict=True)
    for image, pixels, key in samples:
        expected = augmented(pixels.numpy(), key, preprocessing)
        assert_allclose(image, expected, atol=1e-4)


def training_images(data: SmallNORBDataModule) -> torch.Tensor:
    _, seen = first_batch(data, "train")
    return seen.images


@pytest.mark.parametrize("brightness", [None, 200.0])
def test_brightness_of_the_official_code_changes_nothing(standin, brightness):
    """The final standardisation undoes it."""
    without = training_images(standin("fit", brightness=0.0))
    brighter = training_images(standin("fit", brightness=brightness))
    assert_close(brighter, without, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("stereo", "differs"), [("separate", False), ("channels", True)])
def test_contrast_of_the_official_code_changes_only_the_offset_between_eyes(
    standin, stereo, differs
):
    without = training_images(standin("fit", contrast=0.0, stereo=stereo))
    changed = training_images(standin("fit", contrast=0.7, stereo=stereo))
    difference = (changed - without).abs().max()
    assert bool(difference > 1e-3) is differs


# --- 13 crops


OFFICIAL_13 = [
    (8, 8),
    (8, 8), (8, 7), (7, 8), (7, 7),
    (9, 9), (9, 7), (7, 9), (7, 7),
    (9, 9), (9, 6), (6, 9), (6, 6),
]  # fmt: skip


@pytest.mark.parametrize("preprocessing", ["official", "paper"])
def test_thirteen_crops_are_those_of_the_official_code(standin, preprocessing):
    options = {"test_crops": 13, "preprocessing": preprocessing}
    data = standin("test", training=False, testing=True, **options)
    stored, seen = first_batch(data, "test")
    assert seen.images.shape == (100, 13, 2, 32, 32)
    assert seen.labels.shape == (100,)
    assert seen.factors.shape == (100, 4)
    first_images = stored.images[:5].double().numpy()
    for number, pixels in enumerate(first_images):
        for crop, (top, left) in zip(seen.images[number], OFFICIAL_13, strict=True):
            expected = still(pixels, preprocessing, top, left)
            assert_allclose(crop, expected, atol=1e-5)


@pytest.mark.parametrize(("name", "training"), [("train", True), ("val", False), ("train", False)])
def test_thirteen_crops_are_used_only_in_the_test(standin, name, training):
    data = standin("fit", training=training, test_crops=13)
    _, seen = first_batch(data, name)
    assert seen.images.shape[1:] == (2, 32, 32)
