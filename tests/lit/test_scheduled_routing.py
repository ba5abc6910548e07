"""Schedules reach the options of routings while training, and nowhere else."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from capsule_lab import runs
from capsule_lab.commands.train import train
from capsule_lab.lit import CapsNetModule
from capsule_lab.lit.scheduled_routing import ScheduledRouting
from capsule_lab.networks import AbstractNetwork, EMCaps
from capsule_lab.routing import AbstractRouting, DynamicRouting, NormalisedEMRouting
from capsule_lab.schedules import Constant, Linear, Schedule
from tests.helpers.commands import NO_PICTURES, Tiny
from tests.helpers.modules import RATE, batch, classifier, loader, trainer
from tests.helpers.networks import small_capsnet, small_em_caps
from tests.helpers.training import curves, interrupted_and_resumed, results, weights

RISING = (
    "_target_: capsule_lab.schedules.Staircase, start: 1, increment: 1, every: 2 steps, limit: 3"
)
CONSTANT = [
    *NO_PICTURES,
    "routing.iterations=5",
    "trainer.max_epochs=1",
    "trainer.max_steps=6",
    "trainer.val_check_interval=2",
]
SCHEDULED = [f"+schedule.routing_iterations={{{RISING}}}", *CONSTANT]


def em_caps(**options: Any) -> EMCaps:
    options = {"conv_types": (2,), "conv_strides": (2,), **options}
    return small_em_caps((1, 24, 24), 3, **options)


def normalised() -> EMCaps:
    return em_caps(routing=NormalisedEMRouting, class_routing=None)


def options_of(network: AbstractNetwork, option: str) -> list[float]:
    found = []
    for module in network.modules():
        if isinstance(module, AbstractRouting):
            found.append(module.scheduled_options()[option])
    return found


@pytest.mark.parametrize(
    ("option", "scheduled", "found"),
    [
        ("iterations", 2.4, 2),
        ("iterations", 2.6, 3),
        ("inverse_temperature", 0.5, 0.5),
    ],
)
def test_all_routings_get_the_value_and_then_their_own(
    option: str, scheduled: float, found: float
) -> None:
    network = em_caps(class_routing={"iterations": 5, "inverse_temperature": 0.3})
    before = options_of(network, option)
    assert before[0] != before[1]
    options = ScheduledRouting(network, {**RATE, f"routing_{option}": Constant(1)})
    options.set({f"routing_{option}": scheduled, "learning_rate": 7})
    assert options_of(network, option) == [found, found]
    options.set({"learning_rate": 7})
    assert options_of(network, option) == before


@pytest.mark.parametrize(
    ("build_network", "option", "low", "high"),
    [
        (em_caps, "iterations", 1, 2),
        (em_caps, "inverse_temperature", 0.1, 1.0),
        (normalised, "temperature", 0.1, 2.0),
    ],
)
def test_scheduled_option_changes_the_output(
    build_network: Any, option: str, low: float, high: float
) -> None:
    network = build_network().eval()
    images = batch(size=24).images
    name = f"routing_{option}"
    options = ScheduledRouting(network, {name: Constant(1)})
    options.set({name: low})
    of_low = network(images).scores
    options.set({name: high})
    of_high = network(images).scores
    assert not of_high.equal(of_low)


def dynamic() -> AbstractNetwork:
    sizes: dict[str, Any] = {"kernel_size": 3, "class_dim": 4, "decoder": ()}
    return small_capsnet((1, 9, 9), 3, routing=DynamicRouting, **sizes)


def without_routing() -> AbstractNetwork:
    return classifier().network


@pytest.mark.parametrize(
    ("build_network", "name", "schedule", "message"),
    [
        (
            without_routing,
            "iterations",
            Constant(1),
            "is set, but BaselineCNN does not route; expected",
        ),
        (
            dynamic,
            "temperature",
            Constant(1),
            "is set, but DynamicRouting has no temperature that may change during training; expected routing_iter",
        ),
        (
            em_caps,
            "cost",
            Constant(1),
            "is set, but EMRouting has no cost that .* expected routing_iterations or",
        ),
        (dynamic, "iterations", Linear(0.0, 3, "1 run"), "is 0.0; expected 1 or more"),
        (dynamic, "iterations", Linear(3, -1.0, "1 run"), "is -1.0; expected 1 or more"),
        (em_caps, "inverse_temperature", Linear(1, 0.0, "1 run"), "is 0.0; expected more than 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_schedule_that_cannot_work_is_named(
    build_network: Callable[[], AbstractNetwork], name: str, schedule: Schedule, message: str
) -> None:
    network = build_network()
    with pytest.raises(ValueError, match=rf"^schedule\.routing_{name} {message}"):
        ScheduledRouting(network, {f"routing_{name}": schedule})


def test_cuda_graphs_of_torch_compile_are_refused() -> None:
    schedule = {**RATE, "routing_iterations": Constant(2)}
    message = r"schedule\.routing_iterations changes the routing, which the CUDA graphs of"
    with pytest.raises(ValueError, match=message):
        module_of(dynamic(), schedule, compile="reduce-overhead")


def module_of(network: Any, schedule: Any, **options: Any) -> CapsNetModule:
    """One that cannot be trained, as it has no loss."""
    options |= {"loss": functools.partial(lambda *_: None), "optimizer": torch.optim.Adam}
    return CapsNetModule(network, schedule=schedule, num_classes=3, **options)


def test_configured_option_holds_after_a_fit_that_failed() -> None:
    network = dynamic()
    lit = module_of(network, {**RATE, "routing_iterations": Constant(1)})
    images = loader(batch(size=9))
    with pytest.raises((AttributeError, TypeError)):
        trainer().fit(lit, images, images)
    assert options_of(network, "iterations") == [1]
    lit.on_test_start()
    assert options_of(network, "iterations") == [3]


def test_schedule_holds_in_training_and_its_validations_only(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[tuple[int, int]]] = {"train": [], "validate": [], "test": []}
    real = CapsNetModule.loss_terms

    def terms(self: CapsNetModule, *arguments: Any) -> Any:
        iterations = self.network.digits.routing.options["iterations"]
        stage = self.trainer.state.stage.value
        seen[stage].append((self.global_step, iterations))
        assert arguments[2].get("routing_iterations", 5) == iterations, "what the loss receives"
        return real(self, *arguments)

    monkeypatch.setattr(CapsNetModule, "loss_terms", terms)
    train(tiny(*SCHEDULED), tmp_path / "run")
    assert seen["train"] == [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3), (5, 3)]
    assert {*seen["validate"]} == {(2, 2), (4, 3), (6, 3)}
    in_test = {iterations for _, iterations in seen["test"]}
    assert in_test == {5}
    assert runs.open(tmp_path / "run").network.digits.routing.options["iterations"] == 5  # type: ignore[union-attr]
    logged = {}
    for row in curves(tmp_path / "run"):
        iterations = row["schedule/routing_iterations"]
        if iterations:
            logged[int(row["step"])] = float(iterations)
    assert logged == {2: 2, 3: 3, 5: 3}  # at step 3 that of the next epoch


@pytest.mark.whole
def test_run_that_is_resumed_has_the_iterations_of_its_step(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny(*SCHEDULED, "trainer.val_check_interval=null")
    whole = train(config, tmp_path / "whole")
    resumed = interrupted_and_resumed(config, tmp_path / "run", 3)
    assert results(resumed) == results(whole)
    expected = weights(tmp_path / "whole")
    found = weights(tmp_path / "run")
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    constant = train(tiny(*CONSTANT, "trainer.val_check_interval=null"), tmp_path / "constant")
    assert results(constant) != results(whole)
