"""A record says what happened: each test changes what happens, and sees the record change."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from capsule_lab.commands import compose
from capsule_lab.commands.evaluate import evaluate
from capsule_lab.commands.train import train
from capsule_lab.data import MNISTDataModule
from capsule_lab.errors import InterruptError
from capsule_lab.runs import results
from capsule_lab.runs.open_run import open as open_run
from capsule_lab.runs.summary import summary
from capsule_lab.system import environment
from tests.helpers.commands import CHOSEN, NO_PICTURES, TINY, Cli, Tiny, Trained, two_processes
from tests.helpers.tiers import whole_but
from tests.helpers.training import SignalAt, run

TEST_SET = 359  # of the stand-in digits


def counts(result: dict[str, Any]) -> dict[str, int]:
    return dict(result["image_counts"])


def test_whole_splits_are_counted(trained: Trained) -> None:
    assert counts(trained.result) == {
        "train": 512,
        "val": 240,
        "test": TEST_SET,
        "test_set": TEST_SET,
    }
    assert trained.result["provenance"]["test_images"] == "359 of 359"
    assert results.partial_test(trained.result) == ""


ONE_BATCH = ["trainer.limit_test_batches=1", "data.eval_batch_size=16"]


@pytest.mark.parametrize(
    ("overrides", "expected", "described"),
    [
        # the smoke run shows it, too
        pytest.param(
            ["trainer.limit_test_batches=2", "data.eval_batch_size=16"],
            32,
            "32 of 359",
            marks=pytest.mark.whole,
        ),
        (["trainer.limit_test_batches=0.5", "data.eval_batch_size=16"], 176, "176 of 359"),
        pytest.param(["data.eval_images=40"], 40, "40 of 359", marks=pytest.mark.whole),
        (["data.eval_images=40", *ONE_BATCH], 16, "16 of 359"),
        (
            ["data=multimnist", "data.test_pairs=60", "data.val_pairs=16", *ONE_BATCH],
            16,
            "16 pairs of 359",
        ),
        pytest.param(
            ["data=affnist", *ONE_BATCH], 16, "16 versions of 16 of 359", marks=pytest.mark.whole
        ),
    ],
)
def test_limited_test_is_recorded(
    tiny: Tiny, tmp_path: Path, overrides: list[str], expected: int, described: str
) -> None:
    config = tiny(*overrides, "data.source=standin", "trainer.max_epochs=1", *NO_PICTURES)
    directory = tmp_path / "run"
    result = train(config, directory)
    found = counts(result)
    assert found["test"] == expected < found["test_set"]
    assert result["provenance"]["test_images"] == described
    assert results.partial_test(result) == f"{expected} of {found['test_set']} images"
    assert f"tested on {described} images" in summary(result, directory, CHOSEN)
    written = json.loads((directory / "metrics.json").read_text())
    assert counts(written) == found


def test_smoke_run_records_what_it_did(cli: Cli, tmp_path: Path) -> None:
    ended = cli("train", "debug=smoke", *TINY[:4], "trainer.accelerator=cpu", *NO_PICTURES)
    (directory,) = (tmp_path / "runs").glob("capsnet-mnist-*")
    result = json.loads((directory / "metrics.json").read_text())
    assert counts(result) == {"train": 16, "val": 32, "test": 32, "test_set": TEST_SET}
    assert result["epochs"] == pytest.approx(2 / 149, abs=1e-4), "two of 149 batches"
    assert "tested on 32 of 359 images" in ended.out
    assert "trained     2 of 2 steps, 16 images, in" in ended.out
    assert "(32 of 359 images)" in cli("list").out


@pytest.mark.parametrize(
    ("overrides", "images", "epochs"),
    [
        pytest.param(["trainer.limit_train_batches=1"], 128, 0.5, marks=pytest.mark.whole),
        (["trainer.max_epochs=-1", "trainer.max_steps=6"], 384, 1.5),
        (["data.train_images=100"], 128, 2),
        pytest.param(["trainer.accumulate_grad_batches=2"], 512, 2, marks=pytest.mark.whole),
    ],
)
def test_images_and_epochs_of_training_are_counted(
    tiny: Tiny, tmp_path: Path, overrides: list[str], images: int, epochs: float
) -> None:
    result = train(tiny(*overrides, "train.test=none", *NO_PICTURES), tmp_path / "run")
    assert counts(result)["train"] == images
    assert result["epochs"] == epochs
    assert "test" not in counts(result)
    assert "test_images" not in result["provenance"]


def test_validation_counts_its_images(tiny: Tiny, tmp_path: Path) -> None:
    few = [
        "data.eval_batch_size=10",
        "trainer.limit_val_batches=2",
        "train.test=none",
        *NO_PICTURES,
    ]
    assert counts(train(tiny(*few), tmp_path / "run"))["val"] == 20


@pytest.mark.whole
def test_resumed_run_counts_the_images_of_all_its_processes(
    tiny: Tiny, trained: Trained, tmp_path: Path
) -> None:
    config = tiny(*NO_PICTURES)
    for step in (3, 6):
        with pytest.raises(InterruptError):
            run(config, tmp_path / "run", SignalAt(step))
        config = config.copy()
        config.train.resume = True
    result = train(config, tmp_path / "run")
    assert counts(result) == counts(trained.result)
    assert result["epochs"] == trained.result["epochs"]


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "function", "values"),
    [
        ("hardware", "hardware", ("machine A", "machine B")),
        ("commit", "commit", ("aaaaaaa", "bbbbbbb-dirty")),
    ],
)
def test_run_that_continues_elsewhere_names_both_places(
    tiny: Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    function: str,
    values: tuple[str, str],
) -> None:
    config = tiny(*NO_PICTURES)
    monkeypatch.setattr(environment, function, lambda *_: values[0])
    with pytest.raises(InterruptError):
        run(config, tmp_path / "run", SignalAt(3))
    monkeypatch.setattr(environment, function, lambda *_: values[1])
    config.train.resume = True
    assert train(config, tmp_path / "run")[name] == "; ".join(values)


@pytest.mark.whole
def test_machine_that_only_tests_is_not_one_of_training(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(*NO_PICTURES)
    monkeypatch.setattr(environment, "hardware", lambda *_: "machine A")
    with pytest.raises(InterruptError):
        run(config, tmp_path / "run", InterruptTest())
    monkeypatch.setattr(environment, "hardware", lambda *_: "machine B")
    config.train.resume = True
    assert train(config, tmp_path / "run")["hardware"] == "machine A"


class InterruptTest(Callback):
    def on_test_start(self, *_: object) -> None:
        raise InterruptError("stopped", 15)


@pytest.mark.parametrize("precision", whole_but(["32-true", "bf16-mixed"], "bf16-mixed"))
def test_precision_is_that_of_the_computation(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    seen: list[bool] = []

    class Watch(Callback):
        def on_before_backward(self, *_: object) -> None:
            seen.append(torch.is_autocast_enabled("cpu"))

    watch = Watch()
    monkeypatch.setattr("capsule_lab.config.build.fast_precision", lambda _: precision)
    result = run(tiny("trainer.max_epochs=1", *NO_PICTURES), tmp_path / "run", watch)
    assert result["precision"] == precision
    assert seen


@pytest.mark.whole
def test_float16_on_a_cpu_is_recorded_as_the_bfloat16_that_is_used(
    tiny: Tiny, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    config = tiny("trainer.precision=16-mixed", "trainer.max_epochs=1", *NO_PICTURES)
    with pytest.warns(UserWarning, match="AMP with fp16 is not supported on CPU"):
        result = train(config, tmp_path / "run")
    assert result["precision"] == "bf16-mixed"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_device_and_hardware_are_those_of_the_strategy(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    strategy = SimpleNamespace(root_device=torch.device(device))
    trainer: Any = SimpleNamespace(strategy=strategy, world_size=3, precision="32-true")
    facts = environment.facts_of_trainer(trainer)
    assert facts["device"] == device
    if device == "cuda":
        assert facts["hardware"] == "3 x a GPU"
    else:
        assert " 3 x " in facts["hardware"]


@pytest.mark.parametrize("source", ["real", "standin"])
def test_source_of_the_data_is_the_one_that_was_read(
    tiny: Tiny, tmp_path: Path, real: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    directory = real if source == "real" else tmp_path / "nothing"
    monkeypatch.setattr("capsule_lab.data.mnist.MNISTFiles.download", _no_network)
    options = [
        f"data.directory={directory}",
        "data.source=auto",
        "data.train_images=null",
        "data.batch_size=4",
    ]
    data = MNISTDataModule(directory=str(directory), source="auto")
    data.prepare_data()
    assert data.provenance["source"] == source
    assert tiny(*options).data.source == "auto"


def _no_network(*_: object) -> None:
    raise OSError("no network")


@pytest.mark.parametrize(
    ("split", "limits", "expected"),
    [
        ("test", {}, {"test": TEST_SET, "test_set": TEST_SET}),
        ("test", {"limit_test_batches": 1}, {"test": 100, "test_set": TEST_SET}),
        ("val", {"limit_val_batches": 2}, {"val": 200}),
    ],
)
def test_evaluation_counts_its_images(
    trained: Trained, split: str, limits: dict[str, int], expected: dict[str, int]
) -> None:
    opened = open_run(trained.directory)
    overrides = [f"trainer.{key}={value}" for key, value in limits.items()]
    trainer = compose("evaluate", overrides).trainer
    trainer.accelerator = "cpu"
    for _ in range(2):  # an earlier evaluation of the same run does not count
        result = evaluate(opened, split, {"eval_batch_size": 100}, trainer)
        assert counts(result) == expected


def test_new_files_make_a_commit_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
            cwd=tmp_path,
            check=True,
        )

    package = tmp_path / "capsule_lab" / "system"
    package.mkdir(parents=True)
    (package / "environment.py").write_text("")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    monkeypatch.setattr(environment, "__file__", str(package / "environment.py"))
    read: Callable[[], str] = environment.commit.__wrapped__
    assert not read().endswith("-dirty")
    (tmp_path / "notes.txt").write_text("not code")
    assert not read().endswith("-dirty")
    (tmp_path / "capsule_lab" / "routing.py").write_text("new")
    assert read().endswith("-dirty")


def test_index_of_ready_weights_has_only_the_test_of_these_weights(a_copy: Path) -> None:
    from capsule_lab.deploy.export import index_entry

    record = json.loads((a_copy / "metrics.json").read_text())
    opened = open_run(a_copy)
    file = a_copy / "config.yaml"
    assert index_entry(opened, file)["error"] == round(record["test"]["error"], 4)
    changes = (
        {"weights_tested": "last"},
        {"tested_step": 1},
        {"image_counts": {"test": 1, "test_set": 2}},
    )
    for change in changes:
        (a_copy / "metrics.json").write_text(json.dumps({**record, **change}))
        assert index_entry(opened, file)["error"] is None


@pytest.mark.whole
def test_several_processes_count_all_images(tmp_path: Path) -> None:
    two = ["trainer.devices=2", "trainer.strategy=ddp", "data.batch_size=32", "train.directory=two"]
    ended = two_processes("-m", "capsule_lab", "train", *TINY, *NO_PICTURES, *two, cwd=tmp_path)
    assert ended.status == 0, ended.err
    result = json.loads((tmp_path / "two" / "metrics.json").read_text())
    assert {**counts(result), "val": 0} == {
        "train": 512,
        "val": 0,
        "test": TEST_SET,
        "test_set": TEST_SET,
    }
    assert result["training_cpu_seconds"] is None
    assert " 2 x " in result["hardware"]
