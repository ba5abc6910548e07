"""Every configuration that we ship, composed and held to the signatures behind it; wrong ones end in one line."""

from __future__ import annotations

import copy
import errno
import functools
import re
from pathlib import Path
from typing import Any

import hydra
import pytest
import torch
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from capsule_lab import command
from capsule_lab.config import build
from capsule_lab.config.check import check
from capsule_lab.config.compose import to_container, user_message
from capsule_lab.errors import ConfigError, DataError
from capsule_lab.runs.directories import config_hash
from capsule_lab.types import DataSpec

ROOT = Path(__file__).parents[2]
CONF = command.conf_dir()
FILES = sorted(CONF.rglob("*.yaml"))


def compose(*overrides: str, name: str = "train", **options: Any) -> DictConfig:
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(name, overrides=list(overrides), **options)


def options(group: str) -> list[str]:
    return sorted(
        path.relative_to(CONF / group).with_suffix("").as_posix() for path in (CONF / group).rglob("[!_]*.yaml")
    )


def walk(node: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every node of plain containers, as a path for OmegaConf and a value."""
    inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    below = [found for key, value in inside for found in walk(value, f"{path}.{key}" if path else str(key))]
    return [(path, node), *below]


def targets(*overrides: str) -> dict[str, dict[str, Any]]:
    nodes = walk(OmegaConf.to_container(compose(*overrides), resolve=False))
    return {path: node for path, node in nodes if isinstance(node, dict) and "_target_" in node}


def named(key: str) -> list[str]:
    """Every value that any file gives to ``key``, wherever in it."""
    nodes = [found for file in FILES for found in walk(OmegaConf.to_container(OmegaConf.load(file)))]
    return sorted({value for path, value in nodes if path.rpartition(".")[2] == key})


@functools.cache
def plain(model: str) -> DictConfig:
    return compose(f"model={model}")


def plain_model(model: str) -> DictConfig:
    return plain(model).model


def changes(experiment: str, group: str) -> set[str]:
    """Keys of a group that an experiment's file sets, or one that it builds on."""
    file = OmegaConf.load(CONF / "experiment" / f"{experiment}.yaml")
    below = [name for name in file.get("defaults", []) if isinstance(name, str) and name != "_self_"]
    return set(file.get(group) or {}).union(*(changes(name, group) for name in below))


MODELS = options("model")
CLASSIFYING = [name for name in options("loss") if name != "squared_error"]
ONE_OF_EACH_KIND = ["capsnet", "cnn_baseline", "em_caps", "em_caps_paper"]
GROUPS = sorted(folder.name for folder in CONF.iterdir() if folder.is_dir() and folder.name != "hydra")
PRESETS = [f"{group}={option}" for group in ("experiment", "debug") for option in options(group)]
SMALLNORB = DataSpec((2, 32, 32), 5, ("a", "b", "c", "d", "e"))
TARGETS = {**targets("model=cnn_baseline", "schedule=constant"), **targets()}
KEYS = {
    group: {f"experiment={name}": changes(name, group) for name in options("experiment")}
    for group in ("model", "routing")
}


def built(*overrides: str) -> Any:
    """The module of a configuration for smallNORB, without weights."""
    with torch.device("meta"):
        return build.build_module(compose(*overrides), SMALLNORB)


# --- what we ship composes and fits the code -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "routing"),
    [
        (model, routing)
        for model in ONE_OF_EACH_KIND
        for routing in options("routing")
        if (routing != "none") == ("routing" in plain_model(model))
    ],
)
def test_every_routing_with_a_model_of_every_kind_that_routes(model, routing):
    config = compose(f"model={model}", f"routing={routing}")
    check(config)
    assert (config.routing is None) is (routing == "none")
    assert routing == "none" or config.model.routing == config.routing


@pytest.mark.parametrize(
    ("model", "preset"),
    [
        (model, preset)
        for model in MODELS
        for preset in PRESETS
        if model in ONE_OF_EACH_KIND or preset in ("experiment=quickstart", "debug=smoke")
    ],
)
def test_every_experiment_and_debug_preset_with_every_model(model, preset):
    """An experiment with options of a model or of a routing is refused for another."""
    config = compose(f"model={model}", preset)
    if any(not KEYS[group].get(preset, set()) <= (plain(model)[group] or {}).keys() for group in KEYS):
        with pytest.raises(ConfigError, match=r"^(model|routing)\.\w+ does not exist; .*Options: "):
            check(config)
        return
    check(config)
    group, _, name = preset.partition("=")
    own = changes(name, "model") | {"routing", "class_routing"} if group == "experiment" else set()
    without = plain_model(model)
    assert {key for key in config.model if config.model[key] != without[key]} <= own
    assert config.model.keys() == without.keys()
    to_container(config)


@pytest.mark.parametrize("routing", [name for name in options("routing") if name not in ("none", "dynamic_leaky")])
@pytest.mark.parametrize("model", [model for model in MODELS if model.startswith("em_caps") and "decoder" not in model])
def test_every_routing_is_built_into_em_caps(model, routing):
    config = compose(f"model={model}", f"routing={routing}")
    network = built(f"model={model}", f"routing={routing}").network
    kinds = {type(layer.routing).__name__ for layer in (*network.conv_capsules, network.classes)}
    assert kinds == {config.routing._target_.rpartition(".")[2]}


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("em_caps", 76_458),
        ("em_caps_decoder", 2_742_442),
        ("em_caps_small_normalised", 70_042),
        ("em_caps_small", 68_618),
        ("em_caps_paper", 316_650),
        ("cnn_small", 62_341),
        ("cnn_pooled", 76_533),
    ],
)
def test_parameters_of_presets_for_smallnorb(model, parameters):
    assert sum(each.numel() for each in built(f"model={model}").network.parameters()) == parameters


def test_leaky_routing_is_refused_by_em_caps():
    with pytest.raises(ConfigError, match=r"^model: routing\.leaky is true; expected false: convolutional capsules"):
        built("model=em_caps_paper", "routing=dynamic_leaky")


@pytest.mark.parametrize(
    ("loss", "schedule"),
    [
        *(("spread", schedule) for schedule in options("schedule") if schedule != "falling_temperature"),
        *((loss, "hinton2018") for loss in CLASSIFYING if loss not in ("spread", "sigmoid_cross_entropy")),
        ("margin", "constant"),
    ],
)
def test_every_loss_and_schedule_is_built_with_em_caps(loss, schedule):
    module = built("model=em_caps_paper", f"loss={loss}", f"schedule={schedule}")
    reaches = loss.startswith("spread") and "margin" in module.schedule
    assert module.scheduled_arguments == ({"margin"} if reaches else set())


def test_options_of_the_class_layer_are_those_of_a_routing():
    with pytest.raises(ConfigError, match=r"^model: class_routing has .* 'cots'.*; expected options of the routing"):
        built("model=em_caps_paper", "+class_routing.cots=paper")


@pytest.mark.parametrize("experiment", options("experiment"))
def test_every_experiment_is_built(experiment):
    """With as many parameters as its head says, where it says so."""
    config = compose(f"experiment={experiment}")
    check(config)
    network = build.build_without_weights(config).network
    head = (CONF / "experiment" / f"{experiment}.yaml").read_text()
    said = re.findall(r"([\d,]+) parameters", head)
    assert said in ([], [f"{sum(p.numel() for p in network.parameters()):,}"])


OF_PAIRS = [name for name in MODELS if name.startswith(("transforming_autoencoder", "pair_autoencoder"))]
FOR_LOGITS = ("cross_entropy", "cross_entropy_logits", "sigmoid_cross_entropy")
OF_ACTIVATIONS_ON_LOGITS = [(m, o) for m in ("cnn_baseline", "cnn_small") for o in CLASSIFYING if o not in FOR_LOGITS]


@pytest.mark.parametrize(
    ("model", "loss"),
    sorted({(m, o) for m in ONE_OF_EACH_KIND for o in CLASSIFYING} - {*OF_ACTIVATIONS_ON_LOGITS}),
)
def test_every_loss_with_a_model_of_every_kind(model, loss):
    check(compose(f"model={model}", f"loss={loss}"))


@pytest.mark.parametrize(("model", "loss"), OF_ACTIVATIONS_ON_LOGITS)
def test_loss_of_activations_on_logits_is_refused(model, loss):
    with pytest.raises(ConfigError, match=r"expects activations; (Baseline|Small)CNN gives logits: loss=cross_entropy"):
        check(compose(f"model={model}", f"loss={loss}"))


@pytest.mark.parametrize(("model", "loss"), [("capsnet", "squared_error"), ("transforming_autoencoder", "margin")])
def test_a_loss_of_classes_is_not_of_pairs(model, loss):
    with pytest.raises(ConfigError, match=r"(classifies|draws the second image of a pair); expected loss="):
        check(compose(f"model={model}", f"loss={loss}"))


WITHOUT_DEFAULT = {
    "callbacks=stop_at_error": ["callbacks.stop_at_error.stopping_threshold=5"],
    "callbacks=pairs": ["model=pair_autoencoder", "data=mnist_pairs"],
}


@pytest.mark.parametrize(
    "choice",
    [
        f"{group}={option}"
        for group in GROUPS
        if group not in ("model", "routing", "loss", "experiment", "debug", "attack", "what")
        for option in options(group)
    ],
)
def test_every_other_option(choice):
    config = compose(choice, *WITHOUT_DEFAULT.get(choice, []))
    check(config)
    to_container(config)


@pytest.mark.parametrize("option", options("attack"))
def test_every_attack(option):
    check(compose(f"attack={option}", name="attack"))


@pytest.mark.parametrize("option", options("what"))
def test_every_question(option):
    check(compose(f"what={option}", name="analyse"))


@pytest.mark.parametrize("name", sorted(path.stem for path in CONF.glob("[!_]*.yaml")))
def test_every_command_has_a_configuration_that_composes(name):
    check(compose(name=name))


@pytest.mark.parametrize("target", named("_target_"))
def test_every_target_can_be_imported(target):
    assert callable(get_object(target))


@pytest.mark.parametrize("experiment", options("experiment"))
def test_every_experiment_says_how_to_run_it_and_what_to_expect(experiment):
    first, *lines = (CONF / "experiment" / f"{experiment}.yaml").read_text().splitlines()
    head = [line for line in lines if line.startswith("#")]
    assert first == "# @package _global_"
    assert lines[: len(head)] == head, "the head comment is not at the head"
    assert len(head) >= 3
    assert any(line.startswith("# Command:") for line in head)
    assert any(line.startswith(("# Hardware:", "# Expected:")) for line in head)


@pytest.mark.parametrize("word", ["Command", "Hardware", "Expected"])
@pytest.mark.parametrize("experiment", [name for name in options("experiment") if name.startswith("hinton2018/")])
def test_heads_of_matrix_capsule_experiments(experiment, word):
    text = (CONF / "experiment" / f"{experiment}.yaml").read_text()
    (line,) = re.findall(rf"^# {word}: +(\S.*)$", text, re.MULTILINE)
    assert word != "Command" or f"experiment={experiment}" in line


@pytest.mark.parametrize("monitor", [each for each in named("monitor") if each != "val/loss"])
@pytest.mark.parametrize("model", [name for name in MODELS if name not in OF_PAIRS])
def test_every_monitor_is_measured(model, monitor):
    """All of a module's metrics are logged; ``tests/test_train.py`` has the names of a run."""
    # of sizes that these refuse in MNIST
    data = {"heinsen": "smallnorb", "efficient_capsnet_multimnist": "multimnist"}.get(model, "mnist")
    assert (
        monitor in build.build_without_weights(compose(f"model={model}", f"data={data}", "data.source=standin")).metrics
    )


@pytest.mark.parametrize("model", OF_PAIRS)
def test_what_is_best_of_a_model_for_pairs_is_its_loss(model):
    assert compose(f"model={model}").callbacks.best.monitor == "val/loss"


# --- precedence: command line > experiment > model > train.yaml ------------------------------------------------------


@pytest.fixture
def presets(tmp_path) -> str:
    """A model and an experiment that contradict train.yaml and each other, as an override that finds them."""
    files = {
        "model/contrary": "defaults: [capsnet, override /routing: uniform, override /loss: margin_official]\nseed: 10",
        "experiment/contrary": "defaults: [override /routing: none, override /loss: cross_entropy]\nseed: 20",
        "experiment/another_model": "defaults: [override /model: cnn_baseline]",
    }
    for name, text in files.items():
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# @package _global_\n{text}\n")
    return f"hydra.searchpath=[{tmp_path.as_uri()}]"


@pytest.mark.parametrize(
    ("overrides", "routing", "loss", "seed"),
    [
        ([], "DynamicRouting", "paper", 0),
        (["model=contrary"], "UniformRouting", "official", 10),
        (["experiment=contrary"], None, "cross entropy", 20),
        (["routing=uniform", "loss=margin_official", "seed=30"], "UniformRouting", "official", 30),
        (["model=contrary", "experiment=contrary"], None, "cross entropy", 20),
        (["model=contrary", "routing=dynamic", "loss=margin", "seed=30"], "DynamicRouting", "paper", 30),
        (["experiment=contrary", "routing=dynamic", "loss=margin", "seed=30"], "DynamicRouting", "paper", 30),
    ],
    ids=[
        "train.yaml alone",
        "model over train.yaml",
        "experiment over train.yaml",
        "command line over train.yaml",
        "experiment over model",
        "command line over model",
        "command line over experiment",
    ],
)
@pytest.mark.parametrize("reverse", [False, True], ids=["as given", "other order"])
def test_precedence(presets, overrides, routing, loss, seed, reverse):
    config = compose(presets, *(reversed(overrides) if reverse else overrides))
    assert (config.routing and config.routing._target_.rpartition(".")[2]) == routing
    assert config.loss.classification.get("reduction", "cross entropy") == loss
    assert config.seed == seed


@pytest.mark.parametrize(
    ("overrides", "network"),
    [
        ([], "CapsNet"),
        (["experiment=another_model"], "BaselineCNN"),
        (["experiment=another_model", "model=capsnet"], "CapsNet"),
    ],
    ids=["train.yaml alone", "experiment over train.yaml", "command line over experiment"],
)
def test_precedence_of_the_model_itself(presets, overrides, network):
    assert compose(presets, *overrides).model._target_.rpartition(".")[2] == network


EM_CAPS = {"routing": "EMRouting", "loss": "official", "rate": 0.003, "margin": "SigmoidRamp"}


def chosen(config: DictConfig) -> dict[str, Any]:
    margin = config.schedule.get("margin")
    return {
        "routing": config.routing and config.routing._target_.rpartition(".")[2],
        "loss": config.loss.classification.get("reduction", "cross entropy"),
        "rate": next(
            config.schedule.learning_rate[key]
            for key in ("initial", "start", "value")
            if key in config.schedule.learning_rate
        ),
        "margin": margin and margin._target_.rpartition(".")[2],
    }


@pytest.mark.parametrize(
    ("overrides", "changed"),
    [
        ([], {}),
        (["routing=dynamic"], {"routing": "DynamicRouting"}),
        (["loss=spread"], {"loss": "paper"}),
        (["schedule=em_linear_margin"], {"margin": "Linear"}),
        (["schedule=exponential"], {"rate": 0.001, "margin": None}),
        (["routing.iterations=5", "loss.classification.reduction=paper"], {"loss": "paper"}),
        (["experiment=hinton2018/mnist_tutorial"], {"loss": "paper", "margin": "Staircase"}),
        (["experiment=hinton2018/mnist_tutorial", "loss=spread_official", "schedule=hinton2018_scaled"], {}),
        (["experiment=hinton2018/viewpoint_azimuth", "routing=uniform"], {"routing": "UniformRouting"}),
        (["experiment=quickstart"], {}),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("model", "reverse"),
    [("em_caps_paper", False), ("em_caps_small", True)],
    ids=["as given", "small, other order"],
)
def test_precedence_with_em_caps(model, overrides, changed, reverse):
    given = [f"model={model}", *overrides]
    assert chosen(compose(*(reversed(given) if reverse else given))) == EM_CAPS | changed


@pytest.mark.parametrize(
    ("overrides", "key", "value"),
    [
        ([], "schedule.margin.every", "1/6 run"),
        (["experiment=hinton2018/smallnorb"], "schedule.margin.every", "50000 steps"),
        (["experiment=hinton2018/smallnorb", "schedule=hinton2018_scaled"], "schedule.margin.every", "1/6 run"),
        (["experiment=hinton2018/smallnorb_small"], "model.channels", 64),
        (["experiment=hinton2018/smallnorb_small"], "schedule.margin.every", "50000 steps"),
        (["experiment=hinton2018/smallnorb_small"], "data.source", "real"),
        (["experiment=hinton2018/viewpoint_azimuth"], "data.split", "azimuth"),
        (["experiment=hinton2018/viewpoint_elevation"], "data.split", "elevation"),
        (["experiment=hinton2018/viewpoint_elevation"], "train.test", "last"),
        (["experiment=hinton2018/viewpoint_elevation", "data.split=full"], "data.split", "full"),
        (["experiment=hinton2018/mnist_tutorial"], "model.padding", "same"),
        (["experiment=hinton2018/mnist_tutorial", "model.padding=valid"], "model.padding", "valid"),
        (["experiment=hinton2018/mnist_tutorial"], "routing.cost", "standardised"),
        (["experiment=hinton2018/mnist_tutorial", "routing=em"], "routing.cost", "official_fast"),
        ([], "trainer.gradient_clip_val", 200.0),
        (["trainer.gradient_clip_val=1"], "trainer.gradient_clip_val", 1),
        ([], "class_routing.cost", "official_legacy"),
        (["routing=em_paper"], "class_routing.cost", "paper"),
        (["routing=em_official_legacy"], "model.class_routing.mass_eps", 1e-5),
        (["class_routing.cost=paper"], "model.class_routing.cost", "paper"),
        (["routing=uniform"], "model.class_routing", None),
        (["routing.iterations=5"], "model.routing.iterations", 5),
    ],
    ids=str,
)
def test_values_with_em_caps(overrides, key, value):
    model = [] if any("experiment" in each for each in overrides) else ["model=em_caps_paper"]
    assert OmegaConf.select(compose(*model, *overrides), key) == value


@pytest.mark.parametrize(
    ("overrides", "network", "loss"),
    [
        ([], "EMCaps", "official"),
        (["model=em_caps_small"], "EMCaps", "official"),
        (["model=cnn_smallnorb"], "BaselineCNN", "cross entropy"),
        (["model=capsnet"], "CapsNet", "paper"),
    ],
    ids=str,
)
@pytest.mark.parametrize("split", ["azimuth", "elevation"])
def test_viewpoint_experiments_run_with_every_network(split, overrides, network, loss):
    config = compose(f"experiment=hinton2018/viewpoint_{split}", *overrides)
    check(config)
    assert config.model._target_.rpartition(".")[2] == network
    assert chosen(config)["loss"] == loss
    assert (config.data.split, config.train.test) == (split, "last")


@pytest.mark.parametrize(
    ("overrides", "iterations"),
    [(["routing.iterations=5"], 5), (["model=capsnet", "routing.iterations=5", "experiment=quickstart"], 5)],
    ids=str,
)
def test_a_value_on_the_command_line_reaches_the_network(overrides, iterations):
    assert compose(*overrides).model.routing.iterations == iterations


# --- check -----------------------------------------------------------------------------------------------------------


@functools.cache
def _composed(overrides: tuple[str, ...]) -> DictConfig:
    return compose(*overrides)


def default(overrides: tuple[str, ...] = ()) -> DictConfig:
    """A configuration to change."""
    return copy.deepcopy(_composed(overrides))


def with_new_key(path: str, key: str) -> DictConfig:
    """The default configuration (or that of the baseline, if only there) with a key that does not belong there."""
    config = next(c for c in map(default, ((), ("model=cnn_baseline", "schedule=constant"))) if select(c, path))
    OmegaConf.set_struct(config, False)
    select(config, path)[key] = None
    return config


def select(config: DictConfig, path: str) -> Any:
    return OmegaConf.select(config, re.sub(r"\.(\d+)", r"[\1]", path))


@pytest.mark.parametrize("path", TARGETS)
def test_check_rejects_a_key_that_its_target_does_not_take(path):
    own = [key for key in TARGETS[path] if not key.startswith("_")]
    with pytest.raises(ConfigError) as caught:
        check(with_new_key(path, "misspelt"))
    assert str(caught.value).startswith(f"{path}.misspelt does not exist; ")
    assert [key for key in own if f"{path}.{key}" not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        "routing.iterations",
        "model.channels",
        "module.optimizer",
        "loss.classification.present",
        "schedule.learning_rate.floor",
        "optimizer.betas",
        "data.batch_size",
        "data.shift",
        "trainer.max_epochs",
        "callbacks.best.monitor",
        "callbacks.last.every_minutes",
    ],
)
def test_check_proposes_the_key_that_was_meant(key):
    path, _, name = key.rpartition(".")
    with pytest.raises(ConfigError, match=rf"^{key[:-1]} does not exist; did you mean {key}\? Options: {path}\."):
        check(with_new_key(path, name[:-1]))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+callbacks.best.monitr=val/loss", "did you mean callbacks.best.monitor?"),
        ("+trainer.max_epoch=3", "did you mean trainer.max_epochs?"),
        ("model._target_=capsule_lab.networks.CapNet", "model._target_ is capsule_lab.networks.CapNet, which"),
        ("data._target_=capsule_lab.dada.MNIST", "data._target_ is capsule_lab.dada.MNIST, which cannot be imported"),
    ],
)
def test_check_of_what_the_command_line_adds(override, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        check(compose(override))


@pytest.mark.parametrize(
    "override",
    [
        "+callbacks.mine={_target_: capsule_lab.callbacks.AtomicCheckpointIO, speed: 3}",
        "+train.tset=last",
        "+trian.test=last",
        "routing=none",
    ],
)
def test_check_rejects_what_would_fail_later(override):
    with pytest.raises(ConfigError):
        check(compose(override))


@pytest.mark.parametrize(("model", "routing"), [("capsnet", "uniform"), ("cnn_baseline", "none")])
def test_check_accepts_routing_where_it_does_something(model, routing):
    check(compose(f"model={model}", f"routing={routing}"))


@pytest.mark.parametrize("routing", ["dynamic", "uniform"])
def test_check_rejects_routing_that_would_change_nothing(routing):
    with pytest.raises(ConfigError) as caught:
        check(compose("model=cnn_baseline", f"routing={routing}"))
    name = f"{routing.capitalize()}Routing"
    assert str(caught.value) == (f"BaselineCNN does not route, so {name} would change nothing: leave out routing=…")


# --- the fingerprint of a configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["logger=tensorboard"],
        ["logger=wandb"],
        ["logger=mlflow"],
        ["trainer.log_every_n_steps=50"],
        ["callbacks.step_metrics=null"],
        ["train.resume=true"],
        ["train.directory=elsewhere"],
        ["ckpt=some.ckpt"],
        ["data.directory=elsewhere"],
        ["model=capsnet", "routing=dynamic", "routing.iterations=3"],
    ],
    ids=str,
)
def test_hash_ignores_what_does_not_decide_the_result(overrides):
    assert config_hash(compose(*overrides)) == config_hash(default())


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "routing.iterations=2",
        "routing=uniform",
        "model=cnn_baseline",
        "model.channels=255",
        "loss=margin_official",
        "loss.classification.present=0.8",
        "schedule=constant",
        "schedule.learning_rate.initial=0.002",
        "optimizer.eps=1e-7",
        "data.source=standin",
        "data.batch_size=64",
        "data.validation=stratified",
        "trainer.max_epochs=19",
        "trainer.precision=32-true",
        "train.test=last",
        "+trainer.gradient_clip_algorithm=value",
    ],
)
def test_hash_changes_with_what_decides_the_result(override):
    assert config_hash(compose(override)) != config_hash(default())


def test_hash_leaves_the_configuration_alone():
    config = compose()
    before = OmegaConf.to_yaml(config)
    assert re.fullmatch("[0-9a-f]{8}", config_hash(config))
    assert OmegaConf.to_yaml(config) == before


# --- one line for each mistake ---------------------------------------------------------------------------------------


def error_of(monkeypatch, *overrides: str) -> Exception:
    """What Hydra raises for a command line."""
    monkeypatch.setattr("sys.argv", ["train", *overrides])
    with pytest.raises(Exception, match=r".*") as caught:
        compose(*overrides)
    return caught.value


@pytest.mark.parametrize(
    ("overrides", "arrived", "listed"),
    [
        (["model=capsnot"], "model=capsnot does not exist; did you mean capsnet?", MODELS),
        (["routing=en"], "routing=en does not exist", options("routing")),
        (["debug=fast"], "debug=fast does not exist", options("debug")),
        (["data=mnits"], "data=mnits does not exist; did you mean mnist?", options("data")),
        (["loss=hinge"], "loss=hinge does not exist", options("loss")),
        (["+logger=nope"], "logger=nope does not exist", options("logger")),
        (["modle=capsnet"], "modle does not exist", ["model", "routing", "data", "trainer"]),
        (["sede=3"], "sede does not exist; did you mean seed?", ["seed", "train", "ckpt"]),
        (["trainer.max_epoch=3"], "trainer.max_epoch does not exist; did you mean trainer.max_epochs?", ["max_steps"]),
        (["trainer/max_epochs=3"], "trainer/max_epochs does not exist", ["trainer"]),
        (["callbacks.best.monitr=x"], "callbacks.best.monitr does not exist", ["callbacks.best.monitor"]),
        (["loss.reconstruction.wait=1"], "loss.reconstruction.wait does not", ["loss.reconstruction.weight"]),
        (["routing=uniform", "routing.iterations=2"], "routing.iterations does not exist", ["routing.leaky"]),
        (["model=cnn_baseline", "model.chanels=[2]"], "model.chanels does not exist", ["model.channels"]),
        (["routing.iterations.more=2"], "routing.iterations.more does not exist", ["routing.iterations"]),
        (["train.tset=last"], "train.tset does not exist; did you mean train.test?", ["train.resume"]),
        (["experiment=nope"], "experiment=nope does not exist", options("experiment")),
        (["experiment=sabour2017/nope"], "experiment=sabour2017/nope does not exist", options("experiment")),
        (["optimizer.learning-rate=1"], "optimizer.learning-rate does not exist", ["optimizer.betas"]),
        (["~routing.iteration"], "routing.iteration does not exist", ["routing.iterations"]),
    ],
    ids=str,
)
def test_what_does_not_exist_is_named_beside_what_does(monkeypatch, overrides, arrived, listed):
    message = user_message(error_of(monkeypatch, *overrides))
    assert message.startswith(arrived)
    listing = message.partition("Options: ")[2].partition(" (+")[0]
    assert [word for word in listed if word not in listing] == []
    assert "\n" not in message


def test_an_unknown_key_of_hydra_itself_is_not_looked_for_among_ours(monkeypatch):
    message = user_message(error_of(monkeypatch, "hydra.foo=1"))
    assert message.startswith("hydra.foo is no option of Hydra; ")
    assert "--cfg hydra" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["seed"], "seed is no key=value; "),
        (["+routing=dynamic"], "routing appears more than once"),
        (["++trainer=default"], "'++trainer=default'"),
        (["model=capsnet,cnn_baseline"], "model=capsnet,cnn_baseline are several values; -m trains one run for each"),
        (["train.test=["], "train.test=["),
    ],
    ids=str,
)
def test_overrides_that_hydra_cannot_parse_are_named_in_one_line(monkeypatch, overrides, named):
    message = user_message(error_of(monkeypatch, *overrides))
    assert named in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("overrides", "arrived"),
    [
        (["data.batch_size=0"], "data: batch sizes are 0 and 500; expected 1 or more"),
        (["data.shift=-1"], "data.shift is -1; expected 0"),
        (["data.source=genuine"], "data.source is 'genuine'; expected 'auto', 'real' or 'standin'"),
    ],
    ids=str,
)
def test_arguments_that_a_constructor_refuses(monkeypatch, overrides, arrived):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    with pytest.raises(Exception, match=r".*") as caught:
        build.build_data(compose(*overrides))
    message = user_message(caught.value)
    assert message.startswith(arrived)
    assert "\n" not in message


def test_an_interpolation_of_something_unknown_is_one_line():
    with pytest.raises(Exception, match="nowhere") as caught:
        to_container(compose("seed=${nowhere}"))
    message = user_message(caught.value)
    assert "nowhere" in message
    assert "\n" not in message


def test_a_target_that_cannot_be_imported_is_one_line():
    with pytest.raises(ConfigError) as caught:
        check(compose("model._target_=capsule_lab.networks.CapNet"))
    assert "\n" not in user_message(caught.value)


@pytest.mark.parametrize("error", [ConfigError("no such key"), DataError("no such file")], ids=repr)
def test_messages_of_our_own_errors_are_kept(error):
    assert user_message(error) == str(error)


@pytest.mark.parametrize("error", [ZeroDivisionError("ours"), KeyError("ours"), ValueError("ours")], ids=repr)
def test_other_errors_have_no_message_for_the_user(error):
    assert user_message(error) is None


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "last.ckpt"),
            "last.ckpt cannot be written or read: No space",
        ),
        (PermissionError(errno.EACCES, "Permission denied"), "a file cannot be written or read: Permission denied"),
        (
            MemoryError("Unable to allocate 3 GiB"),
            "not enough memory (Unable to allocate 3 GiB); try a smaller network",
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"), "not enough memory (Default"),
        (FileNotFoundError(errno.ENOENT, "No such file", "x"), None),
    ],
    ids=lambda each: type(each).__name__,
)
def test_limits_of_the_machine_are_one_sentence(error: BaseException, message: str | None) -> None:
    found = user_message(error)
    assert found is None if message is None else found.startswith(message)
