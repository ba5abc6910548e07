"""A run is opened from its checkpoint alone; an unusable checkpoint is refused in one sentence."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from capsule_lab import runs
from capsule_lab.config.composition import to_container
from capsule_lab.data import MNISTDataModule
from capsule_lab.errors import ConfigError, RunError
from capsule_lab.lit import CapsNetModule
from tests.helpers.commands import Trained
from tests.helpers.damage import damages


def test_run_has_weights_and_facts_of_its_training(trained: Trained, tmp_path: Path) -> None:
    best = trained.directory / "checkpoints" / "best.ckpt"
    last = trained.directory / "checkpoints" / "last.ckpt"
    config = to_container(trained.config)
    for path, file in (
        (trained.directory, best),
        (best, best),
        (last, last),
    ):
        run = runs.open(path)
        checkpoint = torch.load(file, weights_only=True)
        record = checkpoint["capsule_lab"]
        assert run.checkpoint == file
        assert run.directory == trained.directory
        assert run.step == checkpoint["global_step"]
        assert run.seconds == record["seconds"]
        assert run.provenance == record["provenance"]
        assert to_container(run.config) == {**config, "module": run.config.module}
        assert run.spec.image_shape == (1, 28, 28)
        assert run.spec.num_classes == 10
        assert run.spec.labels_per_image == 1
        assert run.network is run.module.network
        for part in run.module.modules():
            assert not part.training
        for name, weight in run.network.state_dict().items():
            expected = checkpoint["state_dict"][f"network.{name}"]
            assert torch.equal(weight, expected)


def test_single_file_is_a_run(trained: Trained, tmp_path: Path) -> None:
    last = trained.directory / "checkpoints" / "last.ckpt"
    shutil.copy(last, tmp_path / "mine.ckpt")
    run = runs.open("mine.ckpt")
    assert run.checkpoint == Path("mine.ckpt")
    assert run.directory == tmp_path
    with pytest.raises(RunError, match=r"nowhere is neither the name of ready weights nor a run"):
        runs.open("nowhere")


@pytest.mark.parametrize(("split", "images"), [("train", 256), ("val", 240), ("test", 359)])
def test_batches_of_a_run_are_ready_for_its_network(
    trained: Trained, split: str, images: int
) -> None:
    run = runs.open(trained.directory)
    batches = list(run.batches(split))
    for batch in batches:
        assert batch.images.dtype == torch.float32
    assert sum(len(batch.labels) for batch in batches) == images
    first, *_ = batches
    scores = run.network(first.images).scores
    assert scores.shape == (len(first.labels), 10)
    if split != "train":
        again = next(run.batches(split))
        assert torch.equal(again.images, first.images)


def test_data_is_that_of_training_unless_options_differ(trained: Trained, real: Path) -> None:
    run = runs.open(trained.directory)
    run.data.setup("fit")
    assert run.data.provenance == run.provenance
    assert run.data_with({"eval_images": 7}).eval_images == 7
    assert run.data_with({}).eval_images is None, "the configuration of training stays"
    message = r"data\.eval_image does not exist; did you mean data\.eval_images"
    with pytest.raises(ConfigError, match=message):
        run.data_with({"eval_image": 7})
    options = {"source": "real", "directory": str(real)}
    message = r"was trained on .*stand-in.*, but the data here is real MNIST"
    with pytest.raises(RunError, match=message):
        run.data_with(options)
    other = run.data_with({"_target_": "capsule_lab.data.MNISTDataModule", **options})
    assert isinstance(other, MNISTDataModule)
    assert other.provenance["source"] == "real", "other data must be named"


@pytest.fixture
def change(a_copy: Path) -> Callable[..., Path]:
    """Sets a value in the record of ``last.ckpt``: ``change(99, "format")``."""
    path = a_copy / "checkpoints" / "last.ckpt"

    def write(value: Any, *keys: str) -> Path:
        checkpoint = torch.load(path, weights_only=True)
        node = checkpoint["capsule_lab"]
        for key in keys[:-1]:
            node = node[key]
        node[keys[-1]] = value
        torch.save(checkpoint, path)
        return path

    return write


def test_data_directory_of_another_machine_is_not_made(
    change: Callable[..., Path], tmp_path: Path
) -> None:
    for directory, expected in (
        ("elsewhere/data", "data"),
        (str(tmp_path), str(tmp_path)),
        (None, "data"),
    ):
        run = runs.open(change(directory, "config", "data", "directory"))
        assert run.data.directory == Path(expected)
        assert run.data_with({"directory": "given/here"}).directory == Path("given/here")
    assert not Path("elsewhere").exists()


class OwnModule(CapsNetModule):
    """A wrapper outside of the package."""


def test_own_package_can_be_trusted(change: Callable[..., Path]) -> None:
    path = change(f"{__name__}.OwnModule", "config", "module", "_target_")
    with pytest.raises(RunError, match=r"OwnModule; expected .* set trust="):
        runs.open(path, trust=["test", "tests.run"])
    assert type(runs.open(path, trust=["tests"]).module).__name__ == "OwnModule"
    path = change("capsule_lab.lit.FormerModule", "config", "module", "_target_")
    message = r"trained with capsule_lab\.lit\.FormerModule, which cannot be imported"
    with pytest.raises(RunError, match=message):
        runs.open(path)


def test_unusable_checkpoint_is_refused(trained: Trained, change: Callable[..., Path]) -> None:
    path = change(99, "format")
    another_format = path.read_bytes()
    config = OmegaConf.merge(trained.config, {"ckpt": str(path)})

    def resume() -> None:
        provenance = trained.result["provenance"]
        runs.checkpoints.checkpoint_to_resume(config, Path("new"), provenance)

    def refused(message: str) -> None:
        for use in (lambda: runs.open(path), resume):
            with pytest.raises(RunError, match=message) as caught:
                use()
            assert str(caught.value).startswith(f"{path} ")
            assert "\n" not in str(caught.value)

    refused(
        r"was written by capsule_lab 0\.1\.0 in checkpoint format 99; .* use the version that wrote it"
    )
    damaged = "it is truncated, damaged or another kind of file"
    # of a tensor; before an archive, which zip allows
    readable = ("zeros in the middle", "not text", "twice")
    for name, content in damages(another_format):
        if name not in readable:
            path.write_bytes(content)
            refused(rf"{damaged}: continue from ckpt=\S+/best\.ckpt, or ")
    for foreign, message in (
        ({"state_dict": print}, damaged),  # code
        ({"state_dict": {}}, "was not written by capsule_lab"),
        (torch.zeros(1), "was not written by capsule_lab"),
    ):
        torch.save(foreign, path)
        refused(message)


def test_tensors_read_from_a_checkpoint_survive_its_replacement(
    change: Callable[..., Path],
) -> None:
    """Tensors are read on first use, after the file may have been replaced."""
    path = change(0, "config", "seed")
    before, read = torch.load(path, weights_only=True), runs.checkpoints.read(path)
    other = path.with_name("other.ckpt")
    torch.save({"another": torch.zeros(1)}, other)
    other.replace(path)
    torch.testing.assert_close(read["state_dict"], before["state_dict"], rtol=0, atol=0)
