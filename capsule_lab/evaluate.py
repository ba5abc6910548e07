"""Test a trained network: ``python -m capsule_lab.evaluate ckpt=runs/…``, which needs only the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from capsule_lab import runs
from capsule_lab.command import command
from capsule_lab.config import compose, to_container
from capsule_lab.errors import ConfigError, suggest


@command("evaluate")
def main(config: DictConfig) -> None:
    """Evaluate ``config.ckpt``, print the result and write it beside the checkpoint."""
    result, path = evaluate_checkpoint(config)
    metrics = result[config.split]
    parts = "".join(
        f"  {name.removesuffix('/error')} {value:.2f} %" for name, value in metrics.items() if name.endswith("/error")
    )
    console = Console(highlight=False)
    console.print(f"[bold]{config.split} error {metrics['error']:.2f} %[/]{parts}  of {config.ckpt}", soft_wrap=True)
    console.print(f"data: {runs.results.describe_data(result['provenance'])}", soft_wrap=True)
    runs.files.write_json(path, result)
    console.print(f"written to {path}", soft_wrap=True)


def evaluate_checkpoint(config: DictConfig) -> tuple[dict[str, Any], Path]:
    """``evaluate`` as a configuration says, and the file for its result. Writes nothing.

    Args:
        config: of ``conf/evaluate.yaml``.

    Raises:
        ConfigError, DataError, RunError: see ``evaluate`` and ``runs.open``.
    """
    from capsule_lab import build, callbacks, environment, runs
    from capsule_lab.check import check


def evaluate(
    run: runs.Run,
    split: str = "test",
    data: Mapping[str, Any] | None = None,
    trainer: DictConfig | None = None,
) -> dict[str, Any]:
    """Metrics of a trained network on one split, with provenance. Writes nothing.

    Args:
        run: what ``runs.open`` gives.
        split: ``"test"`` or ``"val"``.
        data: options of the data that differ from training, ``{"test_crops": 13}``; with a ``_target_``, the whole
            configuration of other data. See ``Run.data_with``.
        trainer: of ``conf/trainer``; precision ``auto`` is that of training.

    Returns:
        The metrics under the name of the split, ``checkpoint``, ``provenance``, ``data``, ``hardware``,
        ``precision``, and what ``environment.of_this_process`` gives.

    Raises:
        ConfigError: for an unknown split, or options that do not exist.
        DataError: if the data is not here.
        RunError: if the data does not fit the network.
    """
    from capsule_lab import build, callbacks, environment  # torch and Lightning

    check_split(split)
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


def check_split(split: str) -> None:
    """Check that a network can be evaluated on ``split``.

    Raises:
        ConfigError: if not.
    """
    if split not in ("test", "val"):
        raise ConfigError(f"split={split} does not exist; {suggest(str(split), ('test', 'val'))}")


def result_file(run: runs.Run, split: str, data: Mapping[str, Any], result: Mapping[str, Any]) -> Path:
    """Where a result of ``evaluate`` belongs: ``evaluations/<checkpoint>-<split>-<data>-<source>-<options>.json``."""
    target = run.data_config(data)["_target_"]
    name = target.rpartition(".")[2].removesuffix("DataModule").lower()
    other = {} if "_target_" in data else {key: value for key, value in data.items() if key != "directory"}
    options = [f"{key}={value}".replace("/", "_") for key, value in other.items()]
    parts = [run.checkpoint.stem, split, name, result["provenance"]["source"], *options]
    return run.directory / "evaluations" / f"{'-'.join(parts)}.json"


if __name__ == "__main__":
    main()
