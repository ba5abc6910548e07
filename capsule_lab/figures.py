"""Draw a run: ``python -m capsule_lab.figures run=runs/…``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from capsule_lab.command import command
from capsule_lab.errors import RunError

log = logging.getLogger(__name__)


@command("figures")
def main(config: DictConfig) -> None:
    """Draw every figure that applies to ``config.run``, into its ``figures/`` and to the loggers of ``config``."""
    from capsule_lab import build
    from capsule_lab.callbacks import close_loggers
    from capsule_lab.callbacks.figures import keep_figure

    if OmegaConf.is_missing(config, "run"):
        raise RunError("run is missing; expected run=<the directory of a run>")
    for name in ("images", "held_out"):
        if config[name] < 1:
            raise RunError(f"{name} is {config[name]}; expected 1 or more")
    run = Path(str(config.run))
    if not run.is_dir():
        raise RunError(f"run is {run}, which is no directory; expected that of a run, runs/…")
    build.be_quiet()
    loggers, step = open_loggers(config, run) if config.get("logger") else ([], 0)
    failed = True
    try:
        for name, figure in draw(run, config):
            log.info("%s", keep_figure(run, loggers, name, figure, step))
        failed = False
    finally:
        close_loggers(loggers, failed=failed)


def open_loggers(config: DictConfig, run: Path) -> tuple[list[Any], int]:
    """The loggers of ``config``, going on where those of the run ended, and the step of its checkpoint."""
    from capsule_lab import build, runs
    from capsule_lab.callbacks import log_run_facts

    weights, record = runs.read_checkpoint(run)
    for name, options in config.logger.items():  # of a table: without its own names the run would lose them
        own = OmegaConf.select(record.config, f"logger.{name}") or {}
        options.update({key: own[key] for key in ("name", "group", "job_type") if own.get(key)})
    trainer = {"_target_": "lightning.Trainer", "accelerator": "cpu"}
    loggers = build.build_trainer(
        OmegaConf.create({"logger": config.logger, "trainer": trainer}), run.resolve()
    ).loggers
    log_run_facts(loggers, record.config, record.provenance)
    return loggers, weights["global_step"]


def draw(run: Path, config: DictConfig) -> Iterator[tuple[str, Any]]:
    """Name and figure, one after another: what the run logged, then what its network makes of held-out images.

    Raises:
        RunError: if ``run`` holds no checkpoint, or the data it was trained on is not here.
    """
    from capsule_lab import build, runs
    from capsule_lab.analysis import curves, layers
    from capsule_lab.networks import CapsNet

    checkpoint = runs.find_checkpoint(run)
    weights, record = runs.read_checkpoint(checkpoint)
    network = runs.restore(weights, record).network
    metrics = run / "metrics.csv"
    if metrics.is_file():
        yield "curves", curves.training_curves(metrics)
        if layers.layers_in(metrics):
            yield "layers", layers.layer_curves(metrics)
        if curves.shows_transfer(metrics):
            yield "transfer", curves.transfer_curve(metrics)
    if isinstance(network, CapsNet) and network.decoder is not None:
        data = build.build_data(record.config)
        data.setup("validate")
        runs.check_same_source(checkpoint, record.provenance, data.provenance)
        yield from draw_decoded(network, data, config)


def draw_decoded(network: Any, data: Any, config: DictConfig) -> Iterator[tuple[str, Any]]:
    """What the capsules decode to: figures 3, 4 and 5 of Sabour 2017.

    Raises:
        RunError: for a class without a held-out image.
    """
    from capsule_lab.analysis import perturbation, reconstructions, segmentation
    from capsule_lab.callbacks.figures import first_reconstructions

    batch, output = look_at(network, data, config.held_out)
    yield "reconstructions", first_reconstructions(network, batch, config.images)
    if batch.parts is None:
        figure = reconstructions.reconstruction_figure(network, output, batch.images, batch.labels)
        yield "right_and_wrong", figure
    else:
        yield "segmentation", segmentation.segmentation_figure(network, output, batch.images, batch.labels, batch.parts)
    yield "perturbation", perturbation.perturbation_figure(network, output, batch.labels)

    labels = batch.labels.reshape(len(batch.labels), -1)[:, 0]
    examples = {int(labels[number]): number for number in perturbation.examples(output, batch.labels)}
    first = min(examples, key=lambda label: examples[label])
    for label in [first] if config.sheet_classes is None else config.sheet_classes:
        if label not in examples:
            known = ", ".join(map(str, sorted(examples)))
            raise RunError(f"sheet_classes has {label}; expected classes of the held-out images: {known}")
        of_one = reconstructions.of_images(output, labels.new_tensor([examples[label]]))
        name = "perturbation_sheet" if config.sheet_classes is None else f"perturbation_sheet_{label}"
        yield name, perturbation.perturbation_sheet(network, of_one, label)


def look_at(network: Any, data: Any, images: int) -> tuple[Any, Any]:
    """The first held-out images, a ``Batch``, and what the network says of them; of training if none are held out."""
    import torch

    from capsule_lab.types import Batch, CapsuleOutput, Capsules

    loaders = data.val_dataloader() or data.train_dataloader()
    batches, outputs, seen = [], [], 0
    for stored in loaders[0] if isinstance(loaders, list) else loaders:
        batches.append(data.on_after_batch_transfer(stored, 0))
        with torch.no_grad():
            outputs.append(network(batches[-1].images))
        seen += len(batches[-1].labels)
        if seen >= images:
            break

    def joined(records: Any) -> list[Any]:
        """Each field of all records."""
        return [None if each[0] is None else torch.cat(each)[:images] for each in zip(*records, strict=True)]

    (scores,) = joined([[output.scores] for output in outputs])
    return Batch(*joined(batches)), CapsuleOutput(scores, Capsules(*joined(output.capsules for output in outputs)))


if __name__ == "__main__":
    main()
