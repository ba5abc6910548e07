"""The record of an attack: percentages with intervals, as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from capsule_lab.statistics import interval_over_images
from capsule_studies.attacks.evaluation import Answers, Measured
from capsule_studies.images import percent
from capsule_studies.measures.calibration import brier_score, reliability
from capsule_studies.measures.reconstruction_detection import area_under_roc
from capsule_studies.names import prefixed

Record = dict[str, float | None]


def of_budgets(measured: Measured, threshold: float | None = None) -> Record:
    """Map ``<epsilon>/<quantity>`` to a number; percentages are of all images unless stated otherwise.

    =================== ==================================================================================
    accuracy, error     images classified right or wrong, including images that were wrong before
    lowest, highest     95 % interval (Wilson 1927) of the accuracy; with targets, of the success
    success             images classified as the target; without targets, as any class but the label
    success_of_right    the same, of images that were right before and whose label is not the target
    success_of_class_3  the success with target 3
    mean_change         mean change of a pixel in units of the space; ``mean_grey_levels``: in grey levels of 255
    calibration_error   expected calibration error (Guo 2017) of the softmax in percent; ``brier``: its Brier score
    detected            images whose reconstruction error is above the threshold (Frosst 2018)
    undetected_error    images that are classified wrong and not detected
    detection_area      area under the ROC curve of detecting attacked images, in percent
    =================== ==================================================================================

    With targets, each quantity is a mean over them. ``threshold`` is the reconstruction error above which an image
    counts as attacked; ``None`` if there is none.
    """
    budgets: dict[float, dict[int | None, Answers]] = {}
    for (epsilon, target), answers in measured.attacked.items():
        budgets.setdefault(epsilon, {})[target] = answers
    record: Record = {}
    for epsilon, by_target in budgets.items():
        record |= prefixed(f"{epsilon:g}", _of_budget(measured, by_target, threshold))
    return record


def by_epsilon(record: Mapping[str, float | None]) -> dict[float, Record]:
    """Group the result of ``of_budgets`` by epsilon."""
    parts: dict[float, Record] = {}
    for name, value in record.items():
        epsilon, _, key = name.partition("/")
        parts.setdefault(float(epsilon), {})[key] = value
    return parts


def epsilon_text(epsilon: float) -> str:
    """Return an epsilon for readers: a whole number of grey levels as ``"2/255"`` if it is no short decimal."""
    text = f"{epsilon:g}"
    levels = round(255 * epsilon)
    is_level = abs(255 * epsilon - levels) < 1e-3  # keys of a record have six digits
    is_short = len(text) <= len("-0.125")
    return f"{levels}/255" if is_level and not is_short else text


def of_clean(measured: Measured, threshold: float | None = None) -> dict[str, float]:
    """Return quantities of ``of_budgets`` for the clean images; ``detected`` is the rate of false alarms."""
    record = {
        "error": percent(~measured.was_right),
        **_calibration(measured.clean.logits, measured.labels),
    }
    if threshold is not None:
        record["detected"] = percent(measured.clean.reconstruction_errors > threshold)
    return record


def _of_budget(
    measured: Measured, by_target: Mapping[int | None, Answers], threshold: float | None
) -> Record:
    labels, targets = measured.labels, list(by_target)
    targeted = targets != [None]
    reached: dict[int | None, Tensor] = {}
    counted = []
    for target, answers in by_target.items():
        if target is None:
            reached[target] = answers.found != labels
            counted.append(measured.was_right)
        else:
            reached[target] = answers.found == target
            counted.append(measured.was_right & (labels != target))
    success = torch.cat([*reached.values()])
    of_right = success[torch.cat(counted)]
    logits, errors, change, _ = map(torch.cat, zip(*by_target.values(), strict=True))
    labels = labels.repeat(len(targets))
    right = logits.argmax(1) == labels
    per_unit = measured.grey_levels.repeat(len(targets))
    grey = (change * per_unit).double().mean().item()
    drawn = success if targeted else right
    per_target = int(drawn.sum()) // len(targets)
    lowest, highest = interval_over_images(per_target, len(measured.labels))
    record: Record = {
        "accuracy": percent(right),
        "error": percent(~right),
        "lowest": lowest,
        "highest": highest,
        "success": percent(success),
        "success_of_right": percent(of_right) if len(of_right) else None,
        "mean_change": change.double().mean().item(),
        "mean_grey_levels": None if grey != grey else grey,  # nan: JSON has none
        **_calibration(logits, labels),
    }
    if threshold is not None:
        detected = errors > threshold
        area = area_under_roc(measured.clean.reconstruction_errors, errors)
        record |= {
            "detected": percent(detected),
            "undetected_error": percent(~right & ~detected),
            "detection_area": 100 * area,
        }
    if targeted:
        for target, reached_it in reached.items():
            record[f"success_of_class_{target}"] = percent(reached_it)
    return record


def _calibration(
    logits: Float[Tensor, "images class"], labels: Int64[Tensor, " images"]
) -> dict[str, float]:
    probabilities = logits.double().softmax(1)
    error = 100 * reliability(probabilities, labels).expected_error
    return {"calibration_error": error, "brier": brier_score(probabilities, labels)}
