"""Frozen modules do not change in training: neither weights nor statistics of batch normalisation."""

import functools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.recorded_graphs import recorded_graphs
from capsule_lab.callbacks import AveragedWeights, LearningDiagnostics
from capsule_lab.lit import AbstractModule, ClassifierModule
from capsule_lab.lit.optimizers import Muon
from capsule_lab.losses import cross_entropy_loss
from capsule_lab.networks import SmallCNN
from capsule_lab.runs import memory
from tests.helpers.modules import RATE, batch, loader, trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")

ADAM = functools.partial(torch.optim.Adam, fused=True)
DECAYING = functools.partial(torch.optim.AdamW, weight_decay=0.5)


def cnn(**options: Any) -> ClassifierModule:
    """With dropout and batch normalisation; its convolutions are frozen."""
    torch.manual_seed(0)
    network = SmallCNN((1, 9, 9), 3, channels=(4, 4), kernel_sizes=(3, 3), dropout=0.5)
    options = {"optimizer": ADAM, "schedule": RATE, "l2": 0.01, **options}
    return ClassifierModule(network, loss=cross_entropy_loss, num_classes=3, **options)


def state(module: AbstractModule) -> dict[str, Tensor]:
    weights = module.network.state_dict()
    return {name: value.clone() for name, value in weights.items()}


def fit(module: AbstractModule, **options: Any) -> None:
    """Two epochs of three steps, each validated."""
    batches = [batch(size=9)] * 3
    validation = loader(batch(4, size=9))
    fitting = trainer(max_epochs=2, **options)
    fitting.fit(module, loader(*batches), validation)


def changed(module: AbstractModule, before: dict[str, Tensor]) -> set[str]:
    """The names of the modules of which a tensor changed."""
    names = set()
    for name, value in module.network.state_dict().items():
        if not value.equal(before[name]):
            names.add(name.rpartition(".")[0])
    return names


@pytest.mark.parametrize(
    ("optimizer", "graphs"),
    [
        (ADAM, "auto"),
        (DECAYING, False),
        (Muon, False),
    ],
    ids=["adam", "decay", "muon"],
)
def test_weights_and_statistics_of_frozen_modules_stay(
    optimizer: Any, graphs: Any, tmp_path: Path
) -> None:
    """Also with CUDA graphs, diagnostics, and an estimate of memory, which uses the network."""
    module = cnn(optimizer=optimizer, cuda_graphs=graphs)
    module.freeze_modules(["features"])
    memory.estimate(module, (1, 9, 9), 4, nullcontext())
    before = state(module)
    diagnostics = LearningDiagnostics(every_n_steps=3)
    with recorded_graphs() as fake:
        fit(module, callbacks=[diagnostics], default_root_dir=tmp_path)
    assert (fake.replays > 0) == (graphs == "auto")
    assert changed(module, before) == {"classifier.1"}
    given = set()
    for group in module.optimizers().param_groups:
        given |= {*group["params"]}
    assert given == {*module.network.classifier.parameters()}
    for parameter in module.network.features.parameters():
        assert parameter.grad is None
        assert not parameter.requires_grad


def test_averages_of_frozen_weights_are_equal_but_for_rounding() -> None:
    module = cnn()
    module.freeze_modules(["features"])
    before = module.network.features.state_dict()
    expected = {name: value.clone() for name, value in before.items()}
    fit(module, callbacks=[AveragedWeights(decay=0.5)])
    found = module.network.features.state_dict()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_other_modules_train_as_before() -> None:
    module = cnn()
    module.freeze_modules(["features.0"])
    before = state(module)
    fit(module)
    assert changed(module, before) == {"features.1", "features.3", "features.4", "classifier.1"}


def test_frozen_kernels_have_no_penalty() -> None:
    module = cnn()
    last = module.network.classifier[1]
    kernels = 0.005 * last.weight.square().sum()
    assert module.penalty()["l2"] > kernels
    module.freeze_modules(["features"])
    penalty = module.penalty()["l2"]
    assert penalty.item() == pytest.approx(kernels.item())
