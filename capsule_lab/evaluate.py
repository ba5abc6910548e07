"""Test a trained network: ``python -m capsule_lab.evaluate ckpt=runs/…``, which needs only the checkpoint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape

from capsule_lab import runs
from capsule_lab.command import command
from capsule_lab.config.check import check_evaluation
from capsule_lab.config.compose import check_options, compose, to_container
from capsule_lab.errors import ConfigError, printable
from capsule_lab.runs.trust import plain_value

if TYPE_CHECKING:
    from torch import Tensor

Couplings = Literal["trained", "equal"]


@command("evaluate")
def main(config: DictConfig) -> dict[str, Any]:
    """Evaluate ``config.ckpt``, print the result and write it beside the checkpoint."""
    from lightning.fabric.utilities.rank_zero import rank_zero_only  # takes seconds, help needs none

    result, path = evaluate_checkpoint(config)
    if getattr(rank_zero_only, "rank", 0):
        return {}  # the first of several processes has the same result
    first, others = runs.results.describe_metrics(config.split, result[config.split])
    console = Console(highlight=False)
    data = printable(runs.results.describe_data(result["provenance"]))
    console.print(f"[bold]{first}[/]{others}  of {escape(str(config.ckpt))}", soft_wrap=True)
    console.print(f"data: {data}", soft_wrap=True, markup=False)
    runs.files.write_record(path, result)
    console.print(f"written to {path}", soft_wrap=True, markup=False)
    return result


def evaluate_checkpoint(config: DictConfig) -> tuple[dict[str, Any], Path]:
    """``evaluate`` as a configuration of ``conf/evaluate.yaml`` says, and the file for its result. Writes nothing."""
    run = open_checked(config)
    data = to_container(config).get("data") or {}
    result = evaluate(run, config.split, data, config.trainer, couplings=config.couplings)
    return result, result_file(run, config.split, data, result)


def open_checked(config: DictConfig) -> runs.Run:
    """The run of ``config.ckpt``, once the options of ``evaluate``, ``attack`` or ``analyse`` are known to be right.

    A ``seed`` that is not given, as other data needs one, becomes that of training.
    """
    from capsule_lab.config import build, check  # torch and Lightning

    if OmegaConf.is_missing(config, "ckpt") or config.ckpt is None:
        raise ConfigError("ckpt is missing; expected ckpt=<a .ckpt file or the directory of a run>")
    check_evaluation(config)
    build.quiet_lightning_logs()
    check.check(config)
    run = runs.open(config.ckpt, trust=config.trust)
    config.seed = run.config.seed if config.seed is None else config.seed
    return run


def check_outputs(run: runs.Run, outputs: Iterable[Tensor]) -> None:
    """``RunError`` if what a network says of images is not finite, before more is computed of it."""
    import torch

    with torch.no_grad():
        wrong = next((float(each[~each.isfinite()][0]) for each in outputs if not each.isfinite().all()), 0.0)
    runs.results.check_finite({"output": wrong}, f"the network of {run.checkpoint}")


def evaluate(
    run: runs.Run,
    split: str = "test",
    data: Mapping[str, Any] | None = None,
    trainer: DictConfig | None = None,
    *,
    couplings: Couplings = "trained",
) -> dict[str, Any]:
    """Metrics of a trained network on one split, with provenance. Writes nothing.

    Args:
        run: what ``runs.open`` gives.
        split: ``"test"`` or ``"val"``.
        data: options of the data that differ from training, ``{"test_crops": 13}``; with a ``_target_``, the whole
            configuration of other data. See ``Run.data_with``.
        trainer: of ``conf/trainer``; precision ``auto`` is that of training.
        couplings: ``"trained"``, or ``"equal"``: see ``capsule_lab.analysis.equal_couplings``.

    Returns:
        The metrics under the name of the split, ``checkpoint``, ``provenance``, ``data``, ``hardware``,
        ``precision``, and what ``environment.of_this_process`` gives.

    Raises:
        ConfigError, DataError, RunError: for options that do not exist, data that is not here or does not fit the
            network, and metrics that are not finite.
    """
    from capsule_lab import callbacks
    from capsule_lab.analysis.equal_couplings import equal_couplings
    from capsule_lab.config import build, check
    from capsule_lab.system import environment  # torch and Lightning

    check_options(OmegaConf.create({"split": split, "couplings": couplings}), "evaluate")
    build.quiet_lightning_logs()
    trainer = (trainer or compose("evaluate").trainer).copy()
    if trainer.precision == "auto":
        trainer.precision = plain_value(run.config, "trainer.precision")
    wiring = OmegaConf.create({"trainer": trainer})
    check.check(wiring)
    datamodule = run.data_with(data or {})
    build.check_change(run.network, datamodule.spec)
    lightning = build.build_trainer(wiring, None, callbacks.progress_callback())
    evaluated = {"test": lightning.test, "val": lightning.validate}[split]
    around = equal_couplings(run.network) if couplings == "equal" else nullcontext()
    with build.constructing("couplings=equal"), around:
        evaluated(run.module, datamodule=datamodule, verbose=False)
    logged = runs.results.split_metrics(lightning.logged_metrics, split)
    metrics = run.module.test_results() if split == "test" else logged
    runs.results.check_finite(metrics, f"the evaluation of {run.checkpoint}")
    return {
        split: metrics,
        "checkpoint": str(run.checkpoint),
        "provenance": datamodule.provenance,
        "data": run.data_config(data or {}),
        "couplings": couplings,
        "hardware": environment.hardware(lightning.strategy.root_device, lightning.num_devices),
        "precision": lightning.precision,
        **environment.of_this_process(),
    }


def result_file(run: runs.Run, split: str, data: Mapping[str, Any], result: Mapping[str, Any]) -> Path:
    """Where a result of ``evaluate`` belongs: ``evaluations/<checkpoint>-<split>-<data>-<source>-<options>.json``.

    Options whose text no file can have in its name, or a long one, are told apart by their hash.
    """
    target = run.data_config(data)["_target_"]
    name = target.rpartition(".")[2].removesuffix("DataModule").lower()
    other = {} if "_target_" in data else {key: value for key, value in data.items() if key != "directory"}
    other |= {"couplings": "equal"} if result.get("couplings") == "equal" else {}
    options = "".join(f"-{key}={value}" for key, value in other.items()).replace("/", "_")
    named = re.sub(r"[^\w.,=+-]", "_", options, flags=re.ASCII)[:120]  # ours: names of files have 255 at most
    if named != options:
        named += f"-{hashlib.sha256(options.encode()).hexdigest()[:8]}"
    parts = [run.checkpoint.stem, split, name, result["provenance"]["source"]]
    return run.directory / "evaluations" / f"{'-'.join(parts)}{named}.json"


if __name__ == "__main__":
    main()
