"""Batch normalisation over all processes: what the plugin changes in a network.

``tests/commands/test_train.py`` trains with it.
"""

import copy

import pytest
import torch
from torch import nn

from capsule_lab.config import build
from capsule_lab.lit import batch_norm
from capsule_lab.lit.batch_norm import SynchronisedBatchNorm
from capsule_lab.routing.batch_norm import BatchNorm
from tests.helpers.commands import Tiny


class OwnNorm(nn.BatchNorm2d):
    """Of a user, with a forward pass of its own."""


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)),
        nn.BatchNorm2d(2),
        OwnNorm(2),
        BatchNorm(3),
        nn.BatchNorm1d(4),
        nn.BatchNorm3d(5),
    )


def test_every_batch_norm_of_torch_is_synchronised_in_training_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[nn.Module] = []

    def note(norm: nn.Module, values: torch.Tensor) -> torch.Tensor:
        calls.append(norm)
        return values

    monkeypatch.setattr(batch_norm, "batch_norm_of_all_processes", note)
    model = network()
    (_, first), second, own, capsules, rows, types = model
    assert SynchronisedBatchNorm().apply(model) is model
    images = torch.ones(2, 2, 3, 3)
    for norm, values in (
        (first, images),
        (second, images),
        (rows, torch.ones(2, 4)),
        (types, torch.ones(2, 5, 1, 1, 1)),
    ):
        norm(values)
        assert calls.pop() is norm
        norm.eval()(values)
    own(images)
    capsules(torch.ones(2, 3))
    assert calls == []


def test_weights_keep_names_and_memory_and_classes_return() -> None:
    model = network()
    before = model.state_dict(keep_vars=True)
    kinds = [type(module) for module in model.modules()]
    plugin = SynchronisedBatchNorm()
    plugin.apply(model)
    after = model.state_dict(keep_vars=True)
    assert [*after] == [*before]
    for name, value in before.items():
        assert after[name] is value
    assert isinstance(copy.deepcopy(model)[1], nn.BatchNorm2d)
    plugin.revert(model)
    assert [type(module) for module in model.modules()] == kinds


@pytest.mark.parametrize(
    ("overrides", "synchronised"),
    [
        ([], True),
        (["+trainer.sync_batchnorm=true"], True),
        (["+trainer.sync_batchnorm=false"], False),
        (["trainer.plugins=null"], True),
    ],
)
def test_runs_of_several_processes_are_synchronised_unless_told_otherwise(
    overrides: list[str], synchronised: bool, tiny: Tiny
) -> None:
    for options in ([], ["trainer.devices=2", "trainer.strategy=ddp"]):
        trainer = build.build_trainer(tiny(*options, *overrides).trainer)
        plugin = getattr(trainer.strategy, "_layer_sync", None)
        assert isinstance(plugin, SynchronisedBatchNorm) == (bool(options) and synchronised)
