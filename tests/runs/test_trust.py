"""A checkpoint from elsewhere runs no code: whatever its configuration names is refused before it is imported."""

from __future__ import annotations

import copy
import io
import os
import pickle
import sys
import time
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from capsule_lab import evaluate, figures, runs
from capsule_lab.config import build
from capsule_lab.config.compose import compose, conf_dir, to_container
from capsule_lab.errors import ConfigError, RunError
from capsule_lab.runs.trust import check_record, check_targets, is_part, targets
from tests.helpers.commands import Trained

NODES: dict[str, dict[str, Any]] = {  # what writes the file MARKER, where only the names differ below
    "torch.utils.collect_env.run": {"command": "touch MARKER"},
    "os.system": {"command": "touch MARKER"},
    "os.mkdir": {"path": "MARKER"},
    "subprocess.run": {"args": ["touch", "MARKER"]},
    "builtins.eval": {"_args_": ["open('MARKER', 'w')"]},
    "builtins.open": {"_args_": ["MARKER", "w"]},
    "sympy.sympify": {"_args_": ["open('MARKER', 'w')"]},
    "torch.load": {"f": "PICKLE", "weights_only": False},
    "torch.save": {"_args_": [1, "MARKER"]},
    "numpy.load": {"file": "PICKLE", "allow_pickle": True},
    "pathlib.Path.write_text": {"self": {"_target_": "pathlib.Path", "_args_": ["MARKER"]}, "data": ""},
    "shutil.copy": {"src": "PICKLE", "dst": "MARKER"},
    "functools.partial": {"_args_": [{"_target_": "hydra.utils.get_method", "path": "os.mkdir"}, "MARKER"]},
    "hydra.utils.instantiate": {"config": {"_target_": "os.mkdir", "path": "MARKER"}, "_recursive_": False},
    "hydra.utils.get_object": {"path": "imported_marker.Class"},
    "importlib.import_module": {"name": "imported_marker"},
    "imported_marker.Class": {},
    "capsule_lab.system.environment.subprocess.run": {"args": ["touch", "MARKER"]},
    "capsule_lab.system.files.os.mkdir": {"path": "MARKER"},
    "capsule_lab.losses.torch.load": {"f": "PICKLE", "weights_only": False},
    "capsule_lab.runs.files.write_text": {"path": {"_target_": "pathlib.Path", "_args_": ["MARKER"]}, "text": ""},
    "capsule_lab.runs.open": {"path": "MARKER"},
    "capsule_lab.data.download.fetch": {"folder": "MARKER"},
    "capsule_lab.lit.CapsNetModule.load_from_checkpoint": {"checkpoint_path": "PICKLE"},
    "capsule_lab.losses.Callable": {},
    "capsule_lab.callbacks.MLflow": {"save_dir": "MARKER"},
    "capsule_lab.launchers.slurm.become": {"_args_": [["x"], {}]},
    "capsule_labs.Module": {},
    "capsule_lab": {},
    "lightning.Trainer": {"default_root_dir": "MARKER"},
    "lightning.pytorch.callbacks.LambdaCallback": {},
    "torch.nn.functional.importlib.import_module": {"name": "imported_marker"},
    "torch.nn.functional.boolean_dispatch": {},
    "torch.nn.init.normal_": {},
    "torch.nn.Module.__init__": {},
    "torch.optim.lr_scheduler.LambdaLR": {},
    "torch.optim.optimizer.functools.partial": {"_args_": [{"_target_": "os.mkdir"}, "MARKER"]},
    ".os.mkdir": {"path": "MARKER"},
    "os..mkdir": {"path": "MARKER"},
    "os.mkdir\n": {"path": "MARKER"},
    "оs.mkdir": {"path": "MARKER"},  # a Cyrillic o
    "": {},
}
"""Targets of a node in the place of the routing, with arguments for which a call would write MARKER."""


def node(target: Any, **arguments: Any) -> dict[str, Any]:
    return {"_target_": target, **NODES.get(target, {}), **arguments}


EVIL = node("os.mkdir", path="MARKER")
PLACES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "in a list": lambda config: config["model"].update(decoder=[8, EVIL]),
    "in a tuple": lambda config: config["model"].update(decoder=(8, EVIL)),
    "in lists of lists": lambda config: config["model"].update(decoder=[[[{"a": [EVIL]}]]]),
    "as a positional argument": lambda config: config["model"].update(_args_=[EVIL]),
    "as a partial": lambda config: config["model"].update(routing={**EVIL, "_partial_": True}),
    "as an argument of what is allowed": lambda config: config["model"]["routing"].update(iterations=EVIL),
    "below a node that is not recursive": lambda config: config["model"].update(_recursive_=False, routing=EVIL),
    "in the data": lambda config: config["data"].update(directory=EVIL),
    "as the data": lambda config: config.update(data=EVIL),
    "in the module": lambda config: config["module"].update(seed=EVIL),
    "in the optimizer": lambda config: config["module"]["optimizer"].update(betas=EVIL),
    "in the schedule": lambda config: config["module"]["schedule"].update(margin=EVIL),
    "in the loss": lambda config: config["module"]["loss"].update(present=EVIL),
    "in a group of its own": lambda config: config.update(class_routing=EVIL),
    "under a number": lambda config: config["model"].update(routing={1: EVIL}),
    "as a number": lambda config: config["model"].update(routing={"_target_": 5}),
    "as nothing": lambda config: config["model"].update(routing={"_target_": None}),
    "as a list": lambda config: config["model"].update(routing={"_target_": ["os", "mkdir"]}),
    "as a node": lambda config: config["model"].update(routing={"_target_": EVIL}),
    "by interpolation": lambda config: config["model"].update(routing={**EVIL, "_target_": "${oc.env:EVIL}"}),
    "by interpolation of a node": lambda config: config["model"].update(routing="${evil}") or config.update(evil=EVIL),
}


def shared(levels: int) -> list[Any]:
    """A list that stands for ``2 ** levels`` values."""
    value: list[Any] = ["x"]
    for _ in range(levels):
        value = [value, value]
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


RECORDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "environment in the configuration": lambda record: record["config"].update(seed="${oc.env:HOME}"),
    "environment in the provenance": lambda record: record["provenance"].update(name="${oc.env:HOME}"),
    "environment in a key": lambda record: record["config"].update({"${oc.env:HOME}": 1}),
    "billions of values": lambda record: record["config"].update(model=shared(40)),
    "endless": lambda record: record["config"].update(model=endless()),
    "a tensor": lambda record: record["config"].update(seed=torch.zeros(3)),
    "bytes": lambda record: record["config"].update(seed=b"0"),
    "no configuration": lambda record: record.pop("config"),
    "a number for a group": lambda record: record["config"].update(model=3),
    "no module": lambda record: record["config"].pop("module"),
    "no target": lambda record: record["config"]["model"].pop("_target_"),
    "no spec": lambda record: record.pop("spec"),
    "other sizes": lambda record: record["spec"].update(image_shape=[3, 32, 32]),
    "a negative size": lambda record: record["config"]["model"].update(channels=-4),
    "another class": lambda record: record["config"]["model"].update(_target_="capsule_lab.networks.SmallCNN"),
    "another kind of class": lambda record: record["config"]["model"].update(_target_="torch.optim.Adam"),
    "no provenance": lambda record: record.pop("provenance"),
    "a hidden item": lambda record: record["config"].update(model=disguised(record["config"]["model"], "items")),
    "hidden in what is hidden": lambda record: record["config"]["model"].update(
        routing=disguised({"iterations": disguised(EVIL, "values")}, "__iter__")
    ),
    "counted": lambda record: record["config"]["model"].update(routing=Counter({"_target_": 1})),
    "a set": lambda record: record["config"]["model"].update(decoder={1}),
}


def disguised(content: dict[str, Any], *methods: str) -> OrderedDict[str, Any]:
    """A mapping whose ``methods`` say that it is empty, as a pickle of torch's restricted kind can make it."""
    made = OrderedDict({**content, "routing": EVIL})
    vars(made).update(dict.fromkeys(methods, OrderedDict))
    return made


class Calls:
    """Pickles as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def zipped(content: bytes) -> bytes:
    """What ``torch.save`` writes, with another pickle in it."""
    written = io.BytesIO()
    torch.save({"a": 1}, written)
    changed = io.BytesIO()
    with zipfile.ZipFile(written) as old, zipfile.ZipFile(changed, "w") as new:
        for member in old.namelist():
            new.writestr(member, content if member.endswith("data.pkl") else old.read(member))
    return changed.getvalue()


def files() -> Iterator[tuple[str, bytes]]:
    """Files in the place of a checkpoint that run code when they are unpickled."""
    call = pickle.dumps({"capsule_lab": Calls(os.mkdir, "MARKER")})
    yield "pickle", call
    yield "pickle in torch's zip", zipped(call)
    yield "pickle of protocol 0 in torch's zip", zipped(b"cos\nmkdir\n(S'MARKER'\ntR.")
    yield "eval", zipped(b'cbuiltins\neval\n(S\'open("MARKER", "w")\'\ntR.')
    yield "import", zipped(b"cimported_marker\nClass\n.")
    old = io.BytesIO()
    torch.save({"capsule_lab": Calls(os.mkdir, "MARKER")}, old, _use_new_zipfile_serialization=False)
    yield "torch's format before zips", old.getvalue()
    array = io.BytesIO()
    np.save(array, np.array([Calls(os.mkdir, "MARKER")], dtype=object), allow_pickle=True)
    yield "array of objects", array.getvalue()


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Written by code of a file, which here writes into the current directory; PICKLE is what would write it, too."""
    monkeypatch.setenv("EVIL", "os.mkdir")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "imported_marker.py").write_text("open('MARKER', 'w').close()\nclass Class: pass\n")
    (tmp_path / "hubconf.py").write_text("open('MARKER', 'w').close()\n")
    (tmp_path / "PICKLE").write_bytes(pickle.dumps(Calls(os.mkdir, "MARKER")))
    return tmp_path / "MARKER"


@pytest.fixture
def record(trained: Trained) -> dict[str, Any]:
    """That of a checkpoint, to change."""
    checkpoint = torch.load(trained.directory / "checkpoints" / "best.ckpt", weights_only=True)
    copied: dict[str, Any] = copy.deepcopy(checkpoint["capsule_lab"])
    return copied


@pytest.fixture
def change(trained: Trained, tmp_path: Path) -> Callable[..., Path]:
    """Writes the checkpoint with a record that has been changed."""
    original = torch.load(trained.directory / "checkpoints" / "best.ckpt", weights_only=True)

    def write(changed: Callable[[dict[str, Any]], Any], path: Path = Path("hostile.ckpt")) -> Path:
        checkpoint = {**original, "capsule_lab": copy.deepcopy(original["capsule_lab"])}
        changed(checkpoint["capsule_lab"])
        torch.save(checkpoint, path)
        return path

    return write


def refused(path: Path, marker: Path, name: str) -> str:
    """The sentence that ends the opening of a hostile checkpoint."""
    with pytest.raises(RunError) as caught:
        runs.open(path)
    message = str(caught.value)
    assert not marker.exists(), f"{name} ran: {message}"
    assert "imported_marker" not in sys.modules, f"{name} was imported"
    assert "\n" not in message, f"{name}: {message}"
    assert len(message) < 1000, name
    return message


def test_such_a_node_runs_where_nothing_checks_it(marker: Path) -> None:
    """Otherwise the tests of refusals could not fail."""
    with suppress(Exception):
        build.build_data(OmegaConf.create({"data": node("torch.utils.collect_env.run")}))
    assert marker.exists()


def test_targets_that_are_no_parts_of_a_configuration_are_refused(record: dict[str, Any], marker: Path) -> None:
    file = Path("hostile.ckpt")
    for target in NODES:
        record["config"]["model"]["routing"] = node(target)
        with pytest.raises(RunError, match=r"(names|_target_|cannot be imported)") as caught:
            check_targets(record["config"], [], file)
        assert not marker.exists(), target
        assert "imported_marker" not in sys.modules, target
        assert "\n" not in str(caught.value), target


def test_targets_are_found_wherever_they_stand(record: dict[str, Any], marker: Path) -> None:
    for place, put in PLACES.items():
        changed = copy.deepcopy(record)
        put(changed["config"])

        def check(hostile: dict[str, Any] = changed) -> None:
            check_record(hostile, Path("hostile.ckpt"))
            check_targets(hostile["config"], [], Path("hostile.ckpt"))

        with pytest.raises(RunError) as caught:
            check()
        assert "\n" not in str(caught.value), place
        assert not marker.exists(), place


def test_checkpoint_with_a_hostile_configuration_is_refused(change: Callable[..., Path], marker: Path) -> None:
    for target in ("torch.utils.collect_env.run", "imported_marker.Class", "capsule_lab.system.files.os.mkdir"):
        path = change(lambda record, target=target: record["config"]["model"].update(routing=node(target)))
        assert f"names {target}; expected" in refused(path, marker, target)


@pytest.mark.usefixtures("unchecked_types")
def test_checkpoint_with_a_hostile_record_is_refused(
    trained: Trained, change: Callable[..., Path], marker: Path
) -> None:
    config = OmegaConf.merge(trained.config, {"ckpt": "hostile.ckpt"})
    for name, changed in RECORDS.items():
        path = change(changed)
        message = refused(path, marker, name)
        assert message.startswith("hostile.ckpt "), f"{name}: {message}"
        with suppress(RunError):  # nothing of it is built; what is wrong with the network is told in any case
            runs.checkpoints.checkpoint_to_resume(config, Path("new"), trained.result["provenance"])
        assert not marker.exists(), name


def test_pickles_in_the_place_of_a_checkpoint_are_not_run(marker: Path) -> None:
    for name, content in files():
        path = Path("hostile.ckpt")
        path.write_bytes(content)
        assert "cannot be read as a checkpoint" in refused(path, marker, name)


FIRST = "network.conv.weight"
WEIGHTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "none": (lambda _: {}, r"has nothing for conv\.weight, and the network of its record has float32 of shape \(4,"),
    "another": (
        lambda found: {**found, "network.more": torch.zeros(2)},
        r"float32 of shape \(2,\) for more, .* not",
    ),
    "another shape": (lambda found: {**found, FIRST: torch.zeros(2)}, r"float32 of shape \(2,\) for conv\.weight"),
    "a number for a name": (lambda _: {1: torch.zeros(2)}, "cannot be rebuilt"),
    "no mapping": (lambda _: None, "has NoneType for its weights; expected a mapping"),
    "no tensor": (lambda found: {**found, FIRST: 3}, "cannot be rebuilt"),
    "one number for all": (lambda found: {**found, FIRST: torch.zeros(1).expand(10**6, 10**6)}, "smaller than the wei"),
    "without memory": (lambda found: {**found, FIRST: found[FIRST].to("meta")}, "cannot be rebuilt"),
    **{
        str(dtype).removeprefix("torch."): (
            lambda found, dtype=dtype: {**found, FIRST: found[FIRST].to(dtype)},
            rf"has {str(dtype).removeprefix('torch.')} of shape \(4, 1, 9, 9\) for conv\.weight, .* float32 of shape",
        )
        for dtype in (torch.complex64, torch.float16, torch.bool)
    },
}


def test_weights_of_another_network_are_one_sentence(trained: Trained) -> None:
    checkpoint = torch.load(trained.directory / "checkpoints" / "best.ckpt", weights_only=True)
    for name, (changed, sentence) in WEIGHTS.items():
        torch.save({**checkpoint, "state_dict": changed(checkpoint["state_dict"])}, "hostile.ckpt")
        with pytest.raises(RunError, match=rf"hostile\.ckpt .*{sentence}.*: use another checkpoint") as caught:
            runs.open("hostile.ckpt")
        assert "\n" not in str(caught.value), name


BILLION = 10**9
LARGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "channels": lambda record: record["config"]["model"].update(channels=10**6),
    "wide layers": lambda record: record["config"]["model"].update(decoder=[BILLION] * 9),
    "many layers": lambda record: record["config"]["model"].update(decoder=[8] * 5000),
    "endless layers": lambda record: record["config"].update(
        model={"_target_": "capsule_lab.networks.InvertedAttentionCaps", "blocks": [1, BILLION]}
    ),
    "copies of a layer": lambda record: record["config"]["model"].update(
        routing={"_target_": "torch.nn.Transformer", "num_encoder_layers": BILLION}
    ),
    "a part that takes memory": lambda record: record["config"]["model"].update(
        routing={"_target_": "torch.nn.Linear", "in_features": 10**5, "out_features": 10**5, "device": "cpu"}
    ),
    "a buffer that takes memory": lambda record: record["config"]["model"].update(
        routing={"_target_": "torch.nn.BatchNorm1d", "num_features": 10**10, "affine": False, "device": "cpu"}
    ),
    "pixels": lambda record: record["spec"].update(image_shape=[1, 10**6, 10**6]),
    "classes": lambda record: record["spec"].update(num_classes=BILLION),
}


@pytest.mark.usefixtures("unchecked_types")
def test_record_of_a_large_network_takes_neither_memory_nor_time(change: Callable[..., Path]) -> None:
    for name, changed in LARGE.items():
        path = change(changed)
        start_time = time.process_time()
        with pytest.raises(RunError, match=r"^hostile\.ckpt ") as caught:
            runs.open(path)
        assert time.process_time() - start_time < 3, name  # a tenth of a second on a machine that does nothing else
        assert "\n" not in str(caught.value), name
        assert len(str(caught.value)) < 600, name


def test_whole_checkpoint_in_disguise_is_none_of_ours(trained: Trained) -> None:
    checkpoint = torch.load(trained.directory / "checkpoints" / "best.ckpt", weights_only=True)
    record = checkpoint["capsule_lab"]
    for changed in (disguised(checkpoint, "keys"), {**checkpoint, "capsule_lab": disguised(record, "get")}):
        torch.save(changed, "hostile.ckpt")
        with pytest.raises(RunError, match=r"hostile\.ckpt was not written by capsule_lab"):
            runs.open("hostile.ckpt")


def test_groups_that_are_not_checked_give_plain_values_only(
    change: Callable[..., Path], marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What evaluate and figures take from the configuration of training into theirs."""

    def changed(record: dict[str, Any]) -> None:
        record["config"]["trainer"]["precision"] = EVIL
        record["config"]["logger"] = {"tensorboard": {"name": "../outside"}, "wandb": {"name": EVIL, "group": EVIL}}

    run = runs.open(change(changed))
    result = evaluate.evaluate(run, "val", trainer=compose("evaluate", ["trainer.accelerator=cpu"]).trainer)
    assert result["precision"] == "32-true"
    given: list[Any] = []
    monkeypatch.setattr(build, "build_trainer", lambda config, _: given.append(config) or SimpleNamespace(loggers=[]))
    for name in ("tensorboard", "wandb"):
        figures.open_loggers(compose("figures", [f"logger={name}"]).logger, run)
    tensorboard, wandb = given[0].logger.tensorboard, given[1].logger.wandb
    assert (tensorboard.name, wandb.name, wandb.group) == ("", None, None)
    assert not marker.exists()


def test_own_package_is_trusted_with_what_it_defines_itself(marker: Path) -> None:
    config = {"model": node(f"{__name__}.Calls"), "loss": [node(f"{__name__}.shared")]}
    check_targets(config, ["tests.runs"], Path("own.ckpt"))
    check_targets(config, __name__, Path("own.ckpt"))
    for target in (f"{__name__}.np.load", f"{__name__}.compose", f"{__name__}.io.open", f"{__name__}.NODES"):
        with pytest.raises(RunError, match=rf"own\.ckpt .*{target}"):
            check_targets({"model": node(target)}, ["tests"], Path("own.ckpt"))
    for trust in (5, [5], [""], ["a b"], "mine,yours", [None], ["os"], "torch.nn"):
        with pytest.raises(ConfigError, match=r"trust has .*; expected names of packages of your own, such as trust="):
            check_targets(config, trust, Path("own.ckpt"))


def test_every_option_of_the_configuration_is_trusted(record: dict[str, Any]) -> None:
    found = set()
    for file in conf_dir().rglob("*.yaml"):
        content = OmegaConf.to_container(OmegaConf.load(file))
        group = file.relative_to(conf_dir()).parts[0]
        if group in ("data", "module", "routing", "loss", "schedule", "optimizer"):
            found |= {*targets({"model": content})}
        elif group == "model":
            found |= {*targets(content)}
    assert len(found) > 20
    assert [target for target in sorted(found) if not is_part(target)] == []
    assert all(map(is_part, ("capsule_lab.CapsNet", "torch.optim.SGD", "torch.nn.functional.cross_entropy")))
    check_record(record, Path("best.ckpt"))
    check_record(
        {**record, "config": to_container(compose("train", ["experiment=sabour2017/mnist"]))}, Path("best.ckpt")
    )
