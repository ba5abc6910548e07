"""How often training steps wait for the device; each wait costs the time in which nothing was queued behind it."""

from __future__ import annotations

import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from omegaconf import DictConfig
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from capsule_lab.bench.cases import training_config
from capsule_lab.bench.gpu.random_digits import RandomDigits
from capsule_lab.config.build import be_quiet, build_module, build_trainer
from capsule_lab.errors import CapsuleLabError, one_line
from capsule_lab.types import Batch

MODELS: dict[str, tuple[str, ...]] = {  # with what makes them small
    "capsnet": ("model.channels=4", "model.primary_types=2", "model.decoder=[8]", "routing.backend=matmul"),
    "em_caps_small": (
        *("model.channels=4", "model.primary_types=2", "model.conv_types=[2,2]"),
        "routing.backend=matmul",  # fused kernels of a CPU are no tensors' business
    ),
    "cnn_small": ("model.channels=[4,4,4]",),
}
FIRST, STEPS = 3, 10  # ours: before them kernels are built, and memory and the optimiser's state are allocated
BATCH_SIZE = {"full": 128, "small": 4}  # 128: official code of Sabour 2017


def count_synchronisations(device: torch.device, size: Literal["full", "small"], limit: float) -> dict[str, Any]:
    """Train each model for some steps with the default callbacks, and count how often a step waits for the device.

    Args:
        device: a GPU; on a CPU see ``watch``.
        size: ``"full"`` or, for a CPU, ``"small"``.
        limit: seconds, after which no further model begins.

    Returns:
        ``rows``: model, steps, synchronisations, and where they were; ``failures``: a sentence for each model whose
        steps wait, and for each that could not be trained or was not begun.
    """
    began = time.monotonic()
    rows: list[dict[str, Any]] = []
    failures = []
    for model, small in MODELS.items():
        if time.monotonic() - began > limit:
            failures.append(f"{model} was not begun: the limit of {limit:g} seconds was over")
            continue
        try:
            found = _count(model, device, small if size == "small" else (), BATCH_SIZE[size])
        except (CapsuleLabError, RuntimeError, ValueError) as error:
            failures.append(f"{model} could not be trained: {one_line(error)}")
            continue
        places = ", ".join(sorted({*found}))
        rows.append({"model": model, "steps": STEPS, "synchronisations": len(found), "places": places})
        if found:
            failures.append(f"{model} waits {len(found)} times in {STEPS} steps, expected 0: {places}")
    return {"rows": rows, "failures": failures}


def _count(model: str, device: torch.device, options: Sequence[str], batch_size: int) -> list[str]:
    devices = "1" if device.type == "cpu" else f"[{device.index or 0}]"
    place = (f"trainer.accelerator={device.type}", f"trainer.devices={devices}")
    length = (f"trainer.max_steps={FIRST + STEPS + 1}", "callbacks.best=null")  # nothing is validated
    often = "+callbacks.guard.every_n_steps=5"  # ours: several times in STEPS
    config = training_config((f"model={model}", *options, *place, *length, often))
    be_quiet()
    data = RandomDigits(images=(FIRST + STEPS + 2) * batch_size, batch_size=batch_size, on_device=True)
    data.setup("fit")
    counter = SynchronisationCounter()
    with tempfile.TemporaryDirectory() as directory:
        _fit(config, data, Path(directory), counter)
    return counter.found


def _fit(config: DictConfig, data: RandomDigits, directory: Path, *callbacks: Callback) -> None:
    trainer = build_trainer(config, directory, *callbacks)
    trainer.fit(build_module(config, data.spec), datamodule=data)


class SynchronisationCounter(Callback):
    """Watches whole training steps: batches, their transformation, the step, the optimizer, all callbacks.

    Args:
        first: the first batch to watch.
        steps: how many.
    """

    def __init__(self, first: int = FIRST, steps: int = STEPS) -> None:
        self.first = first
        self.steps = steps
        self.found: list[str] = []
        self.watched = 0
        self._watch = ExitStack()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        if batch_idx == self.first:
            self.found = self._watch.enter_context(watch(pl_module.device))
        if batch_idx == self.first + self.steps:
            self.watched = self.steps
            self._watch.close()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._watch.close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._watch.close()


@contextmanager
def watch(device: torch.device) -> Iterator[list[str]]:
    """Note where this process waits for ``device``, as ``file:line`` of this package and of what it called.

    On a GPU it is what ``torch.cuda.set_sync_debug_mode`` reports. On a CPU, where nothing ever waits, it is the
    operators and methods that would on a GPU: those that read a tensor's elements, make a shape of them, or copy
    Python's numbers to a device.
    """
    found: list[str] = []
    if device.type == "cuda":
        with _warnings_of_cuda(found):
            yield found
    else:
        with _Operators(found), _Methods(found):
            yield found


@contextmanager
def _warnings_of_cuda(found: list[str]) -> Iterator[None]:
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(message: Warning | str, *arguments: Any, **options: Any) -> None:
            if _SYNCHRONISING in str(message):
                found.append(_place())
            else:
                show(message, *arguments, **options)

        warnings.filterwarnings("always", f".*{_SYNCHRONISING}")
        warnings.showwarning = note
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


_SYNCHRONISING = "called a synchronizing CUDA operation"  # torch's own words, read from 2.11


class _Operators(TorchDispatchMode):
    """Notes operators that wait on a GPU: they return numbers to the host, or tensors shaped by numbers."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = operator.overloadpacket.__name__
        by_mask = name.startswith("index") and any(_is_mask(index) for index in _flat(args[1:2]))
        if name in _WAITING or by_mask:
            _note(self.found)
        return operator(*args, **(kwargs or {}))


_WAITING = {
    *("_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"),
    *("bincount", "repeat_interleave", "_linalg_check_errors"),
}


class _Methods(TorchFunctionMode):
    """Notes methods that wait on a GPU and leave no operator behind on a CPU."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        to_host = function is Tensor.to and args[1:2] == ("cpu",) and not named.get("non_blocking")
        from_host = function in _MAKERS and named.get("device") is not None and not isinstance(args[0], Tensor)
        if function in _READERS or to_host or from_host:
            _note(self.found)
        return function(*args, **named)


_READERS = {Tensor.cpu, Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.new_tensor}
_MAKERS = {torch.tensor, torch.as_tensor}


def _flat(arguments: Sequence[Any]) -> list[Any]:
    return [each for argument in arguments for each in (argument if isinstance(argument, list | tuple) else [argument])]


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype == torch.bool


def _note(found: list[str]) -> None:
    files = [file for file, _ in _frames()]
    if not any(file.endswith(_ON_THE_HOST) for file in files):
        found.append(_place())


_ON_THE_HOST = (
    "callbacks/host_copy.py",  # copies without waiting, reads what has arrived
    "torch/optim/adam.py",  # counts steps on the host, unless it is fused
)
"""Files whose tensors are the host's when training on a GPU, too."""


def _place() -> str:
    """Where this process is: the innermost line outside of torch, and the innermost one of this package."""
    outside = [line for line in _frames() if not line[0].startswith((_TORCH, __file__, warnings.__file__))]
    ours = [line for line in outside if line[0].startswith(_PACKAGE)]
    return " in ".join(f"{_short(file)}:{line}" for file, line in dict.fromkeys([*outside[:1], *ours[:1]]))


def _frames() -> list[tuple[str, int]]:
    """File and line of every call under way, the innermost first."""
    return [(frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(None)]


_TORCH = str(Path(torch.__file__).parent)
_PACKAGE = str(Path(__file__).parents[2])


def _short(file: str) -> str:
    return "/".join(Path(file).parts[-3:])
