"""Forms of a training step beside each other: with CUDA graphs that are not, a compiler that is not, and workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from capsule_lab.bench.cases import Case
from capsule_lab.bench.gpu import graphs
from capsule_lab.bench.gpu.graphs import COMPILED, EAGER, GRAPHS, Form, Numbers, compare_graphs
from capsule_lab.errors import ConfigError
from tests.helpers.cuda_graphs import FakeGraphs

CPU = torch.device("cpu")


def case(form: Form, *overrides: str) -> Case:
    """A small step."""
    options = ("model=cnn_small", "model.channels=[4]", "model.kernel_sizes=[3]", *form.overrides, *overrides)
    sizes = {"batch_size": 4, "image_shape": (1, 9, 9), "num_classes": 3}
    return Case("model", "cnn_small", "plain", "32-true", "cpu", sizes, options)


# --- measured --------------------------------------------------------------------------------------------------------


def test_graphs_come_to_what_eager_steps_come_to(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGraphs(monkeypatch)
    found = compare_graphs(CPU, "small", 60.0)
    assert [(row["form"], row["same_as_eager"], row["loss_difference"]) for row in found["rows"]] == [
        ("eager", True, 0.0),
        ("CUDA graphs", True, 0.0),
    ]
    assert all(0 < row["step_ms"] < 1e5 and row["first_step_seconds"] > 0 for row in found["rows"])
    assert found["failures"] == []
    assert fake.captures == [(4, 1, 17, 17)] * 2, "once to compare, once to time"


def test_cpu_has_no_graphs() -> None:
    with pytest.raises(ConfigError, match="training is on cpu; expected a GPU"):
        graphs.measure_form(GRAPHS, case(GRAPHS), 1)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("form", COMPILED)
def test_compiled_step_is_compiled_once(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str | None] = []

    def fake_compile(call: Callable[..., Any], *, mode: str | None) -> Callable[..., Any]:
        assert not torch.are_deterministic_algorithms_enabled(), "it would be compiled again without them"
        modes.append(mode)
        return call

    monkeypatch.setattr(torch, "compile", fake_compile)
    found, (numbers,) = graphs.measure_form(form, case(form), 1)
    assert modes == [None if form.name == "compiled" else "reduce-overhead"]
    assert found["step_ms"] > 0
    assert len(numbers.losses) == 5


def test_another_gradient_is_another_digest() -> None:
    digests = [
        graphs._run_compared(graphs.build_step(case(EAGER, f"module.l2={weight}")))[1].digest for weight in (0, 0, 1e-9)
    ]
    assert digests[0] == digests[1] != digests[2]


# --- on a GPU, with a worker that answers ----------------------------------------------------------------------------


class Workers:
    """Workers of which each answers as ``answer`` says."""

    def __init__(self, patch: pytest.MonkeyPatch, answer: Callable[[Form, Case], Any]) -> None:
        self.answer = answer
        self.events: list[str] = []
        patch.setattr(graphs, "Worker", self.start)

    def start(self, name: str) -> Workers:
        return self

    def __enter__(self) -> Workers:
        self.events.append("start")
        return self

    def __exit__(self, *_: object) -> None:
        self.events.append("end")

    def call(self, function: Callable[..., Any], end: float, form: Form, of_step: Case, steps: int) -> Any:
        assert function is graphs.measure_until
        assert end == pytest.approx(time.time() + 60, abs=30)
        assert (of_step.device, of_step.precision) == ("cuda", "bf16-mixed")
        self.events.append(f"{of_step.name} {of_step.sizes['batch_size']} {form.name}")
        return {"step_ms": 1.0, "first_step_seconds": 2.0}, self.answer(form, of_step)


def test_process_that_failed_is_replaced_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(form: Form, of_step: Case) -> list[Numbers]:
        if (of_step.name, of_step.sizes["batch_size"]) == ("em_caps_paper", 64) and form == GRAPHS:
            raise ConfigError("the step could not be timed: its process died")
        repeated = [Numbers([1.0], "one")] * 2 if of_step.name != "em_caps_small" else [Numbers([1.0], "another")]
        return repeated if form == EAGER else [Numbers([1.5], "two")]

    workers = Workers(monkeypatch, answer)
    found = compare_graphs(torch.device("cuda"), "full", 60.0)
    failed = workers.events.index("em_caps_paper 64 CUDA graphs")
    assert workers.events[failed : failed + 4] == [
        "em_caps_paper 64 CUDA graphs",
        "end",
        "start",
        "em_caps_small 64 eager",
    ]
    assert workers.events[:3] == ["start", "capsnet 64 eager", "capsnet 64 CUDA graphs"]
    assert workers.events[-2:] == ["cnn_small 512 compiled", "end"]
    assert len(found["rows"]) == 4 * 3 * 4
    (row,) = [row for row in found["rows"] if "error" in row]
    assert row["error"] == "the step could not be timed: its process died"
    assert {row["loss_difference"] for row in found["rows"] if "error" not in row} == {0.0, 0.5}
    assert "em_caps_paper at batch 64, CUDA graphs: the step could not be timed: its process died" in found["failures"]
    differs = "losses or gradients are not those of eager steps, which two runs of them share"
    assert f"capsnet at batch 16, CUDA graphs: {differs}" in found["failures"]
    assert not [each for each in found["failures"] if "compiled" in each or "overhead" in each], "they may round"


def test_graphs_are_compared_with_eager_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(form: Form, of_step: Case) -> list[Numbers]:
        if form == EAGER:
            raise ConfigError("it failed")
        return [Numbers([1.0], "one")]

    Workers(monkeypatch, answer)
    monkeypatch.setitem(graphs.MODELS, "full", {"capsnet": ()})
    rows = compare_graphs(torch.device("cuda"), "full", 60.0)["rows"]
    assert [row for row in rows if "same_as_eager" in row] == []


def test_numbers_that_vary_without_graphs_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = iter(range(100))
    Workers(monkeypatch, lambda form, _: [Numbers([1.0], str(next(counter))) for _ in range(1 + (form == EAGER))])
    monkeypatch.setitem(graphs.MODELS, "full", {"capsnet": ()})
    assert compare_graphs(torch.device("cuda"), "full", 60.0)["failures"] == []


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_left_when_the_time_is_over_is_left_out(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(graphs.MODELS, "full", {"capsnet": ()})
    found = compare_graphs(torch.device(device), "full", 0.0)
    assert {row["error"] for row in found["rows"]} == {graphs.LEFT_OUT}
    assert found["failures"] == []


def test_worker_dies_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    armed: list[Any] = []
    monkeypatch.setattr(graphs.faulthandler, "dump_traceback_later", lambda left, **end: armed.append((left, end)))
    monkeypatch.setattr(graphs.faulthandler, "cancel_dump_traceback_later", lambda: armed.append("cancelled"))

    def fail(*_: Any) -> None:
        raise TypeError("of a\ncompiler")

    monkeypatch.setattr(graphs, "measure_form", fail)
    with pytest.raises(ConfigError, match="TypeError: of a compiler"):
        graphs.measure_until(time.time() + 60, EAGER, case(EAGER), 1)
    assert armed == [(pytest.approx(60, abs=5), {"exit": True}), "cancelled"]
