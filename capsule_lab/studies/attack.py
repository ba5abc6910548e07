"""Attack a trained network: ``python -m capsule_lab attack ckpt=runs/…``."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from capsule_lab import runs
from capsule_lab.command import command
from capsule_lab.errors import ConfigError, printable
from capsule_lab.evaluate import check_outputs
from capsule_lab.studies.attacks.kind import PIXEL_STRENGTHS, Kind, kind_of, name_of
from capsule_lab.studies.study import Found, Outcome, Setting, conduct, show_and_keep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from capsule_lab.studies.attacks.evaluation import Measured
    from capsule_lab.studies.attacks.session import AttackedRun
    from capsule_lab.studies.images import StudyImages
    from capsule_lab.tables.summary import Entry

_COLUMNS = {
    "success_of_right": "success on those right before %",
    "mean_grey_levels": "mean change, grey levels",
    "calibration_error": "calibration error %",
    "detected": "detected %",
}
"""Of what is printed; ``summary.of_budgets`` says what they are."""
_PICTURES = 8  # ours: what fits a page
_CPU_BATCH = 128  # ours: a gradient by so many images stays in the caches, and takes 0.7 of the time of 500
_FOR_THRESHOLD = 1000  # ours: validation images, of which 50 are above it


@command("attack")
def main(config: DictConfig) -> dict[str, Any]:
    """Attack ``config.ckpt``, print accuracy and checks, and write both beside the checkpoint, with figures."""
    outcome = attack(config)
    show_and_keep(outcome, tables(outcome.result), config.get("logger"))
    return outcome.result


def attack(config: DictConfig) -> Outcome:
    """What an attack finds, see ``study.conduct``.

    Args:
        config: of ``conf/attack.yaml``.
    """
    return conduct(config, "attack", "attacks", _attacked, cpu_batch=_CPU_BATCH)


def table_figures(entries: Sequence[Entry]) -> dict[str, Figure]:
    """Figures of a table with rows that this command evaluates, by name."""
    from capsule_lab.studies.attack_tables import accuracy_under_attack

    return accuracy_under_attack(entries)


def _attacked(setting: Setting) -> Found:
    from capsule_lab.studies.attacks import session, summary
    from capsule_lab.studies.images import StudyImages

    config, run, function = setting.config, setting.run, setting.function
    source, baseline = (
        runs.open(config[name], trust=config.trust) if config[name] else None for name in ("source", "baseline")
    )
    images = StudyImages(setting.data, config.split, setting.device)
    attacked = session.AttackedRun(run, images, config.space, source=source, couplings=config.couplings)
    check_outputs(run, (attacked.logits(batch.images) for batch in attacked.batches))
    threshold = None
    if config.split == "test":
        few = run.data_with({**setting.options, **run.number_of_images(_FOR_THRESHOLD, setting.options)})
        threshold = session.detection_threshold(run, few)
    if threshold is not None:
        attacked.keep_errors()
    kind = kind_of(config.attack)
    epsilons = _epsilons(config, kind, attacked)
    targets = [*range(run.spec.num_classes)] if config.targeted else [None]
    start_time = time.monotonic()
    with _progress(attacked, "attacking", len(epsilons) * len(targets)):
        measured = attacked.measure(function, config.objective, epsilons, targets)
    seconds = time.monotonic() - start_time
    own = config.couplings == "trained" and not source
    to_check = config.checks and own and not config.targeted and kind.along_gradients
    result = {
        config.split: summary.of_clean(measured, threshold),
        "attack": summary.of_budgets(measured, threshold),
        "seconds": round(seconds, 2),
        "checks": _checked(setting, attacked, epsilons, baseline, images) if to_check else [],
        **{name: str(each.checkpoint) if each else None for name, each in (("source", source), ("baseline", baseline))},
        **{name: config[name] for name in ("objective", "space", "couplings", "targeted")},
    }

    def figures(record: Mapping[str, Any], stem: str) -> Iterator[tuple[str, Figure]]:
        return _figures(setting, attacked, measured, record, stem)

    return Found(result, attacked.batches, figures)


def _checked(
    setting: Setting, attacked: AttackedRun, epsilons: list[float], baseline: runs.Run | None, images: StudyImages
) -> list[dict[str, Any]]:
    from capsule_lab.studies.attacks.checks import checks
    from capsule_lab.studies.attacks.session import AttackedRun, check_same_data

    config, other = setting.config, None
    if baseline is not None:
        check_same_data(setting.run, baseline)
        other = AttackedRun(baseline, images, config.space)
    with _progress(attacked, "checking", None):
        found = checks(
            attacked, setting.function, config.objective, epsilons, images=config.check_images, baseline=other
        )
        return [asdict(check) for check in found]


def _figures(
    setting: Setting, attacked: AttackedRun, measured: Measured, record: Mapping[str, Any], stem: str
) -> Iterator[tuple[str, Figure]]:
    from capsule_lab.analysis.plotting import add_heading
    from capsule_lab.studies.attacks.figures import accuracy_figure, attack_of, images_of, sheet, weights_of
    from capsule_lab.studies.measures.calibration import reliability, reliability_figure

    yield f"attack_{stem}", accuracy_figure([record])
    config = setting.config
    target = 0 if config.targeted else None
    epsilons = [epsilon for epsilon, other in measured.attacked if epsilon and other == target]
    answers = {"as it is": measured.clean} | {f"epsilon {each:g}": measured.attacked[each, target] for each in epsilons}
    bins = {key: reliability(each.logits.double().softmax(1), measured.labels) for key, each in answers.items()}
    examples = attacked.examples(setting.function, config.objective, epsilons, _PICTURES, target)
    aim = "" if target is None else f" towards class {target}"
    for name, figure in (
        ("attacked", sheet(examples, measured.clean.found, record, setting.run.spec.classes)),
        ("reliability", reliability_figure(bins)),
    ):
        add_heading(figure, f"{weights_of(record)}: {attack_of(record)}{aim}, {images_of(record)}")
        yield f"{name}_{stem}", figure


def _epsilons(config: DictConfig, kind: Kind, attacked: AttackedRun) -> list[float]:
    """The strengths that are given, or those of the kind of attack; none is beyond what changes anything."""
    is_length = config.attack.get("norm") == "l2"
    box = attacked.batches[0].box
    if config.epsilons is not None:
        epsilons = [float(epsilon) for epsilon in config.epsilons]
    elif kind.strengths:
        epsilons = [*kind.strengths]
    elif is_length:
        unit = 255 if config.space == "grey_levels" else 1
        epsilons = [unit * epsilon for epsilon in PIXEL_STRENGTHS["l2"]]
    else:
        of_input = "unit" if box.high == 1 else "standardised"
        epsilons = [*PIXEL_STRENGTHS["grey_levels" if config.space == "grey_levels" else of_input]]
    _, channels, height, width = attacked.batches[0].images.shape
    span = box.high - box.low
    if not math.isfinite(span):
        span = max((each.images.max() - each.images.min()).item() for each in attacked.batches)
    side = max(height, width)
    if kind.strengths:
        low, high = (own if own is not None else end for own, end in zip(kind.limits, (-side, side), strict=True))
    else:
        low, high = 0.0, span * (channels * height * width) ** 0.5 if is_length else span
    for epsilon in epsilons:
        if not low <= epsilon <= high:
            raise ConfigError(
                f"epsilons has {epsilon:g}; expected {low:g} to {high:g} for attack={name_of(config.attack)}, images "
                f"of {height}x{width} and a range of pixels of {span:g}"
            )
    return epsilons


def tables(result: Mapping[str, Any]) -> list[Table]:
    """Accuracy over budgets, and the verdicts of the checks, for a terminal."""
    from capsule_lab.studies.attacks.figures import attack_of, images_of
    from capsule_lab.studies.attacks.summary import by_epsilon

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


@contextmanager
def _progress(attacked: AttackedRun, task: str, passes: int | None) -> Iterator[None]:
    """A bar, on a terminal, with the time left if it is known how often all images are attacked."""
    columns = (TextColumn(task), BarColumn(), TimeRemainingColumn())
    total = None if passes is None else passes * sum(len(batch.labels) for batch in attacked.batches)
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        step = bar.add_task("", total=total)
        attacked.on_step = lambda images: bar.advance(step, images)
        try:
            yield
        finally:
            attacked.on_step = None


if __name__ == "__main__":
    main()
