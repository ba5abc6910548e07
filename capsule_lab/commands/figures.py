"""Draw the figures of a run: ``capsule-lab figures run=runs/…``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from pydantic import Field

from capsule_lab import runs
from capsule_lab.commands.declare import command
from capsule_lab.config.check_options import check_effect
from capsule_lab.config.compose import compose
from capsule_lab.config.declaration import Count, FinishedRun, Group, Options, Trusted, Weights
from capsule_lab.config.overrides import as_argument
from capsule_lab.errors import RunError, suggest
from capsule_lab.runs.trust import plain_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

    from capsule_lab.types import Batch, CapsuleOutput

log = logging.getLogger(__name__)


class FiguresOptions(Options):
    """Options of ``figures``."""

    run: Weights
    """A run directory (its best checkpoint), a .ckpt file, the name of ready weights, or last: the
    latest finished run."""
    trust: Trusted = Field([])
    """Your own packages that the checkpoint may name, such as the one with your routing;
    safetensors refuses files that must be unpickled."""
    images: Count = 16  # ours: fits a page
    """Columns of the reconstruction sheet."""
    held_out: Count = 2000  # ours: takes a full CapsNet ten seconds on a CPU
    """Validation images that are searched for failures."""
    sheet_classes: list[int] | None = None
    """Classes whose poses are varied in the sheets of all dimensions, such as [0,3];
    null: the class of the first held-out image."""
    logger: Group | None


def _of_several_labels(run: FinishedRun) -> list[str]:
    """Return the arguments for a run whose images have two labels."""
    several = run.chosen["data"] == "multimnist"
    return [as_argument("run", run.directory)] if several and run.has_weights else []


@command("figures", FiguresOptions, first="run", proposes=_of_several_labels)
def main(options: FiguresOptions) -> None:
    """Draw the figures of ``run``, and save them to its ``figures/`` and to the loggers of the configuration."""
    from capsule_lab.config import build

    build.quiet_lightning_logs()
    run = runs.open(options.run, trust=options.trust)
    for path in keep_figures(run, draw(run, options), options.logger):
        log.info("%s", path)


def figure(run: runs.Run | str | Path, name: str, **options: Any) -> Figure:
    """Return one figure of a run, for a notebook.

    Args:
        run: as returned by ``runs.open``, or the path of a run or of a checkpoint.
        name: ``"reconstructions"`` or another name in the folder ``figures/``.
        **options: options of ``conf/figures.yaml``, such as ``held_out=200``.

    Raises:
        RunError: if the run has no such figure; the message has the names of those that it has.
    """
    config = compose(main, [f"{key}={value}" for key, value in options.items()])
    opened = run if isinstance(run, runs.Run) else runs.open(run)
    known = []
    for known_name, drawn in draw(opened, FiguresOptions.read(config)):
        if known_name == name:
            return drawn
        known.append(known_name)
    raise RunError(f"{name} is not a figure of this run; {suggest(name, known)}")


def keep_figures(
    run: runs.Run,
    figures: Iterable[tuple[str, Figure]],
    logger: DictConfig | None,
    *,
    pdf: bool = False,
) -> Iterator[Path]:
    """Save figures, by name, to ``figures/`` of the run and to its loggers; yield the path of each file.

    ``logger`` are options of ``conf/logger``, ``None`` for no logger; ``pdf`` also saves each figure as PDF, for print.
    """
    from capsule_lab import callbacks
    from capsule_lab.callbacks.figures import keep_figure

    loggers = open_loggers(logger, run) if logger else []
    failed = True
    try:
        for name, figure in figures:
            path = keep_figure(run.directory, loggers, name, figure, max(run.step - 1, 0))
            if pdf:
                runs.files.save_figure(figure, path.with_suffix(".pdf"))
            yield path
        failed = False
    finally:
        callbacks.close_loggers(loggers, failed=failed)


def open_loggers(loggers: DictConfig, run: runs.Run) -> list[Any]:
    """Open the loggers of a configuration, which continue those of the run."""
    from capsule_lab import callbacks
    from capsule_lab.config import build

    config = loggers.copy()
    for name, options in config.items():
        # runs of a table have names other than that of the directory
        if "group" not in options:
            continue
        for key in ("name", "group", "job_type"):
            recorded = plain_value(run.config, f"logger.{name!s}.{key}")
            if recorded:
                options[key] = recorded
    opened = build.build_loggers(config, run.directory)
    callbacks.log_run_facts(opened, run.config, run.provenance)
    return opened


def draw(run: runs.Run, options: FiguresOptions) -> Iterator[tuple[str, Figure]]:
    """Yield name and figure: curves of the logged metrics, then predictions for held-out images.

    For a network with a decoder, reconstructions; without a decoder or with several labels, a sheet of predictions. For
    images with any number of labels, only the curves.
    Raise a ``DataError`` if the training data is missing, and a ``RunError`` if a class of ``sheet_classes`` has no
    held-out image.
    """
    from capsule_lab.analysis.curves import figures
    from capsule_lab.analysis.plotting import add_heading
    from capsule_lab.networks import AbstractPairNetwork, reconstructs

    without_effect = []
    if not reconstructs(run.network):
        without_effect += ["images", "sheet_classes"]
    draws_images = not isinstance(run.network, AbstractPairNetwork) and run.spec.labels_per_image
    if not draws_images:
        without_effect.append("held_out")
    check_effect(options, f"for {type(run.network).__name__}", without_effect)
    title = f"{run.directory.name}: {{}}{runs.results.short_name(run.provenance)}"
    for name, figure in figures(run.directory / "metrics.csv"):
        add_heading(figure, title.format(""))
        yield name, figure
    if draws_images:
        split, batch, output = predictions(run, options.held_out)
        images = {"val": "validation images of ", "train": "training images of "}[split]
        heading = f"{title.format(images)}, weights of {run.checkpoint.name}, at step {run.step}"
        for name, figure in _of_images(run.network, batch, output, options, run.spec.classes):
            add_heading(figure, heading)
            yield name, figure


def _of_images(
    network: nn.Module,
    batch: Batch,
    output: CapsuleOutput,
    options: FiguresOptions,
    names: Sequence[str],
) -> Iterator[tuple[str, Figure]]:
    """Yield labels with predictions, and figures 3, 4 and 5 of Sabour 2017."""
    from capsule_lab.analysis import perturbation, reconstructions, segmentation
    from capsule_lab.callbacks.figures import first_reconstructions
    from capsule_lab.networks import reconstructs

    if batch.labels.ndim > 1 or not reconstructs(network):
        figure = reconstructions.prediction_figure(
            output.ranking, batch.images, batch.labels, names=names
        )
        yield "predictions", figure
    if not reconstructs(network):
        return
    draw = first_reconstructions(network, output, batch, options.images, names)
    yield "reconstructions", draw()
    if batch.parts is None:
        figure = reconstructions.reconstruction_figure(
            network, output, batch.images, batch.labels, names=names
        )
        yield "right_and_wrong", figure
    else:
        figure = segmentation.segmentation_figure(
            network, output, batch.images, batch.labels, batch.parts
        )
        yield "segmentation", figure
    figure = perturbation.perturbation_figure(network, output, batch.labels, names=names)
    yield "perturbation", figure
    examples = perturbation.example_of_each_class(output, batch.labels)
    first = min(examples, key=lambda label: examples[label])
    steps = perturbation.steps_of(output)
    for label in [first] if options.sheet_classes is None else options.sheet_classes:
        if label not in examples:
            known = ", ".join(map(str, sorted(examples)))
            raise RunError(
                f"sheet_classes contains {label}; expected classes of the held-out images: {known}"
            )
        example = reconstructions.select_images(output, batch.labels.new_tensor([examples[label]]))
        figure = perturbation.perturbation_sheet(network, example, label, names=names, steps=steps)
        name = "perturbation_sheet"
        if options.sheet_classes is not None:
            name += f"_{label}"
        yield name, figure


def predictions(run: runs.Run, images: int) -> tuple[str, Batch, CapsuleOutput]:
    """Return the split, its first ``images`` and the network's output; ``"val"``, or ``"train"`` if that is empty."""
    import torch

    from capsule_lab.analysis.trace import joined, joined_outputs
    from capsule_lab.callbacks.learning import first_images
    from capsule_lab.types import Batch

    for split in ("val", "train"):
        batches: list[Batch] = []
        remaining = images
        for batch in run.batches(split):
            batches.append(first_images(batch, remaining))
            remaining -= len(batches[-1].labels)
            if not remaining:
                break
        if batches:
            break
    with torch.no_grad():
        output = joined_outputs([run.network(batch.images) for batch in batches])
    return split, Batch(*joined(*batches)), output


if __name__ == "__main__":
    main()
