"""Parts of a user's package with wrong outputs are refused before a run directory is created."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.config import check_objects
from capsule_lab.errors import RunError
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, TINY_DATA, Cli, Ended

pytestmark = pytest.mark.usefixtures("isolated")

STEPS = ["trainer.max_epochs=-1", "trainer.max_steps=2", "data.train_images=80"]
CODE = """
import torch
from torch import nn

from capsule_lab.functional import length, with_dense_votes
from capsule_lab.lit import ClassifierModule
from capsule_lab.networks.base import AbstractNetwork
from capsule_lab.routing import AbstractRouting
from capsule_lab.types import Capsules, CapsuleOutput


class Routing(AbstractRouting):
    def __init__(self, parents, dim, *, returns):
        super().__init__()
        self.returns = returns

    @with_dense_votes
    def forward(self, votes, activations=None, *, normalise=None, on_iteration=None):
        poses = votes.mean(1)
        if self.returns == "an error":
            return self.nothing(poses)
        return {
            "a tuple": (poses, length(poses)),
            "nothing": None,
            "other axes": Capsules(poses.transpose(1, 2), length(poses)),
            "children": Capsules(votes.mean(2), length(votes.mean(2))),
            "parents": Capsules(poses, length(poses)),
        }[self.returns]


class Network(AbstractNetwork):
    scores_are = "logits"

    def __init__(self, image_shape, num_classes, *, returns):
        super().__init__()
        self.returns = returns
        self.linear = nn.Linear(784, num_classes)

    def forward(self, images):
        scores = self.linear(images.flatten(1))
        return {
            "a tensor": scores,
            "three classes": CapsuleOutput(scores[:, :3]),
            "scores": CapsuleOutput(scores),
        }[self.returns]


class Counting(Network):
    def __init__(self, image_shape, num_classes, *, returns):
        super().__init__(image_shape, num_classes, returns="scores")
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, images):
        self.seen += torch.rand(()) + len(images)
        return super().forward(images)


class Module(ClassifierModule):
    # its loss needs its Trainer
    def loss_terms(self, batch, output, schedule):
        assert self.trainer is not None
        return super().loss_terms(batch, output, schedule)


def of_each_image(scores, labels):
    return scores.square().sum(1)


def a_number(scores, labels):
    return 3.0
"""
CONF = {
    "model/own.yaml": """
# @package _global_
defaults:
  - /module: classifier
  - override /routing: none
  - override /loss: cross_entropy
model:
  _target_: own_parts.Network
  returns: scores
""",
    "routing/own.yaml": """
_target_: own_parts.Routing
_partial_: true
returns: parents
""",
    "routing/em_mine.yaml": """
# @package _global_
defaults:
  - em
  - _self_
class_routing:
  beta_a: 0.5
""",
    "loss/own.yaml": """
classification:
  _target_: own_parts.of_each_image
  _partial_: true
reconstruction: null
""",
}


@pytest.fixture
def train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> Callable[[Sequence[str]], Ended]:
    """The command ``train`` with the files above, outside the repository."""
    (tmp_path / "own_parts.py").write_text(CODE)
    for name, text in CONF.items():
        file = tmp_path / "conf" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_parts", raising=False)
    importlib.invalidate_caches()
    conf = f"--config-dir={tmp_path / 'conf'}"
    return lambda chosen: cli("train", conf, *chosen, *TINY_DATA, *STEPS, *NO_PICTURES)


SHAPES = r"expected Capsules of poses \(batch, parent, dim\), here \(2, 10, 4\), and activations"
ROUTINGS = {
    "a tuple": f"Routing returned a tuple; {SHAPES}",
    "nothing": f"Routing returned a NoneType; {SHAPES}",
    "other axes": rf"Routing returned poses \(2, 4, 10\) and activations \(2, 10\); {SHAPES}",
    "children": rf"Routing returned poses \(2, \d+, 4\) and activations \(2, \d+\); {SHAPES}",
}
NETWORKS = {
    "a tensor": r"Network returned a Tensor; expected a CapsuleOutput with scores .*here \(2, 10\)",
    "three classes": r"Network returned scores \(2, 3\); expected a CapsuleOutput",
}
LOSSES = {
    "of_each_image": r"the term of_each_image of the loss is of shape \(2,\); expected a scalar",
    "a_number": r"the term a_number of the loss is 3.0; expected a scalar tensor",
}


OFTEN = ("a tuple", "a tensor", "of_each_image")
"""One output of each kind of part; ``make test-all`` has all."""


def wrong_parts() -> Iterator[Any]:
    """The options of the command, and the message."""
    for returns, message in ROUTINGS.items():
        yield case(returns, message, *TINY_CAPSNET, "routing=own", f"routing.returns={returns}")
    for returns, message in NETWORKS.items():
        yield case(returns, message, "model=own", f"model.returns={returns}")
    for name, message in LOSSES.items():
        loss = ["loss=own", f"loss.classification._target_=own_parts.{name}"]
        yield case(name, message, *TINY_CAPSNET[:-1], "model.decoder=null", *loss)


def case(name: str, message: str, *chosen: str) -> Any:
    return pytest.param(chosen, message, marks=() if name in OFTEN else pytest.mark.whole)


@pytest.mark.parametrize(("chosen", "message"), [*wrong_parts()])
def test_wrong_output_is_refused_before_a_directory_is_created(
    train: Callable[[Sequence[str]], Ended], chosen: Sequence[str], message: str
) -> None:
    ended = train(chosen)
    assert ended.status == 2
    assert re.search(message, ended.err)
    assert not [*Path("runs").glob("*-mnist-*")]


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param([*TINY_CAPSNET, "routing=own"], marks=pytest.mark.whole),
        # its options of class capsules are for other networks
        pytest.param([*TINY_CAPSNET, "routing=em_mine"], marks=pytest.mark.whole),
        pytest.param(["model=own"], marks=pytest.mark.whole),
    ],
)
def test_right_parts_train(
    train: Callable[[Sequence[str]], Ended], cli: Cli, chosen: list[str]
) -> None:
    ended = train(chosen)
    assert ended.status == 0, ended.err
    (directory,) = Path("runs").glob("*-mnist-*")
    exported = cli(
        "export", f"ckpt={directory}", "to=torch_export", "out=own.pt2", "trust=[own_parts]"
    )
    assert exported.status == 0, exported.err


def test_trial_leaves_no_trace(
    train: Callable[[Sequence[str]], Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[float] = []
    states: list[Tensor] = []

    def stop(self: Any) -> None:
        counts.append(float(self.module.network.seen))
        states.append(torch.get_rng_state())
        raise RunError("seen enough")

    monkeypatch.setattr("capsule_lab.commands.training.Training.run", stop)
    for tries in (True, False):
        if not tries:
            monkeypatch.setattr(check_objects, "try_own_parts", lambda *_: None)
        ended = train(["model=own", "model._target_=own_parts.Counting"])
        assert "seen enough" in ended.err
    assert counts == [0.0, 0.0]
    assert states[0].equal(states[1])


@pytest.mark.whole
def test_loss_of_an_own_module_is_not_tried(train: Callable[[Sequence[str]], Ended]) -> None:
    ended = train(["model=own", "module._target_=own_parts.Module"])
    assert ended.status == 0, ended.err


def test_error_in_own_code_keeps_its_traceback(train: Callable[[Sequence[str]], Ended]) -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        train([*TINY_CAPSNET, "routing=own", "routing.returns=an error"])
    assert not [*Path("runs").glob("*-mnist-*")]
