"""A hostile checkpoint runs no code: targets in its configuration are refused before they are imported."""

import copy
import importlib
import io
import os
import pickle
import re
import sys
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from capsule_lab import runs
from capsule_lab.commands import compose, evaluate, figures
from capsule_lab.config import build
from capsule_lab.config.folders import conf_dir
from capsule_lab.errors import ConfigError, RunError
from capsule_lab.runs.trust import check_record, check_targets, is_part, targets
from tests.helpers.commands import Trained

NODES: dict[str, dict[str, Any]] = {  # a call of one of them would write the file MARKER
    "torch.utils.collect_env.run": {"command": "touch MARKER"},
    "os.mkdir": {"path": "MARKER"},
    "torch.load": {"f": "PICKLE", "weights_only": False},
    "pathlib.Path.write_text": {
        "self": {"_target_": "pathlib.Path", "_args_": ["MARKER"]},
        "data": "",
    },
    "hydra.utils.instantiate": {
        "config": {"_target_": "os.mkdir", "path": "MARKER"},
        "_recursive_": False,
    },
    "importlib.import_module": {"name": "imported_marker"},
    "imported_marker.Class": {},
    "capsule_lab.system.environment.subprocess.run": {"args": ["touch", "MARKER"]},
    "capsule_lab.losses.torch.load": {"f": "PICKLE", "weights_only": False},
    "capsule_lab.runs.files.write_text": {
        "path": {"_target_": "pathlib.Path", "_args_": ["MARKER"]},
        "text": "",
    },
    "capsule_lab.lit.CapsNetModule.load_from_checkpoint": {"checkpoint_path": "PICKLE"},
    "capsule_lab.losses.Callable": {},
    "capsule_labs.Module": {},
    "lightning.Trainer": {"default_root_dir": "MARKER"},
    "torch.nn.functional.importlib.import_module": {"name": "imported_marker"},
    "torch.nn.Module.__init__": {},
    ".os.mkdir": {"path": "MARKER"},
    "os.mkdir\n": {"path": "MARKER"},
    "оs.mkdir": {"path": "MARKER"},  # a Cyrillic o
    "": {},
}
"""Arguments of hostile targets, which stand in the place of the routing."""


def node(target: Any, **arguments: Any) -> dict[str, Any]:
    return {"_target_": target, **NODES.get(target, {}), **arguments}


Change = Callable[[dict[str, Any]], object]


def at(place: str, **changes: Any) -> Change:
    """Return a function that updates the node at a place of a record, such as ``config.model``."""

    def change(record: dict[str, Any]) -> None:
        node = record
        for key in place.split("."):
            node = node[key]
        node.update(changes)

    return change


def without(key: str) -> Change:
    return lambda record: record.pop(key)


def counts(values: list[Any]) -> Change:
    return lambda record: record.update(class_counts=values)


EVIL = node("os.mkdir", path="MARKER")
PARTIAL = {**EVIL, "_partial_": True}
FROM_ENVIRONMENT = {**EVIL, "_target_": "${oc.env:EVIL}"}


def evil_by_interpolation(record: dict[str, Any]) -> None:
    record["config"]["evil"] = EVIL
    record["config"]["model"]["routing"] = "${evil}"


PLACES: dict[str, Change] = {
    "in a list": at("config.model", decoder=[8, EVIL]),
    "as a positional argument": at("config.model", _args_=[EVIL]),
    "as a partial": at("config.model", routing=PARTIAL),
    "below a node that is not recursive": at("config.model", _recursive_=False, routing=EVIL),
    "as the data": at("config", data=EVIL),
    "in the optimizer": at("config.module.optimizer", betas=EVIL),
    "in a group of its own": at("config", class_routing=EVIL),
    "under a number": at("config.model", routing={1: EVIL}),
    "as a number": at("config.model", routing={"_target_": 5}),
    "as a node": at("config.model", routing={"_target_": EVIL}),
    "by interpolation": at("config.model", routing=FROM_ENVIRONMENT),
    "by interpolation of a node": evil_by_interpolation,
}


def shared(levels: int) -> list[Any]:
    """A nested list of ``2 ** levels`` values that takes little memory."""
    value: list[Any] = ["x"]
    for _ in range(levels):
        value = [value, value]
    return value


def disguised(content: dict[str, Any], *methods: str) -> OrderedDict[str, Any]:
    """A mapping whose ``methods`` return an empty one; torch's restricted unpickler can create it."""
    made = OrderedDict({**content, "routing": EVIL})
    vars(made).update(dict.fromkeys(methods, OrderedDict))
    return made


def hide_an_item(record: dict[str, Any]) -> None:
    record["config"]["model"] = disguised(record["config"]["model"], "items")


BILLION = 10**9
ENDLESS = {"_target_": "capsule_lab.networks.InvertedAttentionCaps", "blocks": [1, BILLION]}
COPIES = {"_target_": "torch.nn.Transformer", "num_encoder_layers": BILLION}
LARGE_BUFFER = {
    "_target_": "torch.nn.BatchNorm1d",
    "num_features": 10**10,
    "affine": False,
    "device": "cpu",
}
HIDDEN_TWICE = disguised({"iterations": disguised(EVIL, "values")}, "__iter__")
RECORDS: dict[str, Change] = {
    "environment in the configuration": at("config", seed="${oc.env:HOME}"),
    "environment in a key": at("config", **{"${oc.env:HOME}": 1}),
    "billions of values": at("config", model=shared(40)),
    "a tensor": at("config", seed=torch.zeros(3)),
    "no configuration": without("config"),
    "a number for a group": at("config", model=3),
    "no spec": without("spec"),
    "other sizes": at("spec", image_shape=[3, 32, 32]),
    "another kind of class": at("config.model", _target_="torch.optim.Adam"),
    "no provenance": without("provenance"),
    "a hidden item": hide_an_item,
    "a call": at("config.model", routing=node("torch.utils.collect_env.run")),
    "an import": at("config.model", routing=node("imported_marker.Class")),
    "many layers": at("config.model", decoder=[8] * 5000),
    "endless layers": at("config", model=ENDLESS),
    "copies of a layer": at("config.model", routing=COPIES),
    "a buffer that takes memory": at("config.model", routing=LARGE_BUFFER),
    "classes": at("spec", num_classes=BILLION),
    "counts of other classes": counts([1, 2]),
    "counts that are texts": counts(["1"] * 10),
    "hidden in what is hidden": at("config.model", routing=HIDDEN_TWICE),
}


class Calls:
    """An object whose unpickling calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def zipped(content: bytes) -> bytes:
    """A file of ``torch.save`` with another pickle in it."""
    written, changed = io.BytesIO(), io.BytesIO()
    torch.save({"a": 1}, written)
    with zipfile.ZipFile(written) as old, zipfile.ZipFile(changed, "w") as new:
        for member in old.namelist():
            new.writestr(member, content if member.endswith("data.pkl") else old.read(member))
    return changed.getvalue()


def pickles() -> Iterator[tuple[str, bytes]]:
    """Hostile files in the place of a checkpoint, which run code when they are unpickled."""
    call = {"capsule_lab": Calls(os.mkdir, "MARKER")}
    yield "pickle", pickle.dumps(call)
    yield "pickle in torch's zip", zipped(pickle.dumps(call))
    yield "import", zipped(b"cimported_marker\nClass\n.")
    old = io.BytesIO()
    torch.save(call, old, _use_new_zipfile_serialization=False)
    yield "torch's format before zips", old.getvalue()


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that hostile code would write into the current directory."""
    monkeypatch.setenv("EVIL", "os.mkdir")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "imported_marker.py").write_text("open('MARKER', 'w').close()\nclass Class: pass\n")
    (tmp_path / "PICKLE").write_bytes(pickle.dumps(Calls(os.mkdir, "MARKER")))
    return tmp_path / "MARKER"


@pytest.fixture
def checkpoint(trained: Trained) -> dict[str, Any]:
    """The content of a checkpoint, for changes."""
    path = trained.directory / "checkpoints" / "best.ckpt"
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


FILE = Path("hostile.ckpt")


def refused(checkpoint: dict[str, Any] | None, name: str) -> str:
    """The error message for a hostile checkpoint; for the file that is there if ``checkpoint`` is ``None``."""
    if checkpoint is not None:
        torch.save(checkpoint, FILE)
    start_time = time.process_time()
    with pytest.raises(RunError) as caught:
        runs.open(FILE)
    message = str(caught.value)
    # a tenth of a second on a machine that does nothing else
    assert time.process_time() - start_time < 3, name
    assert not Path("MARKER").exists(), f"{name} ran: {message}"
    assert "imported_marker" not in sys.modules, f"{name} was imported"
    assert message.startswith("hostile.ckpt "), f"{name}: {message}"
    assert "\n" not in message, f"{name}: {message}"
    assert len(message) < 1000, name
    return message


def with_record(checkpoint: dict[str, Any], change: Change) -> dict[str, Any]:
    changed = {**checkpoint, "capsule_lab": copy.deepcopy(checkpoint["capsule_lab"])}
    change(changed["capsule_lab"])
    return changed


def test_hostile_node_runs_without_the_check(marker: Path) -> None:
    """Otherwise the other tests could not fail."""
    with suppress(Exception):
        build.build_data(OmegaConf.create({"data": node("torch.utils.collect_env.run")}))
    assert marker.exists()


def test_hostile_target_is_refused_anywhere_in_a_record(
    checkpoint: dict[str, Any], marker: Path
) -> None:
    def check(record: dict[str, Any]) -> None:
        check_record(record, FILE)
        check_targets(record["config"], [], FILE)

    of_targets = {target: at("config.model", routing=node(target)) for target in NODES}
    for name, change in (of_targets | PLACES).items():
        hostile = with_record(checkpoint, change)["capsule_lab"]
        with pytest.raises(RunError) as caught:
            check(hostile)
        assert "\n" not in str(caught.value), name
        assert not marker.exists(), name
        assert "imported_marker" not in sys.modules, name


@pytest.mark.usefixtures("unchecked_types", "marker")
def test_hostile_record_is_refused_on_opening(trained: Trained, checkpoint: dict[str, Any]) -> None:
    """Before targets are imported, and before a huge network takes memory or time."""
    config = OmegaConf.merge(trained.config, {"ckpt": str(FILE)})
    provenance = trained.result["provenance"]
    for name, change in RECORDS.items():
        refused(with_record(checkpoint, change), name)
        with suppress(RunError):  # whether or not it is refused, nothing of it is built
            runs.checkpoints.checkpoint_to_resume(config, Path("new"), provenance)
        assert not Path("MARKER").exists(), name


@pytest.mark.usefixtures("marker")
def test_pickle_in_the_place_of_a_checkpoint_is_not_run() -> None:
    for name, content in pickles():
        FILE.write_bytes(content)
        assert "cannot be read as a checkpoint" in refused(None, name)


@pytest.mark.usefixtures("marker")
def test_checkpoint_in_disguise_is_refused(checkpoint: dict[str, Any]) -> None:
    record = disguised(checkpoint["capsule_lab"], "get")
    for changed in (
        disguised(checkpoint, "keys"),
        {**checkpoint, "capsule_lab": record},
    ):
        message = refused(changed, "in disguise")
        assert "was not written by capsule_lab" in message


@pytest.mark.usefixtures("marker")
def test_weights_that_do_not_fit_are_refused_in_one_sentence(checkpoint: dict[str, Any]) -> None:
    state = checkpoint["state_dict"]
    first = "network.conv.weight"
    weight = state[first]
    two_numbers = torch.zeros(2)
    one_number = torch.zeros(1).expand(10**6, 10**6)
    for changed, sentence in (
        ({}, r"has nothing for conv\.weight, but the network .* has float32 of shape \(4,"),
        ({**state, "network.more": two_numbers}, r"float32 of shape \(2,\) for more, .* not"),
        ({**state, first: two_numbers}, r"float32 of shape \(2,\) for conv\.weight"),
        ({**state, first: weight.half()}, r"has float16 of shape \(4, 1, 9, 9\) for"),
        (None, "has weights of type NoneType; expected a dict"),
        ({**state, first: one_number}, "smaller than its wei"),
    ):
        message = refused({**checkpoint, "state_dict": changed}, sentence)
        assert re.search(rf"{sentence}.*: use another checkpoint", message)
    for no_numbers in (3, weight.to("meta")):
        changed = {**checkpoint, "state_dict": {**state, first: no_numbers}}
        refused(changed, "for 'network.conv.weight' among its weights; expected tensors by name")


def test_unchecked_groups_of_a_record_give_only_plain_values(
    checkpoint: dict[str, Any], marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``evaluate`` and ``figures`` copy these values into their own configuration."""

    def change(record: dict[str, Any]) -> None:
        record["config"]["trainer"]["precision"] = EVIL
        record["config"]["logger"] = {
            "tensorboard": {"name": "../outside"},
            "wandb": {"name": EVIL, "group": EVIL},
        }

    torch.save(with_record(checkpoint, change), FILE)
    run = runs.open(FILE)
    on_cpu = compose("evaluate", ["trainer.accelerator=cpu"]).trainer
    result = evaluate.evaluate(run, "val", trainer=on_cpu)
    assert result["precision"] == "32-true"
    given: list[Any] = []

    def build_loggers(config: Any, _: Path) -> list[Any]:
        given.append(config)
        return []

    monkeypatch.setattr(build, "build_loggers", build_loggers)
    for name in ("tensorboard", "wandb"):
        config = compose("figures", [f"logger={name}"])
        figures.open_loggers(config.logger, run)
    of_tensorboard, of_wandb = given
    assert of_tensorboard.tensorboard.name == ""
    assert of_wandb.wandb.name is None
    assert of_wandb.wandb.group is None
    assert not marker.exists()


def test_trust_covers_only_names_that_a_package_defines() -> None:
    config = {"model": node(f"{__name__}.Calls"), "loss": [node(f"{__name__}.shared")]}
    check_targets(config, ["tests.runs"], FILE)
    check_targets(config, __name__, FILE)
    for name in ("pickle.load", "compose", "NODES"):
        target = f"{__name__}.{name}"
        with pytest.raises(RunError, match=rf"hostile\.ckpt .*{target}"):
            check_targets({"model": node(target)}, ["tests"], FILE)
    message = r"trust contains .*; expected names of your own packages, such as "
    for trust in ([5], [""], "mine,yours", ["os"], "torch.nn"):
        with pytest.raises(ConfigError, match=message):
            check_targets(config, trust, FILE)


@pytest.mark.parametrize(
    "target", ["torch.nn.modules.conv._ConvNd", "torch.nn.modules._functions.Net"]
)
def test_private_names_are_not_trusted(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may do anything when they are called: nobody has checked them, and they change without notice."""
    module, _, name = target.rpartition(".")
    monkeypatch.setattr(importlib.import_module(module), name, torch.nn.Linear, raising=False)
    assert is_part("torch.nn.modules.linear.Linear")
    assert not is_part(target)


@pytest.mark.parametrize(
    "target",
    [
        "capsule_lab.lit.metrics.MeanMetric",
        "capsule_lab.lit.pair_metrics.Metric",
    ],
)
def test_names_that_a_trusted_module_imports_are_not_trusted(target: str) -> None:
    """They are classes of a permitted kind, but of a package that nobody has checked."""
    module, _, name = target.rpartition(".")
    value = getattr(importlib.import_module(module), name)
    assert issubclass(value, torch.nn.Module)
    assert not value.__module__.startswith("capsule_lab")
    assert is_part("capsule_lab.lit.metrics.SplitMetrics")
    assert not is_part(target)


def test_every_target_in_conf_is_trusted() -> None:
    names = set()
    for group in ("model", "data", "module", "routing", "loss", "schedule", "optimizer"):
        for file in (conf_dir() / group).rglob("*.yaml"):
            content = OmegaConf.to_container(OmegaConf.load(file))
            config = content if group == "model" else {"model": content}
            names.update(targets(config))
    assert len(names) > 20
    names |= {"capsule_lab.CapsNet", "torch.optim.SGD", "torch.nn.functional.cross_entropy"}
    for target in sorted(names):
        assert is_part(target), target
