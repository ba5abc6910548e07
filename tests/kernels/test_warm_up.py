"""Kernels compiled before the first step are those that the step launches; nothing that fails there stops a run."""

import importlib.util
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip(
        "Triton, which compiles the kernels of a GPU, is not installed", allow_module_level=True
    )

import triton.compiler
from triton import knobs

from capsule_lab.kernels import gpu
from capsule_lab.kernels.em_arguments import FitInputs, FitOptions
from capsule_lab.kernels.gpu import blocks, warm_up
from capsule_lab.kernels.gpu.blocks import Launch
from capsule_lab.kernels.gpu.warm_up import compile_ahead
from capsule_lab.layers import ConvStack, LinearPrimaryCapsules, PrimaryCapsules
from capsule_lab.lit.warm_up import compile_kernels, first_step
from capsule_lab.networks import CapsNet, EMCaps
from capsule_lab.networks.base import AbstractImageNetwork
from tests.helpers.gpu_comparison import fused_by_gpu
from tests.helpers.triton_driver import forget_kernels, use_driver

SMALL: dict[str, Any] = {
    "channels": 64,
    "primary": partial(LinearPrimaryCapsules, types=8),
    "conv": partial(ConvStack, types=(16, 16)),
}
NETWORKS: dict[str, Callable[[], AbstractImageNetwork]] = {
    "CapsNet": lambda: CapsNet((1, 28, 28), 10, channels=8),
    "EMCaps 32": lambda: EMCaps((2, 32, 32), 5),
    "EMCaps 64/8/16/16": lambda: EMCaps((2, 32, 32), 5, **SMALL),
}


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The kernels of a GPU for tensors on the CPU, compiled for Hopper and not run."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(blocks, "start", compile_for_tensors)
    monkeypatch.setattr(blocks, "run", compile_for_tensors)
    use_driver(monkeypatch)
    with fused_by_gpu():
        yield
    # a test without a launch does not wait for them; they would compile with the compiler of the next test
    for thread in threading.enumerate():
        if thread.name.startswith("compile_kernels"):
            thread.join()
    forget_kernels()


def compile_for_tensors(launch: Launch) -> None:
    """What a launch compiles, which depends on the addresses of its tensors; its results are 1."""
    arguments = *launch.given, *launch.out, *launch.numbers
    launch.kernel.warmup(*arguments, grid=launch.grid, **launch.constants)
    for tensor in launch.out:
        if tensor is not None:
            tensor.fill_(1)


class Compilations(list[str]):
    """Keys of what Triton compiles on disk, in place of compiling it."""

    def __call__(
        self, src: Any, target: Any, options: dict[str, Any], _env_vars: Any = None
    ) -> object:
        self.append(f"{src.name} {src.hash()} {sorted(options.items())}")
        return object()


def step(network: AbstractImageNetwork) -> None:
    first_step(network, torch.zeros(2, *network.image_shape))


def train_step(network: AbstractImageNetwork, *, half: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        scores = network(torch.rand(2, *network.image_shape)).scores
    scores.square().sum().backward()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_is_what_the_first_step_launches(
    name: str, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Triton's own keys, in memory and on disk."""
    compilations = Compilations()
    monkeypatch.setattr(triton.compiler, "compile", compilations)
    network = NETWORKS[name]()
    images = torch.zeros(2, *network.image_shape)
    autocast = partial(torch.autocast, "cpu", torch.bfloat16, enabled=half)
    compile_ahead(partial(first_step, network, images, autocast))
    train_step(network, half=half)
    ahead = sorted(compilations)
    assert len(set(ahead)) == len(ahead) > 3
    forget_kernels()
    compilations.clear()
    train_step(network, half=half)
    assert sorted(compilations) == ahead


@pytest.mark.whole
def test_is_found_on_disk() -> None:
    hits: list[bool] = []
    network = CapsNet(
        (1, 17, 17), 2, channels=8, primary=partial(PrimaryCapsules, types=1, dim=2), class_dim=2
    )
    with knobs.compilation.scope():
        knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
        compile_ahead(lambda: step(network))
        step(network)
        assert hits
        assert not any(hits)
        count = len(hits)
        forget_kernels()
        step(network)
    assert hits[count:] == [True] * count


def test_compiles_once_for_both_booleans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton uses their type; at the same time, it would compile the kernel twice."""
    pool = Mock()
    inputs = FitInputs(
        torch.zeros(1, 4, 3),
        torch.zeros(2, 4, 3),
        torch.zeros(1, 3),
        torch.zeros(1, 2, 3),
        torch.zeros(1, 2, 4),
    )
    monkeypatch.setattr(warm_up, "ThreadPoolExecutor", lambda *_, **__: pool)

    def fit_twice() -> None:
        for measure in (False, True):
            gpu.fit(inputs, FitOptions(2, 0.0, 5e-4, 1e-7, measure))

    compile_ahead(fit_twice)
    assert pool.submit.call_count == 1


def test_changes_nothing_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    network = EMCaps((2, 32, 32), 5, batch_norm=True, **SMALL)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    random_state = torch.get_rng_state()
    monkeypatch.setattr(triton.compiler, "compile", Compilations())
    compile_ahead(lambda: step(network))
    assert torch.equal(torch.get_rng_state(), random_state)
    for key, value in network.state_dict().items():
        assert torch.equal(value, before[key])
    for parameter in network.parameters():
        assert parameter.grad is None


def launch_softmax() -> None:
    gpu.softmax_by_child(torch.zeros(1, 2, 4), torch.arange(4).expand(1, 4), 4)


def test_an_error_is_only_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilations = Compilations()
    monkeypatch.setattr(triton.compiler, "compile", compilations)

    def fail() -> None:
        launch_softmax()
        raise RuntimeError("out of memory")

    with caplog.at_level(logging.INFO):
        compile_ahead(fail)
        launch_softmax()
    assert len(compilations) == 1
    assert not caplog.records
    assert blocks.start is compile_for_tensors


def test_a_failed_compilation_is_repeated_by_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    compilations = Compilations()

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no assembler")

    with monkeypatch.context() as broken:
        broken.setattr(triton.compiler, "compile", fail)
        compile_ahead(launch_softmax)
        with pytest.raises(RuntimeError, match="no assembler"):
            launch_softmax()
    forget_kernels()  # they remember the compiler
    monkeypatch.setattr(triton.compiler, "compile", compilations)
    launch_softmax()
    assert len(compilations) == 1


def test_a_launch_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    started = threading.Event()

    def compile_slowly(*_: Any, **__: Any) -> object:
        started.wait()
        events.append("compiled")
        return object()

    def launch(_: Launch) -> None:
        events.append("launched")

    monkeypatch.setattr(triton.compiler, "compile", compile_slowly)
    monkeypatch.setattr(blocks, "run", launch)
    compile_ahead(launch_softmax)
    assert not events
    started.set()
    launch_softmax()
    assert events == ["compiled", "launched"]


def test_a_fit_on_a_gpu_compiles_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    compilations = Compilations()
    zeros = torch.zeros
    monkeypatch.setattr(triton.compiler, "compile", compilations)
    # there is no GPU
    monkeypatch.setattr(torch, "zeros", lambda *shape, device=None: zeros(*shape))
    trainer = Mock(
        datamodule=Mock(batch_size=2), precision_plugin=Mock(forward_context=nullcontext)
    )
    network = NETWORKS["CapsNet"]()
    compile_kernels(Mock(trainer=trainer, network=network, device=torch.device("cuda")))
    launch_softmax()  # waits
    assert len(compilations) == 5


@pytest.mark.parametrize(("device", "batch_size"), [("cpu", 2), ("cuda", None)])
def test_another_fit_does_not(device: str, batch_size: int | None) -> None:
    trainer = Mock(datamodule=Mock(batch_size=batch_size))
    compile_kernels(Mock(trainer=trainer, network=None, device=torch.device(device)))
    assert blocks.start is compile_for_tensors
