"""Test a trained network: ``python -m capsule_lab.evaluate ckpt=runs/…``, which needs only the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from capsule_lab.build import command


@command("evaluate")
def main(config: DictConfig) -> None:
    """Test ``config.ckpt``, write the result beside it, say what came out."""
    from capsule_lab import runs

    if OmegaConf.is_missing(config, "ckpt"):
        raise runs.RunError("ckpt is missing; expected ckpt=<a .ckpt file or the directory of a run>")
    result, path = evaluate(config)
    console = Console(highlight=False)
    metrics = result[config.split]
    console.print(f"[bold]{config.split} error {metrics['error']:.2f} %[/]  of {result['checkpoint']}")
    console.print(f"data: {result['provenance']['name']}")
    console.print(f"written to {path}")


def evaluate(config: DictConfig) -> tuple[dict[str, Any], Path]:
    """Metrics of one split with their provenance, and the file they were written to.

    Raises:
        RunError: for a checkpoint that cannot be used, an unknown split, or data that does not fit the network.
    """
    from capsule_lab import build, callbacks, runs

    if config.split not in ("test", "validation"):
        raise runs.RunError(f"split is {config.split!r}; expected test or validation")
    build.be_quiet()
    checkpoint = runs.find_checkpoint(config.ckpt)
    module, trained = runs.load_run(checkpoint)
    spec = runs.read_checkpoint(checkpoint)[1].spec
    if config.seed is None:
        config.seed = trained.seed
    data = build.build_data(config if config.data else trained)
    if data.spec != spec:
        raise runs.RunError(f"the network takes {spec}; the data has {data.spec}: name another data set with data=…")
    trainer = build.build_trainer(config, None, callbacks.progress())
    if config.split == "test":
        trainer.test(module, datamodule=data, verbose=False)
    else:
        trainer.validate(module, datamodule=data, verbose=False)
    result = {
        config.split: runs.numbers(trainer.logged_metrics, "test" if config.split == "test" else "val"),
        "checkpoint": str(config.ckpt),
        "provenance": data.provenance,
        "hardware": runs.hardware(module.device),
        "precision": trainer.precision,
        **runs.surroundings(),
    }
    name = type(data).__name__.removesuffix("DataModule").lower()
    path = (
        checkpoint.parent.parent
        / "evaluations"
        / f"{checkpoint.stem}-{config.split}-{name}-{data.provenance['source']}.json"
    )
    runs.write_json(path, result)
    return result, path


if __name__ == "__main__":
    main()
