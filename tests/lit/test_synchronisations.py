"""No training step waits for a GPU: seen on a CPU, where nothing ever waits, by the operators that would on a GPU.

What may wait, and when: the progress bar twice a second; Lightning's loggers at the end of an epoch; checkpoints and,
before both, the guard and StepMetrics; figures, statistics and metrics at the end of an epoch, or in a validation.
``tests/kernels/test_on_a_gpu.py`` asks a GPU itself.
"""

import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from capsule_lab.callbacks.host_copy import HostCopies
from capsule_lab.commands.train import train
from capsule_lab.config import build
from tests.helpers.commands import Tiny
from tests.helpers.tiers import whole_but
from tests.helpers.training import SMALL_MODELS

OPERATORS = {  # they return numbers to the host, or tensors shaped by numbers
    "_local_scalar_dense",
    "equal",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "bincount",
    "repeat_interleave",
    "_linalg_check_errors",
}
READERS = {Tensor.cpu, Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.new_tensor}
ON_THE_HOST = ("callbacks/host_copy.py", "torch/optim/adam.py")
"""Files whose tensors are the host's when training on a GPU, too; Adam counts steps there, unless it is fused."""


def has_mask(indices: Any) -> bool:
    if not isinstance(indices, list | tuple):
        return False
    return any(isinstance(each, Tensor) and each.dtype == torch.bool for each in indices)


def copies_to_or_from_the_host(function: Any, args: Any, named: dict[str, Any]) -> bool:
    if function is Tensor.to:
        return args[1:2] == ("cpu",) and not named.get("non_blocking")
    if function in (torch.tensor, torch.as_tensor):
        return named.get("device") is not None and not isinstance(args[0], Tensor)
    return False


class Watch(ExitStack):
    """Notes in ``found`` where this process would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        note = self.note

        class Operators(TorchDispatchMode):
            def __torch_dispatch__(
                self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                name = operator.overloadpacket.__name__
                note(name in OPERATORS or (name.startswith("index") and has_mask(args[1])))
                return operator(*args, **(kwargs or {}))

        class Methods(TorchFunctionMode):
            def __torch_function__(
                self, function: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                named = kwargs or {}
                note(function in READERS or copies_to_or_from_the_host(function, args, named))
                return function(*args, **named)

        self.modes = Operators(), Methods()

    def note(self, waits: bool) -> None:
        if not waits:
            return
        frames = traceback.extract_stack()
        if any(frame.filename.endswith(ON_THE_HOST) for frame in frames):
            return
        ours = [frame for frame in frames if "/torch/" not in frame.filename]
        ours = [frame for frame in ours if frame.filename != __file__]
        self.found.append(f"{ours[-1].filename}:{ours[-1].lineno}")

    def __enter__(self) -> "Watch":
        for mode in self.modes:
            self.enter_context(mode)
        return self


class TenSteps(Callback):
    """Watches batches, their transformation, the step, the optimizer and all callbacks."""

    def __init__(self) -> None:
        self.watch = Watch()
        self.watched = 0

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 1:
            self.watch.__enter__()
        if batch_idx == 11:
            self.watched = 10
            self.watch.close()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.watch.close()


@pytest.mark.parametrize("model", whole_but(SMALL_MODELS, "capsnet"))
def test_ten_steps_with_all_default_callbacks_never_wait(
    model: str, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ten, original = TenSteps(), build.build_callbacks
    monkeypatch.setattr(build, "build_callbacks", lambda group: [*original(group), ten])
    few = [
        "data.train_images=48",
        "data.batch_size=4",
        "trainer.max_epochs=1",
        "data.eval_images=4",
        "train.test=none",
    ]
    if model != "cnn_small":
        few.append("routing.backend=matmul")  # fused kernels of a CPU read its memory
    train(tiny(*few, model=[f"model={model}", *SMALL_MODELS[model]]), tmp_path / "run")
    assert (ten.watched, ten.watch.found) == (10, [])


def copied() -> None:
    copies = HostCopies()
    copies.add("numbers", NUMBERS)
    assert [*copies.read(wait=False)] == [("numbers", [0.0, 1.0, 2.0, 3.0])]


NUMBERS = torch.arange(4.0)
ONE = torch.tensor(1.0)


@pytest.mark.parametrize(
    "call",
    [
        ONE.item,
        lambda: 1 if ONE > 2 else 0,
        NUMBERS.tolist,
        NUMBERS.numpy,
        lambda: NUMBERS.to("cpu"),
        NUMBERS.nonzero,
        lambda: NUMBERS[NUMBERS > 2],
        NUMBERS.unique,
        lambda: torch.linalg.inv(torch.eye(2)),
        lambda: torch.tensor([1.0, 2.0], device="cpu"),
        lambda: NUMBERS.new_tensor([1.0]),
    ],
)
def test_what_waits_is_noticed(call: Callable[[], Any]) -> None:
    with Watch() as watch:
        call()
    assert watch.found


@pytest.mark.parametrize(
    "call",
    [
        lambda: NUMBERS[torch.arange(2)],
        lambda: torch.where(NUMBERS > 2, NUMBERS, 0.0),
        lambda: torch.as_tensor(NUMBERS, device="cpu"),
        copied,
    ],
)
def test_nothing_else_is_noticed(call: Callable[[], Any]) -> None:
    with Watch() as watch:
        call()
    assert watch.found == []
