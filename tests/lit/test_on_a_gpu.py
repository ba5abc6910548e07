"""Training on a GPU, ``pytest -m gpu``: no step waits for it, and CUDA graphs come to the same weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from capsule_lab.commands.train import train
from capsule_lab.config import build
from tests.helpers.commands import Tiny
from tests.helpers.training import SMALL_MODELS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

SHORT = [
    "data.train_images=48",
    "data.batch_size=4",
    "trainer.max_epochs=1",
    "data.eval_images=4",
    "train.test=none",
    "trainer.accelerator=cuda",
    "trainer.devices=1",
]


class NeverWaits(Callback):
    """An operation that waits for the GPU raises between two batches: transformation, step, optimizer, callbacks."""

    def __init__(self, first: int) -> None:
        self.first = first

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        is_steady = self.first <= batch_idx < 11
        torch.cuda.set_sync_debug_mode("error" if is_steady else "default")

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def fit(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Trains a small model with its default callbacks and these; what it comes to."""
    original = build.build_callbacks

    def run(model: str, *overrides: str, callbacks: tuple[Callback, ...] = ()) -> list[Tensor]:
        modules: list[Any] = []

        class Keep(Callback):
            def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
                modules.append(pl_module)

        more = (*callbacks, Keep())
        monkeypatch.setattr(build, "build_callbacks", lambda group: [*original(group), *more])
        directory = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        train(tiny(*SHORT, *overrides, model=[f"model={model}", *SMALL_MODELS[model]]), directory)
        return [each.detach().clone() for each in modules[0].parameters()]

    yield run
    torch.cuda.set_sync_debug_mode("default")


# 5: capturing a step waits
@pytest.mark.parametrize(("graphs", "first"), [("false", 1), ("true", 5)])
@pytest.mark.parametrize("model", SMALL_MODELS)
def test_steps_with_all_default_callbacks_never_wait(
    model: str, graphs: str, first: int, fit: Any
) -> None:
    fit(model, f"module.cuda_graphs={graphs}", callbacks=(NeverWaits(first),))


@pytest.mark.parametrize("model", SMALL_MODELS)
def test_cuda_graphs_come_to_the_same_bits(model: str, fit: Any) -> None:
    plain = fit(model, "module.cuda_graphs=false")
    graphs = fit(model, "module.cuda_graphs=true")
    for one, other in zip(plain, graphs, strict=True):
        assert torch.equal(one, other)
