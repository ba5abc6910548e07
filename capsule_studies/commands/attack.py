"""Attack a trained network: ``capsule-lab attack ckpt=runs/…``."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Self

from omegaconf import DictConfig
from pydantic import Field, model_validator
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from capsule_lab import runs
from capsule_lab.commands.declare import command
from capsule_lab.commands.evaluate import check_outputs
from capsule_lab.config.check_options import check_effect
from capsule_lab.config.declaration import Count, Group, Measurement, Trusted, Weights
from capsule_lab.errors import ConfigError, printable
from capsule_lab.tables.terminal_formats import Row, Sheet, filled_columns
from capsule_studies.attacks.kind import PIXEL_STRENGTHS, kind_of
from capsule_studies.names import name_of
from capsule_studies.study import (
    StudyInput,
    StudyOptions,
    StudyOutput,
    StudyResult,
    check_study,
    run_study,
    show_and_keep,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from capsule_lab.tables.summary import Entry
    from capsule_studies.attacks.evaluation import Measured
    from capsule_studies.attacks.gradient import Box
    from capsule_studies.attacks.session import AttackedRun

_COLUMNS = {
    "success_of_right": "success on right %",
    "mean_grey_levels": "mean change",
    "calibration_error": "calibration error %",
    "detected": "detected %",
}
"""Headings of the printed quantities, which ``record.of_budgets`` defines."""
_CAPTIONS = {
    "success_of_right": "success on right: of the images that were right before the attack",
    "mean_grey_levels": "mean change: mean absolute change of a pixel in grey levels of 255, after clipping",
}
_RELIABILITIES = 2  # ours: under larger epsilons few images, if any, are right
_CPU_BATCH = 128
"""Ours: the gradient fits into the caches and takes 0.7 of the time of a batch of 500."""
_FOR_THRESHOLD = 1000  # ours: validation images, 50 of which are above the threshold


class AttackOptions(StudyOptions):
    """Options of ``attack``."""

    source: Weights | None = None
    """Create the images against this network instead (a transfer attack)."""
    couplings: Literal["trained", "equal"] = "trained"
    """Couplings of the network that images are created against;
    equal: every parent gets an equal share of each child."""
    baseline: Weights | None = None
    """Another run, such as a CNN, for the checks of gradient size and of transfer."""
    split: Literal["test", "val"] = "test"
    """The test set, or the validation images."""
    images: Count | None = 1000
    """A stratified sample of the split; null: all."""
    epsilons: list[float] | None = None
    """Default: depends on the range of pixels, see docs/guides/attacks.md."""
    space: Literal["input", "grey_levels"] = "input"
    """input: pixels as the network receives them; grey_levels: before preprocessing."""
    objective: Literal["cross_entropy", "margin", "training"] = "cross_entropy"
    """The loss of the logits that the attack increases; or margin, training (the network's own loss)."""
    targeted: bool = False
    """true: use every class in turn as the target."""
    checks: bool = True
    """Check for masked gradients; takes about as long as the attack."""
    check_images: Count = 200
    """Number of images for the checks."""
    attack: Group


class AttackResult(runs.results.Evaluation):
    """The fields of a record that reports and their figures read."""

    attack: runs.results.Quantities = Field({})
    targeted: bool = False
    space: Literal["input", "grey_levels"] = "input"
    source: str | None = None
    options: dict[str, Any] = Field({})
    split: Literal["test", "val"] = "test"
    images: runs.results.Count = 0

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
        """Check that an attack has, as ``<epsilon>/<name>``, the quantities of its curves for each epsilon."""
        if not self.attack or "targeted" not in self.model_fields_set:
            return self  # it is not drawn
        needed = {"space", "couplings", "source", "options", "split", "images"}
        missing = needed - self.model_fields_set
        if missing:
            raise ValueError(f"an attack without {', '.join(sorted(missing))}")
        drawn = ["accuracy", "success"] if self.targeted else ["accuracy"]
        for key in self.attack:
            epsilon, _, _ = key.partition("/")
            curves = [f"{epsilon}/{name}" for name in drawn]
            has_curves = self.attack.keys() >= set(curves)
            if not has_curves or not math.isfinite(float(epsilon)):
                raise ValueError(f"an attack with epsilon {epsilon} without {', '.join(curves)}")
        clean = self.test if self.split == "test" else self.val
        if "error" not in clean or "_target_" not in self.options:
            raise ValueError(
                f"an attack without its name, or without the error of unchanged {self.split} images"
            )
        return self


def _check(config: DictConfig) -> None:
    """Raise a ``ConfigError`` if options of ``attack`` do not fit together."""
    check_study(config)
    options = AttackOptions.read(config)
    epsilons = options.epsilons
    if epsilons is not None:
        different = set(filter(math.isfinite, epsilons))
        if not different or len(different) < len(epsilons):
            raise ConfigError(
                f"epsilons is {epsilons}; expected different numbers, such as [0.1,0.2]"
            )
    if options.objective != "training":
        return
    for name, without_effect in (("source", None), ("couplings", "trained"), ("targeted", False)):
        value = getattr(options, name)
        if value != without_effect:
            what = "labels, not targets" if name == "targeted" else "the attacked network"
            raise ConfigError(
                f"objective=training works only with {what}; expected objective=cross_entropy or margin with "
                f"{name}={value}"
            )


def _figures_of_table(entries: Sequence[Entry]) -> dict[str, Figure]:
    from capsule_studies.attack_tables import accuracy_under_attack

    return accuracy_under_attack(entries)


@command(
    "attack",
    AttackOptions,
    check=_check,
    first="ckpt",
    measures=Measurement(
        AttackResult, metrics=("attack",), devices=("accelerator",), figures=_figures_of_table
    ),
)
def main(options: AttackOptions) -> dict[str, Any]:
    """Attack ``ckpt``, print accuracy and checks, and write both with figures to the run."""
    outcome = attack(options)
    show_and_keep(outcome, tables(outcome.result), options.logger)
    return outcome.result


def attack(options: AttackOptions) -> StudyOutput:
    """Run the attack of the options; see ``study.run_study``."""
    return run_study(options, "attack", "attacks", _attacked, cpu_batch=_CPU_BATCH)


def _attacked(setting: StudyInput[AttackOptions]) -> StudyResult:
    from capsule_studies.attacks import checks, session
    from capsule_studies.attacks.record import of_budgets, of_clean
    from capsule_studies.images import StudyImages

    options, run, function = setting.options, setting.run, setting.function
    _check_effects(options)
    source = _open_other(options.source, options.trust, run)
    baseline = _open_other(options.baseline, options.trust, run)
    images = StudyImages(setting.data, options.split, setting.device)
    for other in filter(None, (source, baseline)):
        session.check_same_input(images, other, setting.data_options)
    attacked = session.AttackedRun(
        run, images, options.space, source=source, couplings=options.couplings
    )
    check_outputs(run, (attacked.logits(batch.images) for batch in attacked.batches))
    threshold = None
    if options.split == "test":
        number = run.number_of_images(_FOR_THRESHOLD, setting.data_options)
        few = run.data_with({**setting.data_options, **number})
        threshold = session.detection_threshold(run, few)
    attacked.keeps_errors = threshold is not None
    epsilons = _epsilons(options, attacked, setting.data.input_form)
    targets = [*range(run.spec.num_classes)] if options.targeted else [None]
    start_time = time.monotonic()
    with _progress(attacked, "attacking", len(epsilons) * len(targets)):
        measured = attacked.measure(function, options.objective, epsilons, targets)
    seconds = time.monotonic() - start_time
    verdicts = []
    if _is_checked(options):
        judge = None if baseline is None else session.AttackedRun(baseline, images, options.space)
        with _progress(attacked, "checking", None):
            results = checks.checks(
                attacked,
                function,
                options.objective,
                epsilons,
                images=options.check_images,
                baseline=judge,
            )
            verdicts = [check._asdict() for check in results]
    result = {
        options.split: of_clean(measured, threshold),
        "attack": of_budgets(measured, threshold),
        "seconds": round(seconds, 2),
        "checks": verdicts,
        "source": None if source is None else str(source.checkpoint),
        "baseline": None if baseline is None else str(baseline.checkpoint),
        "objective": options.objective,
        "space": options.space,
        "couplings": options.couplings,
        "targeted": options.targeted,
    }
    figures = functools.partial(_figures, run, attacked, measured)
    return StudyResult(result, attacked.batches, figures)


def _open_other(path: str | None, trust: Trusted, run: runs.Run) -> runs.Run | None:
    """Open the run that an option names, if it names one; it must have the data of the attacked run."""
    from capsule_studies.attacks import session

    if not path:
        return None
    other = runs.open(path, trust=trust)
    session.check_same_data(run, other)
    return other


def _is_checked(options: AttackOptions) -> bool:
    """Return whether the checks for masked gradients run, which need the gradient of the attacked network itself."""
    is_other = options.targeted or options.source or options.couplings == "equal"
    return bool(options.checks and kind_of(options.attack).along_gradients and not is_other)


def _check_effects(options: AttackOptions) -> None:
    """Raise a ``ConfigError`` for an option that this attack does not use."""
    kind, name = kind_of(options.attack), f"with attack={name_of(options.attack)}"
    if not kind.along_gradients:
        check_effect(options, f"{name}, which follows no gradient", ["objective"])
    if not (kind.along_gradients or kind.queries):
        check_effect(options, f"{name}, which uses no network", ["source", "couplings"])
    if not _is_checked(options):
        without_effect = ["baseline", "check_images"]
        check_effect(options, "without checks of this attack", without_effect)


def _figures(
    run: runs.Run, attacked: AttackedRun, measured: Measured, record: Mapping[str, Any], stem: str
) -> Iterator[tuple[str, Figure]]:
    from capsule_lab.analysis.plotting import add_heading
    from capsule_studies.attacks.figures import (
        accuracy_figure,
        attack_of,
        images_of,
        sheet,
        weights_of,
    )
    from capsule_studies.attacks.record import epsilon_text
    from capsule_studies.measures.calibration import reliability, reliability_figure

    yield f"attack_{stem}", accuracy_figure([record])
    target = 0 if record["targeted"] else None
    answers = {"original": measured.clean}
    epsilons = [epsilon for epsilon, to in measured.attacked if epsilon and to == target]
    for epsilon in sorted(epsilons, key=abs)[:_RELIABILITIES]:
        answers[f"epsilon {epsilon_text(epsilon)}"] = measured.attacked[epsilon, target]
    bins = {}
    for key, answer in answers.items():
        probabilities = answer.logits.double().softmax(1)
        bins[key] = reliability(probabilities, measured.labels)
    aim = "" if target is None else f" towards class {target}"
    heading = f"{weights_of(record)}: {attack_of(record)}{aim}, {images_of(record)}"
    box = attacked.batches[0].box
    figures = {
        "attacked": sheet(measured, target, box, record, run.spec.classes),
        "reliability": reliability_figure(bins),
    }
    for name, figure in figures.items():
        add_heading(figure, heading)
        yield f"{name}_{stem}", figure


def _epsilons(
    options: AttackOptions, attacked: AttackedRun, form: Mapping[str, Any]
) -> list[float]:
    """Return the configured strengths or the attack's defaults; strengths must not exceed the range of the pixels."""
    strengths = kind_of(options.attack).strengths
    is_length = options.attack.get("norm") == "l2"
    box, shape = attacked.batches[0].box, attacked.batches[0].images.shape[1:]
    if options.epsilons is not None:
        epsilons = [float(epsilon) for epsilon in options.epsilons]
    elif strengths and not is_length:
        epsilons = [*strengths]
    else:
        epsilons = _pixel_strengths(options.space, box, form, is_length=is_length)
    if strengths:  # which are not changes of pixels
        return epsilons
    span = box.high - box.low
    if not math.isfinite(span):
        spans = [batch.images.max() - batch.images.min() for batch in attacked.batches]
        span = max(spans).item()
    most = span * shape.numel() ** 0.5 if is_length else span
    for epsilon in epsilons:
        if not 0 <= epsilon <= most:
            raise ConfigError(
                f"epsilons contains {epsilon:g}; expected 0 to {most:g} for attack={name_of(options.attack)}, images "
                f"of {shape[1]}x{shape[2]} pixels and a pixel range of {span:g}"
            )
    return epsilons


def _pixel_strengths(
    space: str, box: Box, form: Mapping[str, Any], *, is_length: bool
) -> list[float]:
    """Return the default strengths of attacks that change pixels; ``form`` is the ``input_form`` of the data."""
    if is_length:
        unit = 255 if space == "grey_levels" else 1
        return [unit * epsilon for epsilon in PIXEL_STRENGTHS["l2"]]
    if space == "grey_levels":
        return [*PIXEL_STRENGTHS["grey_levels"]]
    if box.high != 1:
        return [*PIXEL_STRENGTHS["standardised"]]
    # in grey, the kind is also that of the letters and clothes in MNIST's format
    is_colour = form["kind"] == "photograph" and form["channels"] == 3
    return [*PIXEL_STRENGTHS["photograph" if is_colour else "unit"]]


def tables(result: Mapping[str, Any]) -> list[Sheet]:
    """Return tables of the accuracy at each epsilon and of the results of the checks."""
    if not result["checks"]:
        return [_accuracies(result)]
    rows = []
    for check in result["checks"]:
        verdict = {True: "passed", False: "FAILED", None: ""}[check["passed"]]
        style = "red" if verdict == "FAILED" else ""
        rows.append(Row([check["name"], verdict, check["found"]], style))
    headings = ["check", "verdict", "found"]
    return [_accuracies(result), Sheet("checks of the attack", headings, rows, headings)]


def _accuracies(result: Mapping[str, Any]) -> Sheet:
    from capsule_studies.attacks.figures import attack_of, images_of
    from capsule_studies.attacks.record import by_epsilon, epsilon_text

    clean = 100 - result[result["split"]]["error"]
    title = f"{attack_of(result)} on {result['checkpoint']}: clean accuracy {clean:.1f} % on {images_of(result)}"
    first = "success" if result["targeted"] else "accuracy"
    rows = []
    for epsilon, record in by_epsilon(result["attack"]).items():
        lowest, highest = _percentage(record["lowest"]), _percentage(record["highest"])
        label = f"epsilon {epsilon_text(epsilon)}"
        cells = [label, _percentage(record[first]), f"{lowest} to {highest}"]
        cells += [_percentage(record.get(key)) for key in _COLUMNS]
        rows.append(Row(cells))
    shown = filled_columns(rows)
    captions = []
    for column, key in enumerate(_COLUMNS, len(rows[0].cells) - len(_COLUMNS)):
        if key in _CAPTIONS and column in shown:
            captions.append(_CAPTIONS[key])
    headings = ["", f"{first} %", "95 % interval", *_COLUMNS.values()]
    return Sheet(printable(title), headings, rows, [""], "\n".join(captions))


def _percentage(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


@contextmanager
def _progress(attacked: AttackedRun, task: str, passes: int | None) -> Iterator[None]:
    """Show a progress bar on a terminal, with the remaining time if the number of passes is known."""
    from capsule_studies.images import count_images

    total = None if passes is None else passes * count_images(attacked.batches)
    console = Console(stderr=True)
    columns = (TextColumn(task), BarColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        step = bar.add_task("", total=total)
        attacked.on_step = lambda images: bar.advance(step, images)
        yield


if __name__ == "__main__":
    main()
