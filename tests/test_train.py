"""The command ``train``: files of a run, resuming after interruptions, and runs of several processes."""

import csv
import json
import logging
import re
import shlex
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from omegaconf import OmegaConf
from rich.text import Text
from torch import Tensor

from capsule_lab import command, runs
from capsule_lab.callbacks import NonFiniteError
from capsule_lab.config import build
from capsule_lab.config.compose import compose, to_container
from capsule_lab.data import MNISTDataModule
from capsule_lab.errors import ConfigError, InterruptError, RunError
from capsule_lab.lit import CapsNetModule
from capsule_lab.system import signals
from capsule_lab.train import Training, main, summary, train
from tests.helpers.closeness import assert_close
from tests.helpers.commands import (
    CHOSEN,
    NO_PICTURES,
    TINY,
    TINY_CAPSNET,
    TINY_DATA,
    Cli,
    Tiny,
    Trained,
    python,
)
from tests.helpers.training import (
    SignalAt,
    add_callback,
    checkpoint,
    curves,
    results,
    run,
    trained_module,
    weights,
)

NAMES = ["best", "last"]


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_run_directory_has_exactly_these_files(trained: Trained) -> None:
    files = {
        path
        for path in trained.directory.rglob("*")
        if path.is_file() and path.parent.name != "evaluations"
    }
    assert {str(path.relative_to(trained.directory)) for path in files} == {
        *["config.yaml", "metrics.json", "metrics.csv", "predictions.npz", "train.log"],
        *(f"checkpoints/{name}.ckpt" for name in NAMES),
        *(
            f"figures/{name}.png"
            for name in ("val_reconstructions", "val_confusion", "test_confusion")
        ),
    }
    assert all(path.stat().st_size for path in files)
    assert list(trained.directory.parent.rglob(".*")) == []
    text = (trained.directory / "config.yaml").read_text()
    assert "${" not in text
    assert OmegaConf.to_container(OmegaConf.create(text)) == to_container(trained.config)


def test_metrics_json_has_results_and_everything_to_repeat_the_run(trained: Trained) -> None:
    result = json.loads((trained.directory / "metrics.json").read_text())
    assert result == trained.result
    assert set(result) == {
        "status", "name", "overrides", "test", "val", "weights_tested", "provenance", "parameters", "steps",
        "planned_steps", "epochs", "seed", "training_seconds", "training_cpu_seconds", "precision", "hardware",
        "config_hash", "command", "commit", "versions", "python", "stopped_by", "val_step", "best", "tested_step",
        "curves", "device", "predictions", "image_counts",
    }  # fmt: skip
    assert (result["status"], result["stopped_by"], result["weights_tested"]) == (
        "finished",
        "steps",
        "best",
    )
    best, last = checkpoint(trained.directory, "best"), checkpoint(trained.directory)
    assert (last["global_step"], last["epoch"]) == (8, 2)
    assert result["best"] == {"step": best["global_step"], "val": best["capsule_lab"]["val"]}
    assert result["tested_step"] == best["global_step"]
    assert (result["val"], result["val_step"]) == (last["capsule_lab"]["val"], last["global_step"])
    assert (result["steps"], result["planned_steps"], result["epochs"], result["seed"]) == (
        8,
        8,
        2,
        0,
    )
    assert result["config_hash"] == runs.directories.config_hash(trained.config)
    assert result["parameters"] == sum(p.numel() for p in trained.module.network.parameters())
    assert result["device"] == "cpu"
    assert "cores" in result["hardware"]
    assert 0 < result["training_seconds"] < 300
    seconds = {
        name: checkpoint(trained.directory, name)["capsule_lab"]["seconds"] for name in NAMES
    }
    assert (
        seconds["best"]
        < seconds["last"]
        == pytest.approx(result["training_seconds"], abs=0.05 + 1e-9)
    )

    for split in ("test", "val"):
        metrics = result[split]
        assert {"error", "loss", "margin", "reconstruction"} <= set(metrics)
        assert 0 <= metrics["error"] <= 100
        assert metrics["loss"] == pytest.approx(
            metrics["margin"] + metrics["reconstruction"], rel=1e-5
        )
    rows = curves(trained.directory)
    for column in ("train/loss", "val/error", "val/coupling_entropy"):
        assert [row["step"] for row in rows if row[column]] == ["3", "7"]
    assert [float(row["test/error"]) for row in rows if row["test/error"]] == [
        result["test"]["error"]
    ]
    assert result["provenance"]["source"] == "standin"
    assert result["provenance"]["split"]["train_images"] == 256
    assert len(result["provenance"]["split"]["hash"]) == 32


def test_log_has_the_steps_and_overrides_of_the_run(trained: Trained) -> None:
    text = (trained.directory / "train.log").read_text()
    assert "CapsNet on stand-in for MNIST" in text
    assert f"writing to {trained.directory}" in text
    assert f"overrides of the defaults: {shlex.join(TINY)}\n" in text, (
        "also if a notebook composed the configuration"
    )
    assert "epoch 1  step 4/8" in text
    assert "epoch 2  step 8/8" in text
    assert trained.events == ["training images", "fit starts", "fit ends", "test images"]
    logging.getLogger("capsule_lab").error("of another run")
    assert (trained.directory / "train.log").read_text() == text, (
        "the log of a finished run does not change"
    )


def test_invalid_configuration_loads_no_data(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MNISTDataModule, "setup", lambda *_: pytest.fail("data was loaded"))
    for wrong in ("model.primary.types=0", "trainer.max_time=soon", "routing.iterations=0"):
        with pytest.raises(ConfigError):
            train(tiny(wrong), tmp_path / "run")


def test_checkpoints_are_plain_and_carry_their_configuration(trained: Trained) -> None:
    images = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    for name in NAMES:
        record = checkpoint(trained.directory, name)["capsule_lab"]
        keys = "format version config provenance spec input_form seconds cpu_seconds val val_step curves precision"
        assert set(record) == {*keys.split(), "threads", "trained_with"}
        assert record["config"] == json.loads(json.dumps(to_container(trained.config)))
        tested = {"test_images": "359 of 359"}  # known at the end of a run only
        assert {**record["provenance"], **tested} == trained.result["provenance"]
        assert record["val"].keys() == trained.result["val"].keys()
    for where in (".", "checkpoints/best.ckpt"):
        module = trained_module(trained.directory / where)
        with torch.no_grad():
            output, expected_output = module(images), trained.module(images)
        assert not module.training
        assert_close(output.scores, expected_output.scores, atol=0)
        assert_close(output.capsules.poses, expected_output.capsules.poses, atol=0)


@pytest.mark.parametrize(("seed", "same"), [(0, True), (1, False)])
def test_result_depends_on_the_seed_alone(
    trained: Trained, tiny: Tiny, tmp_path: Path, seed: int, same: bool
) -> None:
    result = train(tiny(f"seed={seed}", *NO_PICTURES), tmp_path / "again")
    assert (results(result) == results(trained.result)) is same
    assert (curves(tmp_path / "again") == curves(trained.directory)) is same
    names = weights(trained.directory).keys()
    assert (
        all(
            weights(tmp_path / "again")[name].equal(weights(trained.directory)[name])
            for name in names
        )
        is same
    )


def test_initial_weights_depend_on_the_seed(tiny: Tiny, tmp_path: Path) -> None:
    one, same, other = (
        Training(tiny(f"seed={n}"), tmp_path, [], 0.0).module.network.digits.weight
        for n in (0, 0, 1)
    )
    assert one.equal(same)
    assert not one.equal(other)


def test_repeated_run_gets_a_numbered_directory(
    trained: Trained, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``train.resume`` finds the latest run of the same configuration, also after ten others."""
    config, choose = tiny(), runs.directories.choose_directory
    for _ in range(11):
        directory = choose(config, "capsnet-mnist")
        runs.directories.create_directory(directory, config)
    name = f"capsnet-mnist-{runs.directories.config_hash(config)}-11"
    assert (
        choose(tiny("train.resume=true"), "capsnet-mnist")
        == directory
        == Path.cwd() / "runs" / name
    )
    assert choose(tiny("trainer.max_epochs=3", "train.resume=true"), "capsnet-mnist") != directory
    shutil.copytree(
        trained.directory / "checkpoints", directory / "checkpoints", dirs_exist_ok=True
    )
    config.ckpt = str(directory / "checkpoints" / "last.ckpt")
    assert choose(config, "capsnet-mnist") == directory, (
        "a checkpoint of the same configuration continues there"
    )
    monkeypatch.setenv("CAPSULE_LAB_RUNS", str(tmp_path / "elsewhere"))
    assert choose(tiny(), "a").parent == tmp_path / "elsewhere"


REAL = ["data.source=real", "data.train_images=null"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["train.resume=true", "data.validation=stratified"],
            "was trained on another split or version of the data; ",
        ),
        (
            ["train.resume=true", *REAL],
            "was trained on stand-in for MNIST.*, but the data here is real MNIST",
        ),
        (
            ["ckpt=DIRECTORY", *REAL],
            "was trained on stand-in for MNIST.*, but the data here is real MNIST",
        ),
        (["ckpt=DIRECTORY", "model.channels=8"], r"last\.ckpt has another network"),
        ([], r"already contains a run; continue it with train\.resume=true, or set another"),
    ],
)
def test_resuming_with_other_data_or_network_is_refused(
    a_copy: Path, tiny: Tiny, real: Path, overrides: list[str], message: str
) -> None:
    before = contents(a_copy)
    data = [f"data.directory={real}"] if REAL[0] in overrides else []
    with pytest.raises(RunError, match=message):
        train(
            tiny(*data, *(override.replace("DIRECTORY", str(a_copy)) for override in overrides)),
            a_copy,
        )
    assert contents(a_copy) == before


def test_moved_run_resumes_exactly(trained: Trained, tiny: Tiny, tmp_path: Path) -> None:
    """The first checkpoint stays the best, because both validations have the same error.

    Rows of ``metrics.csv`` that are newer than the checkpoint, as after a kill, are replaced.
    """
    with pytest.raises(InterruptError):
        run(tiny(*NO_PICTURES), tmp_path / "run", SignalAt(5))
    directory = (tmp_path / "run").rename(tmp_path / "moved")
    with (directory / "metrics.csv").open("a", newline="") as file:
        csv.DictWriter(file, list(curves(directory)[0])).writerow(
            {"step": 7, "epoch": 1, "val/error": 12.5}
        )
    assert results(train(tiny("train.resume=true", *NO_PICTURES), directory)) == results(
        trained.result
    )
    assert curves(directory) == curves(trained.directory)


@pytest.mark.whole
def test_ckpt_of_a_shorter_run_continues_in_a_directory_of_its_own(
    a_copy: Path, tiny: Tiny
) -> None:
    """An interrupted continuation resumes in the same directory."""
    before = contents(a_copy)
    config = tiny(
        "trainer.max_epochs=3", f"ckpt={a_copy / 'checkpoints' / 'last.ckpt'}", *NO_PICTURES
    )
    directory = runs.directories.choose_directory(config, "capsnet-mnist")
    assert directory.name == f"capsnet-mnist-{runs.directories.config_hash(config)}-continued"
    with pytest.raises(InterruptError):
        run(config, directory, SignalAt(10))
    config.train.resume = True
    assert runs.directories.choose_directory(config, "capsnet-mnist") == directory
    result = run(config, directory, watch := Watch())
    assert len(watch.rates) == 2
    assert (result["steps"], result["epochs"]) == (12, 3)
    assert [row["step"] for row in curves(directory) if row["train/loss"]] == ["11"]
    assert runs.directories.attempts(result["config_hash"]) == [], (
        "continued, it is no run of its configuration"
    )
    assert contents(a_copy) == before


@pytest.mark.parametrize(
    ("moment", "signum", "message"),
    [
        (
            "on_sanity_check_start",
            signal.SIGUSR1,
            "stopped before training started; the checkpoints are unchanged",
        ),
        (
            "on_test_start",
            signal.SIGTERM,
            "training is complete; the same command with train.resume=true tests again",
        ),
    ],
)
def test_signal_outside_of_training_saves_nothing(
    cli: Cli,
    a_copy: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    signum: signal.Signals,
    message: str,
) -> None:
    sent = type("Sent", (Callback,), {moment: lambda *_: signal.raise_signal(signum)})()
    add_callback(monkeypatch, lambda: sent)
    asked: list[tuple[int, Any]] = []
    monkeypatch.setattr(
        command, "requeue", lambda number: asked.append((number, signal.getsignal(signal.SIGTERM)))
    )
    resumed = ["train.resume=true", f"train.directory={a_copy}", "trainer.num_sanity_val_steps=1"]
    before = {number: signal.getsignal(number) for number in signals.SIGNALS}
    ended = cli("train", *TINY, *NO_PICTURES, *resumed)
    assert (ended.status, ended.err) == (128 + signum, f"capsule_lab: {message}\n")
    assert asked == [(signum, signal.SIG_IGN)], "SLURM's next signal does not end scontrol"
    assert {number: signal.getsignal(number) for number in signals.SIGNALS} == before


def test_resuming_without_an_earlier_run_is_a_warning(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr("capsule_lab.train.train", lambda _, *given: started.append(given) or {})
    ended = cli("train", "debug=smoke", *TINY_CAPSNET, "name=mine", "train.resume=true")
    assert ended.status == 0
    ((directory, overrides, _),) = started
    assert directory.name.startswith("mine-capsnet-mnist-")
    assert overrides == ["debug=smoke", *TINY_CAPSNET]
    assert "NOTHING TO RESUME for this configuration: new run in " in ended.out


class Watch(Callback):
    """Records the learning rate and the length of the run at the start of every training step."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.lengths: set[int] = set()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        self.lengths.add(pl_module.total_steps)


def test_learning_rate_follows_the_schedule(tiny: Tiny, tmp_path: Path) -> None:
    watch = Watch()
    schedule = {"initial": "0.01", "rate": "0.5", "every": "1/2 run", "floor": "0.003"}
    config = tiny(
        *(f"schedule.learning_rate.{name}={value}" for name, value in schedule.items()),
        *NO_PICTURES,
    )
    result = run(config, tmp_path / "run", watch)
    assert watch.rates == pytest.approx([max(0.003, 0.01 * 0.5 ** (step / 4)) for step in range(8)])
    assert watch.lengths == {result["planned_steps"]} == {8}
    logged = [
        float(row["schedule/learning_rate"])
        for row in curves(tmp_path / "run")
        if row["train/loss"]
    ]
    assert logged == pytest.approx([0.005, 0.003])


def test_module_counts_the_steps_and_not_the_trainer(tiny: Tiny, tmp_path: Path) -> None:
    """With ``max_steps`` of the Trainer, Lightning would count wrongly after resuming at the end of an epoch."""
    for overrides, epochs in (
        (["trainer.max_epochs=3"], 3),
        (["trainer.max_epochs=3", "trainer.max_steps=6"], -1),
    ):
        config = tiny(*overrides)
        trainer = build.build_trainer(config, tmp_path)
        assert (trainer.max_epochs, trainer.max_steps) == (epochs, -1)
        assert build.build_without_weights(config).max_steps == config.trainer.max_steps


def test_run_with_train_test_none_is_not_tested(tiny: Tiny, tmp_path: Path) -> None:
    result = train(
        tiny("train.test=none", "trainer.limit_train_batches=1", *NO_PICTURES), tmp_path / "run"
    )
    assert (result["test"], result["weights_tested"]) == ({}, None)
    shown = summary(result, tmp_path / "run", CHOSEN, ["seed=1", "routing.iterations=2"])
    assert "not tested" in shown
    assert "network     capsnet, routing dynamic\n" in shown
    assert shown.endswith("python -m capsule_lab train seed=1 routing=uniform")
    assert "capsule_lab analyse" not in summary(
        result, tmp_path / "without checkpoints", CHOSEN, []
    )
    assert "try next" not in summary(result, tmp_path / "run", CHOSEN), (
        "a run of a sweep proposes no commands"
    )


def not_a_number(step: int, seen: list[int]) -> Callable[..., dict[str, Tensor]]:
    """Loss terms whose margin is NaN from ``step`` on; records the steps at which they are computed."""
    real = CapsNetModule.loss_terms

    def terms(self: CapsNetModule, *args: Any) -> dict[str, Tensor]:
        losses = real(self, *args)
        seen.append(self.global_step)
        return {
            **losses,
            "margin": losses["margin"] * (float("nan") if self.global_step >= step else 1),
        }

    return terms


def test_loss_that_is_not_finite_stops_the_run(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a checkpoint is saved at that step, and before the regular check of the guard."""
    config = tiny(
        "callbacks.last.every_minutes=0", "+callbacks.guard.every_n_steps=5", *NO_PICTURES
    )
    monkeypatch.setattr(CapsNetModule, "loss_terms", not_a_number(6, seen := []))
    with pytest.raises(
        NonFiniteError, match=r"the margin term of the loss is nan at step 7; try a smaller"
    ):
        train(config, tmp_path / "run")
    assert max(seen) == 6
    assert not (tmp_path / "run" / "metrics.json").exists()
    failure = json.loads((tmp_path / "run" / "status.json").read_text())
    assert failure["error"].startswith("the margin term of the loss is nan at step 7")
    assert checkpoint(tmp_path / "run")["global_step"] == 6
    assert all(value.isfinite().all() for value in weights(tmp_path / "run").values())


def test_test_with_nan_is_an_error_and_writes_no_result(a_copy: Path, tiny: Tiny) -> None:
    content = torch.load(path := a_copy / "checkpoints" / "best.ckpt", weights_only=True)
    content["state_dict"]["network.conv.weight"].fill_(torch.nan)
    torch.save(content, path)
    with pytest.raises(
        RunError, match=r"^the test of \S+/best\.ckpt gives .*loss nan.*; expected finite numbers"
    ):
        train(tiny("train.resume=true", *NO_PICTURES), a_copy)
    assert not (a_copy / "metrics.json").exists()
    assert "gives" in json.loads((a_copy / "status.json").read_text())["error"]


def test_smoke_run_of_the_command_line(cli: Cli, tmp_path: Path) -> None:
    """The same command with ``train.resume=true`` then has nothing to resume."""
    command_line = [*TINY_CAPSNET, "debug=smoke", "trainer.accelerator=cpu"]
    ended = cli("train", *command_line)
    assert (ended.status, ended.err) == (0, "")
    (directory,) = (tmp_path / "runs").iterdir()
    result = json.loads((directory / "metrics.json").read_text())
    assert result["steps"] == 2
    assert result["test"]["error"] >= 0
    assert (directory / "figures" / "test_confusion.png").is_file()
    assert "test error" in ended.out
    assert f"run         runs/{directory.name}" in ended.out

    before = contents(tmp_path / "runs")
    again = cli("train", *command_line, "train.resume=true")
    assert again.status == 0
    assert f"{directory} has finished, there is nothing to resume" in again.out
    assert contents(tmp_path / "runs") == before


@pytest.mark.whole
def test_overfit_reaches_an_error_of_0(tmp_path: Path) -> None:
    wider = ["model.channels=8", "model.primary.types=4", "model.class_dim=8", "model.decoder=[8]"]
    rate = ["schedule=constant", "schedule.learning_rate.value=0.01", "trainer.accelerator=cpu"]
    train(compose("train", [*wider, *rate, "debug=overfit", *NO_PICTURES]), tmp_path / "run")
    last = [row for row in curves(tmp_path / "run") if row["train/error"]][-1]
    assert (last["step"], float(last["train/error"])) == ("59", 0)


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:The PyTorch Profiler default schedule")
@pytest.mark.filterwarnings("ignore:Profiler clears events at the end of each cycle")
def test_debug_profile_writes_a_table(tmp_path: Path) -> None:
    overrides = [
        "debug=profile",
        *TINY_CAPSNET,
        "trainer.accelerator=cpu",
        "data.batch_size=8",
        *NO_PICTURES,
    ]
    assert train(compose("train", overrides), tmp_path / "run")["steps"] == 12
    (table,) = (tmp_path / "run").glob("*profile*.txt")
    assert "Self CPU" in table.read_text()


@pytest.mark.whole
def test_tensorboard_gets_curves_and_pictures(tiny: Tiny, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = train(tiny("logger=tensorboard", "trainer.max_epochs=1"), tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert {"train/loss", "val/error", "val/coupling_entropy", "test/error"} <= set(
        events.Tags()["scalars"]
    )
    assert {"val/reconstructions", "val/confusion", "test/confusion"} <= set(
        events.Tags()["images"]
    )
    assert events.Scalars("val/error")[-1].value == pytest.approx(result["val"]["error"])
    for split in ("val", "test"):
        (scalar,), (picture,) = (
            events.Scalars(f"{split}/error"),
            events.Images(f"{split}/confusion"),
        )
        assert scalar.step == picture.step
    assert [event.step for event in events.Scalars("train/loss_step")] == [2]
    assert len(curves(tmp_path / "run")) == 4


def test_ctrl_c_saves_a_checkpoint_and_prints_the_command_to_continue(
    cli: Cli, tmp_path: Path
) -> None:
    sender = f"+callbacks.sender={{_target_: tests.helpers.training.SignalAt, step: 6, signum: {signal.SIGINT.value}}}"
    overrides = [*TINY, "trainer.max_epochs=100000", "train.directory=run", *NO_PICTURES, sender]
    ended = cli("train", *overrides)
    assert ended.status == 128 + signal.SIGINT
    assert "SIGINT: stopping after this step" in ended.out
    message = re.fullmatch(
        r"capsule_lab: stopped by SIGINT at step 6, saved in (\S+); to continue exactly: (?:python -m )?\S+ (.*)\n",
        ended.err,
    )
    assert message is not None, ended.err
    assert Path(message[1]) == tmp_path / "run" / "checkpoints" / "last.ckpt"
    assert checkpoint(tmp_path / "run")["global_step"] == 6
    assert shlex.split(message[2]) == [*overrides, "train.resume=true"]
    assert not (tmp_path / "run" / "metrics.json").exists()


EM_CAPS = ["model=em_caps", "model.primary.types=4", "model.stem=[[8,5,2],[8,3,2]]"]
"""Batch normalisation in stem, primary capsules and routing."""
WHOLE_STEP = [*TINY_CAPSNET, "model.decoder=null", "data.mixup=0.2", "callbacks=averaged_weights"]
WHOLE_STEP += [
    "trainer.gradient_clip_val=0.1",
    "trainer.accumulate_grad_batches=2",
    "loss=cross_entropy_logits",
]
"""What else could differ: mixtures of images, averaged weights, clipping, accumulation."""


@pytest.mark.whole
@pytest.mark.parametrize(
    ("model", "images", "steps"),
    [(TINY_CAPSNET, 128, 4), (EM_CAPS, 32, 16), (WHOLE_STEP, 16, 16)],
    ids=["capsnet", "em_caps", "whole step"],
)
def test_two_processes_train_like_one(
    model: list[str], images: int, steps: int, tiny: Tiny, tmp_path: Path
) -> None:
    """``images`` is the number of images in a batch of both processes together."""
    options = ["trainer.precision=32-true", "trainer.limit_val_batches=null", *NO_PICTURES]
    two = [
        "trainer.devices=2",
        "trainer.strategy=ddp",
        f"data.batch_size={images // 2}",
        "train.directory=two",
    ]
    ended = python(
        "-m",
        "capsule_lab.train",
        *model,
        *TINY_DATA,
        "trainer.max_epochs=2",
        *options,
        *two,
        cwd=tmp_path,
    )
    assert ended.status == 0, ended.err
    assert ended.out.count("test error") == 1
    accumulated = 2 if model is WHOLE_STEP else 1
    assert (
        f"a step has {images * accumulated} images: 2 processes, data.batch_size={images // 2}, "
        in ended.out
    )
    assert [path.parent.name for path in tmp_path.rglob("metrics.json")] == ["two"]

    one = train(tiny(*options, f"data.batch_size={images}", model=model), tmp_path / "one")
    result = json.loads((tmp_path / "two" / "metrics.json").read_text())
    assert result["steps"] == one["steps"] == steps
    assert result["test"]["error"] == one["test"]["error"]
    assert result["val"] == pytest.approx(one["val"], rel=1e-4)
    assert_close(weights(tmp_path / "two"), weights(tmp_path / "one"), atol=1e-4)


def test_calling_main_outside_of_hydra_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "hydra.core.hydra_config.HydraConfig.initialized", staticmethod(lambda: False)
    )
    with pytest.raises(
        ConfigError,
        match=r"^main\(\) must be started by Hydra; in a notebook call train\(compose\(",
    ):
        main.__wrapped__(compose("train", TINY))


def test_log_is_printed_without_a_handler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, own = logging.getLogger(), logging.getLogger("capsule_lab.train")
    monkeypatch.setattr(Training, "__init__", lambda *_: None)
    monkeypatch.setattr(Training, "run", lambda _: own.info("shown") or {})
    for handlers, expected in (([], "shown\n"), ([logging.NullHandler()], "")):
        monkeypatch.setattr(root, "handlers", [*handlers])
        train(compose("train", TINY), Path("run"))
        assert capsys.readouterr().out == expected
        assert root.handlers == handlers


def test_summary_prints_markup_in_names_literally(trained: Trained) -> None:
    name = "mine [bold]x[/] [/b] ["
    result = {**trained.result, "provenance": {**trained.result["provenance"], "name": name}}
    shown = Text.from_markup(summary(result, Path("runs/[/b] [red]"), CHOSEN)).plain
    assert name in shown
    assert "run         runs/[/b] [red]" in shown
