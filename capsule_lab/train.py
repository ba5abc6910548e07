"""Train a network: ``python -m capsule_lab.train model=capsnet data=mnist anything.else=…``."""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console
from rich.panel import Panel

from capsule_lab.build import check
from capsule_lab.command import command
from capsule_lab.environment import replaced_command_line
from capsule_lab.slurm import was_requeued

log = logging.getLogger(__name__)


def run(config: DictConfig) -> None:
    """Train as ``config`` says, unless another process does; test once at the end, leave ``metrics.json``."""
    check(config)
    from capsule_lab.runs import interruptible
    from capsule_lab.runs.lock import claim

    with claim(config), interruptible("stopped before training went on: checkpoints are as they were"):
        _run(config)


def _run(config: DictConfig) -> None:
    from capsule_lab import runs

    hydra = HydraConfig.get()
    asked, config.train.resume = config.train.resume, config.train.resume or was_requeued()
    directory = runs.choose_directory(config, "{model}-{data}".format_map(hydra.runtime.choices))
    if asked and hydra.mode == RunMode.RUN and not directory.exists():  # a sweep asks for whatever there is
        log.warning("NOTHING TO RESUME for this configuration, in %s: starting anew", directory)
    if config.train.resume and runs.is_finished(directory, config):
        log.info("%s is finished already, nothing to resume; its results are in metrics.json", directory)
        return
    own = [word for word in hydra.overrides.task if not word.startswith(("launcher=", "train.resume="))]
    with replaced_command_line("capsule_lab.train", own) if hydra.mode == RunMode.MULTIRUN else nullcontext():
        result = train(config, directory)
    if result:
        console, text = Console(highlight=False), summary(result, directory)
        framed = Panel(text, title="finished", title_align="left", expand=False) if console.is_terminal else text
        console.print(framed, soft_wrap=not console.is_terminal)


def train(config: DictConfig, directory: Path) -> dict[str, Any]:
    """One run in ``directory``; returns what is in its ``metrics.json``, or nothing on processes but the first."""
    import lightning as L

    from capsule_lab import build, callbacks, environment, runs

    build.be_quiet()
    data = build.build_data(config)
    with build.constructing("data"):
        data.setup("fit")
    L.seed_everything(config.seed, workers=True, verbose=False)
    module = build.build_module(config, data.spec)
    resume = runs.checkpoint_to_resume(config, directory, data.provenance)
    embed = callbacks.EmbedConfig(config, data.provenance, data.spec)
    trainer = build.build_trainer(config, directory, embed)

    runs.open_directory(directory, config)  # nothing was written before everything stood
    with runs.logging_to(directory / "train.log"):
        log.info("%s on %s", type(module.network).__name__, data.provenance["name"])
        log.info("into %s%s", directory, f", continuing {resume}" if resume else "")
        callbacks.tell_loggers(trainer.loggers, config, data.provenance)
        test: dict[str, float] = {}
        failed = True
        try:
            trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
            seconds, validation = embed.seconds, embed.validation  # testing loads another checkpoint's
            weights = runs.checkpoint_to_test(config.train.test, directory)
            if weights:
                with runs.interruptible("training is complete; the same command with train.resume=true tests again"):
                    trainer.test(module, datamodule=data, ckpt_path=weights, weights_only=True, verbose=False)
                test = module.test_results()
            failed = False
        finally:
            callbacks.close(trainer.loggers, failed=failed)
    if not trainer.is_global_zero:
        return {}
    result = {
        "status": "finished",
        "test": test,
        "val": validation,
        "weights_tested": weights and weights.stem,
        "provenance": data.provenance,
        "parameters": sum(p.numel() for p in module.network.parameters()),
        "steps": trainer.global_step,
        "planned_steps": module.total_steps,
        "epochs": trainer.current_epoch,
        "seed": config.seed,
        "training_seconds": round(seconds, 1),
        "precision": trainer.precision,
        "hardware": environment.hardware(trainer.strategy.root_device, trainer.num_devices * trainer.num_nodes),
        "config_hash": runs.config_hash(config),
        **environment.of_this_process(),
    }
    runs.write_json(directory / "metrics.json", result)
    return result


def summary(result: dict[str, Any], directory: Path) -> str:
    """What came out, on which data, where it lies, and what to try next."""
    from capsule_lab.runs import data_in_words

    run, python = _as_typed(directory), _as_typed(Path(sys.executable))
    minutes = result["training_seconds"] / 60  # 60 s a minute
    if "error" in result["test"]:
        errors = {name.partition("/")[0]: value for name, value in result["test"].items() if name.endswith("/error")}
        parts = "".join(f"  {part} {value:.2f} %" for part, value in errors.items())
        outcome = f"[bold]test error {result['test']['error']:.2f} %[/]{parts}  ({result['weights_tested']} weights)"
    elif "error" in result["val"]:
        outcome = f"[bold]validation error {result['val']['error']:.2f} %[/]  (not tested)"
    else:
        outcome = "neither validated nor tested"
    lines = [
        outcome,
        f"data        {data_in_words(result['provenance'])}",
        f"trained     {result['steps']} of {result['planned_steps']} steps in {minutes:.1f} min, "
        f"{result['parameters']:,} parameters",
        f"run         {run}",
        "            metrics.json, metrics.csv, checkpoints, figures",
        "",
        "[bold]try next[/]",
        f"  {python} -m capsule_lab.evaluate ckpt={run}",
        f"  {python} -m capsule_lab.train experiment=quickstart routing=uniform",
        f"  {python} -m capsule_lab",
    ]
    return "\n".join(lines)


def _as_typed(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


main = command("train")(run)


if __name__ == "__main__":
    main()
