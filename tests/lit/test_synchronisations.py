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
    *(
        "_local_scalar_dense",
        "equal",
        "nonzero",
        "masked_select",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
    ),
    *("bincount", "repeat_interleave", "_linalg_check_errors"),
}
READERS = {Tensor.cpu, Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.new_tensor}
ON_THE_HOST = ("callbacks/host_copy.py", "torch/optim/adam.py")
"""Files whose tensors are the host's when training on a GPU, too; Adam counts steps there, unless it is fused."""


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
                masks = (
                    args[1]
                    if name.startswith("index") and isinstance(args[1], list | tuple)
                    else []
                )
                by_mask = any(
                    isinstance(each, Tensor) and each.dtype == torch.bool for each in masks
                )
                note(name in OPERATORS or by_mask)
                return operator(*args, **(kwargs or {}))

        class Methods(TorchFunctionMode):
            def __torch_function__(
                self, function: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                named = kwargs or {}
                to_host = (
                    function is Tensor.to
                    and args[1:2] == ("cpu",)
                    and not named.get("non_blocking")
                )
                made = function in (torch.tensor, torch.as_tensor) and not isinstance(
                    args[0], Tensor
                )
                note(function in READERS or to_host or (made and named.get("device") is not None))
                return function(*args, **named)

        self.modes = Operators(), Methods()

    def note(self, waits: bool) -> None:
        lines = (
            [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_stack()]
            if waits
            else []
        )
        if waits and not any(file in line for line in lines for file in ON_THE_HOST):
            self.found.append(
                next(line for line in lines[::-1] if "/torch/" not in line and __file__ not in line)
            )

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
    ten, original = TenSteps(), build.build_trainer
    monkeypatch.setattr(build, "build_trainer", lambda *arguments: original(*arguments, ten))
    few = [
        "data.train_images=48",
        "data.batch_size=4",
        "trainer.max_epochs=1",
        "data.eval_images=4",
        "train.test=none",
    ]
    few += ["routing.backend=matmul"] * (
        model != "cnn_small"
    )  # fused kernels of a CPU read its memory
    train(tiny(*few, model=[f"model={model}", *SMALL_MODELS[model]]), tmp_path / "run")
    assert (ten.watched, ten.watch.found) == (10, [])


def copied() -> None:
    copies = HostCopies()
    copies.add("numbers", NUMBERS)
    assert [*copies.read(wait=False)] == [("numbers", [0.0, 1.0, 2.0, 3.0])]


NUMBERS, ONE = torch.arange(4.0), torch.tensor(1.0)
WAITING: list[Callable[[], Any]] = [
    *(
        ONE.item,
        lambda: 1 if ONE > 2 else 0,
        NUMBERS.tolist,
        NUMBERS.numpy,
        lambda: NUMBERS.to("cpu"),
        NUMBERS.nonzero,
    ),
    *(lambda: NUMBERS[NUMBERS > 2], NUMBERS.unique, lambda: torch.linalg.inv(torch.eye(2))),
    *(lambda: torch.tensor([1.0, 2.0], device="cpu"), lambda: NUMBERS.new_tensor([1.0])),
]
FREE: list[Callable[[], Any]] = [
    *(lambda: NUMBERS[torch.arange(2)], lambda: torch.where(NUMBERS > 2, NUMBERS, 0.0)),
    *(lambda: torch.as_tensor(NUMBERS, device="cpu"), copied),
]


@pytest.mark.parametrize(
    ("call", "waits"), [*((call, True) for call in WAITING), *((call, False) for call in FREE)]
)
def test_what_waits_is_noticed_and_nothing_else(call: Callable[[], Any], waits: bool) -> None:
    with Watch() as watch:
        call()
    assert bool(watch.found) == waits
