"""A hostile checkpoint runs no code: targets in its configuration are refused before they are imported."""

import copy
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
from types import SimpleNamespace
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


EVIL = node("os.mkdir", path="MARKER")
PLACES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "in a list": lambda config: config["model"].update(decoder=[8, EVIL]),
    "as a positional argument": lambda config: config["model"].update(_args_=[EVIL]),
    "as a partial": lambda config: config["model"].update(routing={**EVIL, "_partial_": True}),
    "below a node that is not recursive": lambda config: config["model"].update(
        _recursive_=False, routing=EVIL
    ),
    "as the data": lambda config: config.update(data=EVIL),
    "in the optimizer": lambda config: config["module"]["optimizer"].update(betas=EVIL),
    "in a group of its own": lambda config: config.update(class_routing=EVIL),
    "under a number": lambda config: config["model"].update(routing={1: EVIL}),
    "as a number": lambda config: config["model"].update(routing={"_target_": 5}),
    "as a node": lambda config: config["model"].update(routing={"_target_": EVIL}),
    "by interpolation": lambda config: config["model"].update(
        routing={**EVIL, "_target_": "${oc.env:EVIL}"}
    ),
    "by interpolation of a node": lambda config: (
        config["model"].update(routing="${evil}") or config.update(evil=EVIL)
    ),
}


def shared(levels: int) -> list[Any]:
    """A nested list of ``2 ** levels`` values that takes little memory."""
    value: list[Any] = ["x"]
    for _ in range(levels):
        value = [value, value]
    return value


BILLION = 10**9
RECORDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "environment in the configuration": lambda record: record["config"].update(
        seed="${oc.env:HOME}"
    ),
    "environment in a key": lambda record: record["config"].update({"${oc.env:HOME}": 1}),
    "billions of values": lambda record: record["config"].update(model=shared(40)),
    "a tensor": lambda record: record["config"].update(seed=torch.zeros(3)),
    "no configuration": lambda record: record.pop("config"),
    "a number for a group": lambda record: record["config"].update(model=3),
    "no spec": lambda record: record.pop("spec"),
    "other sizes": lambda record: record["spec"].update(image_shape=[3, 32, 32]),
    "another kind of class": lambda record: record["config"]["model"].update(
        _target_="torch.optim.Adam"
    ),
    "no provenance": lambda record: record.pop("provenance"),
    "a hidden item": lambda record: record["config"].update(
        model=disguised(record["config"]["model"], "items")
    ),
    "a call": lambda record: record["config"]["model"].update(
        routing=node("torch.utils.collect_env.run")
    ),
    "an import": lambda record: record["config"]["model"].update(
        routing=node("imported_marker.Class")
    ),
    "many layers": lambda record: record["config"]["model"].update(decoder=[8] * 5000),
    "endless layers": lambda record: record["config"].update(
        model={"_target_": "capsule_lab.networks.InvertedAttentionCaps", "blocks": [1, BILLION]}
    ),
    "copies of a layer": lambda record: record["config"]["model"].update(
        routing={"_target_": "torch.nn.Transformer", "num_encoder_layers": BILLION}
    ),
    "a buffer that takes memory": lambda record: record["config"]["model"].update(
        routing={
            "_target_": "torch.nn.BatchNorm1d",
            "num_features": 10**10,
            "affine": False,
            "device": "cpu",
        }
    ),
    "classes": lambda record: record["spec"].update(num_classes=BILLION),
    "hidden in what is hidden": lambda record: record["config"]["model"].update(
        routing=disguised({"iterations": disguised(EVIL, "values")}, "__iter__")
    ),
}


def disguised(content: dict[str, Any], *methods: str) -> OrderedDict[str, Any]:
    """A mapping whose ``methods`` return an empty one; torch's restricted unpickler can create it."""
    made = OrderedDict({**content, "routing": EVIL})
    vars(made).update(dict.fromkeys(methods, OrderedDict))
    return made


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
    content: dict[str, Any] = torch.load(
        trained.directory / "checkpoints" / "best.ckpt", weights_only=True
    )
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
    assert time.process_time() - start_time < 3, (
        name
    )  # a tenth of a second on a machine that does nothing else
    assert not Path("MARKER").exists(), f"{name} ran: {message}"
    assert "imported_marker" not in sys.modules, f"{name} was imported"
    assert message.startswith("hostile.ckpt "), f"{name}: {message}"
    assert "\n" not in message, f"{name}: {message}"
    assert len(message) < 1000, name
    return message


def with_record(
    checkpoint: dict[str, Any], change: Callable[[dict[str, Any]], Any]
) -> dict[str, Any]:
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
    of_targets = {
        target: lambda config, t=target: config["model"].update(routing=node(t)) for target in NODES
    }
    for name, put in (of_targets | PLACES).items():
        changed = with_record(checkpoint, lambda record, put=put: put(record["config"]))[
            "capsule_lab"
        ]

        def check(hostile: dict[str, Any] = changed) -> None:
            check_record(hostile, FILE)
            check_targets(hostile["config"], [], FILE)

        with pytest.raises(RunError) as caught:
            check()
        assert "\n" not in str(caught.value), name
        assert not marker.exists(), name
        assert "imported_marker" not in sys.modules, name


@pytest.mark.usefixtures("unchecked_types", "marker")
def test_hostile_record_is_refused_on_opening(trained: Trained, checkpoint: dict[str, Any]) -> None:
    """Before targets are imported, and before a huge network takes memory or time."""
    config = OmegaConf.merge(trained.config, {"ckpt": str(FILE)})
    for name, change in RECORDS.items():
        refused(with_record(checkpoint, change), name)
        with suppress(RunError):  # whether or not it is refused, nothing of it is built
            runs.checkpoints.checkpoint_to_resume(config, Path("new"), trained.result["provenance"])
        assert not Path("MARKER").exists(), name
    record = checkpoint["capsule_lab"]
    for changed in (
        disguised(checkpoint, "keys"),
        {**checkpoint, "capsule_lab": disguised(record, "get")},
    ):
        assert "was not written by capsule_lab" in refused(changed, "in disguise")


@pytest.mark.usefixtures("marker")
def test_pickle_in_the_place_of_a_checkpoint_is_not_run() -> None:
    for name, content in pickles():
        FILE.write_bytes(content)
        assert "cannot be read as a checkpoint" in refused(None, name)


FIRST = "network.conv.weight"
WEIGHTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "none": (
        lambda _: {},
        r"has nothing for conv\.weight, but the network in its record has float32 of shape \(4,",
    ),
    "another": (
        lambda given: {**given, "network.more": torch.zeros(2)},
        r"float32 of shape \(2,\) for more, .* not",
    ),
    "another shape": (
        lambda given: {**given, FIRST: torch.zeros(2)},
        r"float32 of shape \(2,\) for conv\.weight",
    ),
    "another type": (
        lambda given: {**given, FIRST: given[FIRST].half()},
        r"has float16 of shape \(4, 1, 9, 9\) for",
    ),
    "no mapping": (lambda _: None, "has weights of type NoneType; expected a dict"),
    "no tensor": (lambda given: {**given, FIRST: 3}, "cannot be rebuilt"),
    "one number for all": (
        lambda given: {**given, FIRST: torch.zeros(1).expand(10**6, 10**6)},
        "smaller than its wei",
    ),
    "without memory": (
        lambda given: {**given, FIRST: given[FIRST].to("meta")},
        "cannot be rebuilt",
    ),
}


@pytest.mark.usefixtures("marker")
def test_weights_that_do_not_fit_are_refused_in_one_sentence(checkpoint: dict[str, Any]) -> None:
    for name, (change, sentence) in WEIGHTS.items():
        message = refused({**checkpoint, "state_dict": change(checkpoint["state_dict"])}, name)
        assert re.search(rf"{sentence}.*: use another checkpoint", message), name


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
    result = evaluate.evaluate(
        run, "val", trainer=compose("evaluate", ["trainer.accelerator=cpu"]).trainer
    )
    assert result["precision"] == "32-true"
    given: list[Any] = []
    monkeypatch.setattr(
        build,
        "build_trainer",
        lambda config, _: given.append(config) or SimpleNamespace(loggers=[]),
    )
    for name in ("tensorboard", "wandb"):
        figures.open_loggers(compose("figures", [f"logger={name}"]).logger, run)
    tensorboard, wandb = given[0].logger.tensorboard, given[1].logger.wandb
    assert (tensorboard.name, wandb.name, wandb.group) == ("", None, None)
    assert not marker.exists()


def test_trust_covers_only_names_that_a_package_defines() -> None:
    config = {"model": node(f"{__name__}.Calls"), "loss": [node(f"{__name__}.shared")]}
    check_targets(config, ["tests.runs"], FILE)
    check_targets(config, __name__, FILE)
    for target in (f"{__name__}.pickle.load", f"{__name__}.compose", f"{__name__}.NODES"):
        with pytest.raises(RunError, match=rf"hostile\.ckpt .*{target}"):
            check_targets({"model": node(target)}, ["tests"], FILE)
    for trust in ([5], [""], "mine,yours", ["os"], "torch.nn"):
        with pytest.raises(
            ConfigError, match=r"trust contains .*; expected names of your own packages, such as "
        ):
            check_targets(config, trust, FILE)


def test_every_target_in_conf_is_trusted() -> None:
    names = set()
    for group in ("model", "data", "module", "routing", "loss", "schedule", "optimizer"):
        for file in (conf_dir() / group).rglob("*.yaml"):
            content = OmegaConf.to_container(OmegaConf.load(file))
            names |= {*targets(content if group == "model" else {"model": content})}
    assert len(names) > 20
    assert [target for target in sorted(names) if not is_part(target)] == []
    assert all(
        map(
            is_part, ("capsule_lab.CapsNet", "torch.optim.SGD", "torch.nn.functional.cross_entropy")
        )
    )
