"""Cases small enough for tests, and workers without processes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest
from omegaconf import DictConfig

from capsule_lab.bench import cases, interleave, roofline, workers
from capsule_lab.bench.cases import Case
from capsule_lab.config.compose import compose

SMALL = [
    "device=cpu", "rounds=2", "steps=1", "precisions=[32-true]", "backends=[matmul]", "batch_size=2",
    "options=['model.channels=4','model.primary_types=2']", "image_shape=[1,21,21]",
    "sizes.em_window={rows: 2, children: 9, parents: 3, iterations: 2}",
    "sizes.em_all_parents={batch_size: 2, grid: 5, child_types: 2, parents: 3, iterations: 2}",
    "sizes.dynamic={batch_size: 2, children: 6, child_dim: 4, parents: 3, parent_dim: 5, iterations: 2}",
    "sizes.scaling={batch_size: 1, grid: 5, child_types: 2, parents: 4, iterations: 2}",
]  # fmt: skip


def small_bench(*overrides: str) -> DictConfig:
    """The configuration of a command that takes a second."""
    return compose("bench", [*SMALL, *overrides])


def small_case(name: str, *overrides: str) -> Case:
    """The last case of a layer or model."""
    config = small_bench(*overrides)
    if name in cases.LAYERS:
        config.layers = [name]
        return cases.layer_groups(config)[0][-1]
    config.models = [name]
    return cases.model_groups(config)[0][-1]


class InThisThread(Executor):
    """A pool of processes that has none; the number of them is not asked for."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


class InThisProcess(workers.Worker):
    """A worker that starts no process."""

    calls: list[tuple[str, str]] = []  # noqa: RUF012 (of all workers, in order)

    def __init__(self, name: str) -> None:
        self.name, self._timer = name, None

    def __exit__(self, *_: object) -> None: ...

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.calls.append((self.name, function.__name__))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(workers, "_timer", self._timer, raising=False)
            result = function(*arguments)
            self._timer = workers._timer
        return result


def start_no_process(patch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Replace workers, and what takes seconds.

    Returns:
        the calls, as (worker, function).
    """
    patch.setattr(InThisProcess, "calls", [])
    patch.setattr("capsule_lab.bench.interleave.Worker", InThisProcess)
    patch.setattr("capsule_lab.bench.breakdown.Worker", InThisProcess)
    patch.setattr(roofline, "MATRIX", 64)
    patch.setattr(roofline, "ARRAY", 1024)
    patch.setattr(interleave, "PAUSE", 0.0)
    return InThisProcess.calls
