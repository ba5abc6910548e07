"""Train a network: ``python -m capsule_lab.train model=capsnet data=mnist anything.else=…``."""

from __future__ import annotations

import functools
import logging
import math
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape

from capsule_lab.command import command
from capsule_lab.config.check import check
from capsule_lab.config.compose import as_argument, overrides_of, search_override
from capsule_lab.errors import ConfigError, PauseError, RunError
from capsule_lab.system.environment import command_line, replaced_command_line
from capsule_lab.system.signals import interruptible
from capsule_lab.system.slurm import was_requeued
from capsule_lab.system.terminal import as_typed

log = logging.getLogger(__name__)

_ENDED_BY = {
    "time limit": "the time limit of a callback",
    "threshold": "the threshold of a callback",
    "callback": "a callback",
}


_INDENT = 12  # of the last lines of the command


def run(config: DictConfig) -> None:
    """``attempt``, as a command.

    Raises:
        RunError: also if ``trainer.max_time`` was over before anything was done, as a loop would not end.
    """
    began = time.monotonic()
    result = attempt(config)
    if result.get("new_steps") == 0:
        raise RunError(
            f"trainer.max_time={config.trainer.max_time} was over after {time.monotonic() - began:.0f} s, before the "
            "first step or the end of the test; expected more, the same command begins there again"
        )


def attempt(config: DictConfig) -> dict[str, Any]:
    """Train as ``config`` says, unless another process does; test once at the end, leave ``metrics.json``.

    Returns:
        What ``train`` does; nothing if the run is finished already.

    Raises:
        ConfigError: outside of a command; ``train`` needs none.
    """
    began = time.monotonic()
    if not HydraConfig.initialized():
        raise ConfigError(
            "run needs a command of Hydra; in a notebook: train(compose('train', [overrides]), Path('run'))"
        )
    check(config)
    from capsule_lab.runs.lock import train_lock

    with train_lock(config), interruptible("stopped before training went on: checkpoints are as they were"):
        return _attempt(config, began)


def _attempt(config: DictConfig, began: float) -> dict[str, Any]:
    from capsule_lab import runs

    hydra = HydraConfig.get()
    asked, config.train.resume = config.train.resume, config.train.resume or was_requeued()
    name = "{model}-{data}".format_map(hydra.runtime.choices)
    superseded = functools.partial(runs.standins.is_outdated, config=config)
    directory = runs.directories.choose_directory(config, name, superseded)
    if asked and hydra.mode == RunMode.RUN and not (directory / "config.yaml").exists():  # sweeps always resume
        log.warning("NOTHING TO RESUME for this configuration, in %s: starting anew", directory)
    if config.train.resume and runs.results.is_finished(directory, config) and not superseded(directory):
        log.info("%s is finished already, nothing to resume; its results are in metrics.json", directory)
        return {}
    overrides = [each for each in hydra.overrides.task if not each.startswith(("launcher=", "train.resume="))]
    differences = [each for each in overrides if not each.startswith(("name=", "logger", "train.directory="))]
    again = [*overrides, *search_override(), *(["train.resume=true"] if config.train.resume else [])]
    is_one_of_several = hydra.mode == RunMode.MULTIRUN
    with replaced_command_line("capsule_lab.train", again) if is_one_of_several else nullcontext():  # other processes'
        result = train(config, directory, differences, began)
    if result and result["status"] != runs.results.PAUSED:
        shown = summary(result, directory, hydra.runtime.choices, None if is_one_of_several else overrides)
        Console(highlight=False).print("", shown, sep="\n", soft_wrap=True)  # commands to copy
    return result


def train(
    config: DictConfig, directory: Path, overrides: Sequence[str] | None = None, began: float | None = None
) -> dict[str, Any]:
    """One run in ``directory``; returns what is in its ``metrics.json``, or nothing on processes but the first.

    When ``trainer.max_time`` is over, the run is saved, and what is returned has the ``status`` ``"paused"``, its
    ``steps``, the ``planned_steps``, and the ``new_steps`` of this call; with ``train.resume`` the next goes on.

    Args:
        config: the whole configuration, as ``capsule_lab.config.compose.compose`` gives it.
        directory: of the run.
        overrides: what the configuration differs in from the defaults, for the records and the log; by default those
            that ``compose`` was given.
        began: when ``trainer.max_time`` began, by ``time.monotonic``; by default now.

    Raises:
        ConfigError: see ``check.check``.
    """
    check(config)
    overrides = overrides_of(config) if overrides is None else overrides
    with _logging_to_stdout_if_nowhere():
        return _train(config, directory, overrides, time.monotonic() if began is None else began)


def _train(config: DictConfig, directory: Path, overrides: Sequence[str], began: float) -> dict[str, Any]:
    import lightning as L

    from capsule_lab import callbacks, runs
    from capsule_lab.config import build
    from capsule_lab.system import environment

    environment.commit()  # that of the code imported here: the files may change while this trains
    build.be_quiet()
    data = build.build_data(config)
    L.seed_everything(config.seed, workers=True, verbose=False)
    config = callbacks.with_names(config, directory, overrides)
    module = build.build_module(config, data.spec)
    seconds = build.time_limit(config.trainer)
    with build.constructing("data"):
        data.setup("fit")  # may download or render for minutes: mistakes are found before
    resume = runs.checkpoints.checkpoint_to_resume(config, directory, data.provenance)
    embed = callbacks.EmbedConfig(config, data.provenance, data.spec)
    trainer = build.build_trainer(config, directory, embed)
    build.check_together(trainer, module, data)
    if seconds < math.inf:
        callbacks.pause_at(trainer, began + seconds)
    if timer := callbacks.TimeToAccuracy.of(trainer):
        timer.since = began

    runs.directories.create_directory(directory, config, overrides)  # the first file: all parts are built
    with runs.results.recording_failure(directory), runs.files.logging_to(directory / "train.log"):
        log.info("%s on %s", type(module.network).__name__, data.provenance["name"])
        log.info("into %s%s", directory, f", continuing {resume}" if resume else "")
        log.info("overrides of the defaults: %s", shlex.join(overrides) or "none")
        callbacks.log_run_facts(trainer.loggers, config, data.provenance)
        failed = True
        try:
            trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
            training = _training(directory, trainer, module, embed)  # a test loads other weights
            timed = _time_to_accuracy(config, directory, trainer, module, data)
            tested = _test(config, directory, trainer, module, data)
            failed = False
        except PauseError:
            failed = False
            return _paused(directory, trainer, module, embed)
        finally:
            callbacks.close_loggers(trainer.loggers, failed=failed)
        if not trainer.is_global_zero:
            return {}
        named = {"name": config.get("name"), "overrides": [*overrides]}
        result = {"status": "finished", **named, **training, **tested, **timed, **_facts(config, trainer, module, data)}
        result["curves"] = runs.files.sha256(directory / "metrics.csv")
        runs.files.write_record(directory / runs.results.RESULT, result)
    return result


@contextmanager
def _logging_to_stdout_if_nowhere() -> Iterator[None]:
    """Show what is logged in a notebook; a command has the handler that Hydra configures."""
    root, own = logging.getLogger(), logging.getLogger("capsule_lab")
    if root.handlers:
        yield
        return
    handler, level = logging.StreamHandler(sys.stdout), own.level
    root.addHandler(handler)
    own.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        own.setLevel(level)


def _paused(directory: Path, trainer: Any, module: Any, embed: Any) -> dict[str, Any]:
    """How far the run is, which is written to its directory and logged; nothing on processes but the first."""
    from capsule_lab import runs

    if not trainer.is_global_zero:
        return {}
    steps, planned = trainer.global_step, module.total_steps
    runs.results.write_pause(directory, steps, planned)
    log.info(
        "PAUSED at step %d of %d, as the time is over: more is left, to go on: %s",
        *(steps, planned, command_line("train.resume=true")),
    )
    return {
        "status": runs.results.PAUSED,
        "steps": steps,
        "planned_steps": planned,
        "new_steps": steps - embed.steps_before,
    }


def _training(directory: Path, trainer: Any, module: Any, embed: Any) -> dict[str, Any]:
    """How training ended, its last validation, and the best one with the step of its weights.

    Raises:
        RunError: if the last validation is not finite.
    """
    from capsule_lab import runs
    from capsule_lab.lit import lightning_internals

    runs.results.check_finite(embed.val, f"the last validation, of step {embed.val_step},")
    path = runs.checkpoints.checkpoint_to_test("best", directory)
    best = runs.checkpoints.read(path) if path and path.stem == "best" else None
    return {
        "stopped_by": lightning_internals.stop_reason(trainer, module.total_steps),
        "val": embed.val,
        "val_step": embed.val_step,
        "best": best and {"step": best["global_step"], "val": best["capsule_lab"]["val"]},
        "training_seconds": round(embed.seconds, 1),
        "training_cpu_seconds": round(embed.cpu_seconds, 1),
    }


def _time_to_accuracy(config: DictConfig, directory: Path, trainer: Any, module: Any, data: Any) -> dict[str, Any]:
    """What ``TimeToAccuracy`` recorded, with the test of the weights that reached each threshold.

    Raises:
        RunError: if such a test is not finite.
    """
    from capsule_lab import callbacks

    timer = callbacks.TimeToAccuracy.of(trainer)
    if timer is None:
        return {}
    results, tested = timer.results(), {}
    loggers, trainer.loggers = trainer.loggers, []  # they get the test of `train.test`
    try:
        for threshold in timer.thresholds:
            weights, step = callbacks.weights_reached(directory, threshold), results[f"{threshold}/step"]
            can_be_tested = step is not None and weights.is_file() and config.train.test != "none"
            if can_be_tested and step not in tested:
                tested[step] = _test_weights(weights, trainer, module, data)["error"]
            results[f"{threshold}/test_error"] = tested.get(step)
    finally:
        trainer.loggers = loggers
    return {"time_to_accuracy": results}


def _test(config: DictConfig, directory: Path, trainer: Any, module: Any, data: Any) -> dict[str, Any]:
    """Test the weights that ``train.test`` names: what came out, and which they were.

    Raises:
        RunError: if it is not finite.
    """
    from capsule_lab import runs

    weights = runs.checkpoints.checkpoint_to_test(config.train.test, directory)
    if weights is None:
        return {"test": {}, "weights_tested": None, "tested_step": None}
    step = runs.checkpoints.read(weights)["global_step"]
    results = _test_weights(weights, trainer, module, data)
    return {"test": results, "weights_tested": weights.stem, "tested_step": step}


def _test_weights(weights: Path, trainer: Any, module: Any, data: Any) -> dict[str, float]:
    """Test the weights in a checkpoint.

    Raises:
        RunError: if what comes out is not finite.
    """
    from capsule_lab import runs

    with interruptible("training is complete; the same command with train.resume=true tests again"):
        trainer.test(module, datamodule=data, ckpt_path=weights, weights_only=True, verbose=False)
    results: dict[str, float] = module.test_results()
    runs.results.check_finite(results, f"the test of {weights}")
    return results


def _facts(config: DictConfig, trainer: Any, module: Any, data: Any) -> dict[str, Any]:
    """What a result needs beside it to be judged and repeated."""
    from capsule_lab import runs
    from capsule_lab.system import environment

    return {
        "provenance": data.provenance,
        "parameters": sum(p.numel() for p in module.network.parameters()),
        "steps": trainer.global_step,
        "planned_steps": module.total_steps,
        "epochs": trainer.current_epoch,
        "seed": config.seed,
        "precision": trainer.precision,
        "hardware": environment.hardware(trainer.strategy.root_device, trainer.num_devices * trainer.num_nodes),
        "config_hash": runs.directories.config_hash(config),
        **environment.of_this_process(),
    }


def summary(
    result: dict[str, Any], directory: Path, chosen: Mapping[str, Any], overrides: Sequence[str] | None = None
) -> str:
    """The last lines of the command: errors, network, data, duration, directory, and what to try next.

    Args:
        result: of ``train``.
        directory: of the run.
        chosen: options of groups, ``model`` and ``routing`` among them.
        overrides: of the command, for what to try next; ``None`` leaves it out.
    """
    from capsule_lab.runs.results import describe_data, describe_metrics

    run = escape(str(as_typed(directory)))
    routing = "" if chosen["routing"] in (None, "none") else f", routing {chosen['routing']}"
    minutes = result["training_seconds"] / 60
    if result["test"]:
        first, others = describe_metrics("test", result["test"])
        outcome = f"[bold]{first}[/]{others}  ({result['weights_tested']} weights)"
    elif result["val"]:
        first, _ = describe_metrics("validation", {**result["val"]})
        outcome = f"[bold]{first}[/]  (not tested)"
    else:
        outcome = "neither validated nor tested"
    following = [] if overrides is None else _to_try(result, directory, chosen, overrides)
    ended = "" if result["stopped_by"] == "steps" else f", ended by {_ENDED_BY[result['stopped_by']]}"
    lines = [
        outcome,
        *_times(result.get("time_to_accuracy", {})),
        f"network     {chosen['model']}{routing}",
        f"data        {escape(describe_data(result['provenance']))}",
        f"trained     {result['steps']} of {result['planned_steps']} steps in {minutes:.1f} min{ended}; "
        f"{result['parameters']:,} parameters",
        f"run         {run}",
        "            metrics.json, metrics.csv, checkpoints, figures",
        *(["", "[bold]try next[/]", *map(escape, following)] if following else []),
    ]
    return "\n".join(lines)


def _times(results: Mapping[str, float | None]) -> list[str]:
    """A line for each threshold of ``TimeToAccuracy``."""
    lines = []
    for threshold in [name.removesuffix("/seconds") for name in results if name.endswith("/seconds")]:
        seconds, images, error = (results[f"{threshold}/{name}"] for name in ("seconds", "images", "test_error"))
        outcome = "not reached" if seconds is None else f"after {seconds:.0f} s of training, {images:,} images"
        tested = "" if error is None else f", test error then {error:.2f} %"
        lines.append(f"{threshold} %".ljust(_INDENT) + outcome + tested)
    return lines


_NOT_WITH_ANOTHER_ROUTING = ("routing", "class_routing", "name=", "train.directory=")


def _to_try(
    result: Mapping[str, Any], directory: Path, chosen: Mapping[str, Any], overrides: Sequence[str]
) -> list[str]:
    """Commands that look into a run, and that train the same network without routing."""
    metrics, routes = result["test"] or result["val"], chosen["routing"] not in (None, "none")
    found = []
    if any((directory / "checkpoints").glob("*.ckpt")):
        run = as_typed(directory)
        question = "poses" if metrics and "error" not in metrics else "couplings" if routes else "transforms"
        look = f"analyse {as_argument('ckpt', run)} what={question}"
        found.append(f"figures {as_argument('run', run)}" if chosen["data"] == "multimnist" else look)  # several labels
    if routes and chosen["routing"] != "uniform":
        others = [each for each in overrides if not each.startswith(_NOT_WITH_ANOTHER_ROUTING)]
        found.append(f"train {shlex.join([*others, 'routing=uniform'])}")
    search = "".join(f" {shlex.quote(each)}" for each in search_override())
    return [f"  {_python()} -m capsule_lab {each}{search}" for each in found]


def _python() -> str:
    """The interpreter, where it lies in the current directory, as that of ``make``; else it is on the user's path."""
    path = as_typed(Path(sys.executable))
    return "python" if path.is_absolute() else shlex.quote(str(path))


main = command("train")(run)


if __name__ == "__main__":
    main()
