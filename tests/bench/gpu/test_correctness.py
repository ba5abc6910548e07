"""A backend that is wrong is found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from capsule_lab.bench.gpu import correctness
from capsule_lab.bench.gpu.correctness import PRINCIPAL, Case, Shape, cases, errors_of, poisoned, with_gaps
from capsule_lab.kernels import fused, ops
from tests.helpers.bench import InThisThread

CPU = torch.device("cpu")
SHAPE = Shape(2, 9, 3, 2, 2, 2)


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(correctness, "ProcessPoolExecutor", InThisThread)
    yield
    correctness.judged.cache_clear()


def wrong_by(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Fused sums of dynamic routing whose results are changed."""
    right = ops.weighted_sum
    monkeypatch.setattr(fused.ops, "weighted_sum", lambda *arguments: change(right(*arguments)))


@pytest.mark.parametrize(
    ("change", "dtype"),
    [(lambda sums: sums * (1 + 1e-6), torch.float64), (lambda sums: sums * 1.01, torch.float32)],
    ids=["float64", "float32"],
)
def test_a_wrong_sum_is_found(monkeypatch: pytest.MonkeyPatch, change: Any, dtype: torch.dtype) -> None:
    correctness.judged("dynamic", SHAPE)
    wrong_by(monkeypatch, change)
    monkeypatch.setattr(correctness, "cases", lambda _: [Case("dynamic", "fused", dtype, SHAPE)])
    found = correctness.check_routings(CPU, "small", 60.0)
    assert any("poses differs by" in failure for failure in found["failures"])
    assert found["rows"][0]["largest_error"] > 1e-7


def test_nan_and_errors_are_failures(monkeypatch: pytest.MonkeyPatch, unchecked_types: None) -> None:
    correctness.judged("dynamic", SHAPE)
    wrong_by(monkeypatch, lambda sums: sums * float("nan"))
    listed = [Case("dynamic", "fused", torch.float64, SHAPE), Case("dynamic", "no backend", torch.float64, SHAPE)]
    monkeypatch.setattr(correctness, "cases", lambda _: listed)
    failures = correctness.check_routings(CPU, "small", 60.0)["failures"]
    assert any("differs by nan" in failure for failure in failures)
    assert any("ValueError: routing backend is 'no backend'" in failure for failure in failures)


def test_a_result_that_changes_from_call_to_call_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    correctness.judged("dynamic", SHAPE)
    wrong_by(monkeypatch, lambda sums: calls.append(1) or sums * (1 + 1e-13 * len(calls)))
    errors = errors_of(Case("dynamic", "fused", torch.float64, SHAPE), CPU)
    assert errors["poses of a second call"] > 0


def test_cases_that_are_not_reached_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correctness, "cases", lambda _: [Case("dynamic", "matmul", torch.float64, SHAPE)])
    monkeypatch.setattr(correctness, "wait", lambda futures, timeout: (set(), set(futures)))
    found = correctness.check_routings(CPU, "small", 0.0)
    assert (found["rows"], found["failures"]) == ([], ["1 cases were not reached within 0 seconds"])


@pytest.mark.parametrize("size", ["full", "small"])
def test_every_routing_backend_and_precision_is_among_the_cases(size: Any) -> None:
    listed = list(cases(size))
    assert len(set(listed)) == len(listed)
    for routing in ("em_paper", "uniform", *PRINCIPAL) if size == "full" else PRINCIPAL:
        found = {(case.backend, case.dtype) for case in listed if case.routing == routing}
        assert len(found) >= 6


def test_memory_is_poisoned() -> None:
    with poisoned():
        assert torch.empty(8).isnan().all()
        assert torch.ones(2).new_empty(3, dtype=torch.float64).isnan().all()
    assert torch.get_deterministic_debug_mode() == 0


def test_gaps() -> None:
    tensor = torch.arange(24.0).view(2, 3, 4)
    spread = with_gaps(tensor)
    assert torch.equal(spread, tensor)
    assert spread.stride() == (2, 4, 12)
