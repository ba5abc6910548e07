"""Attack a trained network: ``python -m capsule_lab.attack ckpt=runs/…``."""

from __future__ import annotations

import functools
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from capsule_lab import runs
from capsule_lab.command import command
from capsule_lab.config.compose import to_container
from capsule_lab.errors import ConfigError, printable
from capsule_lab.evaluate import check_outputs, open_checked
from capsule_lab.figures import keep_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from capsule_lab.attacks.evaluation import Measured
    from capsule_lab.attacks.of_runs import Attacked

EPSILONS = {
    "l2": (0.25, 0.5, 1.0, 1.5, 2.0, 3.0),  # ours
    "grey_levels": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0),  # ours: of 255
    "unit": (0.02, 0.05, 0.1, 0.15, 0.2, 0.3),  # ours: of pixels in [0, 1]
    "standardised": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5),  # Hinton 2018, figure 3
    "rotation": (-90.0, -60.0, -45.0, -30.0, -15.0, 15.0, 30.0, 45.0, 60.0, 90.0),  # ours: degrees
    "scaling": (-0.5, -0.4, -0.3, -0.2, -0.1, 0.1, 0.2, 0.3, 0.4, 0.5),  # ours: the factor less 1
    "shear": (-1.0, -0.6, -0.4, -0.2, 0.2, 0.4, 0.6, 1.0),  # ours: pixels per pixel
    "translation": (-8.0, -6.0, -4.0, -2.0, 2.0, 4.0, 6.0, 8.0),  # ours: pixels
    "corruption": (1.0, 2.0, 3.0, 4.0, 5.0),  # Mu and Gilmer 2019: severities
}
"""Budgets where none are given: by name of a shift; else by norm, space and range of the pixels."""
ALONG_GRADIENTS = ("fgsm", "bim", "pgd")
"""Attacks that the checks of ``capsule_lab.attacks.masking`` are about."""
_COLUMNS = {
    "success_of_right": "success on those right before %",
    "mean_grey_levels": "mean change, grey levels",
    "calibration_error": "calibration error %",
    "detected": "detected %",
}
"""Of what is printed; ``records.of_budgets`` says what they are."""
_PICTURES = 8  # ours: what fits a page
_CPU_BATCH = 128  # ours: a gradient by so many images stays in the caches, and takes 0.7 of the time of 500
_FOR_THRESHOLD = 1000  # ours: validation images, of which 50 are above it


class Outcome(NamedTuple):
    """What an attack gives.

    Attributes:
        result: for a record.
        path: of the file that it belongs in.
        run: whose network was attacked.
        figures: draws them, by name; a table needs none.
    """

    result: dict[str, Any]
    path: Path
    run: runs.Run
    figures: Callable[[], dict[str, Figure]]


@command("attack")
def main(config: DictConfig) -> dict[str, Any]:
    """Attack ``config.ckpt``, print accuracy and checks, and write both beside the checkpoint, with figures."""
    outcome = attack(config)
    console = Console(highlight=False)
    for shown in tables(outcome.result):
        console.print(shown)
    runs.files.write_record(outcome.path, outcome.result)
    console.print(f"written to {outcome.path}", soft_wrap=True, markup=False)
    for path in keep_figures(outcome.run, outcome.figures().items(), config.get("logger")):
        console.print(f"drawn in {path}", soft_wrap=True, markup=False)
    return outcome.result


def attack(config: DictConfig) -> Outcome:
    """What an attack finds. Writes nothing.

    Args:
        config: of ``conf/attack.yaml``.

    Raises:
        ConfigError: if ``ckpt`` is missing, for budgets beyond the images, and see ``check.check_evaluation``.
        DataError, RunError: see ``runs.open``, ``Run.data_with`` and ``attacks.of_runs.open_attacked``; also for a
            network whose output is not finite.
    """
    import torch
    from hydra.utils import instantiate

    from capsule_lab.attacks import of_runs, records
    from capsule_lab.config import build
    from capsule_lab.system import environment

    run = open_checked(config)
    run.check_classifies("attack")
    source, baseline = (
        runs.open(config[name], trust=config.trust) if config[name] else None for name in ("source", "baseline")
    )
    device = build.build_trainer(OmegaConf.create({"trainer": config.trainer}), None).strategy.root_device
    options = to_container(config).get("data") or {}
    own = run.config.data.get("eval_batch_size")
    if device.type == "cpu" and own and "_target_" not in options:
        options = {"eval_batch_size": min(own, _CPU_BATCH), **options}
    data = run.data_with({**options, **run.number_of_images(config.images, options)})
    function = instantiate(config.attack)
    with build.constructing("attack"), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        attacked = of_runs.open_attacked(
            run, data, config.split, config.space, device, source=source, couplings=config.couplings
        )
        check_outputs(run, (attacked.logits(batch.images) for batch in attacked.batches))
        if config.split == "test":
            few = run.data_with({**options, **run.number_of_images(_FOR_THRESHOLD, options)})
            attacked.threshold = of_runs.detection_threshold(run, few)
        epsilons = _epsilons(config, attacked)
        _check_epsilons(config, attacked, epsilons)
        targets = [*range(run.spec.num_classes)] if config.targeted else [None]
        began = time.monotonic()
        with _progress(attacked, "attacking", len(epsilons) * len(targets)):
            found = attacked.measured(function, config.objective, epsilons, targets=targets)
        seconds = time.monotonic() - began
        measured = {
            config.split: records.of_clean(found, attacked.threshold),
            "attack": records.of_budgets(found, attacked.threshold),
            "checks": _checked(config, attacked, function, epsilons, baseline, data) if _to_check(config) else [],
        }
    result = {
        **measured,
        "checkpoint": str(run.checkpoint),
        **{name: str(each.checkpoint) if each else None for name, each in (("source", source), ("baseline", baseline))},
        "options": to_container(config)["attack"],
        **{name: config[name] for name in ("objective", "space", "couplings", "targeted", "split")},
        "images": len(found.labels),
        "images_sha256": found.digest,
        "provenance": data.provenance,
        "data": run.data_config(options),
        "seconds": round(seconds, 2),
        "hardware": environment.hardware(device, 1),
        "precision": "32-true",
        **environment.of_this_process(),
    }
    path = result_file(run, config, result)
    draw = functools.partial(_figures, result, path.stem, attacked, function, config, found)
    return Outcome(result, path, run, draw)


def _to_check(config: DictConfig) -> bool:
    """The checks are about the network's own gradients."""
    own = config.couplings == "trained" and not config.source
    return bool(config.checks and own and not config.targeted and _name(config) in ALONG_GRADIENTS)


def _checked(
    config: DictConfig,
    attacked: Attacked,
    function: Callable[..., Any],
    epsilons: list[float],
    baseline: runs.Run | None,
    data: Any,
) -> list[dict[str, Any]]:
    from capsule_lab.attacks import of_runs
    from capsule_lab.attacks.checks import checks

    other = None
    if baseline is not None:
        of_runs.check_alike(attacked.run, baseline)
        device = attacked.batches[0].images.device
        other = of_runs.open_attacked(baseline, data, config.split, config.space, device)
    with _progress(attacked, "checking", None):
        found = checks(attacked, function, config.objective, epsilons, images=config.check_images, baseline=other)
        return [asdict(check) for check in found]


def _figures(
    result: Mapping[str, Any],
    name: str,
    attacked: Attacked,
    function: Callable[..., Any],
    config: DictConfig,
    found: Measured,
) -> dict[str, Figure]:
    from capsule_lab.analysis.calibration import reliability, reliability_figure
    from capsule_lab.analysis.plotting import add_heading
    from capsule_lab.attacks.figures import accuracy_figure, attack_of, images_of, sheet, weights_of

    target = 0 if config.targeted else None
    epsilons = [epsilon for epsilon, other in found.attacked if epsilon and other == target]
    answers = {"as it is": found.clean} | {f"epsilon {each:g}": found.attacked[each, target] for each in epsilons}
    bins = {key: reliability(each.logits.double().softmax(1), found.labels) for key, each in answers.items()}
    examples = attacked.examples(function, config.objective, epsilons, images=_PICTURES, target=target)
    figures = {
        f"attacked_{name}": sheet(examples, found.clean.found, result, attacked.run.spec.classes),
        f"reliability_{name}": reliability_figure(bins),
    }
    aim = "" if target is None else f" towards class {target}"
    for figure in figures.values():
        add_heading(figure, f"{weights_of(result)}: {attack_of(result)}{aim}, {images_of(result)}")
    return {f"attack_{name}": accuracy_figure([result]), **figures}


def _name(config: DictConfig) -> str:
    return str(config.attack["_target_"]).rpartition(".")[2]


def _epsilons(config: DictConfig, attacked: Attacked) -> list[float]:
    if config.epsilons is not None:
        return [float(epsilon) for epsilon in config.epsilons]
    if _name(config) in EPSILONS:
        kind = _name(config)
    elif config.attack.get("norm") == "l2":
        unit = 255 if config.space == "grey_levels" else 1
        return [unit * epsilon for epsilon in EPSILONS["l2"]]
    elif config.space == "grey_levels":
        kind = "grey_levels"
    else:
        kind = "unit" if attacked.batches[0].box.high == 1 else "standardised"
    return list(EPSILONS[kind])


def _check_epsilons(config: DictConfig, attacked: Attacked, epsilons: Sequence[float]) -> None:
    """Beyond these bounds an attack does nothing more: nothing of an image is left, or any pixel can be any other.

    Raises:
        ConfigError: for a budget beyond them.
    """
    name, images = _name(config), attacked.batches[0].images
    box, (_, channels, height, width) = attacked.batches[0].box, images.shape
    pixels = max(height, width)
    span = box.high - box.low
    if not math.isfinite(span):
        span = max((each.images.max() - each.images.min()).item() for each in attacked.batches)
    length = span * (channels * height * width) ** 0.5
    low, high = {
        "rotation": (-360, 360), "scaling": (-1, pixels), "shear": (-pixels, pixels), "translation": (-pixels, pixels),
        "corruption": (0, 5),
    }.get(name, (0, length if config.attack.get("norm") == "l2" else span))  # fmt: skip
    for epsilon in epsilons:
        if not low <= epsilon <= high:
            raise ConfigError(
                f"epsilons has {epsilon:g}; expected {low:g} to {high:g} for attack={name}, images of {height}x{width} "
                f"and a range of pixels of {span:g}"
            )


def tables(result: Mapping[str, Any]) -> list[Table]:
    """Accuracy over budgets, and the verdicts of the checks, for a terminal."""
    from capsule_lab.attacks.figures import attack_of, images_of
    from capsule_lab.attacks.records import by_epsilon

    clean = 100 - result[result["split"]]["error"]
    title = f"{attack_of(result)} on {result['checkpoint']}: {clean:.1f} % of {images_of(result)} are right as they are"
    budgets = by_epsilon(result["attack"])
    first = "success" if result["targeted"] else "accuracy"
    known = {key for each in budgets.values() for key, value in each.items() if value is not None}
    columns = {key: heading for key, heading in _COLUMNS.items() if key in known}
    note = "mean change: of a pixel, of 255, after what leaves the pixels' range is cut off"
    shown = Table(
        title=Text(printable(title)), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0),
        caption=note if "mean_grey_levels" in columns else None, caption_justify="left",
    )  # fmt: skip
    for heading in ("epsilon", f"{first} %", "95 % interval", *columns.values()):
        longest = "99.6 to 100.0" if "interval" in heading else max(heading.split(), key=len)
        shown.add_column(heading, justify="right", width=len(longest))  # rich would cut words off
    for epsilon, each in budgets.items():
        numbers = ["" if each.get(key) is None else f"{each[key]:.1f}" for key in columns]
        bounds = f"{each['lowest']:.1f} to {each['highest']:.1f}"
        shown.add_row(f"{epsilon:g}", f"{each[first]:.1f}", bounds, *numbers)
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
    options = {key: value for key, value in to_container(config).items() if key not in ("ckpt", "trainer", "trust")}
    fingerprint = hashlib.sha256(repr(sorted(options.items(), key=str)).encode()).hexdigest()[:8]
    parts = [run.checkpoint.stem, config.split, _name(config), result["provenance"]["source"], fingerprint]
    return run.directory / "attacks" / f"{'-'.join(parts)}.json"


@contextmanager
def _progress(attacked: Attacked, doing: str, passes: int | None) -> Iterator[None]:
    """A bar, on a terminal, with the time left if it is known how often all images are attacked."""
    columns = (TextColumn(doing), BarColumn(), TimeRemainingColumn())
    total = None if passes is None else passes * sum(len(batch.labels) for batch in attacked.batches)
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        attacked.on_step = lambda images: bar.advance(task, images)
        try:
            yield
        finally:
            attacked.on_step = None


if __name__ == "__main__":
    main()
