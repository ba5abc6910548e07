"""A run that starts from weights: what fits is loaded to the bit, the rest is new and listed."""

import copy
import hashlib
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torchvision.models import get_model

from capsule_lab import runs
from capsule_lab.commands.train import train
from capsule_lab.commands.training import Training
from capsule_lab.config.identity import config_hash
from capsule_lab.deploy import hub
from capsule_lab.deploy.export import export, record_of
from capsule_lab.errors import ConfigError, InterruptError, RunError
from capsule_lab.networks import EMCaps
from capsule_lab.runs.summary import summary
from tests.helpers.commands import CHOSEN, NO_PICTURES, TINY_CNN, Tiny, Trained
from tests.helpers.interruptions import differences
from tests.helpers.make_pictures import make_pictures
from tests.helpers.training import SignalAt, checkpoint, run

PICTURES = [
    "data=folder",
    "data.path=pictures",
    "data.size=28",
    "data.train_images=null",
    "data.source=auto",
    "data.bad=skip",
    "trainer.max_epochs=1",
    *NO_PICTURES,
]


def started(config: Any) -> Training:
    return Training(config, Path("new"), [], 0.0)


def state(training: Training) -> dict[str, Tensor]:
    return training.module.network.state_dict()


def best_of(trained: Trained) -> Path:
    return trained.directory / "checkpoints" / "best.ckpt"


def stored(path: Path) -> dict[str, Tensor]:
    """The weights in a checkpoint by their names in the network."""
    found = torch.load(path, weights_only=True)["state_dict"]
    return {name.removeprefix("network."): weight for name, weight in found.items()}


def equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """The names of the tensors that are equal to the bit."""
    both = [name for name in found if name in expected]
    return [name for name in both if found[name].equal(expected[name])]


def source_of(kind: str, trained: Trained) -> Path:
    """The weights of the run as this kind of source."""
    best = best_of(trained)
    if kind == "run":
        return trained.directory
    if kind == "checkpoint":
        return best
    if kind == "safetensors":
        path = Path("weights.safetensors")
        export(runs.open(trained.directory), "safetensors", path)
        return path
    if kind == "plain safetensors":
        path = Path("plain.safetensors")
        save_file({name: weight.contiguous() for name, weight in stored(best).items()}, path)
        return path
    path = Path("weights.pth")
    torch.save(stored(best), path)
    return path


KINDS = ["run", "checkpoint", "safetensors", "plain safetensors", "state dict"]


def counts_of(record: Mapping[str, Any]) -> tuple[int, int, int]:
    return record["loaded"], record["new"], record["unused"]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_every_kind_of_file_are_loaded_to_the_bit(
    trained: Trained, tiny: Tiny, kind: str
) -> None:
    best = best_of(trained)
    expected = stored(best)
    source = source_of(kind, trained)
    training = started(tiny(f"train.start_from={source}", "seed=7"))
    assert equal(state(training), expected) == list(expected)
    assert training.initial is not None
    record = training.initial.record
    file = best if kind == "run" else source
    digest = hashlib.sha256(file.read_bytes())
    assert record["file"] == file.name
    assert record["sha256"] == digest.hexdigest()
    assert counts_of(record) == (len(expected), 0, 0)
    if kind in ("plain safetensors", "state dict"):
        assert record["data"] is None
        assert record["step"] is None
        return
    provenance = trained.result["provenance"]
    assert record["data"] == {key: provenance[key] for key in ("source", "name")}
    assert record["step"] == torch.load(best, weights_only=True)["global_step"]


def test_ready_weights_are_loaded_by_name_also_without_pickles(tiny: Tiny) -> None:
    network = runs.open("capsnet_mnist").network
    expected = copy.deepcopy(network.state_dict())
    for parameter in network.parameters():
        torch.nn.init.zeros_(parameter)
    config = tiny("train.start_from=capsnet_mnist", "trust=safetensors")
    initial = runs.initial_weights.load(config, network)
    (line,) = initial.lines
    assert line == (
        "starting from capsnet_mnist, trained on real MNIST: "
        "12 of the network's 12 tensors are loaded"
    )
    assert equal(network.state_dict(), expected) == list(expected)
    assert initial.record["name"] == "capsnet_mnist"


def test_heads_of_other_classes_are_new_and_listed_in_log_record_and_summary(
    trained: Trained, tiny: Tiny, caplog: pytest.LogCaptureFixture
) -> None:
    """Pictures of three classes in colour: the first convolution and the decoder differ, too."""
    make_pictures(Path("pictures"), per_class=8, largest=60)
    random = state(started(tiny(*PICTURES)))
    training = started(tiny(*PICTURES, f"train.start_from={trained.directory}"))
    before = stored(best_of(trained))
    found = copy.deepcopy(state(training))
    new = [name for name in found if found[name].shape != before[name].shape]
    loaded = [name for name in found if name not in new]
    assert {"conv.weight", "digits.weight"} < {*new} < {*found}
    assert equal(found, before) == loaded
    for name in new:
        assert found[name].equal(random[name]), name
    with caplog.at_level(logging.INFO):
        result = training.run()
    data = trained.result["provenance"]["name"]
    source = f"starting from {trained.directory}, trained on {data}"
    counts = f"{len(loaded)} of the network's {len(found)} tensors are loaded"
    assert f"{source}: {counts}" in caplog.messages
    in_order = [name for name in before if name in new]
    listed = ", ".join(in_order)
    assert f"  new, as they have another shape there: {listed}" in caplog.messages
    directory = Path("new")
    metrics = json.loads((directory / "metrics.json").read_text())
    record = metrics["start_from"]
    assert counts_of(record) == (len(loaded), len(new), len(new))
    assert checkpoint(directory)["capsule_lab"]["start_from"] == record
    best = f"{trained.directory.name}/best.ckpt"
    line = f"start       {best} ({data}): {len(loaded)} tensors loaded, {len(new)} new"
    shown = summary(result, directory, CHOSEN)
    assert line in shown.splitlines()


@pytest.mark.whole
def test_a_standin_among_the_starts_is_in_every_later_record_and_card(
    trained: Trained, tiny: Tiny, tmp_path: Path
) -> None:
    """The first run has stand-in data, the second real data and its weights, the third those of the second."""
    make_pictures(Path("pictures"), per_class=8, largest=60)
    standin = trained.result["provenance"]["name"]
    second = Path("second")
    result = train(tiny(*PICTURES, f"train.start_from={trained.directory}"), second)
    start = result["start_from"]
    assert result["provenance"]["source"] == "real"
    assert start["name"] == f"{trained.directory.name}/best.ckpt"
    assert runs.results.source_of(result) == "standin"
    described = f"started from {start['name']} (stand-in)"
    assert runs.results.describe_start(result) == described
    shown = summary(result, second, CHOSEN).splitlines()
    line = next(number for number, line in enumerate(shown) if line.startswith("start "))
    assert start["name"] in shown[line]
    assert shown[line + 1].strip() == "reports count the run as one on stand-in data"

    opened = runs.open(second)
    card = hub.card(opened, record_of(opened))
    assert f"- Start: the weights {start['name']}, trained on {standin}" in card
    assert "- It was first trained on stand-in data: its error cannot be compared" in card
    exported = Path("exported.safetensors")
    export(opened, "safetensors", exported)
    for source in (second, exported):
        third = started(tiny(*PICTURES, f"train.start_from={source}")).initial
        assert third is not None
        name = f"{result['provenance']['name']}, before that on {standin}"
        assert third.record["data"] == {"source": "standin", "name": name}


def test_stages_of_a_file_of_torchvision_are_the_stem(tiny: Tiny) -> None:
    expected = get_model("resnet18", weights=None).state_dict()
    torch.save(expected, "resnet18.pth")
    network = EMCaps((1, 28, 28), 10, stem="resnet18.layer1")
    config = tiny("train.start_from=resnet18.pth")
    first, new, unused = runs.initial_weights.load(config, network).lines
    found = network.conv.state_dict()
    assert equal(found, expected) == list(found)
    assert first.startswith("starting from resnet18.pth: 30 of the network's")
    assert new == "  new, as they are not there: primary (2), conv_capsules (6), classes (3)"
    assert unused == "  of the file, not used: layer2 (30), layer3 (30), layer4 (30), fc (2)"


@pytest.mark.whole
def test_resumed_run_continues_exactly_without_its_source(
    trained: Trained, tiny: Tiny, a_copy: Path, tmp_path: Path
) -> None:
    config = tiny(
        f"train.start_from={a_copy}",
        "train.freeze=[conv]",
        "seed=7",
        "trainer.max_epochs=1",
        *NO_PICTURES,
    )
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    expected = train(config, whole)
    with pytest.raises(InterruptError):
        run(config, cut, SignalAt(2))
    for file in a_copy.glob("checkpoints/*"):
        file.write_bytes(b"")
    config.train.resume = True
    result = train(config, cut)
    assert differences(result, cut, expected, whole) == []
    assert result["start_from"] == expected["start_from"]
    assert result["frozen_parameters"] == expected["frozen_parameters"] > 0


def test_only_a_source_or_frozen_modules_change_the_hash(tiny: Tiny) -> None:
    plain = config_hash(tiny())
    without = tiny("train.start_from=null", "train.freeze=null")
    assert config_hash(without) == plain
    hashes = {plain}
    for option in (
        "train.start_from=capsnet_mnist",
        "train.start_from=cnn_mnist",
        "train.freeze=[conv]",
    ):
        hashes.add(config_hash(tiny(option)))
    assert len(hashes) == 4


READY = "train.start_from=capsnet_mnist"


class Wrong(NamedTuple):
    """Overrides, in which RUN is the directory of a run, and a part of the message."""

    overrides: list[str]
    message: str


WRONG = {
    "unknown name": Wrong(
        ["train.start_from=capsnet_mnst"],
        "neither .*; did you mean capsnet_mnist?",
    ),
    "empty folder": Wrong(
        ["train.start_from=empty"],
        "no checkpoint at empty; expected a .ckpt file",
    ),
    "other sizes": Wrong(
        [READY],
        "expected the options of its network, model.channels=32 .* model.decoder=[256,512]$",
    ),
    "pickle": Wrong(
        ["train.start_from=RUN", "trust=safetensors"],
        "best.ckpt is a pickle, which trust=safetensors refuses",
    ),
    "two sources": Wrong(
        [READY, "ckpt=RUN"],
        "begins another one; expected one of them$",
    ),
    "frozen later": Wrong(
        ["ckpt=RUN", "train.freeze=[conv]"],
        "was trained with train.freeze=[]; expected the same, or",
    ),
    "unknown module": Wrong(
        ["train.freeze=[digts]"],
        "train.freeze: CapsNet has no module 'digts' with parameters; did you mean digits? Options: ",
    ),
    "everything frozen": Wrong(
        ["train.freeze=[conv,primary,digits,decoder]"],
        "train.freeze: CapsNet has no parameters besides those of conv, primary, digits, decoder; ",
    ),
    "no list": Wrong(
        ["train.freeze=conv"],
        "train.freeze is conv; expected a list of texts or null",
    ),
}


def pattern(message: str) -> str:
    """A regular expression in which only ``.*`` and a final ``$`` are not plain text."""
    plain = re.escape(message.removesuffix("$")).replace(r"\.\*", ".*")
    return f"{plain}$" if message.endswith("$") else plain


@pytest.mark.parametrize("kind", WRONG)
def test_a_start_that_cannot_work_is_refused_before_anything_is_written(
    trained: Trained, tiny: Tiny, kind: str
) -> None:
    Path("empty").mkdir()
    directory = str(trained.directory)
    wrong = WRONG[kind]
    given = [override.replace("RUN", directory) for override in wrong.overrides]
    with pytest.raises((ConfigError, RunError), match=pattern(wrong.message)):
        train(tiny(*given), "new")
    assert not Path("new").exists()


def test_network_of_another_class_is_named(tiny: Tiny) -> None:
    config = tiny(READY, model=TINY_CNN)
    message = "expected a model=… that is a CapsNet, as in the file, instead of BaselineCNN$"
    with pytest.raises(RunError, match=message):
        started(config)


class Opens:
    """An object whose pickle would create a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("opened", "w"))


HOSTILE = {
    "code": "cannot be read as a checkpoint",
    "list": "has weights of type list; expected a dict",
    "number": "has int for 'conv.weight' among its weights",
    "other key": "has Tensor for '1' among its weights",
    "terabytes": "is smaller than its weights",
    "no values": "has no values for conv.weight",
    "NaN": "has numbers in conv.weight that are not finite",
    "nothing": "expected float32 of .* but its first tensor is nothing",
    "other type": "expected float32 of .* but its first tensor is float64",
    "other record": "was not written by capsule_lab",
    "control": ", x y $",
}


def hostile(weights: dict[str, Any]) -> dict[str, Any]:
    """Contents of files, each wrong in another way."""
    weight = weights["conv.weight"]
    return {
        "code": {"conv.weight": Opens()},
        "list": [weight],
        "number": {"conv.weight": 3},
        "other key": {1: weight},
        "terabytes": {"x": torch.zeros(1).expand(10**6, 10**6)},
        "no values": {**weights, "conv.weight": weight.to("meta")},
        "NaN": {"conv.weight": weight * torch.nan},
        "nothing": {},
        "other type": {"conv.weight": weight.double()},
        "other record": {"capsule_lab": 1, "state_dict": weights},
        "control": {"x\x1b\ny\x07": weight},
    }


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_file_runs_no_code_and_is_refused_in_a_sentence(
    trained: Trained, tiny: Tiny, kind: str
) -> None:
    contents = hostile(stored(best_of(trained)))
    torch.save(contents[kind], "bad.pth")
    config = tiny("train.start_from=bad.pth")
    with pytest.raises(RunError, match=pattern(HOSTILE[kind])) as caught:
        runs.initial_weights.load(config, trained.module.network)
    assert "\x1b" not in str(caught.value)
    assert not Path("opened").exists()


def test_ckpt_of_other_data_points_to_a_start_from_its_weights(
    trained: Trained, tiny: Tiny, real: Path
) -> None:
    directory = trained.directory
    config = tiny(
        f"ckpt={directory}",
        "data.source=real",
        "data.train_images=null",
        f"data.directory={real}",
    )
    last = directory / "checkpoints" / "last.ckpt"
    message = f"without ckpt=, from these weights by train.start_from={last}$"
    with pytest.raises(RunError, match=pattern(message)):
        train(config, "new")
