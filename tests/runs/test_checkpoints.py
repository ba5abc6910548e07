"""Which networks a checkpoint can continue."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from capsule_lab.errors import RunError
from capsule_lab.runs.checkpoints import check_same_network

ROUTING = {"_target_": "DynamicRouting", "iterations": 3}
RECORD = {"model": {"_target_": "CapsNet", "channels": 4, "routing": ROUTING}, "routing": ROUTING}


def check(model: dict[str, Any], routing: dict[str, Any] = ROUTING) -> None:
    """With options of the network and the routing, which the network repeats."""
    model = {"_target_": "CapsNet", "channels": 4, **model, "routing": routing}
    config = OmegaConf.create({"model": model, "routing": routing})
    check_same_network(Path("last.ckpt"), RECORD, config)


@pytest.mark.parametrize(
    "model", [{}, {"stem": None}, {"last_initial": "he"}], ids=["same", "null", "without effect"]
)
def test_options_without_effect_may_be_newer_than_the_record(model: dict[str, Any]) -> None:
    check(model)


@pytest.mark.parametrize(
    ("model", "routing", "there"),
    [
        ({"channels": 8}, ROUTING, "model.channels=4 instead of model.channels=8"),
        ({"stem": "resnet18"}, ROUTING, "no model.stem instead of model.stem=resnet18"),
        ({"last_initial": "xavier"}, ROUTING, "no model.last_initial instead of model.last_in"),
        ({}, {**ROUTING, "iterations": 1}, "routing.iterations=3 instead of routing.iterations=1"),
        ({"_target_": "EMCaps", "types": 3}, ROUTING, "CapsNet instead of model._target_=EMCaps;"),
    ],
)
def test_another_network_is_refused(
    model: dict[str, Any], routing: dict[str, Any], there: str
) -> None:
    with pytest.raises(RunError, match=f"last.ckpt has another network, .*{there}"):
        check(model, routing)
