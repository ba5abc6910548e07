"""What ``runs.open`` would refuse afterwards is refused before training, by the same function."""

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from PIL import Image

from capsule_lab import runs
from capsule_lab.commands.train import train
from capsule_lab.data import MNISTDataModule
from capsule_lab.errors import DataError, RunError
from tests.helpers.commands import TINY_CAPSNET, TINY_DATA, Cli, Tiny, Trained

NAMES = (
    "${x}",
    "${oc.env:HOME}",
    "\\${x}",
    "null",
    "1e3",
    "yes",
    "~",
    "-",
    "_target_",
    "$\\foo$",
    "a\nb",
    "\x07",
    "<b>",
    "é" * 100,
    "[red]",
    "%s",
    "{0}",
    "'\"",
)


def pictures(folder: Path, names: tuple[str, ...], number: int = 10) -> Path:
    """Write a few pictures of each class."""
    for name in names:
        (folder / name).mkdir(parents=True)
        for k in range(number):
            Image.new("L", (8, 8), 25 * k).save(folder / name / f"{k}.png")
    return folder


def options(folder: Path) -> list[str]:
    data = [
        "data=folder",
        "data.size=28",
        "data.source=auto",
        "data.train_images=null",
        "data.batch_size=16",
    ]
    return [*TINY_CAPSNET, *TINY_DATA, *data, f"data.path={folder}", "trainer.max_epochs=1"]


@pytest.mark.whole
def test_any_name_of_a_class_is_trained_drawn_opened_and_predicted(
    tmp_path: Path, cli: Cli
) -> None:
    folder = pictures(tmp_path / "pictures", NAMES)
    ended = cli("train", *options(folder), "train.directory=run")
    assert ended.status == 0, ended.err
    run = runs.open("run")
    assert run.spec.classes == tuple(sorted(NAMES))
    assert cli("figures", "run=run").status == 0
    picture = folder / "null" / "0.png"
    for to in ("table", "json", "csv"):
        ended = cli("predict", "ckpt=run", f"images={picture}", f"to={to}", "sheet=sheet.png")
        assert (ended.status, ended.err) == (0, "")
    assert cli("export", "ckpt=run", "to=safetensors", "out=a.safetensors").status == 0
    assert runs.open("a.safetensors").spec == run.spec


def test_name_of_a_class_that_is_not_unicode_is_refused_before_training(
    tmp_path: Path, cli: Cli
) -> None:
    folder = pictures(tmp_path / "pictures", ("a", "b"))
    os.rename(os.fsencode(folder / "b"), os.fsencode(folder) + b"/b\xff")
    ended = cli("train", *options(folder), "train.directory=run")
    assert "has a folder named 'b\\udcff'; expected a name in UTF-8: rename it" in ended.err
    assert not Path("run").exists()


@pytest.fixture
def record(trained: Trained) -> dict[str, Any]:
    checkpoint = runs.checkpoints.read(trained.directory / "checkpoints" / "last.ckpt")
    return copy.deepcopy(dict(checkpoint["capsule_lab"]))


def test_as_many_classes_as_imagenet_are_read(record: dict[str, Any]) -> None:
    record["spec"]["classes"] = [f"n{number:08}" for number in range(21_841)]
    runs.checkpoints.check(record, Path("last.ckpt"))


def with_provenance(value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """Add a fact to the provenance of MNIST, as an own data set may."""
    original = MNISTDataModule.prepare_data

    def prepare(self: MNISTDataModule) -> None:
        original(self)
        self.provenance["fact"] = value

    return lambda patch: patch.setattr(MNISTDataModule, "prepare_data", prepare)


NOT_STARTED = "is not started, because its checkpoints could not be opened"
SHARED: list[Any] = []
for _ in range(30):
    SHARED = [SHARED, SHARED]
REFUSED: dict[str, tuple[list[str], Any, str]] = {
    "many iterations": (
        ["routing.iterations=2000"],
        None,
        "2000 iterations of routing; expected at most 1000",
    ),
    "a path": (
        [],
        Path("a"),
        "has PosixPath in its record; expected text, numbers and lists of them",
    ),
    "bytes": ([], b"a", "has bytes in its record"),
    "text that is not Unicode": ([], "\udcff", "has the text '\\udcff'; expected Unicode"),
    "text in a key": ([], {"\ud800": 1}, "has the text '\\ud800'; expected Unicode"),
    "billions of values": ([], SHARED, "has more than 1000000 values in its record"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_record_that_would_be_refused_ends_the_command_before_training(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    overrides, fact, message = REFUSED[name]
    if fact is not None:
        with_provenance(fact)(monkeypatch)
    config = tiny(*overrides)
    with pytest.raises(RunError, match=NOT_STARTED) as caught:
        train(config, Path("run"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Path("run").exists()


CONFIGURATIONS = {
    "interpolation": (
        "${x}",
        "has '${x}' in its configuration; expected Unicode without interpolation",
    ),
    "path that is not Unicode": ("\udcff", "has '\\udcff' in its configuration"),
    "set": ({1}, "has set in its record"),
    "many values": ([0] * 10_001, "has more than 10000 values in its record"),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_value_of_the_configuration_that_would_be_refused(
    trained: Trained, record: dict[str, Any], name: str
) -> None:
    value, message = CONFIGURATIONS[name]
    record["config"]["data"]["directory"] = value
    with pytest.raises(RunError, match=NOT_STARTED) as caught:
        runs.check_will_open(record, trained.module.network, Path("last.ckpt"))
    assert message in str(caught.value)


def test_check_before_training_draws_no_random_numbers(
    tiny: Tiny, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    module = runs.open(trained.directory).module
    record = runs.checkpoints.read(trained.directory / "checkpoints" / "last.ckpt")["capsule_lab"]
    before = torch.random.get_rng_state()
    runs.check_will_open(record, module.network, Path("last.ckpt"))
    assert torch.random.get_rng_state().equal(before)


SPECS = {
    "true": [True, 28, 28],
    "float": [1.0, 28, 28],
    "text": ["1", 28, 28],
    "negative": [1, -28, 28],
    "two": [28, 28],
}


@pytest.mark.parametrize("kind", SPECS)
def test_image_shape_of_other_types_is_refused(a_copy: Path, kind: str) -> None:
    import torch

    path = a_copy / "checkpoints" / "best.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["capsule_lab"]["spec"]["image_shape"] = SPECS[kind]
    torch.save(checkpoint, path)
    with pytest.raises(RunError, match=r"cannot be rebuilt \(ValueError: image_shape, num_classes"):
        runs.open(path)


TRUSTING = {
    "evaluate": ["ckpt={}"],
    "predict": ["ckpt={}", "images=a.png"],
    "figures": ["run={}"],
    "explorer": ["ckpt={}"],
    "export": ["ckpt={}", "to=onnx", "out=a.onnx"],
    "attack": ["ckpt={}"],
    "analyse": ["ckpt={}"],
}


@pytest.mark.parametrize("command", TRUSTING)
def test_with_trust_in_safetensors_a_pickle_is_refused(
    cli: Cli, trained: Trained, command: str
) -> None:
    file = trained.directory / "checkpoints" / "best.ckpt"
    arguments = [argument.format(trained.directory) for argument in TRUSTING[command]]
    ended = cli(command, *arguments, "trust=safetensors")
    assert ended.status == 2
    refusal = "is a pickle, which trust=safetensors refuses; expected a .safetensors file: convert"
    assert f"{file} {refusal}" in ended.err
    assert f"capsule-lab export ckpt={file} to=safetensors" in ended.err
    assert "Traceback" not in ended.err


def test_with_trust_in_safetensors_weights_without_pickles_are_read(
    cli: Cli, trained: Trained
) -> None:
    ended = cli("export", f"ckpt={trained.directory}", "to=safetensors", "out=a.safetensors")
    assert ended.status == 0, ended.err
    options = ["trust=[safetensors]", "trainer.accelerator=cpu", "split=val"]
    ended = cli("evaluate", "ckpt=a.safetensors", *options)
    assert ended.status == 0, ended.err
    assert runs.open("a.safetensors", trust=["safetensors", "mine"]).without_pickles
    assert not runs.open("a.safetensors").without_pickles


def test_with_trust_in_safetensors_training_reads_no_pickle(trained: Trained, tiny: Tiny) -> None:
    with pytest.raises(RunError, match=r"\.ckpt is a pickle, which trust=safetensors refuses"):
        train(tiny(f"ckpt={trained.directory}", "trust=safetensors"), Path("run"))
    message = "files of CIFAR10DataModule are pickles, which trust=safetensors refuses"
    with pytest.raises(RunError, match=message):
        train(tiny("data=cifar10", "data.source=auto", "trust=safetensors"), Path("run"))
    assert not Path("run").exists()


def test_with_trust_in_safetensors_other_data_in_pickles_is_refused(
    cli: Cli, trained: Trained
) -> None:
    cli("export", f"ckpt={trained.directory}", "to=safetensors", "out=a.safetensors")
    options = {"_target_": "capsule_lab.data.CIFAR10DataModule", "source": "auto"}
    with pytest.raises(RunError, match="files of CIFAR10DataModule are pickles"):
        runs.open("a.safetensors", trust="safetensors").data_with(OmegaConf.create(options))


def test_trust_does_not_change_the_hash(tiny: Tiny) -> None:
    trusting = runs.directories.config_hash(tiny("trust=safetensors"))
    assert trusting == runs.directories.config_hash(tiny())


def test_header_that_would_be_refused_is_not_written(
    trained: Trained, record: dict[str, Any]
) -> None:
    record["spec"]["classes"] = ["x" * 200] * 10_000
    message = r"a\.safetensors cannot be written: its header has \d+ bytes; expected at most"
    with pytest.raises(RunError, match=message):
        runs.checkpoints.write_safetensors(Path("a.safetensors"), {}, record)
    assert not Path("a.safetensors").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"])
def test_record_that_json_cannot_represent_is_not_written(
    record: dict[str, Any], value: object
) -> None:
    record["val"] = {"error": value}
    with pytest.raises(RunError, match="cannot be written"):
        runs.checkpoints.write_safetensors(Path("a.safetensors"), {}, record)
    with pytest.raises(RunError, match="cannot be written"):
        runs.files.write_record(Path("metrics.json"), record)


def test_folder_without_unicode_is_refused_where_it_is_listed(tmp_path: Path) -> None:
    from capsule_lab.data.folder_listing import list_folder

    folder = pictures(tmp_path / "pictures", ("a", "b"), 1)
    os.rename(os.fsencode(folder / "b"), os.fsencode(folder) + b"/\xed\xa0\x80")
    with pytest.raises(DataError, match="expected a name in UTF-8"):
        list_folder(folder)
