"""smallNORB: tiny files in the real format, the stand-in, splits, augmentation and crops."""

import hashlib
import json
import logging
import re
import shutil
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from capsule_lab.data import SmallNORBDataModule
from capsule_lab.data.download import md5
from capsule_lab.data.formats import smallnorb
from capsule_lab.data.formats.binary_matrix import write_matrix
from capsule_lab.data.formats.smallnorb import FACTORS, Published
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
        data = SmallNORBDataModule(directory=str(toynorb), source="standin", **options)
        data.trainer = trainer(training=training, testing=testing)
        for stage in stages:
            data.setup(stage)
        return data

    return make


def count_as_real(folder: Path, monkeypatch) -> None:
    """Replace the published checksums by those of the files in ``folder``."""
    sums = {
        path.name.removesuffix(".gz"): Published(
            md5(path), hashlib.sha256(path.read_bytes()).hexdigest()
        )
        for path in sorted(folder.glob("*.mat*"))
    }
    monkeypatch.setattr(smallnorb, "PUBLISHED", sums)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    """The files of ``real``, by suffix."""
    folder = tmp_path_factory.mktemp("written")
    return {
        suffix: write_set(folder / suffix, side=96, suffix=suffix) for suffix in (".mat", ".mat.gz")
    }


@pytest.fixture(params=[".mat", ".mat.gz"])
def real(request, written, tmp_path, monkeypatch) -> Path:
    """A data directory with small files that count as the real ones."""
    folder = Path(shutil.copytree(written[request.param], tmp_path / "data" / "smallNORB"))
    count_as_real(folder, monkeypatch)
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def no_network_and_no_rendering(monkeypatch) -> None:
    without_network(monkeypatch)
    monkeypatch.setattr(
        toynorb_files, "render_files", lambda *_, **__: pytest.fail("toys were rendered")
    )


def stored(folder: Path, part: str, content: str) -> np.ndarray:
    (path,) = folder.glob(f"*-{part}-{content}.mat*")
    return np.array(smallnorb.read_matrix(path))


def assert_read_back(images, folder: Path, part: str) -> None:
    np.testing.assert_array_equal(
        images.images.numpy(), stored(folder, part, "dat")[:, :, ::2, ::2]
    )
    np.testing.assert_array_equal(images.labels.numpy(), stored(folder, part, "cat"))
    np.testing.assert_array_equal(images.factors.numpy(), stored(folder, part, "info"))


# --- the real files


@pytest.mark.parametrize("source", ["auto", "real"])
def test_training_files_are_read_back_exactly(real, source):
    data = SmallNORBDataModule(directory=str(real), source=source, validation="none")
    data.prepare_data()
    sums = {name: published.md5 for name, published in smallnorb.PUBLISHED.items()}
    assert data.provenance == {"source": "real", "name": "real smallNORB", "md5": sums}
    data.setup("fit")
    assert_read_back(data.sets["train"], real / "smallNORB", "training")
    assert data.val_dataloader() == []


def test_test_files_are_read_back_exactly(real):
    data = SmallNORBDataModule(directory=str(real), source="real")
    data.setup("test")
    assert set(data.sets) == {"test"}
    assert_read_back(data.sets["test"], real / "smallNORB", "testing")


@pytest.mark.parametrize("stage", ["fit", "validate"])
def test_training_never_reads_the_test_files(real, stage):
    data = SmallNORBDataModule(directory=str(real), source="real")
    data.prepare_data()
    for path in (real / "smallNORB").glob("*testing*"):
        path.write_bytes(b"poison")
    data.setup(stage)
    assert set(data.sets) == {"train", "val"}


def test_resize_area_is_the_rounded_mean_of_four_pixels(real):
    data = SmallNORBDataModule(directory=str(real), source="real", validation="none", resize="area")
    data.setup("fit")
    wide = stored(real / "smallNORB", "training", "dat").astype(float)
    mean = wide.reshape(100, 2, 48, 2, 48, 2).mean(axis=(3, 5))
    np.testing.assert_array_equal(data.sets["train"].images.numpy(), np.floor(mean + 0.5))


@pytest.mark.parametrize("source", ["auto", "real"])
def test_damaged_or_missing_file_is_named_and_kept(real, source):
    (path,) = (real / "smallNORB").glob("*-training-cat.mat*")
    whole = path.read_bytes()
    for damaged in (whole[:-1], b"<!DOCTYPE html>"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=rf"^{re.escape(str(path))} [^\n]*remove[^\n]*$"):
            SmallNORBDataModule(directory=str(real), source=source).setup("fit")
    path.unlink()
    with pytest.raises(
        DataError, match=r"holds 5 of the 6 files of smallNORB; missing .*-training-cat\.mat"
    ):
        SmallNORBDataModule(directory=str(real), source=source).setup("fit")


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
        is_down = url.startswith(smallnorb.SERVERS[:down])
        return (
            ConnectionError("no answer")
            if is_down
            else (published / url.rpartition("/")[2]).read_bytes()
        )

    asked = answer_downloads(monkeypatch, answer)
    data = SmallNORBDataModule(directory=str(tmp_path / "data"), source="real")
    data.setup("fit")
    assert data.provenance["source"] == "real"
    assert len(asked) == 6 * (down + 1)
    assert sorted(path.name for path in data.real_source.folder.iterdir()) == sorted(
        smallnorb.PUBLISHED
    )
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["smallNORB"]


def test_source_real_without_network_names_the_missing_files(tmp_path):
    data = SmallNORBDataModule(directory=str(tmp_path), source="real")
    with pytest.raises(DataError, match=r"no network in tests.*CAPSULE_LAB_DATA") as caught:
        data.setup("fit")
    parts = [str(tmp_path / "smallNORB"), *smallnorb.PUBLISHED]
    assert [part for part in parts if part not in str(caught.value)] == []
    assert data.sets == {}


@pytest.mark.parametrize(
    ("source", "size", "folder"), [("auto", "full", "48x48"), ("standin", "small", "48x48-small")]
)
def test_provenance_of_the_standin_is_its_record(toynorb, caplog, source, size, folder):
    data = SmallNORBDataModule(directory=str(toynorb), source=source, standin=size)
    with caplog.at_level(logging.WARNING, "capsule_lab"):
        data.prepare_data()
    (record,) = caplog.records
    assert "STAND-IN" in record.getMessage()
    written = json.loads((toynorb / "toynorb" / folder / "provenance.json").read_text())
    generator = "toynorb"
    assert data.provenance == {
        "source": "standin", "name": toynorb_files.STANDIN_NAME, "generator": generator, **written
    }  # fmt: skip


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("stage", "part"), [("fit", "training"), ("test", "testing")])
def test_rendered_files_must_match_their_record(tmp_path, stage, part):
    folder = write_standin(tmp_path) / "toynorb" / "48x48"

    def read() -> None:
        SmallNORBDataModule(directory=str(tmp_path), source="standin").setup(stage)

    for content, place in (("dat", -1), ("dat", 30), ("cat", 20), ("info", 20), ("info", -8)):
        (path,) = folder.glob(f"*-{part}-{content}.mat")
        flip(path, place)
        with pytest.raises(
            DataError,
            match=rf"({part} files that do not match their SHA-256|among its {part} labels)",
        ):
            read()
        flip(path, place)
    read()
    record = folder / "provenance.json"
    content = json.loads(record.read_text())
    for damaged, value in product(("sha256", "elevations", "azimuths"), (None, {}, [99], "x")):
        record.write_text(json.dumps({**content, damaged: value}))
        with pytest.raises(DataError, match="do not match their SHA-256"):
            read()
    for damaged in ("", "[]", "{"):
        record.write_text(damaged)
        with pytest.raises(DataError, match=r"provenance\.json cannot be read"):
            read()
    record.write_text(json.dumps({"version": -1}))
    with pytest.raises(
        DataError, match=r"48x48 was rendered by version -1 of toynorb; .*: remove the folder"
    ):
        read()


@pytest.mark.parametrize(
    ("size", "folder", "levels"),
    [
        ("full", "48x48", {}),
        (
            "small",
            "48x48-small",
            {"elevations": (0, 4, 8), "azimuths": (0, 3, 6, 9, 12, 15), "lightings": (0, 3)},
        ),
    ],
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

    monkeypatch.setattr(toynorb_files, "render_files", render_files)
    with pytest.raises(
        DataError, match=r"cannot be written into .*48x48.* \(No space left on device\)"
    ):
        SmallNORBDataModule(directory=str(tmp_path), source="standin", standin=size).setup("fit")
    caplog.clear()
    with caplog.at_level(logging.INFO, "capsule_lab"):
        for stage in ("fit", "test"):
            SmallNORBDataModule(directory=str(tmp_path), source="standin", standin=size).setup(
                stage
            )
    assert asked == 2 * [{"size": 48, "seed": 0, **levels}]
    assert [path.name for path in (tmp_path / "toynorb").iterdir()] == [folder]
    warning, first, again = [record.getMessage() for record in caplog.records]
    assert warning == again == "STAND-IN DATA, not the real set: data.source is standin"
    assert (
        first
        == f"rendering toys into {tmp_path / 'toynorb' / folder}, once; this takes about half a minute"
    )


# --- inconsistent files


@pytest.mark.parametrize(
    ("content", "array", "message"),
    [
        (
            "dat",
            np.zeros((100, 2, 32, 32), np.uint8),
            r"holds uint8 of shape \(100, 2, 32, 32\); expected uint8 of",
        ),
        ("dat", np.zeros((100, 2, 48, 48), np.float32), r"holds float32 of shape"),
        (
            "cat",
            np.zeros(99, np.int32),
            r"categories of shape \(99,\) and info of shape \(100, 4\)",
        ),
        (
            "cat",
            np.full(100, 5, np.int32),
            r"category 5 among its training labels; expected one of 0, 1, 2, 3, 4",
        ),
        (
            "info",
            np.full((100, 4), 1, np.int32),
            r"azimuth 1 among its training labels; expected one of 0, 2, 4",
        ),
    ],
)
def test_mislabelled_files_are_refused_with_one_message(tmp_path, content, array, message):
    folder = write_standin(tmp_path) / "toynorb" / "48x48"
    (path,) = folder.glob(f"*-training-{content}.mat")
    write_matrix(path, array)
    with pytest.raises(DataError, match=message) as caught:
        SmallNORBDataModule(directory=str(tmp_path), source="standin").setup("fit")
    assert "\n" not in str(caught.value)


def test_unpacked_file_is_preferred_to_the_archive(tmp_path):
    folder = write_set(tmp_path, side=48)
    (folder / "smallnorb-5x46789x9x18x6x2x96x96-training-dat.mat.gz").write_bytes(b"not looked at")
    assert smallnorb.load_part(folder, "training", "subsample").images.shape == (100, 2, 48, 48)
    write_set(folder, side=48, size="48x48")
    with pytest.raises(
        DataError, match=r"holds .*48x48-training-cat\.mat.* expected one such file"
    ):
        smallnorb.load_part(folder, "training", "subsample")


# --- splits


FULL_LABELS, FULL_FACTORS = labels_and_factors(TRAINING)
COLUMN = {"azimuth": 2, "elevation": 1}


@pytest.mark.parametrize("viewpoints", ["azimuth", "elevation"])
def test_a_third_of_the_viewpoints_is_familiar(viewpoints):
    values = FULL_FACTORS[:, COLUMN[viewpoints]].astype(np.int64)
    familiar, novel = split_by_viewpoint(values, viewpoints)
    assert (len(familiar), len(novel)) == (8_100, 16_200)
    assert np.array_equal(np.sort(np.concatenate([familiar, novel])), np.arange(24_300))
    published = {
        "azimuth": {30, 32, 34, 0, 2, 4},
        "elevation": {0, 1, 2},
    }  # 300 to 40 degrees; 30 to 40 degrees
    assert set(values[familiar]) == published[viewpoints]
    assert set(values[familiar]).isdisjoint(values[novel])
    assert [len(part) for part in split_by_viewpoint(values, "full")] == [24_300, 0]


def by_instance(held_out: int = 1, seed: int = 0, fold: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return split_by_instance(
        FULL_LABELS.astype(np.int64), FULL_FACTORS[:, 0].astype(np.int64), held_out, seed, fold
    )


def toys(indices: np.ndarray) -> set[tuple[int, int]]:
    return set(zip(FULL_LABELS[indices].tolist(), FULL_FACTORS[indices, 0].tolist(), strict=True))


def test_no_toy_is_in_training_and_validation():
    for seed, held_out in product((0, 1), (1, 2, 4)):
        train, validation = by_instance(held_out, seed)
        assert len(validation) == 4_860 * held_out
        assert np.array_equal(np.sort(np.concatenate([train, validation])), np.arange(24_300))
        assert toys(train).isdisjoint(toys(validation))
        assert Counter(label for label, _ in toys(validation)) == dict.fromkeys(range(5), held_out)


def test_split_by_instance_is_the_one_we_publish():
    train, validation = by_instance()
    assert toys(validation) == HELD_OUT  # of the real set too, whose rows are in another order
    assert (index_hash(train), index_hash(validation)) == SPLIT


def test_folds_hold_out_different_toys():
    for held_out, folds in [(1, 5), (2, 2)]:
        held = [toys(by_instance(held_out, fold=fold)[1]) for fold in range(folds)]
        assert sum(map(len, held)) == len(set().union(*held)) == 5 * held_out * folds


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
    train, validation = data.sets["train"], data.sets["val"]
    samples = (100 if stereo == "channels" else 200) // share
    assert (len(train.labels), len(validation.labels)) == (samples * 4 // 5, samples // 5)
    seen = [
        set(zip(s.labels.tolist(), s.factors[:, 0].tolist(), strict=True))
        for s in (train, validation)
    ]
    assert seen[0].isdisjoint(seen[1])
    if split != "full":
        for images in (train, validation):
            assert set(images.factors[:, COLUMN[split]].tolist()) <= set(FAMILIAR[split])


@pytest.mark.parametrize("split", ["azimuth", "elevation"])
def test_validation_from_novel_viewpoints(standin, split):
    """Its toys are the held-out ones; a network that trains on all viewpoints has the same validation sets."""
    plain = standin("fit", split=split)
    data = standin("fit", split=split, validation="instance_all_viewpoints")
    upper = standin("fit", split=f"{split}_all", validation="instance_all_viewpoints")
    assert data.val_names == upper.val_names == ("val", "novel_val")
    for name in ("train", "val"):
        assert torch.equal(data.sets[name].images, plain.sets[name].images)
    for name in ("val", "novel_val"):
        assert torch.equal(data.sets[name].images, upper.sets[name].images)
    toys = {
        name: set(zip(s.labels.tolist(), s.factors[:, 0].tolist(), strict=True))
        for name, s in data.sets.items()
    }
    assert toys["novel_val"] == toys["val"]
    viewpoints = {name: set(s.factors[:, COLUMN[split]].tolist()) for name, s in upper.sets.items()}
    assert viewpoints["novel_val"].isdisjoint(FAMILIAR[split])
    assert viewpoints["train"] == viewpoints["val"] | viewpoints["novel_val"]
    assert len(upper.sets["train"].labels) == 2 * len(data.sets["train"].labels)
    loaders = data.val_dataloader()
    assert [len(loader.dataset) for loader in loaders] == [
        len(data.sets[name].labels) for name in data.val_names
    ]
    with pytest.raises(
        ValueError, match=r"data\.validation is instance_all_viewpoints with data\.split=full"
    ):
        standin("fit", validation="instance_all_viewpoints")


@pytest.mark.parametrize("split", ["azimuth", "elevation"])
def test_familiar_and_novel_viewpoints_are_separate_test_sets(standin, split):
    data = standin("test", training=False, testing=True, split=split, eval_batch_size=20)
    assert set(data.sets) == set(data.test_parts) == {"familiar", "novel"}
    loaders = data.test_dataloader()
    assert [len(loader) for loader in loaders] == [3, 3]
    seen = [torch.cat([batch.factors for batch in loader])[:, COLUMN[split]] for loader in loaders]
    assert set(seen[0].tolist()) <= set(FAMILIAR[split])
    assert set(seen[1].tolist()).isdisjoint(FAMILIAR[split])


def test_provenance_distinguishes_splits(standin):
    hashes = set()
    for options, sizes in [
        ({}, (80, 20)),
        ({"train_images": 25}, (25, 20)),
        ({"seed": 1}, (80, 20)),
        ({"validation_instances": 2}, (60, 40)),
        ({"split": "azimuth"}, (40, 10)),
        ({"stereo": "separate"}, (160, 40)),
    ]:
        data = standin("fit", **options)
        content = dict(data.provenance["split"])
        hashes.add(content.pop("hash"))
        assert content == {
            "validation": "instance",
            "train_images": sizes[0],
            "val_images": sizes[1],
        }
        assert data.sets["train"].labels.bincount().tolist() == [sizes[0] // 5] * 5
        assert json.loads(json.dumps(data.provenance)) == data.provenance
    assert len(hashes) == 6


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
    assert (stored.images.dtype, seen.images.dtype) == (torch.uint8, torch.float32)
    assert seen.images.isfinite().all()
    assert seen.labels.equal(stored.labels)
    assert seen.factors.equal(stored.factors)
    assert data.spec.classes == ("animal", "human", "airplane", "truck", "car")
    assert data.spec.factors == (FACTORS if shape[0] == 2 else (*FACTORS, "eye"))
    known = dict(zip(data.spec.factors, seen.factors.T.tolist(), strict=True))
    assert set(known["instance"]) <= set(TESTING if name == "test" else TRAINING)
    assert [set(known[factor]) for factor in FACTORS[1:]] == [{0, 4}, {0, 12}, {1}]


def test_separate_eyes_are_samples_with_the_factors_of_their_pair(standin):
    pairs, eyes = (
        standin("test", stereo=stereo).sets["test"] for stereo in ("channels", "separate")
    )
    assert len(eyes.labels) == 2 * len(pairs.labels)
    for eye in (0, 1):
        assert eyes.images[eye::2, 0].equal(pairs.images[:, eye])
        assert eyes.labels[eye::2].equal(pairs.labels)
        assert eyes.factors[eye::2, :4].equal(pairs.factors)
        assert (eyes.factors[eye::2, 4] == eye).all()


def standardised(image: np.ndarray) -> np.ndarray:
    return (image - image.mean()) / image.std()


def jittered(image: np.ndarray, added: float, factor: float) -> np.ndarray:
    mean = (image + added).mean(axis=(1, 2), keepdims=True)
    return mean + factor * (image + added - mean)


def still(image: np.ndarray, preprocessing: str, top: int = 8, left: int = 8) -> np.ndarray:
    cut = np.s_[:, top : top + 32, left : left + 32]
    return standardised(image[cut]) if preprocessing == "official" else standardised(image)[cut]


@pytest.mark.parametrize("preprocessing", ["official", "paper"])
@pytest.mark.parametrize("name", ["val", "test", "train"])
def test_image_without_augmentation_is_the_standardised_central_crop(standin, name, preprocessing):
    data = standin(
        "fit", "test", training=name == "train", augment=False, preprocessing=preprocessing
    )
    stored, seen = first_batch(data, name)
    expected = [still(image, preprocessing) for image in stored.images.numpy().astype(float)]
    np.testing.assert_allclose(seen.images.numpy(), np.stack(expected), atol=1e-5)


@pytest.mark.parametrize(
    ("preprocessing", "largest"), [("official", (63.0, 0.8)), ("paper", (2.0, 0.5))]
)
def test_training_images_equal_the_published_steps_one_by_one(standin, preprocessing, largest):
    """Each sample has four random numbers, which both eyes share."""
    stored, seen = first_batch(standin("fit", preprocessing=preprocessing), "train")
    added = random_uniform(stored.key, 0, -largest[0], largest[0]).tolist()
    factor = random_uniform(stored.key, 1, 1 - largest[1], 1 + largest[1]).tolist()
    top, left = (random_integers(stored.key, stream, 0, 16).tolist() for stream in (2, 3))
    for i, image in enumerate(stored.images.numpy().astype(float)):
        cut = np.s_[:, top[i] : top[i] + 32, left[i] : left[i] + 32]
        official = standardised(jittered(image, added[i], factor[i])[cut])
        paper = jittered(standardised(image)[cut], added[i], factor[i])
        expected = official if preprocessing == "official" else paper
        np.testing.assert_allclose(seen.images[i].numpy(), expected, atol=1e-4)


def test_brightness_of_the_official_code_changes_nothing(standin):
    """The final standardisation undoes it."""
    images = [
        first_batch(standin("fit", brightness=b), "train")[1].images for b in (0.0, None, 200.0)
    ]
    torch.testing.assert_close(images[0], images[1], rtol=0, atol=1e-4)
    torch.testing.assert_close(images[0], images[2], rtol=0, atol=1e-4)


def test_contrast_of_the_official_code_changes_only_the_offset_between_eyes(standin):
    for stereo, differs in [("separate", False), ("channels", True)]:
        images = [
            first_batch(standin("fit", contrast=c, stereo=stereo), "train")[1].images
            for c in (0.0, 0.7)
        ]
        assert bool((images[0] - images[1]).abs().max() > 1e-3) is differs


# --- 13 crops


OFFICIAL_13 = [
    (8, 8),
    *[(8, 8), (8, 7), (7, 8), (7, 7)],
    *[(9, 9), (9, 7), (7, 9), (7, 7)],
    *[(9, 9), (9, 6), (6, 9), (6, 6)],
]


@pytest.mark.parametrize("preprocessing", ["official", "paper"])
def test_thirteen_crops_are_those_of_the_official_code(standin, preprocessing):
    data = standin("test", training=False, testing=True, test_crops=13, preprocessing=preprocessing)
    stored, seen = first_batch(data, "test")
    assert seen.images.shape == (100, 13, 2, 32, 32)
    assert (seen.labels.shape, seen.factors.shape) == ((100,), (100, 4))
    full = stored.images.numpy().astype(float)
    expected = [
        [still(image, preprocessing, *corner) for corner in OFFICIAL_13] for image in full[:5]
    ]
    np.testing.assert_allclose(seen.images[:5].numpy(), np.array(expected), atol=1e-5)


def test_thirteen_crops_are_used_only_in_the_test(standin):
    for name, training in [("train", True), ("val", False), ("train", False)]:
        _, seen = first_batch(standin("fit", training=training, test_crops=13), name)
        assert seen.images.shape[1:] == (2, 32, 32)
