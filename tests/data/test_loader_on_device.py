"""Sets of images on the training device: equal samples on host and device, without synchronisation with the host."""

import gc
import weakref
from collections.abc import Sequence
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

VARIANTS = {  # data sets, and options that choose other code
    **{
        name: [name] for name in options_of("data") if name != "folder"
    },  # its images stay in a file
    "smallnorb_pairs": ["smallnorb_pairs", "data.categories=[animal,human,airplane,truck,car]"],
    "affine placing": ["multimnist", "data.placing=affine"],
    "affine validation": ["affnist", "data.affine_validation=true"],
    "13 crops": ["smallnorb", "data.test_crops=13"],
    "parts of the test set": ["smallnorb", "data.split=azimuth", "data.preprocessing=paper"],
}
META, GPU = torch.device("meta"), torch.device("cuda", 0)


@pytest.fixture(scope="module", params=VARIANTS)
def data(request: pytest.FixtureRequest, toynorb: Path) -> AbstractDataModule:
    """A data set of a few images, for the first of two processes."""
    name, *others = VARIANTS[request.param]
    few = ["data.eval_images=20", "data.batch_size=4", "data.eval_batch_size=8"]
    few += (
        [] if name == "smallnorb_pairs" else ["data.train_images=40"]
    )  # views need their neighbours
    config = compose(
        "train", [f"data={name}", *others, *few, "data.source=standin", f"data.directory={toynorb}"]
    )
    built: AbstractDataModule = build_data(config)
    built.trainer = trainer(rank=0, world_size=2)
    for stage in ("fit", "test"):
        built.setup(stage)
    return built


def loaders(data: AbstractDataModule, *, on_device: bool) -> list[tuple[str, ResumableLoader]]:
    """Every set that the module has, by name."""
    data.on_device = on_device
    as_list = [
        each if isinstance(each, list) else [each]
        for each in (data.val_dataloader(), data.test_dataloader())
    ]
    train = data.train_dataloader()
    train.batches.set_epoch(3)
    names = ("train", *data.val_names, *data.test_names)
    return list(zip(names, [train, *as_list[0], *as_list[1]], strict=True))


def equal(one: Sequence[Batch], other: Sequence[Batch]) -> bool:
    pairs = [
        pair for batches in zip(one, other, strict=True) for pair in zip(*batches, strict=True)
    ]
    return all(a is b is None or a.equal(b) for a, b in pairs)


def test_batches_of_host_and_device_are_equal(
    data: AbstractDataModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[InMemory] = []
    move = InMemory.to
    monkeypatch.setattr(
        InMemory, "to", lambda self, device: moved.append(self) or move(self, device)
    )
    host, device = (loaders(data, on_device=on_device) for on_device in (False, True))
    for (name, one), (_, other) in zip(host, device, strict=True):
        assert equal(
            *([data.transform_batch(batch, name) for batch in loader] for loader in (one, other))
        )
    assert len(moved) >= 2


def test_run_stopped_on_the_host_resumes_on_the_device(data: AbstractDataModule) -> None:
    (_, stopped), *_ = loaders(data, on_device=False)
    before = list(islice(stopped, 2))
    data.load_state_dict(stopped.state_dict())
    (_, resumed), *_ = loaders(data, on_device=True)
    (_, whole), *_ = loaders(data, on_device=False)
    assert equal([*before, *resumed], list(whole))


def test_sample_does_not_depend_on_its_batch(data: AbstractDataModule) -> None:
    for name in ("train", *data.val_names, *data.test_names):
        dataset = data.dataset(name)
        order = torch.randperm(min(len(dataset), 20), generator=torch.Generator().manual_seed(0))
        whole = data.transform_batch(dataset[order, 3], name)
        parts = [data.transform_batch(dataset[part, 3], name) for part in order.split(7)]
        for one, columns in zip(whole, zip(*parts, strict=True), strict=True):
            assert one is None or torch.allclose(one, torch.cat(columns), rtol=0, atol=1e-6)
        assert whole.images.shape[-3:] == data.spec.image_shape
        assert whole.images.dtype == torch.float32


def test_only_training_images_change_with_epochs(
    data: AbstractDataModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changes(name: str) -> bool:
        one, other = (
            data.transform_batch(data.dataset(name)[torch.arange(8), n], name) for n in (0, 3)
        )
        return any(
            not (a is b or a.equal(b))
            for a, b in zip(one[:2] + one[3:], other[:2] + other[3:], strict=True)
        )

    nothing_random = isinstance(
        data, SVHNDataModule | SmallNORBPairsDataModule
    )  # the toys have no neighbouring views
    assert [name for name in (*data.val_names, *data.test_names) if changes(name)] == []
    assert changes("train") is not nothing_random
    monkeypatch.setattr(data, "augment", False)
    assert not changes("train")


class OneDevice(TorchDispatchMode):
    """Fails for operators that mix or copy tensors of host and device, or that check for errors on the device."""

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        assert operator is not torch.ops.aten._linalg_check_errors.default
        result = operator(*args, **(kwargs or {}))
        tensors = [
            leaf
            for leaf in tree_leaves((args, kwargs, result))
            if isinstance(leaf, Tensor) and leaf.ndim
        ]
        assert len({tensor.device.type for tensor in tensors}) <= 1, operator
        return result


def test_batch_on_a_gpu_needs_no_synchronisation(data: AbstractDataModule) -> None:
    sets = {name: data.dataset(name) for name in ("train", *data.val_names, *data.test_names)}
    with FakeTensorMode(
        allow_non_fake_inputs=True
    ):  # raises for numbers that are read, and shapes that they decide
        for name, dataset in sets.items():
            there = dataset.to(GPU)
            if isinstance(dataset, SyntheticAffNIST):
                assert there is dataset
                continue
            assert there.device == GPU
            index = torch.empty(4, dtype=torch.int64, device=GPU)
            with OneDevice():
                batch = data.transform_batch(there[index, 1], name)
            assert {field.device for field in batch if field is not None} == {GPU}


def mnist(**options: Any) -> MNISTDataModule:
    data = MNISTDataModule(source="standin", batch_size=8, train_images=40, **options)
    data.setup("fit")
    return data


def on(device: torch.device) -> Any:
    return SimpleNamespace(**{**vars(trainer()), "strategy": SimpleNamespace(root_device=device)})


def test_indices_and_batches_are_on_the_device_of_the_set() -> None:
    data = mnist(on_device=True)
    data.trainer = on(META)
    loader = data.train_dataloader()
    batch = next(iter(loader))
    assert {field.device for field in batch if field is not None} == {META}
    assert loader.dataset.device == META
    assert not loader.pin_memory
    copied = weakref.ref(loader.dataset)
    del loader
    gc.collect()
    assert copied() is None


def test_batches_of_the_host_are_pinned_only_for_a_gpu() -> None:
    data = mnist(on_device=False)
    for device, pinned in [(GPU, True), (torch.device("cpu"), False)]:
        data.trainer = on(device)
        assert data.train_dataloader().pin_memory is pinned
    assert mnist(on_device=True).train_dataloader().dataset.device == torch.device(
        "cpu"
    )  # without a trainer


def test_auto_moves_sets_that_fit_in_a_quarter_of_the_free_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = Images(torch.zeros(1000, 1, 2, 2, dtype=torch.uint8), torch.zeros(1000).long())
    for free, expected in [(47_999, False), (48_000, True)]:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 10**9))
        assert fits(images, GPU) is expected
        assert not fits(images, torch.device("cpu"))
    for fitting, device in [(True, META), (False, torch.device("cpu"))]:
        monkeypatch.setattr(
            "capsule_lab.data.base.fits", lambda images, device, fitting=fitting: fitting
        )
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
    batches, _ = data.train_dataloader(), data.val_dataloader()
    assert equal(list(batches), list(mnist(on_device=False).train_dataloader()))
    (record,) = [record for record in caplog.records if "does not fit" in record.getMessage()]
    assert record.getMessage().startswith(
        "the train set (0.0 GB) does not fit into the free memory of cpu: its"
    )
