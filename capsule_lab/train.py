"""Train a network: ``python -m capsule_lab.train model=capsnet data=mnist anything.else=…``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console
from rich.panel import Panel

from capsule_lab.build import check, command

log = logging.getLogger(__name__)


@command("train")
def main(config: DictConfig) -> None:
    """Train as ``config`` says, test once at the end, leave ``metrics.json``, say what came out."""
    check(config)
    from capsule_lab import runs

    choices = HydraConfig.get().runtime.choices
    directory = runs.choose_directory(config, f"{choices['model']}-{choices['data']}")
    if config.train.resume and runs.is_finished(directory):
        log.info("%s is finished already, nothing to resume; its results are in metrics.json", directory)
        return
    result = train(config, directory)
    if result:
        Console(highlight=False).print(summary(result, directory))


def train(config: DictConfig, directory: Path) -> dict[str, Any]:
    """One run in ``directory``; returns what is in its ``metrics.json``, or nothing on processes but the first."""
    import lightning as L
    import torch

    from capsule_lab import build, callbacks, runs

    build.be_quiet()
    L.seed_everything(config.seed, workers=True, verbose=False)
    data = build.build_data(config)
    data.setup("fit")
    module = build.build_module(config, data.spec)
    resume = runs.checkpoint_to_resume(config, directory, data.provenance)
    embed = callbacks.EmbedConfig(config, data.provenance, data.spec)
    trainer = build.build_trainer(config, directory, embed)

    runs.open_directory(directory, config)  # nothing was written before everything stood
    with runs.logging_to(directory / "train.log"):
        log.info("%s on %s", type(module.network).__name__, data.provenance["name"])
        log.info("into %s%s", directory, f", continuing {resume}" if resume else "")
        runs.tell_loggers(trainer.loggers, config, data.provenance)
        test: dict[str, float] = {}
        try:
            trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
            weights = runs.checkpoint_to_test(config.train.test, directory)
            if weights:
                with runs.interruptible("training is complete; the same command with train.resume=true tests again"):
                    trainer.test(module, datamodule=data, ckpt_path=weights, weights_only=True, verbose=False)
                test = runs.numbers(trainer.logged_metrics, "test")
        finally:
            callbacks.close(trainer.loggers)
    if not trainer.is_global_zero:
        return {}
    result = {
        "status": "finished",
        "test": test,
        "validation": embed.validation,
        "weights_tested": weights and weights.stem,
        "provenance": data.provenance,
        "parameters": sum(p.numel() for p in module.network.parameters()),
        "steps": trainer.global_step,
        "planned_steps": module.total_steps,
        "epochs": trainer.current_epoch,
        "seed": config.seed,
        "training_seconds": round(embed.seconds, 1),
        "precision": trainer.precision,
        "hardware": runs.hardware(module.device if trainer.num_devices else torch.device("cpu")),
        "config_hash": runs.config_hash(config),
        **runs.surroundings(),
    }
    runs.write_json(directory / "metrics.json", result)
    return result


def summary(result: dict[str, Any], directory: Path) -> Panel:
    """What came out, on which data, where it lies, and what to try next."""
    shown = directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory
    lines = []
    if "error" in result["test"]:
        lines.append(f"[bold]test error {result['test']['error']:.2f} %[/]  ({result['weights_tested']} weights)")
    elif "error" in result["validation"]:
        lines.append(f"[bold]validation error {result['validation']['error']:.2f} %[/]  (not tested)")
    lines += [
        f"data        {result['provenance']['name']}",
        f"trained     {result['steps']} of {result['planned_steps']} steps in {result['training_seconds'] / 60:.1f} min, "  # 60 s a minute
        f"{result['parameters']:,} parameters",
        f"run         {shown}  (metrics.json, metrics.csv, checkpoints/, figures/)",
        "",
        "[bold]try next[/]",
        f"  python -m capsule_lab.evaluate ckpt={shown}",
        "  make train routing=uniform experiment=quickstart",
        "  make train model=capsnet data=mnist trainer.max_epochs=3",
        "  python -m capsule_lab        every command and option",
    ]
    return Panel("\n".join(lines), title="finished", title_align="left", expand=False)


if __name__ == "__main__":
    main()
