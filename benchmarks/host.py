"""Host time of a training step of a network with next to no work: ``python -m benchmarks.host key=value ...``.

On a GPU, a step cannot be shorter than the time that Python needs to launch its kernels. Three loops train the same
network with the same loss, optimizer and batches: ours, as ``make train`` builds it, with its default callbacks; plain
Lightning without callbacks and logging; and a bare loop. Transformed batches are ready for the other loops; ours loads
and transforms its own.
"""

from __future__ import annotations

import cProfile
import dataclasses
import itertools
import logging
import statistics
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks import tables
from benchmarks.cases import check_writable, configuration, training_config
from benchmarks.recorded_graphs import RecordedGraph, recorded_graphs
from capsule_lab.commands.training import Training
from capsule_lab.config import build
from capsule_lab.config.composition import to_container
from capsule_lab.errors import ConfigError
from capsule_lab.functional import in_unit_range
from capsule_lab.runs import files
from capsule_lab.system import environment
from capsule_lab.types import Batch

GRAPHS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "none": nullcontext,
    "recorded": recorded_graphs,
}
"""Contexts in which our loop runs, by the value of ``graphs``: ``recorded`` replaces CUDA graphs on a CPU."""

LEARNING_RATE = 1e-3  # ours: of the other loops

OnStep = Callable[[], None]
"""Called at the start of every step."""


@dataclass(frozen=True)
class Block:
    """Steps of one loop.

    Attributes:
        config: the training configuration, which ends after ``steps``.
        steps: all steps of the block.
        on_step: called at the start of each.
        graphs: a key of ``GRAPHS``.
    """

    config: DictConfig
    steps: int
    on_step: OnStep
    graphs: str = "none"


class Clock:
    """Processor time at the start of every step, without the replays of recorded graphs."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def __call__(self) -> None:
        self.starts.append(time.process_time() - RecordedGraph.seconds)

    def seconds(self, warm_up: int) -> list[float]:
        """Return the seconds of every step after ``warm_up`` steps, except the last, whose end is not measured."""
        starts = self.starts[warm_up:]
        return [end - start for start, end in itertools.pairwise(starts)]


@dataclass(frozen=True)
class FunctionCalls:
    """Calls of a function per step, and whether it is a function in Python or a built-in one."""

    name: str
    in_python: bool
    calls: float


class CallCounter:
    """Counts the calls between two starts of steps with cProfile.

    Args:
        first, last: steps before which counting starts and ends.
    """

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.step = 0
        self.profiler = cProfile.Profile()

    def __call__(self) -> None:
        if self.step == self.first:
            RecordedGraph.profiler = self.profiler
            self.profiler.enable()
        elif self.step == self.last:
            RecordedGraph.profiler = None
            self.profiler.disable()
        self.step += 1

    def calls(self) -> list[FunctionCalls]:
        """Return the calls per step of every function; most calls first."""
        steps = self.last - self.first
        found = []
        for entry in self.profiler.getstats():
            in_python = not isinstance(entry.code, str)
            found.append(FunctionCalls(name_of(entry.code), in_python, entry.callcount / steps))
        return sorted(found, key=lambda function: -function.calls)


def name_of(code: types.CodeType | str) -> str:
    """Return the name of a function, and for one in Python the end of its file's path and its line."""
    if isinstance(code, str):
        return code
    file = "/".join(Path(code.co_filename).parts[-3:])
    return f"{file}:{code.co_firstlineno} {code.co_qualname}"


def run_ours(block: Block) -> None:
    """Train as ``make train`` does, in a temporary run directory."""
    with TemporaryDirectory() as folder, GRAPHS[block.graphs]():
        training = Training(block.config, Path(folder, "run"), [], time.monotonic())
        module = training.module
        hook = module.on_train_batch_start

        def start_of_step(batch: Batch, batch_idx: int) -> None:
            block.on_step()
            hook(batch, batch_idx)

        module.on_train_batch_start = start_of_step
        training.run()


@dataclass(frozen=True)
class Parts:
    """What other loops than ours train with.

    Attributes:
        network: the network.
        loss: computes the loss of a batch, without our wrappers.
        optimizer: the optimizer, with a constant learning rate.
        loader: yields transformed batches, as our loop receives them.
        precision: as in a Trainer.
    """

    network: nn.Module
    loss: Callable[[Batch], Tensor]
    optimizer: torch.optim.Optimizer
    loader: DataLoader[Batch]
    precision: Any


def build_parts(block: Block) -> Parts:
    """Build the parts of the other loops from the configuration of ours."""
    config = block.config
    data = build.build_data(config)
    data.setup("fit")
    torch.manual_seed(config.seed)
    module = build.build_module(config, data.spec)
    optimizer = module.build_optimizer()
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE
    stored = itertools.islice(data.train_dataloader(), block.steps)
    batches: Any = [data.transform_batch(batch, "train") for batch in stored]
    precision = config.trainer.precision
    if precision == "auto":
        precision = build.fast_precision(config.trainer.accelerator)
    return Parts(
        module.network, loss_of(module), optimizer, DataLoader(batches, batch_size=None), precision
    )


def loss_of(module: Any) -> Callable[[Batch], Tensor]:
    """Return a function for the loss of a module: classification, and reconstruction if there is a decoder."""
    network, classify = module.network, module.loss
    takes_logits = getattr(classify.func, "expects", None) == "logits"
    reconstructs = getattr(network, "decoder", None) is not None
    compare = module.reconstruction if reconstructs else None

    def loss(batch: Batch) -> Tensor:
        output = network(batch.images)
        total = classify(output.logits if takes_logits else output.scores, batch.labels)
        if compare is None:
            return total
        reconstruction = network.reconstruct(output, batch.labels)
        return total + compare(reconstruction, in_unit_range(batch.images))

    return loss


class PlainModule(L.LightningModule):
    """What a user of Lightning would write: one step and the optimizer."""

    def __init__(self, parts: Parts, on_step: OnStep) -> None:
        super().__init__()
        self.network = parts.network
        self.loss = parts.loss
        self.optimizer = parts.optimizer
        self.on_step = on_step

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        self.on_step()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self.loss(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer


def run_plain(block: Block) -> None:
    """Train with Lightning, without callbacks, loggers and validation."""
    parts = build_parts(block)
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=block.steps,
        precision=parts.precision,
        logger=False,
        callbacks=[],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(PlainModule(parts, block.on_step), parts.loader)


def run_bare(block: Block) -> None:
    """Train in a loop of one's own."""
    parts = build_parts(block)
    for batch in parts.loader:
        block.on_step()
        with torch.autocast("cpu", torch.bfloat16, enabled=parts.precision == "bf16-mixed"):
            loss = parts.loss(batch)
        parts.optimizer.zero_grad()
        loss.backward()
        parts.optimizer.step()


LOOPS = {"ours": run_ours, "plain": run_plain, "bare": run_bare}


def main(config: DictConfig) -> None:
    """Measure every model of ``config``, print tables, and write ``config.out``."""
    check_host(config)
    if config.out:
        check_writable(Path(str(config.out)))  # fails before the work starts
    torch.set_num_threads(1)
    build.quiet_lightning_logs()
    rows = []
    with warnings.catch_warnings(), without_warnings_of_data():
        # of plain Lightning: about missing workers, loggers and validation
        warnings.simplefilter("ignore")
        for name in config.models:
            rows += measure(config, name)
    report = {"loops": rows}
    hardware = environment.hardware(torch.device("cpu"))
    tables.show(report, hardware)
    if config.out:
        extra = {
            "hardware": hardware,
            "host": to_container(config),
            **environment.of_this_process(),
        }
        files.write_record(Path(config.out), {**report, **extra})


@contextmanager
def without_warnings_of_data() -> Iterator[None]:
    """Do not log that the data is a stand-in, which is intended."""
    logger = logging.getLogger("capsule_lab.data")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def measure(config: DictConfig, name: str) -> list[dict[str, Any]]:
    """Return a row for each loop with the seconds and the calls of a step of model ``name``."""
    steps = config.warm_up + config.steps + 1  # the last step has no end
    training = training_config([*overrides_of_model(config, name), f"trainer.max_steps={steps}"])
    seconds: dict[str, list[float]] = {loop: [] for loop in LOOPS}
    for _ in range(config.rounds):
        for loop, run in LOOPS.items():
            clock = Clock()
            run(Block(training, steps, clock, config.graphs))
            seconds[loop] += clock.seconds(config.warm_up)
    rows = []
    for loop, run in LOOPS.items():
        counter = CallCounter(config.warm_up, config.warm_up + config.steps)
        run(Block(training, steps, counter, config.graphs))
        rows.append(
            {"name": name, "loop": loop, **row_of(seconds[loop], counter.calls(), config.listed)}
        )
    fastest = {row["loop"]: row["seconds_tenth_percentile"] for row in rows}
    for row in rows:
        row["to_plain"] = fastest[row["loop"]] / fastest["plain"]
        row["to_bare"] = fastest[row["loop"]] / fastest["bare"]
    return rows


def row_of(seconds: Sequence[float], calls: Sequence[FunctionCalls], listed: int) -> dict[str, Any]:
    """Return the table row of a loop."""
    python = sum(function.calls for function in calls if function.in_python)
    return {
        "steps": len(seconds),
        "seconds_tenth_percentile": statistics.quantiles(seconds, n=10)[0],
        "seconds_median": statistics.median(seconds),
        "python_calls": python,
        "builtin_calls": sum(function.calls for function in calls) - python,
        "functions": [dataclasses.asdict(function) for function in calls[:listed]],
    }


def overrides_of_model(config: DictConfig, name: str) -> tuple[str, ...]:
    """Return the overrides of ``make train`` for a model without work; only its end is validated."""
    return (
        "experiment=quickstart",  # make train
        f"model={name}",
        *config.networks[name],
        f"data.batch_size={config.batch_size}",
        "data.eval_images=4",
        "train.test=none",
        "trainer.val_check_interval=1000000",
        "trainer.accelerator=cpu",
        *config.options,
    )


def check_host(config: DictConfig) -> None:
    """Check the configuration before anything is built.

    Raises:
        ConfigError: if something cannot be measured.
    """
    rules = {
        f"graphs is {config.graphs}; expected one of {', '.join(GRAPHS)}": config.graphs
        not in GRAPHS,
        f"models is {config.models}; expected a list of values from {', '.join(config.networks)}": (
            not OmegaConf.is_list(config.models) or not set(config.models) <= set(config.networks)
        ),
        f"rounds is {config.rounds}, steps {config.steps}, and batch_size {config.batch_size}; expected 1 or more": (
            min(config.rounds, config.steps, config.batch_size) < 1
        ),
        f"steps is {config.steps} with rounds={config.rounds}; expected two or more in all, for a percentile": (
            config.rounds * config.steps < 2
        ),
    }
    for message, broken in rules.items():
        if broken:
            raise ConfigError(message)


if __name__ == "__main__":
    try:
        main(configuration("host", sys.argv[1:]))
    except ConfigError as error:
        sys.exit(f"benchmarks.host: {error}")
