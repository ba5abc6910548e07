"""Draw a run: ``python -m capsule_lab.figures run=runs/…``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from capsule_lab.command import command

log = logging.getLogger(__name__)


@command("figures")
def main(config: DictConfig) -> None:
    """Draw every figure that applies to ``config.run`` into its ``figures/``."""
    from capsule_lab import runs

    if OmegaConf.is_missing(config, "run"):
        raise runs.RunError("run is missing; expected run=<the directory of a run>")
    if config.images < 1:
        raise runs.RunError(f"images is {config.images}; expected 1 or more")
    run = Path(str(config.run))
    for name, figure in draw(run, config.images):
        path = run / "figures" / f"{name}.png"
        runs.save_figure(figure, path)
        log.info("%s", path)


def draw(run: Path, images: int) -> Iterator[tuple[str, Any]]:
    """Name and figure, one after another: training curves, the layers' activations, reconstructions of held-out images.

    Raises:
        RunError: if ``run`` is no run.
    """
    from capsule_lab import build, runs
    from capsule_lab.analysis.curves import training_curves
    from capsule_lab.analysis.layers import layer_curves, layers_in
    from capsule_lab.analysis.reconstructions import reconstruction_sheet
    from capsule_lab.networks import CapsNet

    build.be_quiet()
    if not run.is_dir():
        raise runs.RunError(f"run is {run}, which is no directory; expected that of a run, runs/…")
    checkpoint = runs.find_checkpoint(run)
    weights, record = runs.read_checkpoint(checkpoint)
    module = runs.restore(weights, record)
    if (run / "metrics.csv").is_file():
        yield "curves", training_curves(run / "metrics.csv")
        if layers_in(run / "metrics.csv"):
            yield "layers", layer_curves(run / "metrics.csv")
    if isinstance(module.network, CapsNet) and module.network.decoder is not None:
        data = build.build_data(record.config)
        data.setup("validate")
        runs.check_same_source(checkpoint, record.provenance, data.provenance)
        held_out = data.val_dataloader() or data.train_dataloader()
        first = data.on_after_batch_transfer(next(iter(held_out)), 0)
        yield "reconstructions", reconstruction_sheet(module.network, first.images[:images], first.labels[:images])


if __name__ == "__main__":
    main()
