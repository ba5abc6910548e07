"""Training steps as they are, compiled, and as CUDA graphs: how long they take, and whether they come to the same."""

from __future__ import annotations

import faulthandler
import gc
import hashlib
import itertools
import statistics
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from capsule_lab.bench.cases import FULL, Case, sizes_of, training_config
from capsule_lab.bench.models import Step, build_step
from capsule_lab.bench.workers import Worker
from capsule_lab.config.compose import compose
from capsule_lab.errors import ConfigError, one_line

Size = Literal["full", "small"]


class Form(NamedTuple):
    """A way to run a training step.

    Attributes:
        name: of the form.
        overrides: of a training configuration.
        compiles: whether torch compiles the network, which takes up to minutes.
    """

    name: str
    overrides: tuple[str, ...]
    compiles: bool


EAGER, GRAPHS = Form("eager", (), False), Form("CUDA graphs", ("module.cuda_graphs=true",), False)
COMPILED = (
    Form("reduce-overhead", ("module.compile=reduce-overhead",), True),
    Form("compiled", ("module.compile=true",), True),
)

# and their overrides of a training configuration; cnn_small has dropout and batch normalisation
MODELS: dict[Size, dict[str, tuple[str, ...]]] = {
    "full": {"capsnet": (), "em_caps_paper": (), "em_caps_small": (), "cnn_small": ()},
    "small": {"capsnet": ("model.channels=4", "model.primary_types=2", "model.decoder=[8]")},
}
IMAGES: dict[Size, list[str]] = {"full": [], "small": ["image_shape=[1,17,17]", "num_classes=3"]}
LEFT_OUT = "left out: the time of this part was over"
BATCHES: dict[Size, tuple[int, ...]] = {"full": (64, 16, 512), "small": (4,)}
TIMED_STEPS: dict[Size, int] = {"full": 20, "small": 2}  # ours: of a repetition
REPETITIONS = 3
COMPARED_STEPS = 5  # ours: what differs in one of them reaches the losses of the next


def compare_graphs(device: torch.device, size: Size, limit: float) -> dict[str, Any]:
    """A row for each model, batch and form: those that are not compiled first.

    A row has ``step_ms``, milliseconds of a whole training step; ``first_step_seconds``, in which a form is compiled or
    captured; ``same_as_eager``, whether losses and gradients of five steps are those of the eager form to the bit; and
    ``loss_difference``, the largest relative one. Of the eager form these two are of two runs. All but compiled forms
    have torch's deterministic algorithms in those five steps. A form that failed has an ``error`` instead, and what
    comes after it another process.

    On a CPU nothing is compiled, which would take minutes, and CUDA graphs are refused.

    Args:
        device: where.
        size: see ``MODELS`` and ``BATCHES``.
        limit: seconds; what does not end within them is left out.
    """
    end = time.time() + limit  # the same clock in all processes
    rows: list[dict[str, Any]] = []
    eager: dict[tuple[str, int], Numbers] = {}
    with ExitStack() as stack:
        worker = None
        for form, case in _cases(device, size):
            key = case.name, case.sizes["batch_size"]
            row: dict[str, Any] = {"model": key[0], "batch": key[1], "form": form.name}
            rows.append(row)
            if time.time() >= end:
                row["error"] = LEFT_OUT
                continue
            try:
                if device.type == "cpu":
                    found, numbers = measure_form(form, case, TIMED_STEPS[size])
                else:
                    worker = worker or stack.enter_context(Worker("the step"))
                    found, numbers = worker.call(measure_until, end, form, case, TIMED_STEPS[size])
            except ConfigError as error:
                row["error"] = LEFT_OUT if time.time() >= end else str(error)
                stack.close()  # CUDA may be of no more use in that process
                worker = None
                continue
            row |= found
            if form == EAGER:
                eager[key] = numbers[0]
            if key in eager:
                row |= _compare(numbers[-1], eager[key])
    return {"rows": rows, "failures": [] if device.type == "cpu" else _failures(rows)}


class Numbers(NamedTuple):
    """What some training steps came to.

    Attributes:
        losses: of the steps.
        digest: of all losses and gradients.
    """

    losses: list[float]
    digest: str


def _cases(device: torch.device, size: Size) -> Iterator[tuple[Form, Case]]:
    """Every form of every step, in the order in which they are worth the time."""
    bench = compose("bench", IMAGES[size])
    precision = "bf16-mixed" if device.type == "cuda" else FULL
    overrides = {name: (f"model={name}", *options) for name, options in MODELS[size].items()}
    sizes = {name: sizes_of(bench, name, training_config(of_model)) for name, of_model in overrides.items()}
    forms: list[tuple[Form, ...]] = [(EAGER, GRAPHS)]
    if device.type != "cpu":
        forms += [(form,) for form in COMPILED]
    for together, batch, name in itertools.product(forms, BATCHES[size], MODELS[size]):
        for form in together:
            of_step = {**sizes[name], "batch_size": batch}
            yield form, Case("model", name, "plain", precision, device.type, of_step, overrides[name] + form.overrides)


def measure_until(end: float, form: Form, case: Case, steps: int) -> tuple[dict[str, float], list[Numbers]]:
    """``measure_form`` in a worker, whose process dies if it has not ended by then, by the clock of ``time.time``.

    Raises:
        ConfigError: for any error: those of torch's compiler are of all types, and some cannot be pickled.
    """
    faulthandler.dump_traceback_later(max(end - time.time(), 1e-3), exit=True)
    try:
        return measure_form(form, case, steps)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{type(error).__name__}: {one_line(error)[:300]}") from error
    finally:
        faulthandler.cancel_dump_traceback_later()


def measure_form(form: Form, case: Case, steps: int) -> tuple[dict[str, float], list[Numbers]]:
    """Times of a row, and the numbers of five steps; of the eager form, of two runs.

    Args:
        form: of the step.
        case: model, sizes and overrides, those of the form included.
        steps: to time in a repetition.

    Raises:
        ConfigError: for CUDA graphs where there are none.
    """
    gc.collect()  # graphs of the form before
    if case.device == "cuda":
        torch.cuda.empty_cache()
    if form.compiles:
        torch.compiler.reset()  # a second size of the batch would be compiled for all sizes
    with nullcontext() if form.compiles else _deterministic():
        step = build_step(case)
        seconds, *numbers = _run_compared(step)
        if form == EAGER:
            numbers += _run_compared(build_step(case))[1:]
    if form == GRAPHS:  # they have captured deterministic algorithms
        step = build_step(case)
    _run(step)
    milliseconds = statistics.median(_milliseconds(step, steps, case.device) for _ in range(REPETITIONS))
    return {"step_ms": milliseconds, "first_step_seconds": seconds}, numbers


@contextmanager
def _deterministic() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of operators that have no such algorithm
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)


def _run(step: Step) -> Tensor:
    """A training step, in Lightning's order: gradients of the step before are there until the backward pass."""
    loss = step.loss()
    step.optimizer.zero_grad()
    loss.backward()
    step.optimizer.step()
    return loss


def _run_compared(step: Step) -> tuple[float, Numbers]:
    """Seconds of the first of some steps, and the numbers of all."""
    losses, digest, seconds = [], hashlib.sha256(), 0.0
    for number in range(COMPARED_STEPS):
        torch.manual_seed(number)  # of dropout, as in training
        started = time.perf_counter()
        losses.append(_run(step).item())  # which waits for the device
        seconds = seconds or time.perf_counter() - started
        for parameter in step.network.parameters():
            if parameter.grad is not None:
                digest.update((parameter.grad + 0.0).cpu().numpy().tobytes())  # without the signs of zeros
    digest.update(repr(losses).encode())
    return seconds, Numbers(losses, digest.hexdigest())


def _milliseconds(step: Step, steps: int, device: str) -> float:
    """Of a step, on average."""
    if device == "cuda":
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started.record()
        for _ in range(steps):
            _run(step)
        ended.record()
        ended.synchronize()
        return started.elapsed_time(ended) / steps
    before = time.perf_counter()
    for _ in range(steps):
        _run(step)
    return 1e3 * (time.perf_counter() - before) / steps


def _compare(found: Numbers, eager: Numbers) -> dict[str, Any]:
    """A run beside the first one of the eager form."""
    pairs = zip(found.losses, eager.losses, strict=True)
    difference = max(abs(ours - theirs) / max(abs(theirs), 1e-12) for ours, theirs in pairs)  # ours: a loss may be 0
    return {"same_as_eager": found.digest == eager.digest, "loss_difference": difference}


def _failures(rows: list[dict[str, Any]]) -> list[str]:
    """Forms that failed, and CUDA graphs whose numbers are others where two eager runs have the same."""
    repeatable = {
        (row["model"], row["batch"]) for row in rows if row["form"] == EAGER.name and row.get("same_as_eager")
    }
    failures = []
    for row in rows:
        step = f"{row['model']} at batch {row['batch']}, {row['form']}"
        if row.get("error", LEFT_OUT) != LEFT_OUT:
            failures.append(f"{step}: {row['error']}")
        differs = row["form"] == GRAPHS.name and not row.get("same_as_eager", True)
        if differs and (row["model"], row["batch"]) in repeatable:
            failures.append(f"{step}: losses or gradients are not those of eager steps, which two runs of them share")
    return failures
