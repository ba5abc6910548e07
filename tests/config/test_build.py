"""Building the parts of a run: errors of constructors, the time limit, and the precision."""

import math

import pytest
from hydra.errors import InstantiationException
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Timer

from capsule_lab.commands import compose
from capsule_lab.config import build
from capsule_lab.errors import ConfigError

ON_CPU = ("trainer.accelerator=cpu", "callbacks=none", "logger=none")


def test_error_of_a_constructor_is_a_config_error() -> None:
    for error in (ValueError, TypeError, MisconfigurationException):
        with (
            pytest.raises(ConfigError, match=r"^model: channels are 0; expected 1$"),
            build.constructing("model"),
        ):
            raise error("channels are 0;\n    expected 1")
    for other in (RuntimeError, InstantiationException):
        with pytest.raises(other, match=r"^mine$"), build.constructing("model"):
            raise other("mine")


def test_time_limit_is_in_seconds_and_not_given_to_the_trainer() -> None:
    limits = {
        "00:00:09:00": 540,
        "{minutes: 9, seconds: 5}": 545,
        "{seconds: 0}": 0,
        "null": math.inf,
    }
    for text, seconds in limits.items():
        config = compose("train", [f"trainer.max_time={text}", *ON_CPU])
        assert build.time_limit(config.trainer) == seconds
        assert not any(
            isinstance(callback, Timer) for callback in build.build_trainer(config, None).callbacks
        ), "Lightning's timer would end the run without a checkpoint"
    for text in ("9m", "{minute: 9}"):
        with pytest.raises(
            ConfigError, match=r"^trainer\.max_time: .*minute|^trainer\.max_time: .*9m"
        ):
            build.time_limit(compose("train", [f"trainer.max_time={text}"]).trainer)


@pytest.mark.parametrize("native", [True, False])
def test_precision_auto_is_what_the_cpu_computes_natively(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, native: bool
) -> None:
    """Emulated precision is logged."""
    fast = "bf16-mixed" if native else "32-true"
    monkeypatch.setattr(build, "cpu_computes_bfloat16", lambda: native)
    for precision, chosen in {
        "auto": fast,
        "32-true": "32-true",
        "bf16-mixed": "bf16-mixed",
    }.items():
        caplog.clear()
        trainer = build.build_trainer(
            compose("train", [f"trainer.precision={precision}", *ON_CPU]), None
        )
        assert trainer.precision == chosen
        messages = [
            record.getMessage()
            for record in caplog.records
            if record.name == "capsule_lab.config.build"
        ]
        emulated = precision == "bf16-mixed" and not native
        assert [message.partition(",")[0] for message in messages] == [
            "trainer.precision is bf16-mixed"
        ] * emulated


def test_slurm_variables_that_lightning_refuses_are_a_config_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "3", "SLURM_JOB_NAME": "job"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE", raising=False)
    with pytest.raises(
        ConfigError, match=r"^trainer: You set `--ntasks=3` .* Use `--ntasks-per-node=3` instead\.$"
    ):
        build.build_trainer(compose("train", ["trainer.accelerator=cpu"]), None)
