"""Every shipped configuration composes and fits the code; presets have the documented precedence."""

import functools
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from capsule_lab.commands import compose, load, names
from capsule_lab.commands.train import check_training as check
from capsule_lab.config import build
from capsule_lab.config.compose import overrides_of
from capsule_lab.config.composition import to_container
from capsule_lab.config.folders import conf_dir, groups, options_of
from capsule_lab.errors import ConfigError
from capsule_lab.types import DataSpec

MODELS = options_of("model")
KINDS = ["capsnet", "cnn_baseline", "em_caps", "em_caps_paper"]
OF_PAIRS = [
    name for name in MODELS if name.startswith(("transforming_autoencoder", "pair_autoencoder"))
]
SMALLNORB = DataSpec((2, 32, 32), 5, ("a", "b", "c", "d", "e"))


@functools.cache
def train(*overrides: str) -> DictConfig:
    """A configuration, for reading only."""
    return compose("train", overrides)


def built(*overrides: str) -> Any:
    """The module of a configuration for smallNORB, without weights."""
    with torch.device("meta"):
        return build.build_module(train(*overrides), SMALLNORB)


def class_of(node: Any) -> str | None:
    return node and node._target_.rpartition(".")[2]


# --- shipped configurations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", options_of("experiment"))
def test_every_experiment_is_built_as_its_head_says(experiment: str) -> None:
    """The head has a command, expectations or hardware, and the right number of parameters if it has one."""
    text = (conf_dir() / "experiment" / f"{experiment}.yaml").read_text()
    first, *head = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    assert first == "# @package _global_"
    assert len(head) >= 3
    assert any(line.startswith("# Command:") for line in head)
    assert any(line.startswith(("# Hardware:", "# Expected:")) for line in head)
    config = compose("train", [f"experiment={experiment}"])
    check(config)
    network = build.build_without_weights(config).network
    parameters = f"{sum(parameter.numel() for parameter in network.parameters()):,}"
    assert re.findall(r"([\d,]+) parameters", text) in ([], [parameters])


def changes(experiment: str, group: str) -> set[str]:
    """Keys of a group that the file of an experiment sets, or a file in its defaults."""
    file = OmegaConf.load(conf_dir() / "experiment" / f"{experiment}.yaml")
    assert isinstance(file, DictConfig)
    below = [
        name for name in file.get("defaults", []) if isinstance(name, str) and name != "_self_"
    ]
    return set(file.get(group) or {}).union(*(changes(name, group) for name in below))


PRESETS = [f"{group}={option}" for group in ("experiment", "debug") for option in options_of(group)]


@pytest.mark.whole
@pytest.mark.parametrize("model", MODELS)
def test_preset_changes_only_its_own_keys_or_is_refused(model: str) -> None:
    without = train(f"model={model}")
    for preset in PRESETS if model in KINDS else ("experiment=quickstart", "debug=smoke"):
        group, _, name = preset.partition("=")
        own = {
            part: changes(name, part) if group == "experiment" else set()
            for part in ("model", "routing")
        }
        config = compose("train", [f"model={model}", preset])
        refusal = ""
        try:
            check(config)
        except ConfigError as error:
            refusal = str(error)
        if refusal:
            assert group == "experiment", refusal
            expected = (
                r"(model|routing)[.\w]* (does not exist|is .*; expected )|\w+ does not route, so "
            )
            assert re.match(expected, refusal)
            continue
        assert own["model"] <= without.model.keys()
        if class_of(config.routing) == class_of(
            without.routing
        ):  # an experiment may choose another
            assert own["routing"] <= (without.routing or {}).keys()
        to_container(config)
        assert config.model.keys() == without.model.keys()
        changed = {key for key in config.model if config.model[key] != without.model[key]}
        assert changed <= own["model"] | (
            {"routing", "class_routing"} if group == "experiment" else set()
        )


WITHOUT_DEFAULT = {
    "callbacks=stop_at_error": ["callbacks.stop_at_error.stopping_threshold=5"],
    "callbacks=pairs": ["model=pair_autoencoder", "data=mnist_pairs"],
}


@pytest.mark.whole
def test_every_other_option_and_every_command_composes() -> None:
    own = ("model", "routing", "loss", "experiment", "debug", "attack", "what")
    for group in groups():
        for choice in (f"{group}={option}" for option in options_of(group) if group not in own):
            config = compose("train", [choice, *WITHOUT_DEFAULT.get(choice, [])])
            check(config)
            to_container(config)
    for command in names():
        load(command).check(compose(command))
    for option in options_of("attack"):
        load("attack").check(compose("attack", [f"attack={option}"]))
    for option in options_of("what"):
        load("analyse").check(compose("analyse", [f"what={option}"]))


@pytest.mark.whole
def test_every_monitor_is_measured() -> None:
    """A module logs all of its metrics; ``tests/commands/test_train.py`` checks the names that a run logs."""
    text = "".join(file.read_text() for file in conf_dir().rglob("*.yaml"))
    monitors = {*re.findall(r"\bmonitor: ([\w/]+)", text)} - {"val/loss"}
    data = {"heinsen": "smallnorb"}  # of a size that this refuses in MNIST
    for model in MODELS:
        if model in OF_PAIRS:
            assert train(f"model={model}").callbacks.best.monitor == "val/loss"
        elif not model.endswith("multimnist"):
            config = compose(
                "train",
                [f"model={model}", f"data={data.get(model, 'mnist')}", "data.source=standin"],
            )
            assert monitors <= {*build.build_without_weights(config).metrics}


# --- precedence: command line > experiment > model > train.yaml ------------------------------------------------------


@pytest.fixture
def presets(tmp_path: Path) -> str:
    """A search path with a model and experiments that contradict train.yaml and each other."""
    files = {
        "model/contrary": "defaults: [capsnet, override /routing: uniform, override /loss: cross_entropy]\nseed: 10",
        "experiment/contrary": "defaults: [override /routing: none, override /loss: spread]\nseed: 20",
        "experiment/another_model": "defaults: [override /model: cnn_baseline]",
    }
    for name, text in files.items():
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# @package _global_\n{text}\n")
    return f"hydra.searchpath=[{tmp_path.as_uri()}]"


def test_command_line_overrides_experiment_and_experiment_overrides_model(presets: str) -> None:
    """The order of arguments does not matter."""
    own = "routing=dynamic loss=margin seed=30"
    for given, routing, loss, seed in (
        ("model=contrary", "UniformRouting", "cross_entropy_loss", 10),
        ("model=contrary experiment=contrary", None, "spread_loss", 20),
        (f"model=contrary {own}", "DynamicRouting", "margin_loss", 30),
        (f"experiment=contrary {own}", "DynamicRouting", "margin_loss", 30),
    ):
        for words in (given.split(), given.split()[::-1]):
            config = compose("train", [presets, *words])
            assert (class_of(config.routing), class_of(config.loss.classification)) == (
                routing,
                loss,
            )
            assert config.seed == seed
    assert class_of(compose("train", [presets, "experiment=another_model"]).model) == "BaselineCNN"
    assert (
        class_of(compose("train", [presets, "experiment=another_model", "model=capsnet"]).model)
        == "CapsNet"
    )


def test_shipped_presets_have_this_precedence() -> None:
    for words, values in {
        "model=em_caps_paper": {
            "loss": "official",
            "margin": "SigmoidRamp",
            "clip": 200.0,
            "cost": "official_legacy",
        },
        "model=em_caps_paper loss=spread": {"loss": "paper"},
        "model=em_caps_paper schedule=exponential": {"margin": None},
        "model=em_caps_paper trainer.gradient_clip_val=1": {"clip": 1},
        "model=em_caps_paper class_routing.cost=paper": {"cost": "paper"},
        "model=em_caps_paper routing=uniform": {"cost": None},
        "model=em_caps_paper experiment=hinton2018/mnist_tutorial": {
            "loss": "paper",
            "margin": "Staircase",
        },
        "experiment=hinton2018/smallnorb schedule=hinton2018_scaled": {"every": "1/6 run"},
        "experiment=hinton2018/viewpoints data.split=full": {"split": "full", "test": "last"},
        "experiment=hinton2018/viewpoints model=cnn_smallnorb": {
            "split": "azimuth",
            "loss": "cross entropy",
        },
        "model=capsnet routing.iterations=5 experiment=quickstart": {"iterations": 5},
    }.items():
        for given in (words.split(), words.split()[::-1]):
            config = compose("train", given)
            margin = config.schedule.get("margin")
            composed = {
                "loss": config.loss.classification.get("reduction", "cross entropy"),
                "margin": class_of(margin),
                "every": margin and margin.get("every"),
                "clip": config.trainer.gradient_clip_val,
                "cost": (config.model.get("class_routing") or {}).get("cost"),
                "split": config.data.get("split"),
                "test": config.train.test,
                "iterations": (config.model.get("routing") or {}).get("iterations"),
            }
            assert {key: composed[key] for key in values} == values, words


def test_overrides_of_a_configuration_are_kept_beside_it() -> None:
    config = train("debug=smoke", "seed=3")
    assert (overrides_of(config), overrides_of(config.copy())) == (("debug=smoke", "seed=3"), ())
    assert vars(config).keys() == vars(config.copy()).keys()
