"""smallNORB from tiny files in the real format, its stand-in, its splits, and what the network sees."""

from __future__ import annotations

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
from capsule_lab.data.standins import toynorb
from capsule_lab.data.transforms import random_integers, random_uniform
from capsule_lab.errors import DataError
from tests.helpers.data_modules import answer_downloads, trainer, without_network
from tests.helpers.smallnorb_files import TESTING, TRAINING, labels_and_factors, write_record, write_set, write_standin

HELD_OUT = {(0, 7), (1, 6), (2, 9), (3, 8), (4, 7)}
SPLIT = ("9b0d69f4a5f0bf20", "90c510726811b6ac")


@pytest.fixture
def standin_directory(toynorb) -> Path:
    return toynorb


def of(data: SmallNORBDataModule, *stages: str, training: bool = True, testing: bool = False) -> SmallNORBDataModule:
    """``data`` under as much of a Trainer as a DataModule looks at, set up."""
    data.trainer = trainer(training=training, testing=testing)
    for stage in stages:
        data.setup(stage)
    return data


@pytest.fixture
def standin(standin_directory):
    """Makes a DataModule on the stand-in: ``standin("fit", split="azimuth")``."""

    def make(*stages: str, training: bool = True, testing: bool = False, **options) -> SmallNORBDataModule:
        data = SmallNORBDataModule(directory=str(standin_directory), source="standin", **options)
        return of(data, *stages, training=training, testing=testing)

    return make


def count_as_real(folder: Path, monkeypatch) -> None:
    """Make the checksums those of the files in ``folder``."""
    monkeypatch.setattr(smallnorb, "PUBLISHED", published_of(folder))


def published_of(folder: Path) -> dict[str, Published]:
    files = sorted(folder.glob("*.mat*"))
    sums = [Published(md5(path), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
    return {path.name.removesuffix(".gz"): known for path, known in zip(files, sums, strict=True)}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    """The files of ``real``, by their suffix: written once."""
    folder = tmp_path_factory.mktemp("written")
    return {suffix: write_set(folder / suffix, side=96, suffix=suffix) for suffix in (".mat", ".mat.gz")}


@pytest.fixture(params=[".mat", ".mat.gz"])
def real(request, written, tmp_path, monkeypatch) -> Path:
    """A data directory with small files that count as the real ones."""
    folder = Path(shutil.copytree(written[request.param], tmp_path / "data" / "smallNORB"))
    count_as_real(folder, monkeypatch)
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def no_network(monkeypatch) -> None:
    without_network(monkeypatch)


@pytest.fixture(autouse=True)
def nothing_is_rendered(monkeypatch) -> None:
    def refuse(*_, **__):
        pytest.fail("toys were rendered")

    monkeypatch.setattr(toynorb, "render_files", refuse)


def everything_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def stored(folder: Path, part: str, content: str) -> np.ndarray:
    (path,) = folder.glob(f"*-{part}-{content}.mat*")
    return np.array(smallnorb.read_matrix(path))


# --- the real files


def test_training_files_are_read_back_exactly(real):
    for source in ["auto", "real"]:
        data = SmallNORBDataModule(directory=str(real), source=source, validation="none")
        data.setup("fit")
        images, labels, factors = data.sets["train"]
        folder = real / "smallNORB"
        np.testing.assert_array_equal(images.numpy(), stored(folder, "training", "dat")[:, :, ::2, ::2])
        np.testing.assert_array_equal(labels.numpy(), stored(folder, "training", "cat"))
        np.testing.assert_array_equal(factors.numpy(), stored(folder, "training", "info"))
        assert data.provenance["source"] == "real"


def test_test_files_are_read_back_exactly_and_alone(real):
    data = SmallNORBDataModule(directory=str(real), source="real")
    data.setup("test")
    assert set(data.sets) == {"test"}
    images, labels, factors = data.sets["test"]
    folder = real / "smallNORB"
    np.testing.assert_array_equal(images.numpy(), stored(folder, "testing", "dat")[:, :, ::2, ::2])
    np.testing.assert_array_equal(labels.numpy(), stored(folder, "testing", "cat"))
    np.testing.assert_array_equal(factors.numpy(), stored(folder, "testing", "info"))


@pytest.mark.parametrize("stage", ["fit", "validate"])
def test_training_never_reads_the_test_files(real, stage):
    data = SmallNORBDataModule(directory=str(real), source="real")
    data.prepare_data()
    for path in (real / "smallNORB").glob("*testing*"):
        path.write_bytes(b"poison")
    data.setup(stage)
    assert set(data.sets) == {"train", "val"}


def test_area_is_the_rounded_mean_of_four_pixels(real):
    data = SmallNORBDataModule(directory=str(real), source="real", validation="none", resize="area")
    data.setup("fit")
    wide = stored(real / "smallNORB", "training", "dat").astype(float)
    mean = wide.reshape(100, 2, 48, 2, 48, 2).mean(axis=(3, 5))
    np.testing.assert_array_equal(data.sets["train"].images.numpy(), np.floor(mean + 0.5))


def test_a_corrupt_file_is_named_not_replaced(real):
    for part, damage in product(("dat", "cat", "info"), (lambda b: b[:-1], lambda _: b"<!DOCTYPE html>")):
        (path,) = (real / "smallNORB").glob(f"*-training-{part}.mat*")
        whole = path.read_bytes()
        path.write_bytes(damage(whole))
        for source in ("auto", "real"):
            with pytest.raises(DataError, match=rf"^{re.escape(str(path))} [^\n]*remove[^\n]*$"):
                SmallNORBDataModule(directory=str(real), source=source).setup("fit")
        path.write_bytes(whole)


def test_a_missing_file_is_named(real):
    (path,) = (real / "smallNORB").glob("*-testing-info.mat*")
    path.unlink()
    for source in ["auto", "real"]:
        with pytest.raises(DataError, match=r"holds 5 of the 6 files of smallNORB; missing .*-testing-info\.mat"):
            SmallNORBDataModule(directory=str(real), source=source).setup("fit")


def test_provenance_of_the_real_files(real):
    data = SmallNORBDataModule(directory=str(real), source="auto")
    data.prepare_data()
    sums = {name: published.md5 for name, published in smallnorb.PUBLISHED.items()}
    assert data.provenance == {"source": "real", "name": "real smallNORB", "md5": sums}


def test_published_checksums_are_those_of_six_files():
    assert len(smallnorb.PUBLISHED) == 6
    assert [len(known.md5) for known in smallnorb.PUBLISHED.values()] == [32] * 6
    assert len({known.sha256_of_archive for known in smallnorb.PUBLISHED.values()}) == 6
    assert {len(known.sha256_of_archive) for known in smallnorb.PUBLISHED.values()} == {64}


# --- without the real files


def serve(folder: Path, monkeypatch, *, spoil: str = "", down: tuple[str, ...] = ()) -> list[str]:
    """The archives of ``folder`` at the first server that is not down; returns the addresses asked."""

    def answer(url: str) -> bytes | Exception:
        if url.startswith(down or ("no server",)):
            return ConnectionError("no answer")
        content = (folder / url.rpartition("/")[2]).read_bytes()
        return content[:-1] if spoil and spoil in url else content

    return answer_downloads(monkeypatch, answer)


@pytest.fixture
def published(written, tmp_path, monkeypatch) -> Path:
    """A folder with archives that count as the real ones."""
    folder = Path(shutil.copytree(written[".mat.gz"], tmp_path / "server"))
    count_as_real(folder, monkeypatch)
    return folder


@pytest.mark.parametrize("down", range(3))
def test_download_goes_into_place_and_is_verified(tmp_path, published, monkeypatch, down):
    asked = serve(published, monkeypatch, down=smallnorb.SERVERS[:down])
    data = SmallNORBDataModule(directory=str(tmp_path / "data"), source="real")
    data.setup("fit")
    assert data.provenance["source"] == "real"
    assert len(asked) == 6 * (down + 1)
    assert sorted(path.name for path in data.real_source.folder.iterdir()) == sorted(smallnorb.PUBLISHED)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["smallNORB"]


@pytest.mark.parametrize("content", ["training-dat", "testing-info"])
def test_download_of_another_file_leaves_nothing(tmp_path, published, monkeypatch, content):
    serve(published, monkeypatch, spoil=content)
    with pytest.raises(DataError, match=rf"{content}\.mat\.gz: .* does not match the known hash"):
        SmallNORBDataModule(directory=str(tmp_path / "data"), source="real").setup("fit")
    assert everything_below(tmp_path / "data") == []


def test_real_without_network_names_the_missing_files(tmp_path):
    for stage in ["fit", "test"]:
        data = SmallNORBDataModule(directory=str(tmp_path), source="real")
        with pytest.raises(DataError) as caught:
            data.setup(stage)
        message = str(caught.value)
        assert str(tmp_path / "smallNORB") in message
        assert [name for name in smallnorb.PUBLISHED if name not in message] == []
        assert len(smallnorb.PUBLISHED) == 6
        assert "no network in tests" in message
        assert "CAPSULE_LAB_DATA" in message
        assert "\n" not in message
        assert data.sets == {}
        assert everything_below(tmp_path) == []


def test_auto_without_network_falls_back_with_one_warning(standin_directory, caplog):
    data = SmallNORBDataModule(directory=str(standin_directory), source="auto")
    with caplog.at_level(logging.DEBUG, "capsule_lab"):
        data.setup("fit")
        data.setup("test")
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "STAND-IN" in record.getMessage()
    assert data.provenance["source"] == "standin"


def test_provenance_of_the_standin(standin, standin_directory):
    for size in ["full", "small"]:
        data = standin(standin=size)
        data.prepare_data()
        assert data.provenance == {
            "source": "standin",
            "name": toynorb.STANDIN_NAME,
            "generator": "capsule_lab.data.standins.toynorb",
            "version": toynorb.VERSION,
            "seed": 0,
            "pixels": "random",
            "elevations": [0, 4],
            "azimuths": [0, 6],
            "lightings": [1],
            "sha256": {part: rendered(standin_directory, size, part) for part in ("training", "testing")},
        }


def rendered(directory: Path, size: str, part: str) -> str:
    folder = directory / "toynorb" / f"48x48{'' if size == 'full' else '-small'}"
    return hashlib.sha256(stored(folder, part, "dat").tobytes()).hexdigest()


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("stage", ["fit", "test"])
def test_rendered_files_are_compared_with_their_record(tmp_path, stage):
    folder = write_standin(tmp_path) / "toynorb" / "48x48"
    part = {"fit": "training", "test": "testing"}[stage]
    for content, place in (("dat", -1), ("dat", 30), ("cat", 20), ("info", 20), ("info", -8)):
        (path,) = folder.glob(f"*-{part}-{content}.mat")
        flip(path, place)
        with pytest.raises(DataError, match=rf"({part} files that are not as they were|among its {part} labels)"):
            SmallNORBDataModule(directory=str(tmp_path), source="standin").setup(stage)
        flip(path, place)
    SmallNORBDataModule(directory=str(tmp_path), source="standin").setup(stage)
    record = folder / "provenance.json"
    for damaged in ("sha256", "elevations", "azimuths"):
        content = json.loads(record.read_text())
        for value in (None, {}, [99], "x"):
            record.write_text(json.dumps({**content, damaged: value}))
            with pytest.raises(DataError, match="not as they were rendered"):
                SmallNORBDataModule(directory=str(tmp_path), source="standin").setup(stage)
        record.write_text(json.dumps(content))


def render(asked: list, *, fail: bool = False):
    """In place of the renderer: writes random pixels, and notes what it was asked for."""

    def render_files(folder: Path, **how) -> None:
        asked.append(how)
        write_set(folder, side=48, size="48x48")
        if fail:
            raise OSError(28, "No space left on device")
        write_record(folder)

    return render_files


@pytest.mark.parametrize(
    ("size", "folder", "levels"),
    [
        ("full", "48x48", {}),
        ("small", "48x48-small", {"elevations": (0, 4, 8), "azimuths": (0, 3, 6, 9, 12, 15), "lightings": (0, 3)}),
    ],
)
def test_standin_is_rendered_once_and_logged(tmp_path, monkeypatch, caplog, size, folder, levels):
    asked = []
    monkeypatch.setattr(toynorb, "render_files", render(asked))
    with caplog.at_level(logging.INFO, "capsule_lab"):
        for stage in ("fit", "test"):
            SmallNORBDataModule(directory=str(tmp_path), source="standin", standin=size).setup(stage)
    assert asked == [{"size": 48, "seed": 0, **levels}]
    assert [path.name for path in (tmp_path / "toynorb").iterdir()] == [folder]
    warning, first, again = [record.getMessage() for record in caplog.records]
    assert warning == again == "STAND-IN DATA, not the real set: data.source is standin"
    assert first == f"rendering toys into {tmp_path / 'toynorb' / folder}, once, in half a minute or so"


def test_failed_rendering_is_an_error_and_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(toynorb, "render_files", render([], fail=True))
    with pytest.raises(DataError, match=r"cannot be written into .*48x48 \(No space left on device\)"):
        SmallNORBDataModule(directory=str(tmp_path), source="standin").setup("fit")
    monkeypatch.setattr(toynorb, "render_files", render([]))
    SmallNORBDataModule(directory=str(tmp_path), source="standin").setup("fit")


def test_standin_of_another_version_is_not_used(tmp_path):
    record = write_standin(tmp_path) / "toynorb" / "48x48" / "provenance.json"
    record.write_text(json.dumps({"version": -1}))
    with pytest.raises(DataError, match=r"48x48 was rendered by version -1 of toynorb; .*: remove the folder"):
        SmallNORBDataModule(directory=str(tmp_path), source="standin").setup("fit")


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_standin_with_a_damaged_record_is_not_used(tmp_path, content):
    record = write_standin(tmp_path) / "toynorb" / "48x48" / "provenance.json"
    record.write_text(content)
    with pytest.raises(DataError, match=r"provenance\.json cannot be read"):
        SmallNORBDataModule(directory=str(tmp_path), source="standin").setup("fit")


# --- files that do not fit each other


def spoil(folder: Path, content: str, array: np.ndarray) -> None:
    (path,) = folder.glob(f"*-training-{content}.mat")
    write_matrix(path, array)


def test_mislabelled_files_are_refused_with_one_message(tmp_path):
    for content, array, message in [
        ("dat", np.zeros((100, 2, 32, 32), np.uint8), r"holds uint8 of shape \(100, 2, 32, 32\); expected uint8 of"),
        ("dat", np.zeros((99, 2, 48, 48), np.uint8), r"holds uint8 of shape \(99, 2, 48, 48\)"),
        ("dat", np.zeros((100, 1, 48, 48), np.uint8), r"holds uint8 of shape \(100, 1, 48, 48\)"),
        ("dat", np.zeros((100, 2, 48, 48), np.float32), r"holds float32 of shape"),
        ("dat", np.zeros(100, np.uint8), r"holds uint8 of shape \(100,\)"),
        ("cat", np.zeros(99, np.int32), r"categories of shape \(99,\) and info of shape \(100, 4\)"),
        ("cat", np.full(100, 5, np.int32), r"category 5 among its training labels; expected one of 0, 1, 2, 3, 4"),
        ("info", np.zeros((100, 3), np.int32), r"info of shape \(100, 3\)"),
        ("info", np.full((100, 4), 9, np.int32), r"elevation 9 among its training labels; expected one of 0, 1, 2"),
        ("info", np.full((100, 4), 1, np.int32), r"azimuth 1 among its training labels; expected one of 0, 2, 4"),
    ]:
        folder = write_standin(tmp_path) / "toynorb" / "48x48"
        spoil(folder, content, array)
        with pytest.raises(DataError, match=message) as caught:
            SmallNORBDataModule(directory=str(tmp_path), source="standin").setup("fit")
        assert "\n" not in str(caught.value)


def test_one_set_of_files_in_a_folder(tmp_path):
    folder = write_standin(tmp_path) / "toynorb" / "48x48"
    write_set(folder, side=96)
    with pytest.raises(DataError, match=r"holds .*48x48-training-cat\.mat.* expected one such file"):
        SmallNORBDataModule(directory=str(tmp_path), source="standin").setup("fit")


def test_unpacked_file_is_read_where_both_are(tmp_path):
    folder = write_set(tmp_path, side=48)
    (folder / "smallnorb-5x46789x9x18x6x2x96x96-training-dat.mat.gz").write_bytes(b"not looked at")
    assert smallnorb.load_part(folder, "training", "subsample").images.shape == (100, 2, 48, 48)


# --- splits


FULL_LABELS, FULL_FACTORS = labels_and_factors(TRAINING)
COLUMN = {"azimuth": 2, "elevation": 1}


def test_a_third_of_the_viewpoints_is_familiar():
    for viewpoints in ["azimuth", "elevation"]:
        for instances in [TRAINING, TESTING]:
            labels, factors = labels_and_factors(instances)
            assert len(labels) == 24_300
            values = factors[:, COLUMN[viewpoints]].astype(np.int64)
            familiar, novel = split_by_viewpoint(values, viewpoints)
            assert (len(familiar), len(novel)) == (8_100, 16_200)
            assert np.array_equal(np.sort(np.concatenate([familiar, novel])), np.arange(24_300))
            assert set(values[familiar]).isdisjoint(values[novel])
            assert np.bincount(labels[familiar]).tolist() == [1_620] * 5


def test_familiar_viewpoints_are_the_published_ones():
    azimuths, elevations = np.arange(0, 36, 2), np.arange(9)
    assert {10 * a % 360 for a in azimuths[split_by_viewpoint(azimuths, "azimuth")[0]]} == {300, 320, 340, 0, 20, 40}
    assert [30 + 5 * e for e in elevations[split_by_viewpoint(elevations, "elevation")[0]]] == [30, 35, 40]
    assert [10 * a for a in azimuths[split_by_viewpoint(azimuths, "azimuth")[1]]] == list(range(60, 281, 20))


def test_without_a_viewpoint_split_all_are_familiar():
    familiar, novel = split_by_viewpoint(FULL_FACTORS[:, 2].astype(np.int64), "full")
    assert (len(familiar), len(novel)) == (24_300, 0)


def by_instance(held_out: int = 1, seed: int = 0, fold: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return split_by_instance(FULL_LABELS.astype(np.int64), FULL_FACTORS[:, 0].astype(np.int64), held_out, seed, fold)


def toys(indices: np.ndarray) -> set[tuple[int, int]]:
    return set(zip(FULL_LABELS[indices].tolist(), FULL_FACTORS[indices, 0].tolist(), strict=True))


def test_no_toy_is_on_both_sides():
    for seed in [0, 1, 2]:
        for held_out in [1, 2, 4]:
            train, validation = by_instance(held_out, seed)
            assert len(validation) == 4_860 * held_out
            assert np.array_equal(np.sort(np.concatenate([train, validation])), np.arange(24_300))
            assert toys(train).isdisjoint(toys(validation))
            assert Counter(label for label, _ in toys(validation)) == dict.fromkeys(range(5), held_out)


def test_split_by_instance_is_the_one_we_publish():
    train, validation = by_instance()
    assert toys(validation) == HELD_OUT  # of the real set too, whose rows are in another order
    assert (index_hash(train), index_hash(validation)) == SPLIT


def test_folds_hold_out_every_toy_once():
    for held_out, folds in [(1, 5), (2, 2)]:
        held = [toys(by_instance(held_out, fold=fold)[1]) for fold in range(folds)]
        assert sum(map(len, held)) == len(set().union(*held)) == 5 * held_out * folds


def test_fold_that_does_not_exist():
    for fold in [-1, 5]:
        with pytest.raises(ValueError, match=f"data.validation_fold is {fold}; expected 0 to 4: 1 of 5 objects each"):
            by_instance(fold=fold)


def test_categories_draw_on_their_own():
    assert len({instance for _, instance in toys(by_instance()[1])}) > 1


def test_each_seed_holds_out_other_toys():
    assert len({frozenset(toys(by_instance(seed=seed)[1])) for seed in range(5)}) > 1


def test_number_of_instances_that_leaves_nothing_on_one_side():
    for held_out in [-1, 0, 5, 6]:
        with pytest.raises(ValueError, match=rf"data\.validation_instances is {held_out}; expected 1 to 4 of the 5"):
            by_instance(held_out)


def test_training_and_validation_come_from_the_training_viewpoints(standin):
    for stereo in ["channels", "separate"]:
        for split, share in [("full", 1), ("azimuth", 2), ("elevation", 2)]:
            data = standin("fit", split=split, stereo=stereo)
            train, validation = data.sets["train"], data.sets["val"]
            samples = (100 if stereo == "channels" else 200) // share
            assert (len(train.labels), len(validation.labels)) == (samples * 4 // 5, samples // 5)
            seen = [
                {(int(c), int(f[0])) for c, f in zip(s.labels, s.factors, strict=True)} for s in (train, validation)
            ]
            assert seen[0].isdisjoint(seen[1])
            if split != "full":
                for images in (train, validation):
                    assert set(images.factors[:, COLUMN[split]].tolist()) <= set(FAMILIAR[split])


def test_novel_viewpoints_are_reported_on_their_own(standin):
    for split in ["azimuth", "elevation"]:
        data = standin("test", training=False, testing=True, split=split, eval_batch_size=20)
        assert data.test_parts == ("familiar", "novel")
        assert set(data.sets) == {"familiar", "novel"}
        loaders = data.test_dataloader()
        assert [len(loader) for loader in loaders] == [3, 3]
        seen = [torch.cat([batch.factors for batch in loader])[:, COLUMN[split]] for loader in loaders]
        assert set(seen[0].tolist()) <= set(FAMILIAR[split])
        assert set(seen[1].tolist()).isdisjoint(FAMILIAR[split])


def test_the_full_test_set_is_one_part(standin):
    data = standin("test")
    assert data.test_parts == ()
    assert len(data.test_dataloader().dataset) == 100


@pytest.mark.parametrize("stage", ["fit", "test"])
def test_viewpoint_split_of_files_without_the_viewpoints(tmp_path, stage):
    write_standin(tmp_path, azimuths=(10, 12))
    data = SmallNORBDataModule(directory=str(tmp_path), source="standin", split="azimuth")
    with pytest.raises(DataError, match=r"data\.split is azimuth, with 0 images from familiar and 100 from novel"):
        data.setup(stage)


def test_provenance_of_the_split(standin):
    for options, sizes in [({}, (80, 20)), ({"train_images": 25}, (25, 20))]:
        data = standin("fit", **options)
        found = dict(data.provenance["split"])
        assert len(found.pop("hash")) == 32
        assert found == {"validation": "instance", "train_images": sizes[0], "val_images": sizes[1]}
        assert data.sets["train"].labels.bincount().tolist() == [sizes[0] // 5] * 5
        assert json.loads(json.dumps(data.provenance)) == data.provenance


def test_hash_of_the_split_tells_splits_apart(standin):
    for change, same in [
        ({}, True),
        ({"seed": 1}, False),
        ({"validation_instances": 2}, False),
        ({"split": "azimuth"}, False),
        ({"stereo": "separate"}, False),
    ]:
        hashes = [standin("fit", **options).provenance["split"]["hash"] for options in ({}, change)]
        assert (hashes[0] == hashes[1]) is same


def test_no_validation_images_no_validation(standin):
    data = standin("fit", validation="none")
    assert data.val_dataloader() == []
    assert len(data.sets["train"].labels) == 100


# --- what the network sees


def first_batch(data: SmallNORBDataModule, name: str):
    stored = next(iter(getattr(data, f"{name}_dataloader")()))
    return stored, data.on_after_batch_transfer(stored, 0)


def test_images_have_the_shape_the_facts_promise(standin):
    for options, shape in [
        ({}, (2, 32, 32)),
        ({"stereo": "separate"}, (1, 32, 32)),
        ({"crop": 24}, (2, 24, 24)),
        ({"crop": 48}, (2, 48, 48)),
        ({"crop": 1}, (2, 1, 1)),
    ]:
        for preprocessing in ["official", "paper"]:
            for name in ["train", "val", "test"]:
                data = standin("fit", "test", training=name == "train", preprocessing=preprocessing, **options)
                stored, seen = first_batch(data, name)
                assert data.spec.image_shape == shape
                assert stored.images.dtype == torch.uint8
                assert seen.images.shape[1:] == shape
                assert seen.images.dtype == torch.float32
                assert seen.images.isfinite().all()
                assert seen.labels.equal(stored.labels)
                assert seen.factors.equal(stored.factors)


def test_factors_reach_the_batch(standin):
    for stereo in ["channels", "separate"]:
        for name in ["train", "val", "test"]:
            data = standin("fit", "test", stereo=stereo)
            _, seen = first_batch(data, name)
            assert data.spec.factors == (*FACTORS, *(() if stereo == "channels" else ("eye",)))
            assert data.spec.classes == ("animal", "human", "airplane", "truck", "car")
            assert data.spec.num_classes == 5
            assert seen.factors.shape == (len(seen.labels), len(data.spec.factors))
            assert seen.factors.dtype == torch.int64
            known = dict(zip(data.spec.factors, seen.factors.T, strict=True))
            assert set(known["instance"].tolist()) <= set(TESTING if name == "test" else TRAINING)
            assert set(known["elevation"].tolist()) <= {0, 4}
            assert set(known["azimuth"].tolist()) <= {0, 12}
            assert set(known["lighting"].tolist()) == {1}


def test_eyes_are_samples_of_their_own_with_the_factors_of_their_pair(standin):
    pairs, eyes = (standin("test", stereo=stereo).sets["test"] for stereo in ("channels", "separate"))
    assert len(eyes.labels) == 2 * len(pairs.labels)
    for eye in (0, 1):
        assert eyes.images[eye::2, 0].equal(pairs.images[:, eye])
        assert eyes.labels[eye::2].equal(pairs.labels)
        assert eyes.factors[eye::2, :4].equal(pairs.factors)
        assert (eyes.factors[eye::2, 4] == eye).all()


def standardised(image: np.ndarray) -> np.ndarray:
    return (image - image.mean()) / image.std()


def test_official_images_are_central_crops_then_standardised(standin):
    for name in ["val", "test", "train"]:
        data = standin("fit", "test", training=name == "train", augment=False)
        stored, seen = first_batch(data, name)
        expected = [standardised(image[:, 8:40, 8:40]) for image in stored.images.numpy().astype(float)]
        np.testing.assert_allclose(seen.images.numpy(), np.stack(expected), atol=1e-5)


def test_paper_images_are_standardised_then_central_crops(standin):
    stored, seen = first_batch(standin("fit", training=False, preprocessing="paper"), "val")
    expected = [standardised(image)[:, 8:40, 8:40] for image in stored.images.numpy().astype(float)]
    np.testing.assert_allclose(seen.images.numpy(), np.stack(expected), atol=1e-5)


def corners_of(seen: np.ndarray, full: np.ndarray, prepare) -> tuple[int, int]:
    """Where in ``full`` the crop ``seen`` was taken, if ``prepare`` is what happened to it."""
    found = [
        (top, left)
        for top, left in product(range(17), range(17))
        if np.allclose(prepare(full[:, top : top + 32, left : left + 32]), seen, atol=1e-4)
    ]
    assert len(found) == 1
    return found[0]


def test_official_training_images_are_random_crops_then_standardised(standin):
    stored, seen = first_batch(standin("fit", contrast=0.0), "train")
    corners = {
        corners_of(image, full.astype(float), standardised)
        for image, full in zip(seen.images.numpy()[:20], stored.images.numpy()[:20], strict=True)
    }
    assert len(corners) > 10


def test_paper_training_images_are_standardised_then_random_crops(standin):
    stored, seen = first_batch(standin("fit", preprocessing="paper", contrast=0.0, brightness=0.0), "train")
    for image, full in zip(seen.images.numpy()[:10], stored.images.numpy()[:10], strict=True):
        corners_of(image, standardised(full.astype(float)), lambda crop: crop)


def jittered(image: np.ndarray, added: float, factor: float) -> np.ndarray:
    mean = (image + added).mean(axis=(1, 2), keepdims=True)
    return mean + factor * (image + added - mean)


@pytest.mark.parametrize("preprocessing", ["official", "paper"])
def test_training_images_equal_the_published_steps_one_by_one(standin, preprocessing):
    """Four draws of their own for every sample, both eyes alike."""
    stored, seen = first_batch(standin("fit", preprocessing=preprocessing), "train")
    largest = (63.0, 0.8) if preprocessing == "official" else (2.0, 0.5)
    added = random_uniform(stored.key, 0, -largest[0], largest[0]).tolist()
    factor = random_uniform(stored.key, 1, 1 - largest[1], 1 + largest[1]).tolist()
    top, left = (random_integers(stored.key, stream, 0, 16).tolist() for stream in (2, 3))
    for i, image in enumerate(stored.images.numpy().astype(float)):
        cut = np.s_[:, top[i] : top[i] + 32, left[i] : left[i] + 32]
        official = standardised(jittered(image, added[i], factor[i])[cut])
        paper = jittered(standardised(image)[cut], added[i], factor[i])
        expected = official if preprocessing == "official" else paper
        np.testing.assert_allclose(seen.images[i].numpy(), expected, atol=1e-4)


def test_official_brightness_changes_nothing(standin):
    """Standardisation comes last and undoes it."""
    images = [first_batch(standin("fit", brightness=b), "train")[1].images for b in (0.0, None, 200.0)]
    torch.testing.assert_close(images[0], images[1], rtol=0, atol=1e-4)
    torch.testing.assert_close(images[0], images[2], rtol=0, atol=1e-4)


def test_official_contrast_changes_nothing_but_the_offset_between_two_eyes(standin):
    for stereo, differs in [("separate", False), ("channels", True)]:
        images = [first_batch(standin("fit", contrast=c, stereo=stereo), "train")[1].images for c in (0.0, 0.7)]
        assert bool((images[0] - images[1]).abs().max() > 1e-3) is differs


def test_each_preprocessing_has_its_own_jitter(standin):
    for preprocessing, brightness, contrast in [("official", 63.0, 0.8), ("paper", 2.0, 0.5)]:
        own, named = (
            first_batch(standin("fit", preprocessing=preprocessing, **jitter), "train")[1].images
            for jitter in ({}, {"brightness": brightness, "contrast": contrast})
        )
        assert own.equal(named)


def test_paper_brightness_adds_up_to_two_standard_deviations(standin):
    still, moved = (
        first_batch(standin("fit", preprocessing="paper", contrast=0.0, brightness=b), "train")[1].images
        for b in (0.0, None)
    )
    added = (moved - still).mean(dim=(1, 2, 3))
    torch.testing.assert_close(moved, still + added[:, None, None, None])
    assert 1.5 < added.abs().max() <= 2
    assert added.min() < -0.5 < 0.5 < added.max()


def test_paper_contrast_is_about_the_mean_of_each_channel(standin):
    still, moved = (
        first_batch(standin("fit", preprocessing="paper", contrast=c, brightness=0.0), "train")[1].images
        for c in (0.0, None)
    )
    torch.testing.assert_close(moved.mean(dim=(2, 3)), still.mean(dim=(2, 3)))
    factors = moved.std(dim=(2, 3)) / still.std(dim=(2, 3))
    torch.testing.assert_close(factors[:, 0], factors[:, 1])
    assert 0.5 <= factors.min() < 0.7
    assert 1.3 < factors.max() <= 1.5


def test_augmentation_does_not_depend_on_the_batch_size(standin):
    def seen(preprocessing: str, size: int) -> dict[int, torch.Tensor]:
        data = standin("fit", preprocessing=preprocessing, batch_size=size, train_images=14)
        batches = [data.on_after_batch_transfer(batch, 0) for batch in data.train_dataloader()]
        return {key: image for b in batches for key, image in zip(b.key.tolist(), b.images, strict=True)}

    for preprocessing in ("official", "paper"):
        reference = seen(preprocessing, 2)
        expected = torch.stack(list(reference.values()))
        for batch_size in (1, 7, 80):
            images = seen(preprocessing, batch_size)
            assert images.keys() == reference.keys()
            found = torch.stack([images[key] for key in reference])
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_only_training_images_are_random(standin):
    data = standin("fit", training=False)
    stored, seen = first_batch(data, "train")
    again = data.on_after_batch_transfer(stored._replace(key=stored.key + 1), 0)
    assert again.images.equal(seen.images)


# --- 13 crops


OFFICIAL_13 = [
    (8, 8),
    *[(8, 8), (8, 7), (7, 8), (7, 7)],
    *[(9, 9), (9, 7), (7, 9), (7, 7)],
    *[(9, 9), (9, 6), (6, 9), (6, 6)],
]


def test_thirteen_crops_are_those_of_the_official_code(standin):
    data = standin("test", training=False, testing=True, test_crops=13)
    stored, seen = first_batch(data, "test")
    assert seen.images.shape == (100, 13, 2, 32, 32)
    assert (seen.labels.shape, seen.factors.shape) == ((100,), (100, 4))
    full = stored.images.numpy().astype(float)
    expected = [
        [standardised(image[:, top : top + 32, left : left + 32]) for top, left in OFFICIAL_13] for image in full[:5]
    ]
    np.testing.assert_allclose(seen.images[:5].numpy(), np.array(expected), atol=1e-5)


def test_thirteen_crops_of_the_papers_order(standin):
    data = standin("test", training=False, testing=True, test_crops=13, preprocessing="paper", stereo="separate")
    stored, seen = first_batch(data, "test")
    assert seen.images.shape == (100, 13, 1, 32, 32)
    expected = standardised(stored.images[0].numpy().astype(float))[:, 6:38, 9:41]
    np.testing.assert_allclose(seen.images[0, 11].numpy(), expected, atol=1e-5)


def test_thirteen_crops_are_for_the_test_alone(standin):
    for name, training in [("train", True), ("val", False), ("train", False)]:
        _, seen = first_batch(standin("fit", training=training, test_crops=13), name)
        assert seen.images.shape[1:] == (2, 32, 32)


# --- options


@pytest.mark.usefixtures("unchecked_types")
def test_options_that_are_refused_at_construction():
    for options, message in [
        ({"source": "reel"}, r"data\.source is 'reel'; expected 'auto', 'real' or 'standin'"),
        ({"resize": "bilinear"}, r"data\.resize is 'bilinear'; expected 'subsample' or 'area'"),
        ({"preprocessing": "ibm"}, r"data\.preprocessing is 'ibm'; expected 'official' or 'paper'"),
        ({"stereo": "left"}, r"data\.stereo is 'left'; expected 'channels' or 'separate'"),
        ({"split": "lighting"}, r"data\.split is 'lighting'; expected 'full', 'azimuth' or 'elevation'"),
        ({"test_crops": 5}, r"data\.test_crops is 5; expected 1 or 13"),
        ({"standin": "tiny"}, r"data\.standin is 'tiny'; expected 'full' or 'small'"),
        ({"validation": "stratified"}, r"data\.validation is 'stratified'; expected 'instance' or 'none'"),
        ({"validation": "first"}, r"data\.validation is 'first'; expected 'instance' or 'none'"),
        ({"validation_share": 0.1}, r"data\.validation_share is 0.1; smallNORB holds out whole toys"),
        ({"crop": 0}, r"data\.crop is 0; expected 1 to 48 pixels"),
        ({"crop": 49}, r"data\.crop is 49; expected 1 to 48 pixels"),
        ({"brightness": -1.0}, r"data\.brightness is -1.0; expected 0 \(none\) or more, or null for 63"),
        ({"brightness": float("nan")}, r"data\.brightness is nan"),
        ({"contrast": 1.5}, r"data\.contrast is 1.5; expected 0 \(none\) to 1, or null for 0.8"),
        ({"contrast": -0.1, "preprocessing": "paper"}, r"data\.contrast is -0.1; .* null for 0.5"),
    ]:
        with pytest.raises(ValueError, match=message):
            SmallNORBDataModule(**{"source": "standin", **options})


def test_batches_are_those_of_the_paper_by_default(standin):
    data = standin("fit", "test")
    assert [len(batch.labels) for batch in data.train_dataloader()] == [64]
    assert [len(batch.labels) for batch in data.test_dataloader()] == [100]
