"""Test a trained network: ``python -m capsule_lab.evaluate ckpt=runs/…``, which needs only the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console

from capsule_lab.command import command
from capsule_lab.errors import RunError
from capsule_lab.types import DataSpec


@command("evaluate")
def main(config: DictConfig) -> None:
    """Test ``config.ckpt``, write the result beside it, say what came out."""
    from capsule_lab import runs

    if OmegaConf.is_missing(config, "ckpt"):
        raise RunError("ckpt is missing; expected ckpt=<a .ckpt file or the directory of a run>")
    result, path = evaluate(config)
    console = Console(highlight=False)
    errors = {name: value for name, value in result[config.split].items() if name.endswith("/error")}
    parts = "".join(f"  {name.partition('/')[0]} {value:.2f} %" for name, value in errors.items())
    console.print(
        f"[bold]{config.split} error {result[config.split]['error']:.2f} %[/]{parts}  of {result['checkpoint']}",
        soft_wrap=True,
    )
    console.print(f"data: {runs.data_in_words(result['provenance'])}", soft_wrap=True)
    runs.write_json(path, result)
    console.print(f"written to {path}", soft_wrap=True)


def evaluate(config: DictConfig) -> tuple[dict[str, Any], Path]:
    """Metrics of one split with their provenance, and where they belong.

    Raises:
        RunError: for a checkpoint that cannot be used, an unknown split, or data that does not fit the network.
    """
    from capsule_lab import build, callbacks, environment, runs
    from capsule_lab.check import check

    if config.split not in ("test", "validation"):
        raise RunError(f"split is {config.split!r}; expected test or validation")
    build.be_quiet()
    check(config)
    checkpoint = runs.find_checkpoint(config.ckpt)
    weights, record = runs.read_checkpoint(checkpoint)
    module = runs.restore(weights, record)
    changed = config.get("data") or OmegaConf.create()
    own_data = "_target_" not in changed  # that of training, in these options changed
    if config.seed is None:
        config.seed = record.config.seed
    if own_data:
        with open_dict(config):
            config.data = OmegaConf.merge(record.config.data, changed)
        check(config)
    data = build.build_data(config)
    data.prepare_data()
    if own_data:
        runs.check_same_source(checkpoint, record.provenance, data.provenance)
    takes, has = (
        DataSpec(spec.image_shape, spec.num_classes, labels_per_image=spec.labels_per_image)
        for spec in (record.spec, data.spec)
    )
    if takes != has:
        raise RunError(f"the network takes {takes}; the data has {has}: name other data with data=…")
    if config.trainer.precision == "auto":
        config.trainer.precision = record.config.trainer.precision
    trainer = build.build_trainer(config, None, callbacks.progress_callback())
    run_split = trainer.test if config.split == "test" else trainer.validate
    run_split(module, datamodule=data, verbose=False)
    result = {
        config.split: module.test_results() if config.split == "test" else runs.numbers(trainer.logged_metrics, "val"),
        "checkpoint": str(config.ckpt),
        "provenance": data.provenance,
        "data": runs.plain(config.data),
        "hardware": environment.hardware(trainer.strategy.root_device, trainer.num_devices),
        "precision": trainer.precision,
        **environment.of_this_process(),
    }
    name = type(data).__name__.removesuffix("DataModule").lower()
    options = [f"{option!s}={value}" for option, value in changed.items()] if own_data else []
    file = "-".join([checkpoint.stem, config.split, name, data.provenance["source"], *options]) + ".json"
    return result, runs.home_of(checkpoint) / "evaluations" / file


if __name__ == "__main__":
    main()
