"""``capsule_lab.system.hydra_internals``, with hydra-core 1.3.8."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
import hydra.utils
import pytest
from hydra._internal.hydra import Hydra
from omegaconf import DictConfig

from capsule_lab.system.hydra_internals import errors_are_raised


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with the configuration ``job``, whose runs write nothing."""
    hydra_options = "hydra:\n  run:\n    dir: .\n  output_subdir: null\n"
    hydra_options += "defaults:\n  - override hydra/job_logging: none\n"
    (tmp_path / "job.yaml").write_text(f"{hydra_options}  - _self_\nsteps: 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["job"])
    return str(tmp_path)


def fails(config: DictConfig) -> None:
    raise ValueError(f"steps is {config.steps}")


def start(conf: str, job: Callable[[DictConfig], None] = fails) -> None:
    hydra.main(version_base="1.3", config_path=conf, config_name="job")(job)()


def test_errors_of_a_job_and_of_its_composition_are_raised_only_within(
    conf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with errors_are_raised(), pytest.raises(ValueError, match=r"^steps is 3$"):
        start(conf)
    with pytest.raises(SystemExit):
        start(conf)
    monkeypatch.setattr(sys, "argv", ["job", "stops=4"])
    with errors_are_raised(), pytest.raises(Exception, match="Could not override 'stops'"):
        start(conf)
    with pytest.raises(SystemExit):
        start(conf)


def test_hydra_composes_once(conf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    original = Hydra.compose_config

    def counted(*arguments: object, **options: object) -> DictConfig:
        calls.append("composed")
        return original(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Hydra, "compose_config", counted)
    with errors_are_raised(), pytest.raises(ValueError, match="steps"):
        start(conf)
    assert calls == ["composed"]


def test_an_error_that_is_raised_is_not_logged_as_well(conf: str) -> None:
    logged: list[str] = []

    def names_no_class(_: DictConfig) -> None:
        logger = logging.getLogger("hydra.utils")
        handler = logging.Handler()
        handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
        logger.addHandler(handler)
        try:
            hydra.utils.get_class("torch.nn.Missing")
        finally:
            logger.removeHandler(handler)

    with errors_are_raised(), pytest.raises(ImportError, match="Missing"):
        start(conf, names_no_class)
    assert logged == []
    with pytest.raises(SystemExit):
        start(conf, names_no_class)
    assert len(logged) == 1
