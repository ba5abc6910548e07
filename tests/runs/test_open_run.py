"""A run is opened from its checkpoint alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from capsule_lab import runs
from capsule_lab.callbacks import AtomicCheckpointIO
from capsule_lab.config.compose import to_container
from capsule_lab.data import MNISTDataModule
from capsule_lab.errors import ConfigError, RunError
from capsule_lab.lit import CapsNetModule
from tests.helpers.commands import ROOT, Trained


def test_importing_runs_loads_neither_torch_nor_lightning() -> None:
    code = "import sys, json, capsule_lab.runs; print(json.dumps([*sys.modules]))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"torch", "lightning", "matplotlib"} & {*json.loads(ended.stdout)} == set()


@pytest.mark.parametrize(
    ("where", "file"),
    [(".", "best"), ("checkpoints/best.ckpt", "best"), ("checkpoints/last.ckpt", "last")],
)
def test_run_has_what_was_trained(trained: Trained, where: str, file: str) -> None:
    run = runs.open(trained.directory / where)
    checkpoint = torch.load(trained.directory / "checkpoints" / f"{file}.ckpt", weights_only=True)
    assert run.checkpoint == trained.directory / "checkpoints" / f"{file}.ckpt"
    assert run.directory == trained.directory
    assert run.step == checkpoint["global_step"]
    assert run.seconds == checkpoint["capsule_lab"]["seconds"]
    assert run.provenance == checkpoint["capsule_lab"]["provenance"]
    assert to_container(run.config) == {**to_container(trained.config), "module": run.config.module}
    assert (run.spec.image_shape, run.spec.num_classes, run.spec.labels_per_image) == ((1, 28, 28), 10, 1)
    assert not any(part.training for part in run.module.modules())
    assert run.network is run.module.network
    for name, weight in run.network.state_dict().items():
        torch.testing.assert_close(weight, checkpoint["state_dict"][f"network.{name}"], rtol=0, atol=0)


def test_bare_checkpoint_file_is_a_run(trained: Trained, tmp_path: Path) -> None:
    file = Path(shutil.copy(trained.directory / "checkpoints" / "best.ckpt", tmp_path / "mine.ckpt"))
    run = runs.open("mine.ckpt")
    assert (run.checkpoint, run.directory) == (Path("mine.ckpt"), file.parent)


@pytest.mark.parametrize(("split", "images"), [("train", 256), ("val", 240), ("test", 359)])
def test_batches_are_those_of_the_network(trained: Trained, split: str, images: int) -> None:
    run = runs.open(trained.directory)
    batches = list(run.batches(split))
    assert sum(len(batch.labels) for batch in batches) == images
    assert all(batch.images.dtype == torch.float32 for batch in batches)
    assert run.network(batches[0].images).scores.shape == (len(batches[0].labels), 10)
    again = next(run.batches(split)).images
    assert split == "train" or torch.equal(again, batches[0].images)


def test_data_is_that_of_training(trained: Trained) -> None:
    run = runs.open(trained.directory)
    assert run.data is run.data
    run.data.setup("fit")
    assert run.data.provenance == run.provenance


def test_options_of_the_data_differ(trained: Trained) -> None:
    run = runs.open(trained.directory)
    assert run.data_with({"eval_images": 7}).eval_images == 7
    assert run.data_with({}).eval_images is None, "the configuration of training stays"
    with pytest.raises(ConfigError, match=r"data\.eval_image does not exist; did you mean data\.eval_images"):
        run.data_with({"eval_image": 7})


def test_data_directory_of_another_machine_is_not_made(a_copy: Path, tmp_path: Path) -> None:
    path = a_copy / "checkpoints" / "best.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    for directory, expected in (("elsewhere/data", "data"), (str(tmp_path), str(tmp_path)), (None, "data")):
        checkpoint["capsule_lab"]["config"]["data"]["directory"] = directory
        AtomicCheckpointIO().save_checkpoint(checkpoint, path)
        run = runs.open(path)
        assert run.data.directory == Path(expected)
        assert run.data_with({"directory": "asked/for"}).directory == Path("asked/for")
    assert not Path("elsewhere").exists()


def test_data_of_another_source_is_used_on_purpose_only(trained: Trained, real: Path) -> None:
    run, options = runs.open(trained.directory), {"source": "real", "directory": str(real)}
    with pytest.raises(RunError, match=r"was trained on .*stand-in.*, and now there is only real MNIST"):
        run.data_with(options)
    other = run.data_with({"_target_": "capsule_lab.data.MNISTDataModule", **options})
    assert isinstance(other, MNISTDataModule)
    assert other.provenance["source"] == "real"


def with_target(path: Path, target: str) -> Path:
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["capsule_lab"]["config"]["module"]["_target_"] = target
    AtomicCheckpointIO().save_checkpoint(checkpoint, path)
    return path


def test_what_is_gone_from_the_package_is_named(a_copy: Path) -> None:
    path = with_target(a_copy / "checkpoints" / "best.ckpt", "capsule_lab.lit.FormerModule")
    with pytest.raises(RunError, match=r"trained with capsule_lab\.lit\.FormerModule, which cannot be imported"):
        runs.open(path)


class OwnModule(CapsNetModule):
    """A wrapper outside of the package."""


def test_package_of_ones_own_can_be_trusted(a_copy: Path) -> None:
    path = with_target(a_copy / "checkpoints" / "best.ckpt", f"{__name__}.OwnModule")
    with pytest.raises(RunError, match=r"OwnModule; expected .* give trust="):
        runs.open(path)
    for trust in (["tests"], "tests", [__name__]):
        assert type(runs.open(path, trust=trust).module).__name__ == "OwnModule"
    with pytest.raises(RunError, match=r"OwnModule; expected"):
        runs.open(path, trust=["test", "tests.run"])


def another_format(path: Path) -> None:
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["capsule_lab"] |= {"format": 99, "version": "9.9"}
    torch.save(checkpoint, path)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda path: path.unlink(), "no checkpoint at "),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "it is truncated or another file"),
    "empty": (lambda path: path.write_bytes(b""), "it is truncated or another file"),
    "no checkpoint": (lambda path: path.write_text("seed: 0"), "it is truncated or another file"),
    "code": (lambda path: torch.save({"state_dict": print}, path), "it is truncated or another file"),
    "foreign": (lambda path: torch.save({"state_dict": {}}, path), "was not written by capsule_lab"),
    "foreign tensor": (lambda path: torch.save(torch.zeros(1), path), "was not written by capsule_lab"),
    "another format": (another_format, "was written by capsule_lab 9.9 in checkpoint format 99"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("use", ["open", "resume"])
def test_checkpoint_that_cannot_be_used_is_refused(a_copy: Path, trained: Trained, damage: str, use: str) -> None:
    path = a_copy / "checkpoints" / "last.ckpt"
    spoil, message = DAMAGES[damage]
    spoil(path)
    config = OmegaConf.merge(trained.config, {"ckpt": str(path)})
    uses = {
        "open": lambda: runs.open(path),
        "resume": lambda: runs.checkpoints.checkpoint_to_resume(config, Path("new"), trained.result["provenance"]),
    }
    with pytest.raises(RunError, match=message) as caught:
        uses[use]()
    assert str(path) in str(caught.value)
