"""MNIST from files in the real format, its stand-in, and what happens without a network."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import MNIST

from capsule_lab.data import MNISTDataModule, mnist
from capsule_lab.data.standins.digits import STANDIN_NAME, STANDIN_VERSION
from capsule_lab.types import Batch
from tests.helpers.data_modules import answer_downloads, trainer
from tests.helpers.mnist_files import ARRAYS, TRAIN, idx, md5, write_mnist


@pytest.fixture
def real(tmp_path, monkeypatch) -> Path:
    """A data directory with small files that count as the real ones."""
    return write_mnist(tmp_path, monkeypatch)


def standin(*, training: bool = True, **options) -> MNISTDataModule:
    data = MNISTDataModule(source="standin", **options)
    data.trainer = trainer(training=training)
    data.setup("fit")
    return data


def seen_by_network(data: MNISTDataModule, epoch: int = 0) -> dict[int, torch.Tensor]:
    """Every training image of an epoch as the network gets it, by its key."""
    loader = data.train_dataloader()
    loader.batches.set_epoch(epoch)
    batches = [data.on_after_batch_transfer(batch, 0) for batch in loader]
    return {key: image for batch in batches for key, image in zip(batch.key.tolist(), batch.images, strict=True)}


def test_only_verified_files_are_read(real):
    """torchvision before 0.9 left its own copy beside the real files."""
    (real / "MNIST" / "processed").mkdir()
    other = (torch.zeros(TRAIN, 28, 28, dtype=torch.uint8), torch.zeros(TRAIN, dtype=torch.int64))
    torch.save(other, real / "MNIST" / "processed" / "training.pt")
    torch.save(other, real / "MNIST" / "processed" / "test.pt")
    data = MNISTDataModule(directory=str(real), source="real", validation="none")
    data.setup("fit")
    np.testing.assert_array_equal(data.sets["train"].images[:, 0].numpy(), ARRAYS["train-images-idx3-ubyte"])


def test_the_environment_names_the_directory(real, monkeypatch):
    monkeypatch.setenv("CAPSULE_LAB_DATA", str(real))
    data = MNISTDataModule(source="real")
    assert data.real_source.folder == real / "MNIST" / "raw"
    data.setup("fit")
    assert data.provenance["source"] == "real"


# --- the download


@pytest.fixture
def archives(real, monkeypatch) -> dict[str, bytes]:
    """The small files as they are downloaded."""
    packed = {name: gzip.compress(idx(array), mtime=0) for name, array in ARRAYS.items()}
    monkeypatch.setattr(mnist, "ARCHIVES", {name: md5(content) for name, content in packed.items()})
    return {f"{name}.gz": content for name, content in packed.items()}


def test_the_second_server_is_asked_if_the_first_fails(tmp_path, archives, monkeypatch):
    first, second = mnist.SERVERS
    down = ConnectionError("down")
    asked = answer_downloads(
        monkeypatch, lambda url: down if url.startswith(first) else archives[url.removeprefix(second)]
    )
    MNISTDataModule(directory=str(tmp_path / "elsewhere"), source="real").setup("fit")
    assert asked == [f"{server}{name}" for name in archives for server in mnist.SERVERS]


def test_servers_and_archives_are_those_that_torchvision_has():
    assert set(MNIST.mirrors) == set(mnist.SERVERS)
    assert {name.removesuffix(".gz"): md5 for name, md5 in MNIST.resources} == mnist.ARCHIVES


# --- what is loaded, and what provenance says


@pytest.mark.parametrize("source", ["real", "standin"])
@pytest.mark.parametrize(("stage", "train"), [("fit", True), ("validate", True), ("test", False)])
def test_each_stage_loads_its_own_images_once(real, monkeypatch, source, stage, train):
    data = MNISTDataModule(directory=str(real), source=source)
    asked = []
    for origin in ("real_source", "standin_source"):
        load = getattr(data, origin).load
        monkeypatch.setattr(
            getattr(data, origin), "load", lambda *, train, o=origin, f=load: asked.append((o, train)) or f(train=train)
        )
    data.setup(stage)
    data.setup(stage)
    assert asked == [(f"{source}_source", train)]


def test_provenance_of_the_standin():
    data = MNISTDataModule(source="standin")
    data.prepare_data()
    assert data.provenance == {
        "source": "standin",
        "name": STANDIN_NAME,
        "generator": "capsule_lab.data.standins.digits",
        "version": STANDIN_VERSION,
        "sha256": "cf5564048b863847",
    }


def test_provenance_of_the_split():
    for options, split in [
        ({}, {"validation": "first", "train_images": 1198, "val_images": 240}),
        ({"validation": "stratified"}, {"validation": "stratified", "train_images": 1198, "val_images": 240}),
        ({"validation": "none"}, {"validation": "none", "train_images": 1438, "val_images": 0}),
        ({"train_images": 64}, {"validation": "first", "train_images": 64, "val_images": 240}),
        ({"validation_share": 0.1}, {"validation": "first", "train_images": 1294, "val_images": 144}),
    ]:
        data = standin(**options)
        found = dict(data.provenance["split"])
        assert len(found.pop("hash")) == 32
        assert found == split
        assert len(data.sets["train"].labels) == split["train_images"]
        assert len(data.sets["val"].labels) == split["val_images"]


def test_hash_of_the_split_tells_splits_apart():
    for change, same in [({}, True), ({"seed": 1}, False), ({"validation_share": 0.2}, False)]:
        hashes = [standin(**{"validation": "stratified", **c}).provenance["split"]["hash"] for c in ({}, change)]
        assert (hashes[0] == hashes[1]) is same


def test_network_sees_floats_in_the_unit_interval():
    for training in [True, False]:
        for name in ["train", "val", "test"]:
            data = standin(training=training)
            data.setup("test")
            stored = next(iter(getattr(data, f"{name}_dataloader")()))
            assert stored.images.dtype == torch.uint8
            batch = data.on_after_batch_transfer(stored, 0)
            assert isinstance(batch, Batch)
            assert batch.images.dtype == torch.float32
            assert batch.images.shape == stored.images.shape
            assert batch.images.min() == 0
            assert 0.9 < batch.images.max() <= 1
            assert batch.labels.equal(stored.labels)
            assert batch.key.equal(stored.key)


def test_training_images_alone_are_shifted():
    for training, options, moved in [
        (True, {}, True),
        (True, {"shift": 1}, True),
        (False, {}, False),
        (True, {"augment": False}, False),
        (True, {"shift": 0}, False),
    ]:
        data = standin(training=training, **options)
        stored = next(iter(data.train_dataloader()))
        images = data.on_after_batch_transfer(stored, 0).images
        assert images.equal(stored.images / 255) is not moved


def test_every_training_image_is_moved_by_at_most_shift():
    for largest in [1, 2]:
        data = standin(shift=largest, batch_size=32)
        stored = next(iter(data.train_dataloader()))
        images = data.on_after_batch_transfer(stored, 0).images
        moves = torch.cartesian_prod(*[torch.arange(-largest, largest + 1)] * 2).tolist()
        moved = torch.stack([(stored.images / 255).roll((down, right), (2, 3)) for down, right in moves])
        used = (moved == images).all(dim=(2, 3, 4))  # [move image]: the margin of 4 makes a roll a shift
        assert used.any(dim=0).all()
        assert used.any(dim=1).sum() > len(moves) / 2


def test_without_a_trainer_nothing_is_shifted():
    data = MNISTDataModule(source="standin")
    data.setup("fit")
    stored = next(iter(data.train_dataloader()))
    assert data.on_after_batch_transfer(stored, 0).images.equal(stored.images / 255)


def test_augmentation_does_not_depend_on_the_batch_size():
    for batch_size in [1, 10, 25, 1000]:
        reference = seen_by_network(standin(train_images=100, batch_size=50), epoch=2)
        images = seen_by_network(standin(train_images=100, batch_size=batch_size), epoch=2)
        assert images.keys() == reference.keys()
        assert torch.stack([images[key] for key in reference]).equal(torch.stack(list(reference.values())))


def test_augmentation_does_not_depend_on_the_number_of_processes():
    reference = seen_by_network(standin(train_images=100, batch_size=50))
    images = {}
    data = standin(train_images=100, batch_size=25)
    data.trainer = trainer(rank=0, world_size=2)
    images |= seen_by_network(data)
    data.trainer = trainer(rank=1, world_size=2)
    images |= seen_by_network(data)
    assert images.keys() == reference.keys()
    assert torch.stack([images[key] for key in reference]).equal(torch.stack(list(reference.values())))


def test_augmentation_depends_on_seed_and_epoch():
    for seed, epoch in [(0, 1), (1, 0)]:
        one = seen_by_network(standin(train_images=100, batch_size=50))
        other = seen_by_network(standin(train_images=100, batch_size=50, seed=seed), epoch)
        assert one.keys().isdisjoint(other)


def test_state_puts_training_back_in_its_place():
    whole = [batch.key.tolist() for batch in standin(batch_size=100).train_dataloader()]
    stopped = standin(batch_size=100)
    batches = iter(stopped.train_dataloader())
    before = [next(batches).key.tolist() for _ in range(4)]
    resumed = standin(batch_size=100)
    resumed.load_state_dict(stopped.state_dict())
    assert before + [batch.key.tolist() for batch in resumed.train_dataloader()] == whole


def test_state_before_training_is_none_at_all():
    data = standin()
    assert data.state_dict() == {}
    data.load_state_dict({})
    assert len(list(data.train_dataloader())) == len(data.train_dataloader())


def test_sizes_of_batches():
    for name, options, batches, images in [
        ("train", {"batch_size": 100}, 11, 1100),
        ("train", {"batch_size": 5000}, 1, 1198),
        ("val", {"eval_batch_size": 100}, 3, 240),
        ("test", {"eval_batch_size": 100}, 4, 359),
    ]:
        data = standin(**options)
        data.setup("test")
        sizes = [len(batch.labels) for batch in getattr(data, f"{name}_dataloader")()]
        assert (len(sizes), sum(sizes)) == (batches, images)


def test_no_validation_images_no_validation():
    assert standin(validation="none").val_dataloader() == []


@pytest.mark.usefixtures("unchecked_types")
def test_options_that_are_refused_at_construction():
    for options, message in [
        ({"source": "reel"}, r"data\.source is 'reel'; expected 'auto', 'real' or 'standin'"),
        ({"batch_size": 0}, "batch sizes are 0 and 500; expected 1 or more"),
        ({"eval_batch_size": -1}, "batch sizes are 128 and -1; expected 1 or more"),
        ({"shift": -1}, r"data\.shift is -1; expected 0"),
        ({"validation_share": "a sixth"}, r"data\.validation_share is 'a sixth'; expected a number"),
        ({"validation_share": "1/0"}, r"data\.validation_share is '1/0'"),
        ({"validation_share": "nan"}, r"data\.validation_share is 'nan'"),
    ]:
        with pytest.raises(ValueError, match=message):
            MNISTDataModule(**{"source": "standin", **options})


@pytest.mark.usefixtures("unchecked_types")
def test_options_that_are_refused_with_the_data():
    for options, message in [
        ({"validation": "last"}, r"data\.validation is 'last'; expected 'first', 'stratified' or 'none'"),
        ({"validation_share": 0.0}, r"data\.validation_share is 0, 0 of 1438 images; expected .*validation=none"),
        ({"validation_share": "1/1"}, r"data\.validation_share is 1, 1438 of 1438 images"),
        ({"validation_share": 1.5}, r"data\.validation_share is 3/2, 2157 of 1438 images"),
        ({"train_images": 0}, r"data\.train_images is 0; expected 1 to 1198, or null for all"),
        ({"train_images": 1199}, r"data\.train_images is 1199; expected 1 to 1198, or null for all"),
    ]:
        with pytest.raises(ValueError, match=message):
            standin(**options)


def test_stratified_share_too_small_for_every_class():
    """Fewer validation (or training) images than classes."""
    for size in [5, 1435]:
        with pytest.raises(ValueError, match=r"data\.validation_share"):
            standin(validation="stratified", validation_share=f"{size}/1438")


def test_facts_are_not_options():
    assert MNISTDataModule().spec.image_shape == (1, 28, 28)
    assert MNISTDataModule().spec.num_classes == 10
