"""No training step waits for the device, and what would is noticed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from omegaconf import DictConfig

from capsule_lab.bench.gpu import synchronisations
from capsule_lab.bench.gpu.synchronisations import MODELS, SynchronisationCounter, count_synchronisations, watch
from capsule_lab.callbacks.host_copy import HostCopy
from capsule_lab.config import build
from capsule_lab.train import train

CPU = torch.device("cpu")
NUMBERS, ONE = torch.arange(4.0), torch.tensor(1.0)

# What may wait, and when: the progress bar twice a second; ProgressLines once a minute; Lightning's own progress
# bar, which is off by default, at every step; Lightning's loggers at the end of an epoch; checkpoints and, before
# both, the guard and StepMetrics; NotLearning, figures, statistics and metrics at the end of an epoch, or in a
# validation. With several processes, every tenth step asks whether one of them was stopped. Pipelines of torchvision
# read the keys of every batch.


# --- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["capsnet", "em_caps_small", "cnn_small"])
def test_ten_steps_with_all_default_callbacks_never_wait(
    model: str, tiny: Callable[..., DictConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter, original = SynchronisationCounter(first=1, steps=10), build.build_trainer
    monkeypatch.setattr(build, "build_trainer", lambda *arguments: original(*arguments, counter))
    few = ["data.train_images=48", "data.batch_size=4", "trainer.max_epochs=1", "data.eval_images=4", "train.test=none"]
    train(tiny(*few, model=[f"model={model}", *MODELS[model]]), tmp_path / "run")
    assert counter.watched == 10
    assert counter.found == []


class Reads(Callback):
    """A callback that waits for every step."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        float(outputs["loss"])


def test_a_callback_that_waits_is_counted_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    original = build.build_trainer
    monkeypatch.setattr(synchronisations, "MODELS", {"cnn_small": MODELS["cnn_small"], "capsnet": ("no.such=1",)})
    monkeypatch.setattr(synchronisations, "build_trainer", lambda *arguments: original(*arguments, Reads()))
    found = count_synchronisations(CPU, "small", limit=60)
    (row,) = found["rows"]
    assert (row["model"], row["steps"], row["synchronisations"]) == ("cnn_small", 10, 10)
    assert "gpu/test_synchronisations.py:" in row["places"]
    waits, broken = found["failures"]
    assert waits.startswith("cnn_small waits 10 times in 10 steps, expected 0: ")
    assert broken.startswith("capsnet could not be trained: ")


def test_no_model_begins_after_the_limit() -> None:
    found = count_synchronisations(CPU, "small", limit=-1)
    assert found["rows"] == []
    assert [sentence.partition(" ")[0] for sentence in found["failures"]] == [*MODELS]


# --- what is noticed -------------------------------------------------------------------------------------------------

WAITING: dict[str, Callable[[], Any]] = {
    "item": ONE.item,
    "float": lambda: float(ONE),
    "int": lambda: int(ONE),
    "bool": lambda: bool(ONE),
    "index": lambda: [0, 1][torch.tensor(1)],
    "if": lambda: 1 if (NUMBERS > 2).any() else 0,
    "tolist": NUMBERS.tolist,
    "numpy": NUMBERS.numpy,
    "cpu": NUMBERS.cpu,
    "to": lambda: NUMBERS.to("cpu"),
    "nonzero": NUMBERS.nonzero,
    "mask": lambda: NUMBERS[NUMBERS > 2],
    "equal": lambda: NUMBERS.equal(NUMBERS),
    "unique": NUMBERS.unique,
    "inv": lambda: torch.linalg.inv(torch.eye(2)),
    "tensor": lambda: torch.tensor([1.0, 2.0], device=CPU),
    "as_tensor": lambda: torch.as_tensor(1.0, device=CPU),
    "new_tensor": lambda: NUMBERS.new_tensor([1.0]),
}
FREE: dict[str, Callable[[], Any]] = {
    "sum": NUMBERS.sum,
    "index": lambda: NUMBERS[torch.arange(2)],
    "where": lambda: torch.where(NUMBERS > 2, NUMBERS, 0.0),
    "inv_ex": lambda: torch.linalg.inv_ex(torch.eye(2)),
    "full": lambda: NUMBERS.new_full((2,), 1.0),
    "as_tensor": lambda: torch.as_tensor(NUMBERS, device=CPU),
    "host copy": lambda: HostCopy(NUMBERS).tolist(),
}


@pytest.mark.parametrize("name", WAITING)
def test_what_waits_on_a_gpu_is_noticed_on_a_cpu(name: str) -> None:
    with watch(CPU) as found:
        WAITING[name]()
    assert found
    assert all("gpu/test_synchronisations.py:" in place for place in found)


@pytest.mark.parametrize("name", FREE)
def test_what_does_not_wait_is_not(name: str) -> None:
    with watch(CPU) as found:
        FREE[name]()
    assert found == []


def test_warnings_of_a_gpu_are_counted_and_others_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[Any] = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with watch(torch.device("cuda")) as found:
            for _ in range(2):
                warnings.warn("called a synchronizing CUDA operation (Triggered internally at file)", stacklevel=1)
            warnings.warn("another", stacklevel=1)
    assert modes == [0, "warn", 0]
    assert len(found) == 2
    assert "gpu/test_synchronisations.py:" in found[0]
    assert [str(each.message) for each in shown] == ["another"]
