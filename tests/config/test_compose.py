"""Every shipped configuration composes and fits the code; presets have the documented precedence."""

import functools
import itertools
import re
import textwrap
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
from tests.helpers.tiers import slow_but, whole_but

MODELS = options_of("model")
KINDS = ["capsnet", "cnn_baseline", "em_caps"]
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


def head_of(text: str) -> list[str]:
    """The lines of a file before its first key."""
    return [*itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())]


QUICK = ("quickstart", "mnist_fast", "multimnist_tutorial", "hinton2011/affine", "sabour2017/mnist")


@pytest.mark.parametrize("experiment", whole_but(options_of("experiment"), *QUICK))
def test_every_experiment_is_built_as_its_head_says(experiment: str) -> None:
    """The head has a command, expectations or hardware, and the right number of parameters if it has one."""
    text = (conf_dir() / "experiment" / f"{experiment}.yaml").read_text()
    first, *head = head_of(text)
    assert first == "# @package _global_"
    assert len(head) >= 3
    assert any(line.startswith("# Command:") for line in head)
    assert any(line.startswith(("# Hardware:", "# Expected:")) for line in head)
    config = compose("train", [f"experiment={experiment}"])
    check(config)
    network = build.build_without_weights(config).network
    count = sum(parameter.numel() for parameter in network.parameters())
    stated = re.findall(r"([\d,]+) parameters", text)
    assert stated in ([], [f"{count:,}"])


def changes(experiment: str, group: str) -> set[str]:
    """Keys of a group that the file of an experiment sets, or a file in its defaults."""
    file = OmegaConf.load(conf_dir() / "experiment" / f"{experiment}.yaml")
    assert isinstance(file, DictConfig)
    keys = {*(file.get(group) or {})}
    for name in file.get("defaults", []):
        if isinstance(name, str) and name != "_self_":
            keys |= changes(name, group)
    return keys


PRESETS = [f"{group}={option}" for group in ("experiment", "debug") for option in options_of(group)]


REFUSAL = re.compile(
    r"(model|routing)[.\w]* (does not exist|is .*; expected )"
    r"|\w+ does not route, so "
)


def refusal_of(config: DictConfig) -> str:
    try:
        check(config)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.whole
@pytest.mark.parametrize(
    "model",
    slow_but(MODELS, "capsnet", "em_caps", "cnn_small", *OF_PAIRS),
)
def test_preset_changes_only_its_own_keys_or_is_refused(model: str) -> None:
    without = train(f"model={model}")
    for preset in PRESETS if model in KINDS else ("experiment=quickstart", "debug=smoke"):
        group, _, name = preset.partition("=")
        is_experiment = group == "experiment"
        own_of_model = changes(name, "model") if is_experiment else set()
        own_of_routing = changes(name, "routing") if is_experiment else set()
        config = compose("train", [f"model={model}", preset])
        refusal = refusal_of(config)
        if refusal:
            assert is_experiment, refusal
            assert REFUSAL.match(refusal)
            continue
        assert own_of_model <= without.model.keys()
        # an experiment may choose another routing
        if class_of(config.routing) == class_of(without.routing):
            assert own_of_routing <= (without.routing or {}).keys()
        to_container(config)
        assert config.model.keys() == without.model.keys()
        changed = {key for key in config.model if config.model[key] != without.model[key]}
        of_routing = {"routing", "class_routing"} if is_experiment else set()
        assert changed <= own_of_model | of_routing


WITHOUT_DEFAULT = {
    "callbacks=stop_at_error": ["callbacks.stop_at_error.stopping_threshold=5"],
    "callbacks=pairs": ["model=pair_autoencoder", "data=mnist_pairs"],
}


@pytest.mark.whole
def test_every_other_option_and_every_command_composes() -> None:
    own = {"model", "routing", "loss", "experiment", "debug", "attack", "what"}
    for group in groups():
        if group in own:
            continue
        for option in options_of(group):
            choice = f"{group}={option}"
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
    for model in MODELS:
        if model in OF_PAIRS:
            assert train(f"model={model}").callbacks.best.monitor == "val/loss"
        elif not model.endswith("multimnist"):
            # heinsen refuses images of the size of MNIST
            data = "smallnorb" if model == "heinsen" else "mnist"
            overrides = [f"model={model}", f"data={data}", "data.source=standin"]
            config = compose("train", overrides)
            assert monitors <= {*build.build_without_weights(config).metrics}


CONTRARY = {
    "model/contrary": """\
        # @package _global_
        defaults: [capsnet, override /routing: uniform, override /loss: cross_entropy]
        seed: 10
    """,
    "experiment/contrary": """\
        # @package _global_
        defaults: [override /routing: none, override /loss: spread]
        seed: 20
    """,
    "experiment/another_model": """\
        # @package _global_
        defaults: [override /model: cnn_baseline]
    """,
}


@pytest.fixture
def presets(tmp_path: Path) -> str:
    """A search path with a model and experiments that contradict train.yaml and each other."""
    for name, text in CONTRARY.items():
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return f"hydra.searchpath=[{tmp_path.as_uri()}]"


OWN = ["routing=dynamic", "loss=margin", "seed=30"]


@pytest.mark.parametrize(
    ("given", "routing", "loss", "seed"),
    [
        (["model=contrary"], "UniformRouting", "cross_entropy_loss", 10),
        (["model=contrary", "experiment=contrary"], None, "spread_loss", 20),
        (["model=contrary", *OWN], "DynamicRouting", "margin_loss", 30),
        (["experiment=contrary", *OWN], "DynamicRouting", "margin_loss", 30),
    ],
)
def test_command_line_overrides_experiment_and_experiment_overrides_model(
    presets: str, given: list[str], routing: str | None, loss: str, seed: int
) -> None:
    """The order of arguments does not matter."""
    for overrides in (given, given[::-1]):
        config = compose("train", [presets, *overrides])
        assert class_of(config.routing) == routing
        assert class_of(config.loss.classification) == loss
        assert config.seed == seed


@pytest.mark.parametrize(
    ("overrides", "network"),
    [
        (["experiment=another_model"], "BaselineCNN"),
        (["experiment=another_model", "model=capsnet"], "CapsNet"),
    ],
)
def test_command_line_overrides_the_model_of_an_experiment(
    presets: str, overrides: list[str], network: str
) -> None:
    config = compose("train", [presets, *overrides])
    assert class_of(config.model) == network


OF_EM_CAPS_PAPER = {
    "loss": "official",
    "margin": "SigmoidRamp",
    "clip": 200.0,
    "cost": "official_legacy",
}


MNIST_TUTORIAL = {"loss": "paper", "margin": "Staircase"}


OF_VIEWPOINTS = {"split": "azimuth", "loss": "cross entropy"}


SCALED = "experiment=hinton2018/smallnorb schedule=hinton2018_scaled"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("model=em_caps_paper", OF_EM_CAPS_PAPER),
        ("model=em_caps_paper loss=spread", {"loss": "paper"}),
        ("model=em_caps_paper schedule=exponential", {"margin": None}),
        ("model=em_caps_paper trainer.gradient_clip_val=1", {"clip": 1}),
        ("model=em_caps_paper class_routing.cost=paper", {"cost": "paper"}),
        ("model=em_caps_paper routing=uniform", {"cost": None}),
        ("model=em_caps_paper experiment=hinton2018/mnist_tutorial", MNIST_TUTORIAL),
        ("experiment=hinton2018/viewpoints data.split=full", {"split": "full", "test": "last"}),
        ("experiment=hinton2018/viewpoints model=cnn_smallnorb", OF_VIEWPOINTS),
        ("model=capsnet routing.iterations=5 experiment=quickstart", {"iterations": 5}),
        (SCALED, {"every": "1/6 run"}),
    ],
)
def test_shipped_presets_have_this_precedence(overrides: str, expected: dict[str, Any]) -> None:
    words = overrides.split()
    for given in (words, words[::-1]):
        config = compose("train", given)
        margin = config.schedule.get("margin")
        class_routing = config.model.get("class_routing") or {}
        routing = config.model.get("routing") or {}
        composed = {
            "loss": config.loss.classification.get("reduction", "cross entropy"),
            "margin": class_of(margin),
            "every": margin and margin.get("every"),
            "clip": config.trainer.gradient_clip_val,
            "cost": class_routing.get("cost"),
            "split": config.data.get("split"),
            "test": config.train.test,
            "iterations": routing.get("iterations"),
        }
        assert {key: composed[key] for key in expected} == expected


def test_overrides_of_a_configuration_are_kept_beside_it() -> None:
    config = train("debug=smoke", "seed=3")
    copied = config.copy()
    assert overrides_of(config) == ("debug=smoke", "seed=3")
    assert overrides_of(copied) == ()
    assert vars(config).keys() == vars(copied).keys()
