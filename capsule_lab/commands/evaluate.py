"""Test a trained network: ``capsule-lab evaluate ckpt=runs/…``. Only the checkpoint is needed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from omegaconf import DictConfig, OmegaConf
from pydantic import Field
from rich.console import Console
from rich.markup import escape

from capsule_lab import runs
from capsule_lab.commands.declare import command
from capsule_lab.config.check import check, check_trainer_of_evaluation
from capsule_lab.config.check_options import check_options
from capsule_lab.config.compose import compose
from capsule_lab.config.composition import to_container
from capsule_lab.config.declaration import (
    Group,
    Measurement,
    Options,
    Seed,
    Trusted,
    Weights,
)
from capsule_lab.config.folders import option_files
from capsule_lab.errors import ConfigError, RunError, printable
from capsule_lab.runs.trust import plain_value

if TYPE_CHECKING:
    from torch import Tensor

Couplings = Literal["trained", "equal"]


class EvaluateOptions(Options):
    """Options of ``evaluate``."""

    ckpt: Weights
    """A run directory (its best checkpoint), a .ckpt file, the name of ready weights, or last: the
    latest finished run."""
    split: Literal["test", "val"] = "test"
    """The official test set, or the validation images."""
    couplings: Couplings = "trained"
    """equal: every parent gets an equal share of each child, as without routing."""
    trust: Trusted = Field([])
    """Your own packages that the checkpoint may name, such as the one with your routing;
    safetensors refuses files that must be unpickled."""
    seed: Seed | None = None
    """Seed of other data, with data=; default: seed of the training."""
    data: Group | None
    trainer: Group


_TRAINER = (
    "accelerator",
    "devices",
    "num_nodes",
    "strategy",
    "precision",
    "deterministic",
    "benchmark",
    "detect_anomaly",
    "profiler",
    "enable_progress_bar",
    "enable_model_summary",
    "inference_mode",
    "sync_batchnorm",
    "plugins",
)
"""Arguments of ``lightning.Trainer`` that have an effect."""


def _check(config: DictConfig) -> None:
    """Raise a ``ConfigError`` if options of ``evaluate`` do not exist, or have no effect."""
    check(config)
    options = EvaluateOptions.read(config)
    used = (*_TRAINER, f"limit_{options.split}_batches")
    check_trainer_of_evaluation(options.trainer, used)


@command(
    "evaluate",
    EvaluateOptions,
    check=_check,
    first="ckpt",
    measures=Measurement(
        runs.results.Evaluation,
        metrics=("test", "val"),
        devices=("accelerator", "devices", "num_nodes", "strategy"),
    ),
)
def main(options: EvaluateOptions) -> dict[str, Any]:
    """Evaluate ``ckpt``, print the result and write it into the run directory."""
    from lightning.fabric.utilities.rank_zero import rank_zero_only  # slow; --help does not need it

    result, path, run = evaluate_checkpoint(options)
    if getattr(rank_zero_only, "rank", 0):
        return {}  # only the first of several processes prints and writes
    first, others = runs.results.describe_metrics(options.split, result[options.split])
    console = Console(highlight=False)
    data = printable(runs.results.describe_data(result["provenance"]))
    # names of classes may contain brackets
    others = escape(f"{runs.results.describe_constant(result)}{others}")
    first = f"[bold]{escape(first)}[/]{others}"
    console.print(f"{first}  of {escape(options.ckpt)}", soft_wrap=True)
    by_class = runs.results.describe_classes(result, options.split)
    if by_class:
        console.print(by_class, soft_wrap=True, markup=False)
    console.print(f"data: {data}", soft_wrap=True, markup=False)
    predictions = run.module.test_predictions()
    if predictions:
        file = path.with_suffix(".npz").relative_to(run.directory).as_posix()
        result["predictions"] = runs.predictions.write(run.directory, file, predictions)
    runs.files.write_record(path, result)
    console.print(f"written to {path}", soft_wrap=True, markup=False)
    return result


def evaluate_checkpoint(options: EvaluateOptions) -> tuple[dict[str, Any], Path, runs.Run]:
    """Evaluate ``ckpt`` of the options; return result, path for it, and run. Writes nothing."""
    run = open_run(options.ckpt, options.trust)
    seed = seed_in_effect(options.seed, run, is_used=is_other_data(options.data))
    options = options.with_values(seed=seed)
    data = data_options(options.data)
    result = evaluate(run, options.split, data, options.trainer, couplings=options.couplings)
    name = f"limit_{options.split}_batches"
    limit = None if options.trainer is None else options.trainer[name]
    limits = {} if limit is None else {name: limit}
    return result, result_file(run, options.split, data, result, limits), run


def open_run(ckpt: str, trust: Trusted) -> runs.Run:
    """Open a run for a command that measures weights, without the messages of Lightning."""
    from capsule_lab.config import build  # torch and Lightning

    build.quiet_lightning_logs()
    return runs.open(ckpt, trust=trust)


def seed_in_effect(seed: int | None, run: runs.Run, *, is_used: bool) -> int:
    """Return the seed of a measurement: the option ``seed``, by default the seed of training.

    Raise a ``ConfigError`` if it is another seed than that of training, and the measurement does not use it.
    """
    of_training: int = run.config.seed
    if seed is None:
        return of_training
    if seed != of_training and not is_used:
        raise ConfigError(
            f"seed={seed} has no effect on the data of the training, which keeps its seed; expected data= with "
            "other data, or no seed"
        )
    return seed


def is_other_data(data: DictConfig | None) -> bool:
    """Return whether the option ``data`` is a whole data set, not changes of the data of training."""
    return "_target_" in (data or {})


def data_options(data: DictConfig | None) -> dict[str, Any]:
    """Return the option ``data`` in plain containers, as ``runs.Run.data_with`` expects it."""
    return to_container(data) if data else {}


def check_outputs(run: runs.Run, outputs: Iterable[Tensor]) -> None:
    """Raise a ``RunError`` if an output of the network is not finite, before anything is computed from it."""
    import torch

    with torch.no_grad():
        wrong = next(
            (float(each[~each.isfinite()][0]) for each in outputs if not each.isfinite().all()), 0.0
        )
    runs.results.check_finite({"output": wrong}, f"the network of {run.checkpoint}")


def evaluate(
    run: runs.Run,
    split: str = "test",
    data: Mapping[str, Any] | None = None,
    trainer: DictConfig | None = None,
    *,
    couplings: Couplings = "trained",
) -> dict[str, Any]:
    """Return the metrics of a trained network on one split, with provenance. Writes nothing.

    Args:
        run: as returned by ``runs.open``.
        split: ``"test"`` or ``"val"``.
        data: data options that differ from training, such as ``{"test_crops": 13}``; with a ``_target_``, the whole
            configuration of other data. See ``Run.data_with``.
        trainer: options of ``conf/trainer``; precision ``auto`` means the precision option of training.
        couplings: ``"trained"``, or ``"equal"``: see ``capsule_lab.analysis.equal_couplings``.

    Returns:
        The metrics under the name of the split, ``classes`` (see ``runs.results.ClassResults``), ``image_counts``,
        ``checkpoint``, ``provenance``, ``data``, ``couplings``, and the items of ``environment.of_this_process`` and
        ``environment.facts_of_trainer``.

    Raises:
        ConfigError, DataError, RunError: for unknown options, for data that is missing or does not fit the network, and
            for metrics that are not finite.
    """
    from capsule_lab import callbacks
    from capsule_lab.analysis.equal_couplings import equal_couplings
    from capsule_lab.config import build, check_objects
    from capsule_lab.system import environment  # torch and Lightning

    check_options(OmegaConf.create({"split": split, "couplings": couplings}), main)
    build.quiet_lightning_logs()
    trainer = (trainer or compose(main).trainer).copy()
    if trainer.precision == "auto":
        trainer.precision = plain_value(run.config, "trainer.precision")
    check(OmegaConf.create({"trainer": trainer}))
    datamodule = run.data_with(data or {})
    check_objects.check_change(run.network, datamodule.spec)
    lightning = build.build_trainer(trainer, callbacks=[callbacks.progress_callback()])
    evaluated = {"test": lightning.test, "val": lightning.validate}[split]
    around = equal_couplings(run.network) if couplings == "equal" else nullcontext()
    run.module.image_counts.clear()  # of an earlier evaluation
    with build.constructing("couplings=equal" if couplings == "equal" else "data"), around:
        evaluated(run.module, datamodule=datamodule, verbose=False)
    counts = runs.results.image_counts(run.module, datamodule)
    if not counts.get(split):
        raise RunError(
            f"split={split} has no images here; expected another split, or data and limits that leave some"
        )
    logged = runs.results.split_metrics(lightning.logged_metrics, split)
    metrics = run.module.test_results() if split == "test" else logged
    runs.results.check_finite(metrics, f"the evaluation of {run.checkpoint}")
    return {
        split: metrics,
        "classes": run.module.class_results(split, run.class_counts),
        "image_counts": counts,
        "checkpoint": str(run.checkpoint),
        "provenance": datamodule.provenance,
        "data": run.data_config(data or {}),
        "couplings": couplings,
        **environment.of_this_process(),
        **environment.facts_of_trainer(lightning),
    }


def result_file(
    run: runs.Run,
    split: str,
    data: Mapping[str, Any],
    result: Mapping[str, Any],
    limits: Mapping[str, Any] | None = None,
) -> Path:
    """Return the path for a result: ``evaluations/<checkpoint>-<split>-<data>-<source>-<options>.json``.

    The options are those of ``data`` that differ from training or, for other data, from its defaults, and the limits of
    the Trainer. If their text is too long or not allowed in a file name, their hash is appended; the ``/`` of a
    fraction is replaced.
    """
    target = run.data_config(data)["_target_"]
    name = target.rpartition(".")[2].removesuffix("DataModule").lower()
    known = {"_target_": target}
    if "_target_" in data:
        files = reversed(option_files("data").items())  # ours take precedence over the user's
        if option := {
            OmegaConf.select(OmegaConf.load(file), "_target_"): key for key, file in files
        }.get(target):
            known = to_container(compose(main, [f"data={option}", f"seed={run.config.seed}"]).data)
        known["source"] = data.get("source")  # the file name contains the source that was used
    other = {
        key: value
        for key, value in data.items()
        if key != "directory" and (key, value) not in known.items()
    }
    other |= limits or {}
    other |= {"couplings": "equal"} if result.get("couplings") == "equal" else {}
    options = ""
    for key, value in other.items():
        is_fraction = re.fullmatch(r"\d+/\d+", str(value))
        options += f"-{key}={str(value).replace('/', '_') if is_fraction else value}"
    named = re.sub(r"[^\w.,=+-]", "_", options, flags=re.ASCII)[
        :120
    ]  # ours: a file name has at most 255 bytes
    if named != options:
        named += f"-{hashlib.sha256(options.encode()).hexdigest()[:8]}"
    parts = [run.checkpoint.stem, split, name, result["provenance"]["source"]]
    return run.directory / "evaluations" / f"{'-'.join(parts)}{named}.json"


if __name__ == "__main__":
    main()
