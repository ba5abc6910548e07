"""Building the parts of a run: errors of constructors, the time limit, and the precision."""

import math
import re

import pytest
import torch
from hydra.errors import InstantiationException
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Timer
from omegaconf import OmegaConf
from torch.optim import SGD, Optimizer

from capsule_lab.commands import compose
from capsule_lab.config import build, messages
from capsule_lab.errors import ConfigError

ON_CPU = ("trainer.accelerator=cpu", "callbacks=none", "logger=none")


@pytest.mark.parametrize("error", [ValueError, TypeError, MisconfigurationException])
def test_error_of_a_constructor_is_a_config_error(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_OURS", (*messages._OURS, "tests"))
    expected = r"^model: channels are 0; expected 1$"
    with pytest.raises(ConfigError, match=expected), build.constructing("model"):
        raise error("channels are 0;\n    expected 1")


def unfinished() -> None:
    """A constructor in code of a user, with an error that does not say where it is."""
    sizes: dict[str, int] = {}
    sizes["small"]


def with_wrong_rate() -> Optimizer:
    """A constructor in code of a user, with an error in a function of a package that it calls."""
    return SGD([torch.zeros(1)], lr=-1)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("unfinished", "KeyError: 'small'"),
        ("with_wrong_rate", "ValueError: Invalid learning rate: -1"),
    ],
)
def test_error_in_code_of_the_user_says_where_it_is(function: str, reason: str) -> None:
    config = OmegaConf.create({"mine": {"_target_": f"{__name__}.{function}"}})
    place = r" \(test_build\.py, line \d+; HYDRA_FULL_ERROR=1 shows the traceback\)"
    with pytest.raises(ConfigError, match=f"^mine: {re.escape(reason)}{place}$"):
        build._instantiated(config)


@pytest.mark.parametrize("error", [RuntimeError, InstantiationException])
def test_other_errors_of_a_constructor_remain(error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^mine$"), build.constructing("model"):
        raise error("mine")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00:09:00", 540),
        ("{minutes: 9, seconds: 5}", 545),
        ("{seconds: 0}", 0),
        ("null", math.inf),
    ],
)
def test_time_limit_is_in_seconds_and_not_given_to_the_trainer(text: str, seconds: float) -> None:
    config = compose("train", [f"trainer.max_time={text}", *ON_CPU])
    assert build.time_limit(config.trainer) == seconds
    trainer = build.build_trainer(config.trainer)
    timers = [callback for callback in trainer.callbacks if isinstance(callback, Timer)]
    assert timers == [], "Lightning's timer would end the run without a checkpoint"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("9m", "9m"),
        ("{minute: 9}", "minute"),
    ],
)
def test_time_limit_that_cannot_be_read_is_refused(text: str, named: str) -> None:
    config = compose("train", [f"trainer.max_time={text}"])
    with pytest.raises(ConfigError, match=rf"^trainer\.max_time: .*{named}"):
        build.time_limit(config.trainer)


@pytest.mark.parametrize(
    ("native", "precision", "expected"),
    [
        (True, "auto", "bf16-mixed"),
        (True, "32-true", "32-true"),
        (True, "bf16-mixed", "bf16-mixed"),
        (False, "auto", "32-true"),
        (False, "32-true", "32-true"),
        (False, "bf16-mixed", "bf16-mixed"),
    ],
)
def test_precision_auto_is_what_the_cpu_computes_natively(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    native: bool,
    precision: str,
    expected: str,
) -> None:
    """Emulated precision is logged."""
    monkeypatch.setattr(build, "cpu_computes_bfloat16", lambda: native)
    config = compose("train", [f"trainer.precision={precision}", *ON_CPU])
    trainer = build.build_trainer(config.trainer)
    assert trainer.precision == expected
    messages = []
    for record in caplog.records:
        if record.name == "capsule_lab.config.build":
            beginning, _, _ = record.getMessage().partition(",")
            messages.append(beginning)
    emulated = expected == "bf16-mixed" and not native
    assert messages == (["trainer.precision is bf16-mixed"] if emulated else [])


def test_slurm_variables_that_lightning_refuses_are_a_config_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "3")
    monkeypatch.setenv("SLURM_JOB_NAME", "job")
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE", raising=False)
    config = compose("train", ["trainer.accelerator=cpu"])
    message = r"^trainer: You set `--ntasks=3` .* Use `--ntasks-per-node=3` instead\.$"
    with pytest.raises(ConfigError, match=message):
        build.build_trainer(config.trainer)


IN_SLURM = {
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NAME": "job",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
IN_TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
    "WORLD_SIZE": "1",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "GROUP_RANK": "0",
}
FOUR_TASKS = {**IN_SLURM, "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "4"}


@pytest.mark.parametrize(
    ("environment", "overrides"),
    [
        (IN_SLURM, ["trainer.devices=4", "trainer.strategy=ddp"]),
        (IN_SLURM, ["trainer.devices=2", "trainer.num_nodes=2"]),
        (IN_TORCHRUN, ["trainer.devices=4"]),
    ],
    ids=str,
)
def test_fewer_processes_than_devices_are_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], overrides: list[str]
) -> None:
    """Lightning starts no process if SLURM or torchrun started this one; it would train on one device."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = compose("train", [*overrides, *ON_CPU])
    message = r"^trainer\.devices is .* has 1 processes; expected 4, .* srun --ntasks-per-node="
    with pytest.raises(ConfigError, match=message):
        build.build_trainer(config.trainer)


@pytest.mark.parametrize(
    ("environment", "devices"),
    [({}, 1), ({}, 2), (IN_SLURM, 1), (FOUR_TASKS, 4), (IN_TORCHRUN, 1)],
    ids=str,
)
def test_as_many_processes_as_devices_are_accepted(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], devices: int
) -> None:
    """Without SLURM and torchrun, Lightning starts the other processes when training begins."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = compose("train", [f"trainer.devices={devices}", *ON_CPU])
    assert build.build_trainer(config.trainer).world_size == devices
