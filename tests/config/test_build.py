"""Building the parts of a run: what is refused, and the precision that is chosen."""

from __future__ import annotations

import math

import pytest
import torch
from hydra.errors import InstantiationException
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Timer

from capsule_lab.config import build
from capsule_lab.config.compose import compose
from capsule_lab.errors import ConfigError


@pytest.mark.parametrize("error", [ValueError, TypeError, MisconfigurationException])
def test_what_a_constructor_refuses_is_an_error_of_the_configuration(error: type[Exception]) -> None:
    with pytest.raises(ConfigError, match=r"^model: channels are 0; expected 1$"), build.constructing("model"):
        raise error("channels are 0;\n    expected 1")


@pytest.mark.parametrize("error", [RuntimeError, InstantiationException])
def test_other_errors_stay_what_they_are(error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^mine$"), build.constructing("model"):
        raise error("mine")


def test_trainer_that_lightning_refuses_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^trainer: .*limit_train_batches"):
        build.build_trainer(compose("train", ["trainer.limit_train_batches=-1", "trainer.accelerator=cpu"]), None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("00:00:09:00", 540), ("{minutes: 9, seconds: 5}", 545), ("{seconds: 0}", 0), ("null", math.inf)],
)
def test_time_limit_is_in_seconds_and_for_us(text: str, seconds: float) -> None:
    config = compose("train", [f"trainer.max_time={text}", "trainer.accelerator=cpu", "callbacks=none", "logger=none"])
    assert build.time_limit(config.trainer) == seconds
    assert not any(isinstance(each, Timer) for each in build.build_trainer(config, None).callbacks), (
        "it would end the run"
    )


@pytest.mark.parametrize("text", ["9m", "{minute: 9}"])
def test_time_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^trainer\.max_time: .*minute|^trainer\.max_time: .*9m"):
        build.time_limit(compose("train", [f"trainer.max_time={text}"]).trainer)


@pytest.mark.parametrize(("native", "precision"), [(True, "bf16-mixed"), (False, "32-true")])
def test_precision_is_what_the_cpu_computes_in(monkeypatch: pytest.MonkeyPatch, native: bool, precision: str) -> None:
    monkeypatch.setattr(build, "cpu_computes_bfloat16", lambda: native)
    assert build.fast_precision("cpu") == precision


@pytest.mark.parametrize(
    ("precision", "native", "warns"),
    [("bf16-mixed", False, True), ("bf16-mixed", True, False), ("auto", False, False), ("32-true", False, False)],
)
def test_bfloat16_that_the_cpu_emulates_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, precision: str, native: bool, warns: bool
) -> None:
    monkeypatch.setattr(build, "cpu_computes_bfloat16", lambda: native)
    config = compose("train", [f"trainer.precision={precision}", "trainer.accelerator=cpu", "logger=none"])
    built = build.build_trainer(config, None)
    assert built.precision == ("32-true" if precision == "auto" else precision)
    found = [record.getMessage() for record in caplog.records if record.name == "capsule_lab.config.build"]
    assert [message.partition(",")[0] for message in found] == ["trainer.precision is bf16-mixed"] * warns


@pytest.mark.parametrize("name", ["_is_avx512_bf16_supported", "_is_amx_tile_supported"])
def test_private_functions_of_torch_exist(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """On x86; one alone is enough."""
    for each in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        assert isinstance(getattr(torch.cpu, each)(), bool)
        monkeypatch.setattr(torch.cpu, each, lambda each=each: each == name)
    assert build.cpu_computes_bfloat16()


@pytest.mark.parametrize("accelerator", ["auto", "cpu"])
def test_trainer_has_the_precision_of_its_processor(accelerator: str) -> None:
    config = compose("train", [f"trainer.accelerator={accelerator}"])
    expected = {"bf16-mixed": "bf16-mixed", "32-true": "32-true"}[build.fast_precision(accelerator)]
    assert build.build_trainer(config, None).precision == expected
