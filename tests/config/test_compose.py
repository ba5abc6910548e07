"""Every configuration that we ship composes and fits the code behind it, and what is given last wins."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from capsule_lab.config import build
from capsule_lab.config.check import check
from capsule_lab.config.compose import commands, compose, conf_dir, groups, options_of, to_container
from capsule_lab.errors import ConfigError
from capsule_lab.runs.directories import config_hash
from capsule_lab.types import DataSpec

MODELS = options_of("model")
KINDS = ["capsnet", "cnn_baseline", "em_caps", "em_caps_paper"]
OF_PAIRS = [name for name in MODELS if name.startswith(("transforming_autoencoder", "pair_autoencoder"))]
LOSSES = [name for name in options_of("loss") if name != "squared_error"]
FOR_LOGITS = ("cross_entropy", "cross_entropy_logits", "sigmoid_cross_entropy")
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


# --- what we ship composes and fits the code -------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", options_of("experiment"))
def test_every_experiment_is_built_as_its_head_says(experiment: str) -> None:
    """With its command, what to expect or to use, and its number of parameters where that is there."""
    text = (conf_dir() / "experiment" / f"{experiment}.yaml").read_text()
    first, *head = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    assert first == "# @package _global_"
    assert len(head) >= 3
    assert any(line.startswith("# Command:") for line in head)
    assert any(line.startswith(("# Hardware:", "# Expected:")) for line in head)
    config = compose("train", [f"experiment={experiment}"])
    check(config)
    network = build.build_without_weights(config).network
    parameters = f"{sum(each.numel() for each in network.parameters()):,}"
    assert re.findall(r"([\d,]+) parameters", text) in ([], [parameters])


def changes(experiment: str, group: str) -> set[str]:
    """Keys of a group that an experiment's file sets, or one that it builds on."""
    file = OmegaConf.load(conf_dir() / "experiment" / f"{experiment}.yaml")
    assert isinstance(file, DictConfig)
    below = [name for name in file.get("defaults", []) if isinstance(name, str) and name != "_self_"]
    return set(file.get(group) or {}).union(*(changes(name, group) for name in below))


PRESETS = [f"{group}={option}" for group in ("experiment", "debug") for option in options_of(group)]
PAIRS = [
    *((model, preset) for model in MODELS for preset in ("experiment=quickstart", "debug=smoke")),
    *zip(itertools.cycle(KINDS), PRESETS),  # each preset with one kind
]


def refusal_of(config: DictConfig) -> str:
    try:
        check(config)
    except ConfigError as error:
        return str(error)
    return ""


def holds(model: str, preset: str) -> None:
    """A preset fits a model, or is refused for options that this model or its routing does not have."""
    group, _, name = preset.partition("=")
    own = {part: changes(name, part) if group == "experiment" else set() for part in ("model", "routing")}
    config, without = compose("train", [f"model={model}", preset]), train(f"model={model}")
    if refusal := refusal_of(config):
        assert group == "experiment", refusal
        assert re.match(r"(model|routing)[.\w]* (does not exist|is .*; expected )|\w+ does not route, so ", refusal)
        return
    assert all(own[part] <= (without[part] or {}).keys() for part in own)
    to_container(config)
    assert config.model.keys() == without.model.keys()
    changed = {key for key in config.model if config.model[key] != without.model[key]}
    assert changed <= own["model"] | ({"routing", "class_routing"} if group == "experiment" else set())


@pytest.mark.whole
def test_every_preset_and_every_model_with_another() -> None:
    for model, preset in PAIRS:
        holds(model, preset)


@pytest.mark.whole
@pytest.mark.parametrize("model", KINDS)
def test_every_preset_with_a_model_of_every_kind(model: str) -> None:
    for preset in PRESETS:
        holds(model, preset)


@pytest.mark.whole
@pytest.mark.parametrize("model", KINDS)
def test_every_routing_and_loss_with_a_model_of_every_kind(model: str) -> None:
    routes = "routing" in train(f"model={model}").model
    for routing in options_of("routing") if routes else ["none"]:
        if routing != "none" or not routes:
            config = compose("train", [f"model={model}", f"routing={routing}"])
            check(config)
            assert (config.routing is None) is (routing == "none")
            assert routing == "none" or config.model.routing == config.routing
    for loss in LOSSES:
        config = compose("train", [f"model={model}", f"loss={loss}"])
        if model == "cnn_baseline" and loss not in FOR_LOGITS:
            with pytest.raises(ConfigError, match=r"expects activations; BaselineCNN gives logits: loss=cross_entropy"):
                check(config)
        else:
            check(config)


@pytest.mark.whole
def test_every_routing_is_built_into_em_caps() -> None:
    for routing in options_of("routing"):
        if routing not in ("none", "dynamic_leaky"):
            overrides = ("model=em_caps_paper", f"routing={routing}")
            network = built(*overrides).network
            kinds = {type(layer.routing).__name__ for layer in (*network.conv_capsules, network.classes)}
            assert kinds == {class_of(train(*overrides).routing)}
    with pytest.raises(ConfigError, match=r"^model: routing\.leaky is true; expected false: convolutional capsules"):
        built("model=em_caps_paper", "routing=dynamic_leaky")
    with pytest.raises(ConfigError, match=r"^model: class_routing has .* 'cots'.*; expected options of the routing"):
        built("model=em_caps_paper", "+class_routing.cots=paper")


@pytest.mark.whole
def test_every_schedule_and_loss_is_built_with_em_caps() -> None:
    pairs = [("spread", each) for each in options_of("schedule") if each != "falling_temperature"]
    pairs += [(each, "hinton2018") for each in LOSSES if each not in ("spread", "sigmoid_cross_entropy")]
    for loss, schedule in pairs:
        module = built("model=em_caps_paper", f"loss={loss}", f"schedule={schedule}")
        reaches = loss.startswith("spread") and "margin" in module.schedule
        assert module.scheduled_arguments == ({"margin"} if reaches else set())


def test_parameters_of_presets_for_smallnorb() -> None:
    counts = {
        "em_caps": 76_458,
        "em_caps_small_normalised": 70_042,
        "em_caps_small": 68_618,
        "em_caps_paper": 316_650,
        "cnn_small": 62_341,
        "cnn_pooled": 76_533,
    }
    found = {model: sum(p.numel() for p in built(f"model={model}").network.parameters()) for model in counts}
    assert found == counts


WITHOUT_DEFAULT = {
    "callbacks=stop_at_error": ["callbacks.stop_at_error.stopping_threshold=5"],
    "callbacks=pairs": ["model=pair_autoencoder", "data=mnist_pairs"],
}


def test_every_other_option_and_every_command_composes() -> None:
    own = ("model", "routing", "loss", "experiment", "debug", "attack", "what")
    for group in groups():
        for choice in (f"{group}={option}" for option in options_of(group) if group not in own):
            config = compose("train", [choice, *WITHOUT_DEFAULT.get(choice, [])])
            check(config)
            to_container(config)
    for command in commands():
        check(compose(command))
    for option in options_of("attack"):
        check(compose("attack", [f"attack={option}"]))
    for option in options_of("what"):
        check(compose("analyse", [f"what={option}"]))


def values_of(key: str) -> set[Any]:
    """Every value that any file gives to ``key``, wherever in it."""

    def walk(node: Any) -> list[Any]:
        inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        return [found for name, value in inside for found in [*([value] if name == key else []), *walk(value)]]

    files = [OmegaConf.to_container(OmegaConf.load(file)) for file in conf_dir().rglob("*.yaml")]
    return {value for content in files for value in walk(content)}


@pytest.mark.whole
def test_every_monitor_is_measured() -> None:
    """All of a module's metrics are logged; ``tests/test_train.py`` has the names of a run."""
    data = {"heinsen": "smallnorb"}  # of a size that this refuses in MNIST
    for model in MODELS:
        if model in OF_PAIRS:
            assert train(f"model={model}").callbacks.best.monitor == "val/loss"
        elif not model.endswith("multimnist"):
            config = compose("train", [f"model={model}", f"data={data.get(model, 'mnist')}", "data.source=standin"])
            assert values_of_monitors() <= {*build.build_without_weights(config).metrics}


@functools.cache
def values_of_monitors() -> set[str]:
    return values_of("monitor") - {"val/loss"}


# --- precedence: command line > experiment > model > train.yaml ------------------------------------------------------


@pytest.fixture
def presets(tmp_path: Path) -> str:
    """A model and an experiment that contradict train.yaml and each other, as an override that finds them."""
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


def test_precedence(presets: str) -> None:
    """In whatever order the command line has them."""
    own = "routing=dynamic loss=margin seed=30"
    for given, routing, loss, seed in (
        ("", "DynamicRouting", "margin_loss", 0),
        ("model=contrary", "UniformRouting", "cross_entropy_loss", 10),
        ("experiment=contrary", None, "spread_loss", 20),
        ("model=contrary experiment=contrary", None, "spread_loss", 20),
        (own, "DynamicRouting", "margin_loss", 30),
        (f"model=contrary {own}", "DynamicRouting", "margin_loss", 30),
        (f"experiment=contrary {own}", "DynamicRouting", "margin_loss", 30),
    ):
        for words in (given.split(), given.split()[::-1]):
            config = compose("train", [presets, *words])
            assert (class_of(config.routing), class_of(config.loss.classification)) == (routing, loss)
            assert config.seed == seed
    assert class_of(compose("train", [presets, "experiment=another_model"]).model) == "BaselineCNN"
    assert class_of(compose("train", [presets, "experiment=another_model", "model=capsnet"]).model) == "CapsNet"


def test_precedence_of_what_we_ship() -> None:
    for words, values in {
        "model=em_caps_paper": {"loss": "official", "margin": "SigmoidRamp", "clip": 200.0, "cost": "official_legacy"},
        "model=em_caps_paper loss=spread": {"loss": "paper"},
        "model=em_caps_paper schedule=em_linear_margin": {"margin": "Linear"},
        "model=em_caps_paper schedule=exponential": {"margin": None},
        "model=em_caps_paper trainer.gradient_clip_val=1": {"clip": 1},
        "model=em_caps_paper routing=em_paper": {"cost": "paper"},
        "model=em_caps_paper class_routing.cost=paper": {"cost": "paper"},
        "model=em_caps_paper routing=uniform": {"cost": None},
        "model=em_caps_paper experiment=hinton2018/mnist_tutorial": {"loss": "paper", "margin": "Staircase"},
        "experiment=hinton2018/mnist_tutorial loss=spread_official schedule=hinton2018_scaled": {
            "loss": "official",
            "margin": "SigmoidRamp",
        },
        "experiment=hinton2018/smallnorb": {"every": "50000 steps"},
        "experiment=hinton2018/smallnorb schedule=hinton2018_scaled": {"every": "1/6 run"},
        "experiment=hinton2018/viewpoint_azimuth": {"split": "azimuth", "test": "last"},
        "experiment=hinton2018/viewpoint_elevation data.split=full": {"split": "full", "test": "last"},
        "experiment=hinton2018/viewpoint_azimuth model=cnn_smallnorb": {"split": "azimuth", "loss": "cross entropy"},
        "experiment=hinton2018/viewpoint_azimuth model=capsnet": {"split": "azimuth", "loss": "paper"},
        "model=capsnet routing.iterations=5 experiment=quickstart": {"iterations": 5},
    }.items():
        for given in (words.split(), words.split()[::-1]):
            config = compose("train", given)
            margin = config.schedule.get("margin")
            found = {
                "loss": config.loss.classification.get("reduction", "cross entropy"),
                "margin": class_of(margin),
                "every": margin and margin.get("every"),
                "clip": config.trainer.gradient_clip_val,
                "cost": (config.model.get("class_routing") or {}).get("cost"),
                "split": config.data.get("split"),
                "test": config.train.test,
                "iterations": (config.model.get("routing") or {}).get("iterations"),
            }
            assert {key: found[key] for key in values} == values, words


# --- the fingerprint of a configuration ------------------------------------------------------------------------------


def test_hash_is_of_what_decides_the_result() -> None:
    config = compose()
    before = OmegaConf.to_yaml(config)
    assert re.fullmatch("[0-9a-f]{8}", config_hash(config))
    assert OmegaConf.to_yaml(config) == before
    for same in (
        *("logger=tensorboard", "trainer.log_every_n_steps=50", "callbacks.step_metrics=null", "train.resume=true"),
        *("train.directory=elsewhere", "ckpt=some.ckpt", "data.directory=elsewhere", "routing=dynamic"),
    ):
        assert config_hash(train(same)) == config_hash(config), same
    for other in (
        *("seed=1", "routing.iterations=2", "routing=uniform", "model=cnn_baseline", "model.channels=255"),
        *("loss.classification.present=0.8", "schedule=constant", "schedule.learning_rate.initial=0.002"),
        *("optimizer.eps=1e-7", "data.source=standin", "data.batch_size=64", "trainer.max_epochs=19"),
        *("trainer.precision=32-true", "train.test=last", "+trainer.gradient_clip_algorithm=value"),
    ):
        assert config_hash(train(other)) != config_hash(config), other
