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

from capsule_lab import callbacks, runs
from capsule_lab.callbacks import NonFiniteError
from capsule_lab.commands import compose, proposals
from capsule_lab.commands import declare as command
from capsule_lab.commands.train import summary, train
from capsule_lab.commands.training import Training
from capsule_lab.config import build
from capsule_lab.config.composition import to_container
from capsule_lab.config.declaration import FinishedRun
from capsule_lab.data import MNISTDataModule
from capsule_lab.errors import ConfigError, InterruptError, RunError
from capsule_lab.lit import CapsNetModule
from capsule_lab.system import signals
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
    two_processes,
)
from tests.helpers.tiers import whole_but
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
OF_A_RESULT = {
    "status",
    "name",
    "overrides",
    "test",
    "val",
    "weights_tested",
    "provenance",
    "parameters",
    "steps",
    "planned_steps",
    "epochs",
    "seed",
    "training_seconds",
    "training_cpu_seconds",
    "precision",
    "hardware",
    "config_hash",
    "command",
    "commit",
    "versions",
    "python",
    "stopped_by",
    "val_step",
    "best",
    "tested_step",
    "curves",
    "device",
    "predictions",
    "image_counts",
    "classes",
}


FILES = {
    "config.yaml",
    "metrics.json",
    "metrics.csv",
    "predictions.npz",
    "train.log",
    "checkpoints/best.ckpt",
    "checkpoints/last.ckpt",
    "figures/val_reconstructions.png",
    "figures/val_confusion.png",
    "figures/test_confusion.png",
}


def contents(directory: Path) -> dict[str, bytes]:
    """The content of every file below, by its path from there."""
    found = {}
    for path in directory.rglob("*"):
        if path.is_file():
            name = path.relative_to(directory).as_posix()
            found[name] = path.read_bytes()
    return found


def read_json(directory: Path, name: str = "metrics.json") -> Any:
    return json.loads((directory / name).read_text())


def steps_of(directory: Path, column: str) -> list[str]:
    """The steps whose row in ``metrics.csv`` has a value in the column."""
    return [row["step"] for row in curves(directory) if row[column]]


def test_run_directory_has_exactly_these_files(trained: Trained) -> None:
    directory = trained.directory
    found = contents(directory)
    written_by_training = {name for name in found if not name.startswith("evaluations/")}
    assert written_by_training == FILES
    assert all(found.values()), "a file is empty"
    hidden = [*directory.parent.rglob(".*")]
    assert hidden == []
    text = (directory / "config.yaml").read_text()
    assert "${" not in text
    config = OmegaConf.create(text)
    assert to_container(config) == to_container(trained.config)


def test_metrics_json_has_results_and_everything_to_repeat_the_run(trained: Trained) -> None:
    result = read_json(trained.directory)
    assert result == trained.result
    assert result.keys() == OF_A_RESULT
    assert result["status"] == "finished"
    assert result["stopped_by"] == "steps"
    assert result["steps"] == 8
    assert result["planned_steps"] == 8
    assert result["epochs"] == 2
    assert result["seed"] == 0
    expected_hash = runs.directories.config_hash(trained.config)
    assert result["config_hash"] == expected_hash
    parameters = trained.module.network.parameters()
    assert result["parameters"] == sum(each.numel() for each in parameters)
    assert result["device"] == "cpu"
    assert "cores" in result["hardware"]
    provenance = result["provenance"]
    split = provenance["split"]
    assert provenance["source"] == "standin"
    assert split["train_images"] == 256
    assert len(split["hash"]) == 32


def test_metrics_json_has_the_steps_and_seconds_of_the_checkpoints(trained: Trained) -> None:
    result = trained.result
    best = checkpoint(trained.directory, "best")
    last = checkpoint(trained.directory)
    assert last["global_step"] == 8
    assert last["epoch"] == 2
    best_step = best["global_step"]
    of_best = best["capsule_lab"]
    of_last = last["capsule_lab"]
    assert result["best"] == {"step": best_step, "val": of_best["val"]}
    assert result["weights_tested"] == "best"
    assert result["tested_step"] == best_step
    assert result["val"] == of_last["val"]
    assert result["val_step"] == 8
    seconds = of_last["seconds"]
    assert of_best["seconds"] < seconds
    training_seconds = result["training_seconds"]
    assert 0 < training_seconds < 300
    assert training_seconds == pytest.approx(seconds, abs=0.05 + 1e-9)


def test_metrics_json_has_the_numbers_of_the_curves(trained: Trained) -> None:
    for split in ("test", "val"):
        metrics = trained.result[split]
        assert {"error", "loss", "margin", "reconstruction"} <= metrics.keys()
        assert 0 <= metrics["error"] <= 100
        total = metrics["margin"] + metrics["reconstruction"]
        assert metrics["loss"] == pytest.approx(total, rel=1e-5)
    for column in ("train/loss", "val/error", "val/coupling_entropy"):
        assert steps_of(trained.directory, column) == ["3", "7"]
    column = "test/error"
    rows = curves(trained.directory)
    (tested,) = [row[column] for row in rows if row[column]]
    assert float(tested) == trained.result["test"]["error"]


def test_log_has_the_steps_and_overrides_of_the_run(trained: Trained) -> None:
    log = trained.directory / "train.log"
    text = log.read_text()
    assert "CapsNet on stand-in for MNIST" in text
    assert f"writing to {trained.directory}" in text
    # also if a notebook composed the configuration
    overrides = shlex.join(TINY)
    assert f"overrides of the defaults: {overrides}\n" in text
    assert "epoch 1  step 4/8" in text
    assert "epoch 2  step 8/8" in text
    expected = ["training images", "fit starts", "fit ends", "test images"]
    assert trained.events == expected
    logging.getLogger("capsule_lab").error("of another run")
    assert log.read_text() == text, "the log of a finished run does not change"


@pytest.mark.parametrize(
    "wrong",
    [
        "model.primary.types=0",
        "trainer.max_time=soon",
        "routing.iterations=0",
    ],
)
def test_invalid_configuration_loads_no_data(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    def setup(*_: object) -> None:
        pytest.fail("data was loaded")

    monkeypatch.setattr(MNISTDataModule, "setup", setup)
    config = tiny(wrong)
    with pytest.raises(ConfigError):
        train(config, tmp_path / "run")


OF_A_CHECKPOINT = {
    "format",
    "version",
    "config",
    "provenance",
    "spec",
    "input_form",
    "class_counts",
    "start_from",
    "seconds",
    "cpu_seconds",
    "val",
    "val_step",
    "curves",
    "precision",
    "threads",
    "trained_with",
}


def test_checkpoints_are_plain_and_carry_their_configuration(trained: Trained) -> None:
    result = trained.result
    config = to_container(trained.config)
    plain_config = json.loads(json.dumps(config))
    for name in NAMES:
        record = checkpoint(trained.directory, name)["capsule_lab"]
        assert record.keys() == OF_A_CHECKPOINT
        assert record["config"] == plain_config
        tested = {"test_images": "359 of 359"}  # known at the end of a run only
        assert {**record["provenance"], **tested} == result["provenance"]
        assert record["val"].keys() == result["val"].keys()


@pytest.mark.parametrize("where", [".", "checkpoints/best.ckpt"])
def test_run_and_checkpoint_open_as_the_trained_module(trained: Trained, where: str) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(4, 1, 28, 28, generator=generator)
    module = trained_module(trained.directory / where)
    assert not module.training
    with torch.no_grad():
        output = module(images)
        expected = trained.module(images)
    assert_close(output.scores, expected.scores, atol=0)
    assert_close(output.capsules.poses, expected.capsules.poses, atol=0)


@pytest.mark.parametrize(("seed", "same"), whole_but([(0, True), (1, False)], (0, True)))
def test_result_depends_on_the_seed_alone(
    trained: Trained, tiny: Tiny, tmp_path: Path, seed: int, same: bool
) -> None:
    directory = tmp_path / "again"
    result = train(tiny(f"seed={seed}", *NO_PICTURES), directory)
    same_results = results(result) == results(trained.result)
    same_curves = curves(directory) == curves(trained.directory)
    found = weights(directory)
    expected = weights(trained.directory)
    same_weights = all(found[name].equal(expected[name]) for name in expected)
    assert (same_results, same_curves, same_weights) == (same, same, same)


def test_initial_weights_depend_on_the_seed(tiny: Tiny, tmp_path: Path) -> None:
    def initial_weight(seed: int) -> Tensor:
        config = tiny(f"seed={seed}")
        training = Training(config, tmp_path, [], 0.0)
        return training.module.network.digits.weight

    weight = initial_weight(0)
    assert weight.equal(initial_weight(0))
    assert not weight.equal(initial_weight(1))


def test_repeated_run_gets_a_numbered_directory(
    trained: Trained, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``train.resume`` finds the latest run of the same configuration, also after ten others."""
    config = tiny()
    choose = runs.directories.choose_directory
    for _ in range(11):
        directory = choose(config, "capsnet-mnist")
        runs.directories.create_directory(directory, config)
    config_hash = runs.directories.config_hash(config)
    assert directory == Path.cwd() / "runs" / f"capsnet-mnist-{config_hash}-11"
    resumed = tiny("train.resume=true")
    assert choose(resumed, "capsnet-mnist") == directory
    longer = tiny("trainer.max_epochs=3", "train.resume=true")
    assert choose(longer, "capsnet-mnist") != directory
    checkpoints = directory / "checkpoints"
    shutil.copytree(trained.directory / "checkpoints", checkpoints, dirs_exist_ok=True)
    config.ckpt = str(checkpoints / "last.ckpt")
    # a checkpoint of the same configuration continues there
    assert choose(config, "capsnet-mnist") == directory
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setenv("CAPSULE_LAB_RUNS", str(elsewhere))
    assert choose(tiny(), "a").parent == elsewhere


REAL = ["data.source=real", "data.train_images=null"]
ON_OTHER_DATA = "was trained on stand-in for MNIST.*, but the data here is real MNIST"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.resume=true", "data.validation=stratified"], "was trained on another split or v"),
        (["train.resume=true", *REAL], ON_OTHER_DATA),
        (["ckpt=DIRECTORY", *REAL], ON_OTHER_DATA),
        (
            ["ckpt=DIRECTORY", "model.channels=8"],
            r"network, model\.channels=4 instead of model\.ch",
        ),
        (["ckpt=DIRECTORY", "routing.iterations=1"], r"another network, routing\.iterations=3 ins"),
        (
            ["ckpt=DIRECTORY", "routing=uniform"],
            r"another network, routing\._target_=[^,]+ instead",
        ),
        (
            ["ckpt=DIRECTORY", "optimizer.eps=1e-6"],
            r"optimizer, optimizer\.eps=1e-08 instead of opt",
        ),
        (["ckpt=DIRECTORY", "module.decay_all=true"], r"optimizer, module\.decay_all=False ins"),
        (["ckpt=DIRECTORY", "optimizer=radam"], r"_target_=torch.optim.Adam instead of [^,]+;"),
        (["ckpt=DIRECTORY", "trainer.max_epochs=3"], r"of another configuration, trainer\.max_ep"),
        (["train.resume=true", "trainer.max_epochs=3"], r"a run of another configuration, trainer"),
        (["train.resume=true", *NO_PICTURES], r"callbacks\.confusion\._target_=[^,]+Confusion"),
        ([], r"already contains a run; continue it with train\.resume=true, or set another"),
    ],
)
def test_resuming_with_other_data_or_network_is_refused(
    a_copy: Path, tiny: Tiny, real: Path, overrides: list[str], message: str
) -> None:
    before = contents(a_copy)
    given = [override.replace("DIRECTORY", str(a_copy)) for override in overrides]
    if REAL[0] in overrides:
        given.append(f"data.directory={real}")
    with pytest.raises(RunError, match=message):
        train(tiny(*given), a_copy)
    assert contents(a_copy) == before


def test_relative_directory_of_a_run_is_that_of_its_checkpoint(
    a_copy: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(a_copy.parent)
    with pytest.raises(RunError, match=r"has a run of another configuration, trainer\.max_epochs"):
        train(tiny("train.resume=true", "trainer.max_epochs=3"), a_copy.name)
    (a_copy / "metrics.json").unlink()
    assert train(tiny("train.resume=true"), a_copy.name)["status"] == "finished"


@pytest.mark.whole
def test_run_of_a_version_without_an_option_continues(a_copy: Path, tiny: Tiny) -> None:
    """The options that the record lacks did not exist; a file may have moved, and the provenance has its hash."""
    path = a_copy / "checkpoints" / "last.ckpt"
    content = torch.load(path, weights_only=True)
    config = content["capsule_lab"]["config"]
    del config["module"]["decay_all"], config["optimizer"]["eps"], config["data"]["eval_images"]
    torch.save(content, path)
    (a_copy / "metrics.json").unlink()
    assert train(tiny("train.resume=true"), a_copy)["status"] == "finished"


def test_message_about_another_configuration_is_short(a_copy: Path, tiny: Tiny) -> None:
    others = ["log_every_n_steps=9", "max_epochs=3", "+min_steps=1", "num_sanity_val_steps=1"]
    changed = [f"{'+' * other.startswith('+')}trainer.{other.lstrip('+')}" for other in others]
    changed += [*NO_PICTURES, "+module.l2=0.1", "data.eval_batch_size=9"]
    with pytest.raises(RunError) as caught:
        train(tiny("train.resume=true", *changed), a_copy)
    message = str(caught.value)
    assert "callbacks.confusion._target_=capsule_lab.callbacks.ConfusionMatrix" in message
    assert "instead of no callbacks.confusion._target_, " in message
    assert "; expected the same options, or another train.directory=…" in message
    assert len(message) < 700 + 2 * len(str(a_copy))


def test_finished_run_without_checkpoints_is_not_replaced(a_copy: Path, tiny: Tiny) -> None:
    shutil.rmtree(a_copy / "checkpoints")
    before = contents(a_copy)
    with pytest.raises(RunError, match=r"has the finished run of another configuration; expected"):
        train(tiny("train.resume=true", "seed=1"), a_copy)
    assert contents(a_copy) == before


@pytest.mark.parametrize(
    ("limit", "reached"),
    [
        ("trainer.max_steps=8", r"8 of trainer\.max_steps=8"),
        ("trainer.max_epochs=1", r"2 of trainer\.max_epochs=1"),
    ],
)
def test_checkpoint_at_the_end_of_the_run_has_nothing_to_train(
    a_copy: Path, tiny: Tiny, tmp_path: Path, limit: str, reached: str
) -> None:
    directory = tmp_path / "run"
    with pytest.raises(RunError, match=f"has {reached}, so there is nothing to train; expected"):
        train(tiny(limit, f"ckpt={a_copy}"), directory)
    assert not directory.exists()


@pytest.mark.whole
def test_moved_run_resumes_exactly(trained: Trained, tiny: Tiny, tmp_path: Path) -> None:
    """The first checkpoint stays the best, because both validations have the same error.

    Rows of ``metrics.csv`` that are newer than the checkpoint, as after a kill, are replaced.
    """
    directory = tmp_path / "run"
    with pytest.raises(InterruptError):
        run(tiny(*NO_PICTURES), directory, SignalAt(5))
    moved = directory.rename(tmp_path / "moved")
    columns = curves(moved)[0].keys()
    newer = {"step": 7, "epoch": 1, "val/error": 12.5}
    with (moved / "metrics.csv").open("a", newline="") as file:
        csv.DictWriter(file, columns).writerow(newer)
    result = train(tiny("train.resume=true", *NO_PICTURES), moved)
    assert results(result) == results(trained.result)
    assert curves(moved) == curves(trained.directory)


@pytest.mark.whole
def test_ckpt_of_a_shorter_run_continues_in_a_directory_of_its_own(
    a_copy: Path, tiny: Tiny
) -> None:
    """An interrupted continuation resumes in the same directory."""
    choose = runs.directories.choose_directory
    before = contents(a_copy)
    last = a_copy / "checkpoints" / "last.ckpt"
    config = tiny("trainer.max_epochs=3", f"ckpt={last}", *NO_PICTURES)
    config_hash = runs.directories.config_hash(config)
    directory = choose(config, "capsnet-mnist")
    assert directory.name == f"capsnet-mnist-{config_hash}-continued"
    with pytest.raises(InterruptError):
        run(config, directory, SignalAt(10))
    config.train.resume = True
    assert choose(config, "capsnet-mnist") == directory
    watch = Watch()
    result = run(config, directory, watch)
    assert len(watch.rates) == 2
    assert result["steps"] == 12
    assert result["epochs"] == 3
    assert steps_of(directory, "train/loss") == ["11"]
    # continued, it is no run of its configuration
    assert runs.directories.attempts(result["config_hash"]) == []
    assert contents(a_copy) == before


def test_run_that_continues_another_configuration_locks_its_directory(
    cli: Cli, a_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes with ``train.resume=true`` choose the same one, and it is listed as running."""
    refusals: list[str] = []
    alive: list[bool] = []

    def in_two_processes(config: Any, directory: Path, *_: Any) -> dict[str, Any]:
        with pytest.raises(RunError) as caught, runs.lock.directory_lock(config, directory):
            pass
        refusals.append(str(caught.value))
        alive.append(runs.lock.is_alive(directory, None))
        return {}

    monkeypatch.setattr(runs.lock, "_TIMEOUT", 0)
    monkeypatch.setattr("capsule_lab.commands.train._train", in_two_processes)
    ended = cli("train", *TINY, "trainer.max_epochs=3", f"ckpt={a_copy}", "train.resume=true")
    assert (ended.status, ended.err) == (0, "")
    (refusal,) = refusals
    assert re.search(r"another process already trains in \S+-continued; wait", refusal)
    assert alive == [True]
    assert not Path("runs").exists(), "nothing is left"


@pytest.mark.parametrize(
    ("moment", "signum", "message"),
    [
        (
            "on_fit_start",
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
    sender = Callback()
    monkeypatch.setattr(sender, moment, lambda *_: signal.raise_signal(signum))
    add_callback(monkeypatch, lambda: sender)
    requeued: list[tuple[int, Any]] = []

    def requeue(number: int) -> None:
        requeued.append((number, signal.getsignal(signal.SIGTERM)))

    monkeypatch.setattr(command, "requeue", requeue)
    (a_copy / "metrics.json").unlink()
    resumed = ["train.resume=true", f"train.directory={a_copy}"]
    before = [signal.getsignal(number) for number in signals.SIGNALS]
    ended = cli("train", *TINY, *resumed)
    assert (ended.status, ended.err) == (128 + signum, f"capsule_lab: {message}\n")
    assert requeued == [(signum, signal.SIG_IGN)], "SLURM's next signal does not end scontrol"
    assert [signal.getsignal(number) for number in signals.SIGNALS] == before


def server_is_gone() -> None:
    raise ConnectionError("no server")


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("problem", "named"),
    [(server_is_gone, "ConnectionError: no server"), (ctrl_c, "stopped by SIGINT")],
)
def test_logger_that_cannot_be_closed_does_not_cost_the_result(
    cli: Cli,
    a_copy: Path,
    monkeypatch: pytest.MonkeyPatch,
    problem: Callable[[], None],
    named: str,
) -> None:
    """The record is written before, with the hash of the whole ``metrics.csv``."""
    monkeypatch.setattr(callbacks, "close_loggers", lambda *_, **__: problem())
    (a_copy / "metrics.json").unlink()
    ended = cli("train", *TINY, "train.resume=true", f"train.directory={a_copy}")
    assert (ended.status, ended.err) == (0, "")
    result = read_json(a_copy)
    assert result["curves"] == runs.files.sha256(a_copy / "metrics.csv")
    assert not (a_copy / "status.json").exists()
    assert f"loggers could not be closed ({named})" in ended.out
    assert "test error" in ended.out


def test_resuming_without_an_earlier_run_is_a_warning(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(
        "capsule_lab.commands.train._train", lambda _, *given: started.append(given) or {}
    )
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
    config = tiny(
        "schedule.learning_rate.initial=0.01",
        "schedule.learning_rate.rate=0.5",
        "schedule.learning_rate.every=1/2 run",
        "schedule.learning_rate.floor=0.003",
        *NO_PICTURES,
    )
    directory = tmp_path / "run"
    result = run(config, directory, watch)
    expected = [max(0.003, 0.01 * 0.5 ** (step / 4)) for step in range(8)]
    assert watch.rates == pytest.approx(expected)
    assert result["planned_steps"] == 8
    assert watch.lengths == {8}
    logged = []
    for row in curves(directory):
        if row["train/loss"]:
            logged.append(float(row["schedule/learning_rate"]))
    assert logged == pytest.approx([0.005, 0.003])


@pytest.mark.parametrize(
    ("overrides", "epochs"),
    [
        (["trainer.max_epochs=3"], 3),
        (["trainer.max_epochs=3", "trainer.max_steps=6"], -1),
    ],
)
def test_module_counts_the_steps_and_not_the_trainer(
    tiny: Tiny, tmp_path: Path, overrides: list[str], epochs: int
) -> None:
    """With ``max_steps`` of the Trainer, Lightning would count wrongly after resuming at the end of an epoch."""
    config = tiny(*overrides)
    trainer = build.build_trainer(config.trainer)
    assert trainer.max_epochs == epochs
    assert trainer.max_steps == -1
    module = build.build_without_weights(config)
    assert module.max_steps == config.trainer.max_steps


@pytest.mark.parametrize("monitor", whole_but(["val/error", "train/loss"], "train/loss"))
def test_run_without_validation_has_best_weights_of_measured_metrics_alone(
    tiny: Tiny, tmp_path: Path, monitor: str
) -> None:
    """Lightning would warn, which is an error here, that ``val/error`` is not logged."""
    config = tiny("data.validation=none", f"callbacks.best.monitor={monitor}")
    result = train(config, tmp_path / "run")
    is_measured = monitor == "train/loss"
    assert result["weights_tested"] == ("best" if is_measured else "last")
    assert (tmp_path / "run" / "checkpoints" / "best.ckpt").exists() is is_measured


def test_run_with_train_test_none_is_not_tested(tiny: Tiny, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    config = tiny("train.test=none", "trainer.limit_train_batches=1", *NO_PICTURES)
    result = train(config, directory)
    assert result["test"] == {}
    assert result["weights_tested"] is None
    overrides = ["seed=1", "routing.iterations=2"]
    finished = FinishedRun(result, directory, True, CHOSEN, overrides)
    shown = summary(result, directory, CHOSEN, proposals(finished))
    assert "not tested" in shown
    assert "network     capsnet, routing dynamic\n" in shown
    assert shown.endswith("capsule-lab train seed=1 routing=uniform")
    without_weights = finished._replace(has_weights=False)
    assert "analyse" not in " ".join(proposals(without_weights))
    shown = summary(result, directory, CHOSEN)
    assert "try next" not in shown, "a run of a sweep proposes no commands"


def not_a_number(step: int, seen: list[int]) -> Callable[..., dict[str, Tensor]]:
    """Loss terms whose margin is NaN from ``step`` on; records the steps at which they are computed."""
    real = CapsNetModule.loss_terms

    def terms(self: CapsNetModule, *args: Any) -> dict[str, Tensor]:
        losses = real(self, *args)
        seen.append(self.global_step)
        if self.global_step >= step:
            losses = {**losses, "margin": losses["margin"] * float("nan")}
        return losses

    return terms


def test_loss_that_is_not_finite_stops_the_run(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a checkpoint is saved at that step, and before the regular check of the guard."""
    directory = tmp_path / "run"
    callbacks = ["callbacks.last.every_minutes=0", "+callbacks.guard.every_n_steps=5"]
    config = tiny(*callbacks, *NO_PICTURES)
    seen: list[int] = []
    monkeypatch.setattr(CapsNetModule, "loss_terms", not_a_number(6, seen))
    message = "the margin term of the loss is nan at step 7"
    with pytest.raises(NonFiniteError, match=f"{message}; try a smaller"):
        train(config, directory)
    assert max(seen) == 6
    assert not (directory / "metrics.json").exists()
    failure = read_json(directory, "status.json")
    assert failure["error"].startswith(message)
    assert checkpoint(directory)["global_step"] == 6
    for value in weights(directory).values():
        assert value.isfinite().all()


def test_test_with_nan_is_an_error_and_writes_no_result(a_copy: Path, tiny: Tiny) -> None:
    path = a_copy / "checkpoints" / "best.ckpt"
    content = torch.load(path, weights_only=True)
    weight = content["state_dict"]["network.conv.weight"]
    weight.fill_(torch.nan)
    torch.save(content, path)
    config = tiny("train.resume=true")
    message = r"^the test of \S+/best\.ckpt gives .*loss nan.*; expected finite numbers"
    with pytest.raises(RunError, match=message):
        train(config, a_copy)
    assert not (a_copy / "metrics.json").exists()
    failure = read_json(a_copy, "status.json")
    assert "gives" in failure["error"]


def test_smoke_run_of_the_command_line(cli: Cli, tmp_path: Path) -> None:
    """The same command with ``train.resume=true`` then has nothing to resume."""
    runs_folder = tmp_path / "runs"
    command_line = [*TINY_CAPSNET, "debug=smoke", "trainer.accelerator=cpu"]
    ended = cli("train", *command_line)
    assert (ended.status, ended.err) == (0, "")
    (directory,) = runs_folder.iterdir()
    result = read_json(directory)
    assert result["steps"] == 2
    assert result["test"]["error"] >= 0
    assert (directory / "figures" / "test_confusion.png").is_file()
    assert "test error" in ended.out
    assert f"run         runs/{directory.name}" in ended.out

    before = contents(runs_folder)
    again = cli("train", *command_line, "train.resume=true")
    assert again.status == 0
    assert f"{directory} has finished, there is nothing to resume" in again.out
    assert contents(runs_folder) == before


@pytest.mark.whole
def test_overfit_reaches_an_error_of_0(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    overrides = [
        "model.channels=8",
        "model.primary.types=4",
        "model.class_dim=8",
        "model.decoder=[8]",
        "schedule=constant",
        "schedule.learning_rate.value=0.01",
        "trainer.accelerator=cpu",
        "debug=overfit",
        *NO_PICTURES,
    ]
    train(compose("train", overrides), directory)
    trained_rows = [row for row in curves(directory) if row["train/error"]]
    last = trained_rows[-1]
    assert last["step"] == "59"
    assert float(last["train/error"]) == 0


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:The PyTorch Profiler default schedule")
@pytest.mark.filterwarnings("ignore:Profiler clears events at the end of each cycle")
def test_debug_profile_writes_a_table(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    overrides = [
        "debug=profile",
        *TINY_CAPSNET,
        "trainer.accelerator=cpu",
        "data.batch_size=8",
        *NO_PICTURES,
    ]
    result = train(compose("train", overrides), directory)
    assert result["steps"] == 12
    (table,) = directory.glob("*profile*.txt")
    assert "Self CPU" in table.read_text()


@pytest.mark.whole
def test_tensorboard_gets_curves_and_pictures(tiny: Tiny, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    directory = tmp_path / "run"
    result = train(tiny("logger=tensorboard", "trainer.max_epochs=1"), directory)
    events = EventAccumulator(str(directory / "tensorboard"), size_guidance={"histograms": 0})
    events.Reload()
    tags = events.Tags()
    scalars = {"train/loss", "val/error", "val/coupling_entropy", "test/error"}
    pictures = {"val/reconstructions", "val/confusion", "test/confusion"}
    assert scalars <= {*tags["scalars"]}
    assert pictures <= {*tags["images"]}
    last_error = events.Scalars("val/error")[-1].value
    assert last_error == pytest.approx(result["val"]["error"])
    for split in ("val", "test"):
        (scalar,) = events.Scalars(f"{split}/error")
        (picture,) = events.Images(f"{split}/confusion")
        assert scalar.step == picture.step
    (loss,) = events.Scalars("train/loss_step")
    assert loss.step == 2
    assert len(curves(directory)) == 4
    assert "epoch" not in tags["scalars"]
    assert "test/worst_images" in tags["images"]
    couplings = events.Histograms("test/couplings/digits")
    assert [histogram.step for histogram in couplings] == [1, 2, 3]
    assert len(events.Histograms("test/activations/digits")) == 1
    (command,) = events.Tensors("command/text_summary")
    assert b"capsule-lab train model" in command.tensor_proto.string_val[0]
    assert tags["tensors"] == ["command/text_summary", "provenance/text_summary"]
    options, metrics = read_hparams(events)
    assert options["routing.iterations"].number_value == 3
    assert options["model"].string_value == "CapsNet"
    assert not [key for key in options if "_target_" in key]
    assert metrics == ["test/error", "val/error"]


def read_hparams(events: Any) -> tuple[dict[str, Any], list[str]]:
    """The options and the names of metrics that the dashboard HPARAMS shows."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    def read(name: str) -> Any:
        summary = events.summary_metadata[f"_hparams_/{name}"]
        content = HParamsPluginData.FromString(summary.plugin_data.content)
        return getattr(content, name)

    options = read("session_start_info").hparams
    infos = read("experiment").metric_infos
    metrics = [info.name.tag for info in infos]
    return dict(options), metrics


def test_ctrl_c_saves_a_checkpoint_and_prints_the_command_to_continue(
    cli: Cli, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    signum = signal.SIGINT.value
    sender = f"{{_target_: tests.helpers.training.SignalAt, step: 6, signum: {signum}}}"
    overrides = [
        *TINY,
        "trainer.max_epochs=100000",
        "train.directory=run",
        *NO_PICTURES,
        f"+callbacks.sender={sender}",
    ]
    ended = cli("train", *overrides)
    assert ended.status == 128 + signum
    assert "SIGINT: stopping after this step" in ended.out
    stopped, _, continued = ended.err.partition("; to continue exactly: ")
    saved = directory / "checkpoints" / "last.ckpt"
    assert stopped == f"capsule_lab: stopped by SIGINT at step 6, saved in {saved}"
    assert checkpoint(directory)["global_step"] == 6
    expected = ["capsule-lab", "train", *overrides, "train.resume=true"]
    assert shlex.split(continued) == expected
    assert not (directory / "metrics.json").exists()


EM_CAPS = ["model=em_caps", "model.primary.types=4", "model.stem=[[8,5,2],[8,3,2]]"]
"""Batch normalisation in stem, primary capsules and routing."""
WHOLE_STEP = [
    *TINY_CAPSNET,
    "model.decoder=null",
    "data.mixup=0.2",
    "callbacks=averaged_weights",
    "trainer.gradient_clip_val=0.1",
    "trainer.accumulate_grad_batches=2",
    "loss=cross_entropy_logits",
]
"""What else could differ: mixtures of images, averaged weights, clipping, accumulation."""


@pytest.mark.whole
@pytest.mark.parametrize(
    ("model", "images", "steps"),
    [
        pytest.param(TINY_CAPSNET, 128, 4, id="capsnet", marks=pytest.mark.slow),
        pytest.param(EM_CAPS, 32, 16, id="em_caps"),
        pytest.param(WHOLE_STEP, 16, 16, id="whole step"),
    ],
)
def test_two_processes_train_like_one(
    model: list[str], images: int, steps: int, tiny: Tiny, tmp_path: Path
) -> None:
    """``images`` is the number of images in a batch of both processes together."""
    options = ["trainer.precision=32-true", "trainer.limit_val_batches=null", *NO_PICTURES]
    overrides = [
        *model,
        *TINY_DATA,
        "trainer.max_epochs=2",
        *options,
        "trainer.devices=2",
        "trainer.strategy=ddp",
        f"data.batch_size={images // 2}",
        "train.directory=two",
    ]
    ended = two_processes("-m", "capsule_lab", "train", *overrides, cwd=tmp_path)
    assert ended.status == 0, ended.err
    assert ended.out.count("test error") == 1
    of_a_step = 2 * images if model is WHOLE_STEP else images
    processes = f"2 processes, data.batch_size={images // 2}, "
    assert f"a step has {of_a_step} images: {processes}" in ended.out
    directory = tmp_path / "two"
    assert [*tmp_path.rglob("metrics.json")] == [directory / "metrics.json"]

    config = tiny(*options, f"data.batch_size={images}", model=model)
    one = train(config, tmp_path / "one")
    two = read_json(directory)
    assert one["steps"] == steps
    assert two["steps"] == steps
    assert two["test"]["error"] == one["test"]["error"]
    assert two["val"] == pytest.approx(one["val"], rel=1e-4)
    assert_close(weights(directory), weights(tmp_path / "one"), atol=1e-4)


@pytest.mark.parametrize(
    ("handlers", "expected"),
    [
        ([], "shown\n"),
        ([logging.NullHandler()], ""),
    ],
)
def test_log_is_printed_without_a_handler(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    handlers: list[logging.Handler],
    expected: str,
) -> None:
    def log_a_line(_: Training) -> dict[str, Any]:
        logging.getLogger("capsule_lab.commands.train").info("shown")
        return {}

    monkeypatch.setattr(Training, "__init__", lambda *_: None)
    monkeypatch.setattr(Training, "run", log_a_line)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [*handlers])
    train(compose("train", TINY), Path("run"))
    assert capsys.readouterr().out == expected
    assert root.handlers == handlers


def test_summary_prints_markup_in_names_literally(trained: Trained) -> None:
    name = "mine [bold]x[/] [/b] ["
    provenance = {**trained.result["provenance"], "name": name}
    constant = {"constant_labels": ["[/b] label ["], "constant_error": 50.0}
    classes = {**trained.result["classes"], **constant}
    result = {**trained.result, "provenance": provenance, "classes": classes}
    markup = summary(result, Path("runs/[/b] [red]"), CHOSEN)
    shown = Text.from_markup(markup).plain
    assert name in shown
    assert "(always answering [/b] label [: 50.00 %)" in shown
    assert "run         runs/[/b] [red]" in shown
