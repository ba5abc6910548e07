"""What a sweep makes of its budget."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from hydra.core.utils import JobReturn, JobStatus

from capsule_lab.config.compose import compose
from capsule_lab.launchers.gpu_pool import GPUPool
from capsule_lab.launchers.hydra_internals import was_left_out
from capsule_lab.tables.sweeper import CellSweeper, _run_until

JOBS = [["a=1"], ["a=2"], ["a=3"]]


def sweeper_with(launcher: Any, until: float) -> CellSweeper:
    sweeper = CellSweeper()
    sweeper.launcher, sweeper.until = launcher, until
    return sweeper


class InTurn:
    """Ends the time of its sweep with the second job."""

    def __init__(self) -> None:
        self.launched: list[tuple[int, Sequence[Sequence[str]]]] = []
        self.sweeper = sweeper_with(self, time.time() + 3600)

    def launch(self, jobs: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
        self.launched.append((first, jobs))
        if len(self.launched) == 2:
            self.sweeper.until = 0.0
        return [JobReturn(overrides=jobs[0], status=JobStatus.COMPLETED)]


def test_jobs_in_turn_start_while_there_is_time() -> None:
    launcher = InTurn()
    ended = launcher.sweeper._launch(JOBS, 5)
    assert launcher.launched == [(5, [JOBS[0]]), (6, [JOBS[1]])]
    assert [was_left_out(each) for each in ended] == [False, False, True]


def test_jobs_side_by_side_are_told_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(GPUPool, "launch", lambda pool, *given: seen.append((pool.until, *given)))
    until = time.time() + 3600
    sweeper_with(GPUPool(), until)._launch(JOBS, 5)
    assert seen == [(until, JOBS, 5)]


@pytest.mark.parametrize(("own", "least", "most"), [("null", 50, 60), ("00:00:00:10", 10, 10), ("00:01:00:00", 50, 60)])
def test_training_has_the_time_that_is_left(own: str, least: float, most: float) -> None:
    config = compose("train", [f"trainer.max_time={own}"])
    seconds = _run_until(time.time() + 60, lambda config: config.trainer.max_time.seconds, config)
    assert least <= seconds <= most


def test_job_whose_time_was_over_before_it_began_does_nothing() -> None:
    assert _run_until(time.time(), pytest.fail, compose("train", [])) is None
