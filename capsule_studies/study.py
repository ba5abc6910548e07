"""Code shared by the commands ``attack`` and ``analyse``: open a run, load images, write a record and figures."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from omegaconf import DictConfig
from pydantic import Field
from rich.console import Console, RenderableType

from capsule_lab import runs
from capsule_lab.commands.evaluate import (
    data_options,
    is_other_data,
    open_run,
    seed_in_effect,
)
from capsule_lab.commands.figures import keep_figures
from capsule_lab.config.check import check, check_trainer_of_evaluation
from capsule_lab.config.composition import to_container
from capsule_lab.config.declaration import Group, Options, Seed, Trusted, Weights
from capsule_lab.config.identity import without_new_defaults
from capsule_studies.names import name_of

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure


_PRECISIONS = {"torch.float32": "32-true", "torch.float64": "64-true"}
"""Names of Lightning for the type of a network's weights."""


class StudyOptions(Options):
    """Options that ``attack`` and ``analyse`` have in common."""

    ckpt: Weights
    """The network: a run directory, a .ckpt file, the name of ready weights, or last: the latest finished run."""
    trust: Trusted = Field([])
    """Your own packages that the checkpoint may name; safetensors refuses files that must be unpickled."""
    seed: Seed | None = None
    """Seed of what is drawn at random, and of other data, with data=; default: seed of the training."""
    data: Group | None
    trainer: Group
    logger: Group | None
    if TYPE_CHECKING:  # each command declares them with a default of its own
        split: Literal["test", "val"]
        images: int | None


CommandOptions = TypeVar("CommandOptions", bound=StudyOptions)


def check_study(config: DictConfig) -> None:
    """Raise a ``ConfigError`` if options of a study do not exist, or have no effect: it runs in one process."""
    check(config)
    check_trainer_of_evaluation(config.trainer, ["accelerator"])


class StudyInput(NamedTuple, Generic[CommandOptions]):
    """The inputs of a study; ``data_options`` are those that differ from training, ``seed`` is the one in effect."""

    options: CommandOptions
    seed: int
    run: runs.Run
    data: Any
    data_options: dict[str, Any]
    device: torch.device
    function: Callable[..., Any]


class StudyResult(NamedTuple):
    """The results of a study for the record, its images, and a function of record and file stem that draws figures."""

    result: dict[str, Any]
    batches: Sequence[Any]
    figures: Callable[[Mapping[str, Any], str], Iterable[tuple[str, Figure]]]
    rows: Sequence[dict[str, object]] = ()


class StudyOutput(NamedTuple):
    """A record and its path, the run that was studied, a function that draws the figures, and rows for a CSV file."""

    result: dict[str, Any]
    path: Path
    run: runs.Run
    figures: Callable[[], Iterable[tuple[str, Figure]]]
    rows: Sequence[dict[str, object]]


def run_study(
    options: CommandOptions,
    group: str,
    folder: str,
    find: Callable[[StudyInput[CommandOptions]], StudyResult],
    *,
    uses_seed: bool = False,
    cpu_batch: int | None = None,
) -> StudyOutput:
    """Run a study of ``options.ckpt``, an attack or question in ``group``; its path is in ``folder`` of the run.

    It writes nothing. ``uses_seed`` tells whether it needs the seed for more than other data; ``cpu_batch`` is the
    largest batch size on a CPU, ``None`` for the run's batch size.
    """
    import torch
    from hydra.utils import instantiate

    from capsule_lab.config import build
    from capsule_studies.subject import OF_PAIRS

    run = open_run(options.ckpt, options.trust)
    has_other_data = is_other_data(options.data)
    seed = seed_in_effect(options.seed, run, is_used=has_other_data or uses_seed)
    options = options.with_values(seed=seed)
    chosen: DictConfig = getattr(options, group)
    name = name_of(chosen)
    trainer = build.build_trainer(options.trainer)
    device = trainer.strategy.root_device
    changes = data_options(options.data)
    batch_size = run.config.data.get("eval_batch_size")
    if cpu_batch and device.type == "cpu" and batch_size and not has_other_data:
        changes = {"eval_batch_size": min(batch_size, cpu_batch), **changes}
    data = run.data_with({**changes, **run.number_of_images(options.images, changes)})
    function = instantiate(chosen)
    if name not in OF_PAIRS:
        instead = "for this one, use analyse with what=poses or what=few_labels"
        run.check_classifies(f"{group}={name}", instead)
    start_time = time.monotonic()
    with (
        build.constructing(f"{group}={name}"),
        torch.backends.cudnn.flags(enabled=True, allow_tf32=False),
    ):
        study = StudyInput(options, seed, run, data, changes, device, function)
        answer = find(study)
    seconds = round(time.monotonic() - start_time, 2)
    result = {"seconds": seconds, **answer.result, **_facts(study, chosen, answer.batches)}
    source = data.provenance["source"]
    fingerprint = _fingerprint(options.config)
    stem = "-".join([run.checkpoint.stem, options.split, name, source, fingerprint])
    path = run.directory / folder / f"{stem}.json"
    return StudyOutput(result, path, run, lambda: answer.figures(result, stem), answer.rows)


def _facts(
    study: StudyInput[CommandOptions], chosen: DictConfig, batches: Sequence[Any]
) -> dict[str, Any]:
    """Return what a record says of every study: what was studied, on which images and where."""
    from capsule_lab.system import environment
    from capsule_studies.images import count_images

    run = study.run
    pixels = hashlib.sha256()
    for batch in batches:
        pixels.update(batch.images.cpu().contiguous().numpy().tobytes())
    weight = next(run.network.parameters())
    return {
        "checkpoint": str(run.checkpoint),
        "options": to_container(chosen),
        "split": study.options.split,
        "images": count_images(batches),
        "images_sha256": pixels.hexdigest(),
        "provenance": study.data.provenance,
        "data": run.data_config(study.data_options),
        "hardware": environment.hardware(study.device, 1),
        "precision": _PRECISIONS[str(weight.dtype)],
        **environment.of_this_process(),
    }


def _fingerprint(config: DictConfig) -> str:
    """Return eight digits that differ between studies of the same checkpoint."""
    decisive = dict(without_new_defaults(to_container(config)))
    for without_effect in ("ckpt", "logger", "trainer", "trust"):
        decisive.pop(without_effect, None)
    text = repr(sorted(decisive.items(), key=str))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def show_and_keep(
    outcome: StudyOutput, tables: Iterable[RenderableType], logger: Any, *, pdf: bool = False
) -> None:
    """Print the tables, and write record, rows and figures to the run; ``logger`` is an option of ``conf/logger``."""
    console = Console(highlight=False)
    say = functools.partial(console.print, soft_wrap=True, markup=False)
    for table in tables:
        console.print(table)
    runs.files.write_record(outcome.path, outcome.result)
    say(f"written to {outcome.path}")
    if outcome.rows:
        import pandas as pd

        rows = outcome.path.with_suffix(".csv")
        runs.files.write_text(rows, pd.DataFrame(outcome.rows).to_csv(index=False))
        say(f"written to {rows}")
    for path in keep_figures(outcome.run, outcome.figures(), logger, pdf=pdf):
        say(f"drawn in {path}")
