"""A run that starts from weights: what fits is loaded to the bit, the rest is new and listed."""

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.models import get_model

from capsule_lab import runs
from capsule_lab.commands.train import train
from capsule_lab.commands.training import Training
from capsule_lab.config.identity import config_hash
from capsule_lab.deploy.export import export
from capsule_lab.errors import ConfigError, InterruptError, RunError
from capsule_lab.networks import EMCaps
from capsule_lab.runs.summary import summary
from tests.helpers.commands import CHOSEN, NO_PICTURES, TINY_CNN, Tiny, Trained
from tests.helpers.interruptions import differences
from tests.helpers.make_pictures import make_pictures
from tests.helpers.training import SignalAt, checkpoint, run

PICTURES = ["data=folder", "data.path=pictures", "data.size=28", "data.train_images=null"]
PICTURES += ["data.source=auto", "data.bad=skip", "trainer.max_epochs=1", *NO_PICTURES]


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
    return [name for name in found if name in expected and found[name].equal(expected[name])]


@pytest.mark.parametrize("kind", ["run", "checkpoint", "safetensors", "state dict"])
def test_weights_of_every_kind_of_file_are_loaded_to_the_bit(
    trained: Trained, tiny: Tiny, kind: str
) -> None:
    best = best_of(trained)
    expected = stored(best)
    source = {"run": trained.directory, "checkpoint": best}.get(kind, Path("weights.pth"))
    if kind == "safetensors":
        source = Path("weights.safetensors")
        export(runs.open(trained.directory), "safetensors", source)
    elif kind == "state dict":
        torch.save(expected, source)
    training = started(tiny(f"train.start_from={source}", "seed=7"))
    assert equal(state(training), expected) == list(expected)
    assert training.initial is not None
    record = training.initial.record
    file = best if kind == "run" else source
    assert record["file"] == file.name
    assert record["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (record["loaded"], record["new"], record["unused"]) == (len(expected), 0, 0)
    provenance = trained.result["provenance"]
    data = {"source": provenance["source"], "name": provenance["name"]}
    step = torch.load(best, weights_only=True)["global_step"]
    known = (None, None) if kind == "state dict" else (data, step)
    assert (record["data"], record["step"]) == known


def test_ready_weights_are_loaded_by_name_also_without_pickles(tiny: Tiny) -> None:
    network = runs.open("capsnet_mnist").network
    expected = {name: weight.clone() for name, weight in network.state_dict().items()}
    for parameter in network.parameters():
        torch.nn.init.zeros_(parameter)
    config = tiny("train.start_from=capsnet_mnist", "trust=safetensors")
    initial = runs.initial_weights.load(config, network)
    assert initial.lines == [
        "starting from capsnet_mnist, trained on real MNIST: 12 of the network's 12 tensors are loaded"
    ]
    assert equal(network.state_dict(), expected) == list(expected)


def test_heads_of_other_classes_are_new_and_listed_in_log_record_and_summary(
    trained: Trained, tiny: Tiny, caplog: pytest.LogCaptureFixture
) -> None:
    """Pictures of three classes in colour: the first convolution and the decoder differ, too."""
    make_pictures(Path("pictures"), per_class=8, largest=60)
    random = state(started(tiny(*PICTURES)))
    training = started(tiny(*PICTURES, f"train.start_from={trained.directory}"))
    before = stored(best_of(trained))
    found = {name: weight.clone() for name, weight in state(training).items()}
    new = [name for name in found if found[name].shape != before[name].shape]
    assert {"conv.weight", "digits.weight"} < {*new} < {*found}
    assert equal(found, before) == [name for name in found if name not in new]
    for name in new:
        assert found[name].equal(random[name]), name
    with caplog.at_level(logging.INFO):
        result = training.run()
    name = trained.result["provenance"]["name"]
    loaded = len(found) - len(new)
    counts = f"{loaded} of the network's {len(found)} tensors are loaded"
    assert f"starting from {trained.directory}, trained on {name}: {counts}" in caplog.messages
    in_order = [name for name in before if name in new]
    assert f"  new, as they have another shape there: {', '.join(in_order)}" in caplog.messages
    record = json.loads(Path("new/metrics.json").read_text())["start_from"]
    assert (record["loaded"], record["new"], record["unused"]) == (loaded, len(new), len(new))
    assert checkpoint(Path("new"))["capsule_lab"]["start_from"] == record
    line = f"start       best.ckpt ({name}): {loaded} tensors loaded, {len(new)} new"
    assert line in summary(result, Path("new"), CHOSEN).splitlines()


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
    options = ["train.freeze=[conv]", "seed=7", "trainer.max_epochs=1", *NO_PICTURES]
    config = tiny(f"train.start_from={a_copy}", *options)
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
    assert config_hash(tiny("train.start_from=null", "train.freeze=null")) == plain
    hashes = {
        plain,
        config_hash(tiny("train.start_from=capsnet_mnist")),
        config_hash(tiny("train.start_from=cnn_mnist")),
        config_hash(tiny("train.freeze=[conv]")),
    }
    assert len(hashes) == 4


READY = "train.start_from=capsnet_mnist"
WRONG = {
    "neither .*; did you mean capsnet_mnist?": ["train.start_from=capsnet_mnst"],
    "no checkpoint at empty; expected a .ckpt file": ["train.start_from=empty"],
    "expected the options of its network, model.channels=32 .* model.decoder=[256,512]$": [READY],
    "best.ckpt is a pickle, which trust=safetensors refuses": [
        "train.start_from=RUN",
        "trust=safetensors",
    ],
    "begins another one; expected one of them$": [READY, "ckpt=RUN"],
    "was trained with train.freeze=[]; expected the same, or": ["ckpt=RUN", "train.freeze=[conv]"],
    "train.freeze: CapsNet has no module 'digts' with parameters; did you mean digits? Options: ": [
        "train.freeze=[digts]"
    ],
    "train.freeze: CapsNet has no parameters besides those of conv, primary, digits, decoder; ": [
        "train.freeze=[conv,primary,digits,decoder]"
    ],
    "train.freeze is conv; expected a list of texts or null": ["train.freeze=conv"],
}


def pattern(message: str) -> str:
    """A regular expression in which only ``.*`` and a final ``$`` are not plain text."""
    plain = re.escape(message.removesuffix("$")).replace(r"\.\*", ".*")
    return f"{plain}$" if message.endswith("$") else plain


@pytest.mark.parametrize("message", WRONG)
def test_a_start_that_cannot_work_is_refused_before_anything_is_written(
    trained: Trained, tiny: Tiny, message: str
) -> None:
    Path("empty").mkdir()
    directory = str(trained.directory)
    given = [override.replace("RUN", directory) for override in WRONG[message]]
    with pytest.raises((ConfigError, RunError), match=pattern(message)):
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


def hostile(weights: dict[str, Any]) -> dict[str, Any]:
    """Contents of files, each wrong in another way, and what the message about it says."""
    weight = weights["conv.weight"]
    return {
        "cannot be read as a checkpoint": {"conv.weight": Opens()},
        "has weights of type list; expected a dict": [weight],
        "has int for 'conv.weight' among its weights": {"conv.weight": 3},
        "has Tensor for '1' among its weights": {1: weight},
        "is smaller than its weights": {"x": torch.zeros(1).expand(10**6, 10**6)},
        "has no values for conv.weight": {**weights, "conv.weight": weight.to("meta")},
        "has numbers in conv.weight that are not finite": {"conv.weight": weight * torch.nan},
        "expected float32 of .* but its first tensor is nothing": {},
        "expected float32 of .* but its first tensor is float64": {"conv.weight": weight.double()},
        "was not written by capsule_lab": {"capsule_lab": 1, "state_dict": weights},
        ", x y $": {"x\x1b\ny\x07": weight},
    }


@pytest.mark.parametrize("number", range(11))
def test_hostile_file_runs_no_code_and_is_refused_in_a_sentence(
    trained: Trained, tiny: Tiny, number: int
) -> None:
    files = hostile(stored(best_of(trained)))
    message, content = [*files.items()][number]
    torch.save(content, "bad.pth")
    config = tiny("train.start_from=bad.pth")
    with pytest.raises(RunError, match=pattern(message)) as caught:
        runs.initial_weights.load(config, trained.module.network)
    assert "\x1b" not in str(caught.value)
    assert not Path("opened").exists()


def test_ckpt_of_other_data_points_to_a_start_from_its_weights(
    trained: Trained, tiny: Tiny, real: Path
) -> None:
    directory = trained.directory
    other = ["data.source=real", "data.train_images=null", f"data.directory={real}"]
    last = re.escape(f"{directory / 'checkpoints' / 'last.ckpt'}")
    message = f"without ckpt=, from these weights by train.start_from={last}$"
    with pytest.raises(RunError, match=message):
        train(tiny(f"ckpt={directory}", *other), "new")
