"""The command ``evaluate``: it needs only a checkpoint, from any directory and on other data."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning.fabric.utilities.rank_zero import rank_zero_only
from omegaconf import DictConfig, OmegaConf
from PIL import Image

from capsule_lab import runs
from capsule_lab.commands import compose
from capsule_lab.commands.evaluate import evaluate, result_file
from capsule_lab.config.composition import to_container
from capsule_lab.data import MNISTDataModule
from capsule_lab.errors import ConfigError, RunError
from capsule_lab.types import DataSpec
from tests.helpers.commands import Cli, Trained


class SmallerImages(MNISTDataModule):
    """Images of another shape than the network expects."""

    spec = DataSpec(image_shape=(1, 20, 20), num_classes=10)


WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class NamedClasses(MNISTDataModule):
    """As many classes as the network has, with names."""

    spec = DataSpec(image_shape=(1, 28, 28), num_classes=10, classes=WORDS)


OTHER_DATA = {"_target_": "capsule_lab.data.MNISTDataModule", "source": "standin"}
OF_A_RESULT = {
    "checkpoint",
    "provenance",
    "data",
    "couplings",
    "hardware",
    "precision",
    "command",
    "commit",
    "versions",
    "device",
    "image_counts",
    "classes",
    "python",
}
"""Keys beside the split and, of a test, the predictions."""


@pytest.fixture(scope="module")
def trainer() -> DictConfig:
    return compose("evaluate", ["trainer.accelerator=cpu"]).trainer


def test_test_and_validation_results_equal_those_of_training(
    trained: Trained, trainer: DictConfig
) -> None:
    """For a run directory and for a checkpoint file."""
    before = sorted(trained.directory.rglob("*"))
    for where in (".", "checkpoints/best.ckpt"):
        run = runs.open(trained.directory / where)
        result = evaluate(run, trainer=trainer)
        assert result["test"] == trained.result["test"]
    for name in ("best", "last"):
        path = trained.directory / "checkpoints" / f"{name}.ckpt"
        found = evaluate(runs.open(path), "val", trainer=trainer)["val"]
        in_training = runs.checkpoints.read(path)["capsule_lab"]["val"]
        assert {"error", "loss"} <= found.keys() <= in_training.keys()
        expected = {key: in_training[key] for key in found}
        assert found == pytest.approx(expected)
    run = runs.open(trained.directory)
    result = evaluate(run, data={"eval_images": 100}, trainer=trainer)
    assert result["provenance"]["test_images"] == "100 of 359"
    assert result["data"] == {**to_container(trained.config.data), "eval_images": 100}
    assert sorted(trained.directory.rglob("*")) == before, "nothing is written"


def test_only_the_first_process_prints_and_writes(
    cli: Cli, a_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    before = sorted(a_copy.rglob("*"))
    ended = cli("evaluate", f"ckpt={a_copy}", "trainer.accelerator=cpu")
    assert ended.status == 0
    assert "error" not in ended.out
    assert sorted(a_copy.rglob("*")) == before


def files_below(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_results_are_written_beside_the_checkpoint(
    cli: Cli, trained: Trained, a_copy: Path
) -> None:
    before = files_below(a_copy)
    for overrides, name in (
        ([], "best-test-mnist-standin"),
        (["split=val"], "best-val-mnist-standin"),
        (["data=mnist", "data.source=standin"], "best-test-mnist-standin"),
        (["+data.eval_images=100"], "best-test-mnist-standin-eval_images=100"),
        (["data.eval_images=100"], "best-test-mnist-standin-eval_images=100"),
        (["couplings=equal"], "best-test-mnist-standin-couplings=equal"),
    ):
        ended = cli("evaluate", f"ckpt={a_copy}", "trainer.accelerator=cpu", *overrides)
        assert (ended.status, ended.err) == (0, "")
        path = a_copy / "evaluations" / f"{name}.json"
        written = {path}
        keys = {*OF_A_RESULT, "val"}
        if "split=val" not in overrides:
            written.add(path.with_suffix(".npz"))
            keys = {*OF_A_RESULT, "test", "predictions"}
        after = files_below(a_copy)
        assert after.keys() == {*before, *written}
        assert {file: after[file] for file in before} == before
        assert f"written to {path}\n" in ended.out
        if not overrides:
            error = trained.result["test"]["error"]
            constant = trained.result["classes"]["constant_error"]
            always = f"always answering the most frequent class: {constant:.2f} %"
            assert f"test error {error:.2f} % ({always})  of " in ended.out
        result = json.loads(path.read_text())
        assert result.keys() == keys
        assert result["checkpoint"] == str(a_copy / "checkpoints" / "best.ckpt")
        expected = trained.result["provenance"]["sha256"]
        assert result["provenance"]["sha256"] == expected
        for file in written:
            file.unlink()


def test_evaluation_on_other_data_names_the_data_set(
    trained: Trained, trainer: DictConfig, real: Path
) -> None:
    run = runs.open(trained.directory)
    other = {**OTHER_DATA, "source": "real", "directory": str(real)}
    result = evaluate(run, data=other, trainer=trainer)
    assert result_file(run, "test", other, result).name == "best-test-mnist-real.json"
    assert result["provenance"]["source"] == "real"
    assert result["test"] != trained.result["test"]


OWN_PICTURES = {"test_share": 1.0, "validation": "none", "source": "real"}


def own_arrays(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Options of the data of an array file with two images of each class, whose labels are these names."""
    images = np.zeros((20, 28, 28), np.uint8)
    images[:, 8:20, 12:16] = 255
    np.savez(folder / "own.npz", images=images, labels=np.repeat(np.array(names), 2))
    target = {"_target_": "capsule_lab.data.ArraysDataModule", "path": str(folder / "own.npz")}
    return target | OWN_PICTURES


def own_folder(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """The same of a folder of pictures."""
    for name in names:
        (folder / "own" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("L", (28, 28)).save(folder / "own" / name / f"{number}.png")
    target = {"_target_": "capsule_lab.data.PictureFolder", "path": str(folder / "own")}
    return target | OWN_PICTURES | {"size": 28, "directory": str(folder / "packed")}


@pytest.mark.parametrize("own", [own_arrays, own_folder])
def test_classes_without_names_are_numbers_in_own_pictures(
    trained: Trained, trainer: DictConfig, tmp_path: Path, own: Callable[..., dict[str, Any]]
) -> None:
    """Words would be classes in the order of the alphabet."""
    digits = own(tmp_path, [*map(str, range(10))])
    result = evaluate(runs.open(trained.directory), data=digits, trainer=trainer)
    assert result["image_counts"]["test"] == 20
    assert result["classes"]["images"] == {str(digit): 2 for digit in range(10)}
    (tmp_path / "words").mkdir()
    with pytest.raises(ValueError, match=r"zero|eight") as caught:
        evaluate(runs.open(trained.directory), data=own(tmp_path / "words", WORDS), trainer=trainer)
    assert "0, 1, 2, 3, 4, 5, 6, 7, 8, 9" in str(caught.value)


@pytest.mark.whole
def test_seed_of_the_validation_split_is_that_of_training(cli: Cli, a_copy: Path) -> None:
    expected = MNISTDataModule(source="standin", validation="stratified", seed=0)
    expected.setup("validate")
    data = ["split=val", "data=mnist", "data.source=standin", "data.validation=stratified"]
    command = ["evaluate", f"ckpt={a_copy}", "trainer.accelerator=cpu", *data]
    for seed, name in (("null", ""), ("0", ""), ("1", "-seed=1")):
        assert cli(*command, f"seed={seed}").status == 0
        file = a_copy / "evaluations" / f"best-val-mnist-standin{name}-validation=stratified.json"
        split = json.loads(file.read_text())["provenance"]["split"]
        assert (split == expected.provenance["split"]) is (name == "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"data": {**OTHER_DATA, "_target_": "tests.commands.test_evaluate.SmallerImages"}},
            r"the data has \(1, 20, 20\)",
        ),
        (
            {"data": {**OTHER_DATA, "_target_": "tests.commands.test_evaluate.NamedClasses"}},
            r"was trained on the classes 0, 1, .*, 9; the data has zero, one, .*, nine: choose",
        ),
        ({"split": "train"}, r"split is .*; expected 'test' or 'val'"),
        (
            {"data": {"eval_image": 100}},
            r"data.eval_image does not exist; did you mean data.eval_images",
        ),
        (
            {"trainer": {"max_epoch": 3}},
            r"trainer.max_epoch does not exist; did you mean trainer.max_epochs",
        ),
    ],
)
def test_wrong_arguments(
    trained: Trained, trainer: DictConfig, options: dict[str, Any], message: str
) -> None:
    options = {**options, "trainer": OmegaConf.create({**trainer, **options.get("trainer", {})})}
    with pytest.raises((ConfigError, RunError), match=message):
        evaluate(runs.open(trained.directory), **options)


def test_name_of_the_result_file_has_the_options_and_no_path(trained: Trained) -> None:
    run = runs.open(trained.directory)
    folder = trained.directory / "evaluations"
    names = set()
    for options, name in (
        ({"validation_share": "1/5", "eval_images": 7}, "-validation_share=1_5-eval_images=7"),
        ({"directory": "/data"}, ""),
        (OTHER_DATA, ""),
        ({**OTHER_DATA, "shift": 2, "seed": 0, "validation_share": "1/6"}, ""),  # the defaults
        ({**OTHER_DATA, "shift": 3, "seed": 5}, "-shift=3-seed=5"),
    ):
        file = result_file(run, "val", options, {"provenance": {"source": "standin"}})
        assert file == folder / f"best-val-mnist-standin{name}.json"
    values = [
        "../../up",
        "..",
        "a\0b",
        "x" * 500,
        "x" * 501,
        "a b",
        "a_b",
        "[1, 2]",
        {"a": "../b"},
        "日本",
        "\n",
    ]
    for value in values:
        for options in ({"train_images": value}, {f"../{value}": 1}):
            file = result_file(run, "test", options, {"provenance": {"source": "standin"}})
            assert file.parent == folder
            assert re.fullmatch(r"[\w.,=+-]{1,200}\.json", file.name, re.ASCII), file.name
            names.add(file.name)
    assert len(names) == 2 * len(values)
    of_paths = {
        result_file(run, "test", {"path": path}, {"provenance": {"source": "standin"}})
        for path in ("/d/20/5.npz", "/d/20_5.npz", "/d/a/b.npz")
    }
    assert len(of_paths) == 3


def test_limited_evaluation_has_a_file_of_its_own(cli: Cli, a_copy: Path) -> None:
    command = ["evaluate", f"ckpt={a_copy}", "trainer.accelerator=cpu"]
    assert cli(*command, "trainer.limit_test_batches=1").status == 0
    (file,) = (a_copy / "evaluations").glob("*.json")
    assert file.name == "best-test-mnist-standin-limit_test_batches=1.json"


def test_split_without_images_is_refused(cli: Cli, a_copy: Path) -> None:
    for options in (
        ["split=val", "data=mnist", "data.source=standin", "data.validation=none"],
        ["trainer.limit_test_batches=0"],
    ):
        ended = cli("evaluate", f"ckpt={a_copy}", "trainer.accelerator=cpu", *options)
        assert ended.status == 2
        assert "has no images here; expected another split" in ended.err
    assert not (a_copy / "evaluations").exists()
