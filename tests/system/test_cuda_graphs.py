"""Functions that are replayed as CUDA graphs, with a stand-in for graphs."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.recorded_graphs import RecordedGraph, recorded_graphs
from capsule_lab.system.cuda_graphs import EAGER_CALLS, Replayed


@pytest.fixture(autouse=True)
def fake() -> Iterator[type[RecordedGraph]]:
    with recorded_graphs() as fake:
        yield fake


def doubled(inputs: tuple[Tensor, None]) -> tuple[Tensor, None]:
    return 2 * inputs[0], None


def test_replays_follow_the_first_calls(fake: type[RecordedGraph]) -> None:
    replayed = Replayed("doubling", doubled)
    found: list[Any] = [replayed((torch.tensor([number]), None)) for number in range(5)]
    assert fake.captures == 1
    assert fake.replays == 5 - EAGER_CALLS
    first, second, third, fourth, fifth = found
    assert third is fourth is fifth, "later calls overwrite the result"
    for result, expected in ((first, 0), (second, 2), (fifth, 8)):
        assert result[0].tolist() == [expected]


def test_other_shapes_run_as_they_are(fake: type[RecordedGraph]) -> None:
    replayed = Replayed("doubling", doubled)
    for _ in range(3):
        replayed((torch.ones(2), None))
    assert replayed((torch.ones(3), None))[0].tolist() == [2, 2, 2]
    assert replayed((torch.full((2,), 3.0), None))[0].tolist() == [6, 6]
    assert fake.captures == 1
    assert fake.replays == 2


def test_function_that_reads_values_runs_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    def reading(inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (inputs[0] * inputs[0].sum().item(),)

    replayed = Replayed("the transformation", reading)
    with caplog.at_level(logging.INFO):
        for number in range(5):
            (found,) = replayed((torch.tensor([number, number]),))
            assert found.tolist() == [2 * number**2] * 2
    message = "the transformation runs without CUDA graphs: CUDA error: operation not permitted"
    assert caplog.text.count(message) == 1


def test_failed_capture_changes_nothing() -> None:
    total = torch.zeros(1)

    def adding(inputs: tuple[Tensor]) -> tuple[Tensor]:
        total.add_(inputs[0])
        assert total.item() >= 0
        return (total.clone(),)

    replayed = Replayed("a sum", adding)
    for expected in (1, 2, 3, 4):
        (found,) = replayed((torch.ones(1),))
        assert found.item() == expected
