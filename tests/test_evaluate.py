"""A checkpoint is tested anywhere, with nothing but itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from capsule_lab import runs
from capsule_lab.config import compose
from capsule_lab.data import MNISTDataModule
from capsule_lab.errors import ConfigError, RunError
from capsule_lab.evaluate import evaluate
from capsule_lab.runs import read_checkpoint
from capsule_lab.types import DataSpec
from tests.helpers.commands import NO_PICTURES, TINY_CNN, Ended, Trained

Cli = Callable[..., Ended]


class SmallerImages(MNISTDataModule):
    """Data of another shape than the network's."""

    spec = DataSpec(image_shape=(1, 20, 20), num_classes=10)


def configuration(ckpt: Path | str, *overrides: str) -> DictConfig:
    return compose("evaluate", [f"ckpt={ckpt}", "trainer.accelerator=cpu", *overrides])


@pytest.mark.parametrize("where", [".", "checkpoints/best.ckpt"], ids=["directory", "file"])
def test_result_equals_that_at_the_end_of_training(trained: Trained, a_copy: Path, where: str) -> None:
    result, _ = evaluate(configuration(a_copy / where))
    assert result["test"] == trained.result["test"]


@pytest.mark.parametrize("name", ["best", "last"])
def test_validation_equals_that_in_the_checkpoint(a_copy: Path, name: str) -> None:
    path = a_copy / "checkpoints" / f"{name}.ckpt"
    result, _ = evaluate(configuration(path, "split=validation"))
    trained = read_checkpoint(path)[0]["capsule_lab"]["validation"]
    assert {"error", "loss"} <= result["val"].keys() <= trained.keys()
    assert result["val"] == pytest.approx({key: trained[key] for key in result["val"]})


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "best-test-mnist-stand-in"),
        (["split=validation"], "best-validation-mnist-stand-in"),
        (["data=mnist", "data.source=standin"], "best-test-mnist-stand-in"),
    ],
    ids=str,
)
def test_result_is_written_beside_the_checkpoint(
    cli: Cli, trained: Trained, a_copy: Path, overrides: list[str], name: str
) -> None:
    before = {path: path.read_bytes() for path in a_copy.rglob("*") if path.is_file()}
    ended = cli("evaluate", f"ckpt={a_copy}", "trainer.accelerator=cpu", *overrides)
    assert (ended.status, ended.err) == (0, "")
    assert {path: path.read_bytes() for path in before} == before
    (path,) = [path for path in a_copy.rglob("*") if path.is_file() and path not in before]
    assert path == a_copy / "evaluations" / f"{name}.json"
    assert f"written to {path}\n" in ended.out
    result = json.loads(path.read_text())
    assert set(result) == {
        "validation" if "split=validation" in overrides else "test",
        "checkpoint", "provenance", "data", "hardware", "precision", "command", "commit", "versions", "python",
    }  # fmt: skip
    assert result["checkpoint"] == str(a_copy)
    assert result["provenance"]["sha256"] == trained.result["provenance"]["sha256"]


def test_other_data_than_that_of_training(trained: Trained, a_copy: Path, real: Path) -> None:
    overrides = ["data=mnist", "data.source=real", f"data.directory={real}"]
    result, path = evaluate(configuration(a_copy, *overrides))
    assert path.name == "best-test-mnist-real.json"
    assert result["provenance"]["source"] == "real"
    assert result["test"] != trained.result["test"]


@pytest.mark.parametrize(("seed", "same"), [("null", True), ("0", True), ("1", False)])
def test_seed_of_the_validation_split_is_that_of_training(a_copy: Path, seed: str, same: bool) -> None:
    data = ["split=validation", "data=mnist", "data.source=standin", "data.validation=stratified"]
    result, _ = evaluate(configuration(a_copy, *data, f"seed={seed}"))
    expected = MNISTDataModule(source="standin", validation="stratified", seed=0)
    expected.setup("validate")
    assert (result["provenance"]["split"] == expected.provenance["split"]) is same


def test_data_of_another_shape_is_refused(a_copy: Path) -> None:
    target = "data._target_=tests.test_evaluate.SmallerImages"
    with pytest.raises(RunError, match=r"image_shape=\(1, 28, 28\).*image_shape=\(1, 20, 20\)"):
        evaluate(configuration(a_copy, "data=mnist", "data.source=standin", target))


@pytest.mark.parametrize("split", ["train", "val", ""])
def test_unknown_split_is_refused(a_copy: Path, split: str) -> None:
    with pytest.raises(RunError, match=rf"split is '{split}'; expected test or validation"):
        evaluate(configuration(a_copy, f"split={split}"))


@pytest.mark.parametrize("absolute", [True, False], ids=["absolute", "relative"])
def test_command_works_from_anywhere_with_the_run_moved(
    cli: Cli, trained: Trained, a_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absolute: bool
) -> None:
    moved = Path(shutil.move(a_copy, tmp_path / "elsewhere"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    ended = cli("evaluate", f"ckpt={moved if absolute else '../elsewhere'}", "trainer.accelerator=cpu")
    assert (ended.status, ended.err) == (0, "")
    assert f"test error {trained.result['test']['error']:.2f} %" in ended.out
    assert "stand-in for MNIST" in " ".join(ended.out.split())
    assert list((tmp_path / "here").iterdir()) == []
    found = json.loads((moved / "evaluations" / "best-test-mnist-standin.json").read_text())
    assert found["test"] == trained.result["test"]


def test_command_tests_any_network(cli: Cli, tmp_path: Path) -> None:
    options = ["debug=smoke", "trainer.limit_test_batches=null", "trainer.accelerator=cpu", "train.directory=run"]
    assert cli("train", *TINY_CNN, *options, *NO_PICTURES).status == 0
    ended = cli("evaluate", "ckpt=run", "trainer.accelerator=cpu")
    assert (ended.status, ended.err) == (0, "")
    (file,) = (tmp_path / "run" / "evaluations").iterdir()
    trained = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert json.loads(file.read_text())["test"] == pytest.approx(trained["test"])


def test_an_option_of_the_data_of_training_can_be_changed(trained: Trained, a_copy: Path) -> None:
    result, path = evaluate(configuration(a_copy, "+data.eval_images=100"))
    assert result["provenance"]["test_images"] == "100 of 359"
    assert result["data"] == {**runs.plain(trained.config.data), "eval_images": 100}
    assert path.name == "best-test-mnist-stand-in-eval_images=100.json"


def test_a_misspelt_option_of_the_data_of_training_is_named(a_copy: Path) -> None:
    with pytest.raises(ConfigError, match=r"data.eval_image does not exist; did you mean data.eval_images"):
        evaluate(configuration(a_copy, "+data.eval_image=100"))
