"""Attack a trained network: ``python -m capsule_lab.attack ckpt=runs/…``."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from capsule_lab import runs
from capsule_lab.command import command
from capsule_lab.config import to_container
from capsule_lab.errors import ConfigError, printable, suggest

if TYPE_CHECKING:
    from capsule_lab.attacks.evaluation import Counts, Measured
    from capsule_lab.attacks.of_runs import Attacked

CHOICES = {
    "couplings": ("trained", "equal"),
    "loss": ("cross_entropy", "margin", "dlr", "training"),
    "space": ("input", "grey_levels"),
    "split": ("test", "val"),
}
EPSILONS = {
    "l2": (0.25, 0.5, 1.0, 1.5, 2.0, 3.0),  # ours
    "grey_levels": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0),  # ours: of 255
    "unit": (0.02, 0.05, 0.1, 0.15, 0.2, 0.3),  # ours: of pixels in [0, 1]
    "standardised": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5),  # Hinton 2018, figure 3
}
"""Budgets where none are given, by norm, space and range of the pixels."""


@command("attack")
def main(config: DictConfig) -> None:
    """Attack ``config.ckpt``, print accuracy and checks, and write both with a figure beside the checkpoint."""
    from capsule_lab.analysis.attacks import accuracy_figure

    check_options(config)
    result, path = attack(config)
    console = Console(highlight=False)
    for shown in tables(result):
        console.print(shown)
    runs.files.write_record(path, result)
    runs.files.save_figure(accuracy_figure([result]), path.with_suffix(".png"))
    for file in (path, path.with_suffix(".png")):
        console.print(f"written to {file}", soft_wrap=True, markup=False)


def check_options(config: DictConfig) -> None:
    """Check what can be checked before anything is opened.

    Raises:
        ConfigError: for a missing checkpoint, an unknown choice, or a number that cannot be.
    """
    if OmegaConf.is_missing(config, "ckpt"):
        raise ConfigError("ckpt is missing; expected ckpt=<a .ckpt file or the directory of a run>")
    for name, choices in CHOICES.items():
        if config[name] not in choices:
            raise ConfigError(f"{name}={config[name]} does not exist; {suggest(str(config[name]), choices)}")
    for epsilon in config.epsilons or ():
        if not isinstance(epsilon, int | float) or not 0 <= epsilon < float("inf"):
            raise ConfigError(f"epsilons has {epsilon}; expected numbers, 0 or more")
    for name in ("images", "check_images"):
        if config[name] is not None and config[name] < 1:
            raise ConfigError(f"{name} is {config[name]}; expected 1 or more")
    if config.targeted and config.loss == "training":
        raise ConfigError("loss=training is of labels only; expected loss=cross_entropy or margin with targeted=true")


def attack(config: DictConfig) -> tuple[dict[str, Any], Path]:
    """What an attack finds, and the file for it. Writes nothing.

    Args:
        config: of ``conf/attack.yaml``.

    Raises:
        ConfigError, DataError, RunError: see ``runs.open``, ``Run.data_with`` and ``attacks.of_runs.open_attacked``.
    """
    from hydra.utils import instantiate

    from capsule_lab import build, check, environment
    from capsule_lab.attacks import of_runs

    build.be_quiet()
    check.check(config)
    run = runs.open(config.ckpt, trust=config.trust)
    source, baseline = (
        runs.open(config[name], trust=config.trust) if config[name] else None for name in ("source", "baseline")
    )
    options = to_container(config).get("data") or {}
    data = run.data_with({**options, **({} if config.images is None else {"eval_images": config.images})})
    if config.seed is not None:
        data.seed = config.seed
    device = build.build_trainer(OmegaConf.create({"trainer": config.trainer}), None).strategy.root_device
    function = instantiate(config.attack)
    with build.constructing("attack"):
        attacked = of_runs.open_attacked(
            run, data, config.split, config.space, device, source=source, couplings=config.couplings
        )
    epsilons = _epsilons(config, attacked)
    targets = list(range(run.spec.num_classes)) if config.targeted else [None]
    began = time.monotonic()
    with build.constructing("attack"), _progress(attacked, len(epsilons) * len(targets)):
        found = attacked.measured(function, config.loss, epsilons, targets=targets)
    seconds = time.monotonic() - began
    checked = []
    if config.checks and not config.targeted:
        other = of_runs.open_attacked(baseline, data, config.split, config.space, device) if baseline else None
        for each in of_runs.checks(
            attacked, function, config.loss, epsilons, images=config.check_images, baseline=other
        ):
            checked.append({"name": each.name, "passed": each.passed, "found": each.found})
    result = {
        "checkpoint": str(run.checkpoint),
        "source": str(source.checkpoint) if source else None,
        "baseline": str(baseline.checkpoint) if baseline else None,
        "attack": to_container(config)["attack"],
        **{name: config[name] for name in ("loss", "space", "couplings", "targeted", "split")},
        "provenance": data.provenance,
        "data": run.data_config(options),
        "images": found.images,
        "image_keys": hashlib.sha256(repr(found.keys).encode()).hexdigest(),
        "accuracy": 100 * found.clean / found.images,
        "budgets": budgets(found),
        "checks": checked,
        "seconds": round(seconds, 2),
        "hardware": environment.hardware(device, 1),
        "precision": "32-true",
        **environment.of_this_process(),
    }
    return result, result_file(run, config, result)


def _epsilons(config: DictConfig, attacked: Attacked) -> list[float]:
    if config.epsilons is not None:
        return [float(epsilon) for epsilon in config.epsilons]
    if config.attack.get("norm") == "l2":
        kind = "l2"
    elif config.space == "grey_levels":
        kind = "grey_levels"
    else:
        kind = "unit" if attacked.batches[0].box.high == 1 else "standardised"
    return list(EPSILONS[kind])


def budgets(found: Measured) -> list[dict[str, Any]]:
    """A record for each epsilon; over all targets, if there are any, with the success of each."""
    records = []
    for epsilon in dict.fromkeys(epsilon for epsilon, _ in found.counts):
        counts = [each for (other, _), each in found.counts.items() if other == epsilon]
        records.append({"epsilon": epsilon, **_record(counts)})
    return records


def _record(counts: list[Counts]) -> dict[str, Any]:
    from scipy.stats import binomtest

    images, right = sum(each.images for each in counts), sum(each.right for each in counts)
    interval = binomtest(right, images).proportion_ci(method="wilson")
    record = {
        "accuracy": 100 * right / images,
        "interval": [100 * interval.low, 100 * interval.high],
        "success": _percent(sum(each.reached for each in counts), images),
        "success_of_right": _percent(
            sum(each.reached_of_eligible for each in counts), sum(each.eligible for each in counts)
        ),
        "mean_change": sum(each.change for each in counts) / images,
        "mean_grey_levels": _number(sum(each.grey_change for each in counts) / images),
    }
    if counts[0].target is not None:
        record["success_by_target"] = {str(each.target): _percent(each.reached, each.images) for each in counts}
    return record


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None


def _number(value: float) -> float | None:
    return None if value != value else value  # nan: JSON has none


def tables(result: Mapping[str, Any]) -> list[Table]:
    """Accuracy over budgets, and the verdicts of the checks, for a terminal."""
    name = result["attack"]["_target_"].rpartition(".")[2]
    title = Text(
        printable(f"{name} on {result['checkpoint']}: {result['accuracy']:.1f} % of {result['images']} images")
    )
    shown = Table(title=title, title_justify="left")
    headings = ["epsilon", "accuracy %", "95 % interval", "success %", "of those right before %", "grey levels"]
    for heading in headings:
        shown.add_column(heading, justify="right")
    for each in result["budgets"]:
        low, high = each["interval"]
        values = (each["success"], each["success_of_right"], each["mean_grey_levels"])
        parts = ["" if value is None else f"{value:.1f}" for value in values]
        shown.add_row(f"{each['epsilon']:g}", f"{each['accuracy']:.1f}", f"{low:.1f} to {high:.1f}", *parts)
    if not result["checks"]:
        return [shown]
    verdicts = Table(title="can it be believed?", title_justify="left")
    for heading in ("check", "", "found"):
        verdicts.add_column(heading)
    for each in result["checks"]:
        verdict = {True: "passed", False: "FAILED", None: ""}[each["passed"]]
        verdicts.add_row(each["name"], verdict, each["found"], style="red" if each["passed"] is False else None)
    return [shown, verdicts]


def result_file(run: runs.Run, config: DictConfig, result: Mapping[str, Any]) -> Path:
    """Where the record of an attack belongs: ``attacks/<checkpoint>-<split>-<attack>-<hash of its options>.json``."""
    name = str(config.attack["_target_"]).rpartition(".")[2]
    options = {key: value for key, value in to_container(config).items() if key not in ("ckpt", "trainer", "trust")}
    fingerprint = hashlib.sha256(repr(sorted(options.items(), key=str)).encode()).hexdigest()[:8]
    parts = [run.checkpoint.stem, config.split, name, result["provenance"]["source"], fingerprint]
    return run.directory / "attacks" / f"{'-'.join(parts)}.json"


class _progress:  # noqa: N801
    """A bar with the time left, on a terminal."""

    def __init__(self, attacked: Attacked, passes: int) -> None:
        columns = (TextColumn("attacking"), BarColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self.attacked = attacked
        self.total = passes * sum(len(batch.labels) for batch in attacked.batches)

    def __enter__(self) -> None:
        self.bar.start()
        task = self.bar.add_task("", total=self.total)
        self.attacked.on_step = lambda images: self.bar.advance(task, images)

    def __exit__(self, *_: object) -> None:
        self.bar.stop()


if __name__ == "__main__":
    main()
