"""Sets of images on the training device: equal samples on host and device, without synchronisation with the host."""

import gc
import weakref
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from capsule_lab.commands import compose
from capsule_lab.config.build import build_data
from capsule_lab.config.folders import options_of
from capsule_lab.data import (
    AbstractDataModule,
    MNISTDataModule,
    SmallNORBPairsDataModule,
    SVHNDataModule,
)
from capsule_lab.data.loader import Images, InMemory, ResumableLoader, fits
from capsule_lab.data.standins.affnist import SyntheticAffNIST
from capsule_lab.types import Batch
from tests.helpers.data_modules import trainer

# data sets, and options that choose other code; the images of a folder stay in a file
WITHOUT_STANDIN = {"arrays", "emnist", "fashion_mnist", "folder", "kmnist"}
VARIANTS = {name: [name] for name in options_of("data") if name not in WITHOUT_STANDIN}
VARIANTS |= {
    "smallnorb_pairs": ["smallnorb_pairs", "data.categories=[animal,human,airplane,truck,car]"],
    "affine placing": ["multimnist", "data.placing=affine"],
    "affine validation": ["affnist", "data.affine_validation=true"],
    "13 crops": ["smallnorb", "data.test_crops=13"],
    "parts of the test set": ["smallnorb", "data.split=azimuth", "data.preprocessing=paper"],
}
META, CPU, GPU = torch.device("meta"), torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(scope="module", params=VARIANTS)
def data(request: pytest.FixtureRequest, toynorb: Path) -> AbstractDataModule:
    """A data set of a few images, for the first of two processes."""
    name, *others = VARIANTS[request.param]
    options = [
        f"data={name}",
        *others,
        "data.source=standin",
        f"data.directory={toynorb}",
        "data.eval_images=20",
        "data.batch_size=4",
        "data.eval_batch_size=8",
    ]
    if name != "smallnorb_pairs":  # views need their neighbours
        options.append("data.train_images=40")
    built: AbstractDataModule = build_data(compose("train", options))
    built.trainer = trainer(rank=0, world_size=2)
    built.setup("fit")
    built.setup("test")
    return built


def set_names(data: AbstractDataModule) -> list[str]:
    return ["train", *data.val_names, *data.test_names]


def train_loader(data: AbstractDataModule, *, on_device: bool) -> ResumableLoader:
    data.on_device = on_device
    loader = data.train_dataloader()
    loader.batches.set_epoch(3)
    return loader


def loaders(data: AbstractDataModule, *, on_device: bool) -> list[ResumableLoader]:
    """Loaders of all sets, in the order of ``set_names``."""
    train = train_loader(data, on_device=on_device)
    val = as_list(data.val_dataloader())
    test = as_list(data.test_dataloader())
    return [train, *val, *test]


def as_list(loader: ResumableLoader | list[ResumableLoader]) -> list[ResumableLoader]:
    return loader if isinstance(loader, list) else [loader]


def assert_equal(one: Batch, other: Batch) -> None:
    for field, value in one._asdict().items():
        expected = getattr(other, field)
        assert value is expected is None or value.equal(expected), field


def test_batches_of_host_and_device_are_equal(
    data: AbstractDataModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[InMemory] = []
    move = InMemory.to

    def to(self: InMemory, device: torch.device) -> InMemory:
        moved.append(self)
        return move(self, device)

    monkeypatch.setattr(InMemory, "to", to)
    host = loaders(data, on_device=False)
    device = loaders(data, on_device=True)
    for name, of_host, of_device in zip(set_names(data), host, device, strict=True):
        for one, other in zip(of_host, of_device, strict=True):
            assert_equal(data.transform_batch(one, name), data.transform_batch(other, name))
    assert len(moved) >= 2


def test_run_stopped_on_the_host_resumes_on_the_device(data: AbstractDataModule) -> None:
    stopped = train_loader(data, on_device=False)
    before = list(islice(stopped, 2))
    data.load_state_dict(stopped.state_dict())
    resumed = train_loader(data, on_device=True)
    parts = [*before, *resumed]
    whole = train_loader(data, on_device=False)
    for one, other in zip(parts, whole, strict=True):
        assert_equal(one, other)


def test_sample_does_not_depend_on_its_batch(data: AbstractDataModule) -> None:
    generator = torch.Generator().manual_seed(0)
    for name in set_names(data):
        dataset = data.dataset(name)
        order = torch.randperm(min(len(dataset), 20), generator=generator)
        whole = data.transform_batch(dataset[order, 3], name)
        parts = [data.transform_batch(dataset[part, 3], name) for part in order.split(7)]
        for one, columns in zip(whole, zip(*parts, strict=True), strict=True):
            assert one is None or torch.allclose(one, torch.cat(columns), rtol=0, atol=1e-6)
        assert whole.images.shape[-3:] == data.spec.image_shape
        assert whole.images.dtype == torch.float32


def test_only_training_images_change_with_epochs(
    data: AbstractDataModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the toys have no neighbouring views
    nothing_is_random = isinstance(data, SVHNDataModule | SmallNORBPairsDataModule)
    train, *others = set_names(data)
    assert [name for name in others if changes(data, name)] == []
    assert changes(data, train) is not nothing_is_random
    monkeypatch.setattr(data, "augment", False)
    assert not changes(data, train)


def batch_of(data: AbstractDataModule, name: str, epoch: int) -> Batch:
    stored = data.dataset(name)[torch.arange(8), epoch]
    return data.transform_batch(stored, name)


def changes(data: AbstractDataModule, name: str) -> bool:
    """Whether a batch changes between two epochs, apart from its keys."""
    one = batch_of(data, name, 0)._replace(key=None)
    other = batch_of(data, name, 3)._replace(key=None)
    pairs = zip(one, other, strict=True)
    return any(value is not None and not value.equal(expected) for value, expected in pairs)


class OneDevice(TorchDispatchMode):
    """Fails for operators that mix or copy tensors of host and device, or that check for errors on the device."""

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        assert operator is not torch.ops.aten._linalg_check_errors.default
        result = operator(*args, **(kwargs or {}))
        devices = set()
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, Tensor) and leaf.ndim:
                devices.add(leaf.device.type)
        assert len(devices) <= 1, operator
        return result


def devices_of(batch: Batch) -> set[torch.device]:
    return {field.device for field in batch if field is not None}


def test_batch_on_a_gpu_needs_no_synchronisation(data: AbstractDataModule) -> None:
    sets = {name: data.dataset(name) for name in set_names(data)}
    # raises for numbers that are read, and shapes that they decide
    with FakeTensorMode(allow_non_fake_inputs=True):
        for name, dataset in sets.items():
            there = dataset.to(GPU)
            if isinstance(dataset, SyntheticAffNIST):
                assert there is dataset
                continue
            assert there.device == GPU
            index = torch.empty(4, dtype=torch.int64, device=GPU)
            with OneDevice():
                batch = data.transform_batch(there[index, 1], name)
            assert devices_of(batch) == {GPU}


def mnist(**options: Any) -> MNISTDataModule:
    data = MNISTDataModule(source="standin", batch_size=8, train_images=40, **options)
    data.setup("fit")
    return data


def on(device: torch.device) -> Any:
    """A trainer on a device."""
    facts = vars(trainer()) | {"strategy": SimpleNamespace(root_device=device)}
    return SimpleNamespace(**facts)


def test_indices_and_batches_are_on_the_device_of_the_set() -> None:
    data = mnist(on_device=True)
    data.trainer = on(META)
    loader = data.train_dataloader()
    batch = next(iter(loader))
    assert devices_of(batch) == {META}
    assert loader.dataset.device == META
    assert not loader.pin_memory
    copied = weakref.ref(loader.dataset)
    del loader
    gc.collect()
    assert copied() is None


@pytest.mark.parametrize(("device", "is_pinned"), [(GPU, True), (CPU, False)])
def test_batches_of_the_host_are_pinned_only_for_a_gpu(
    device: torch.device, is_pinned: bool
) -> None:
    data = mnist(on_device=False)
    data.trainer = on(device)
    assert data.train_dataloader().pin_memory is is_pinned


def test_set_stays_on_the_host_without_a_trainer() -> None:
    assert mnist(on_device=True).train_dataloader().dataset.device == CPU


@pytest.mark.parametrize(("free", "expected"), [(47_999, False), (48_000, True)])
def test_set_fits_if_it_takes_a_quarter_of_the_free_memory_of_a_gpu(
    free: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = torch.zeros(1000, 1, 2, 2, dtype=torch.uint8)
    images = Images(pixels, torch.zeros(1000, dtype=torch.int64))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10**9))
    assert fits(images, GPU) is expected
    assert not fits(images, CPU)


@pytest.mark.parametrize(("is_fitting", "device"), [(True, META), (False, CPU)])
def test_auto_moves_sets_that_fit(
    is_fitting: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capsule_lab.data.base.fits", lambda images, device: is_fitting)
    data = mnist()
    data.trainer = on(META)
    assert data.train_dataloader().dataset.device == device


def test_set_that_does_not_fit_stays_on_the_host_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise torch.OutOfMemoryError

    data = mnist(on_device=True)
    data.trainer = trainer()
    monkeypatch.setattr(InMemory, "to", refuse)
    caplog.clear()
    batches = data.train_dataloader()
    data.val_dataloader()
    expected = mnist(on_device=False).train_dataloader()
    for one, other in zip(batches, expected, strict=True):
        assert_equal(one, other)
    (warning,) = [message for message in caplog.messages if "does not fit" in message]
    beginning = "the train set (0.0 GB) does not fit into the free memory of cpu: its"
    assert warning.startswith(beginning)
