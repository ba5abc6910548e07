"""What is written down of images that were attacked: percentages with intervals, as plain numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from jaxtyping import Bool
from torch import Tensor

from capsule_lab.attacks.evaluation import Answers, Measured

Record = dict[str, float | None]


def of_budgets(found: Measured) -> Record:
    """A flat mapping of ``<epsilon>/<quantity>`` to a number; percentages are of all images, unless said otherwise.

    =================== ==================================================================================
    accuracy, error     classified right or wrong, also of those that were wrong before
    lowest, highest     of the accuracy: 95 % interval of Wilson 1927, of one random choice of images
    success             taken for the target; without targets, for anything but the label
    success_of_right    the same, of images that were right before and do not have the target as their label
    success_of_class_3  of target 3
    mean_change         of a pixel, in units of the space; ``mean_grey_levels`` in grey levels of 255
    =================== ==================================================================================

    With targets, everything is a mean over them.
    """
    record: Record = {}
    for epsilon in dict.fromkeys(epsilon for epsilon, _ in found.attacked):
        by_target = {target: each for (other, target), each in found.attacked.items() if other == epsilon}
        record |= {f"{as_name(epsilon)}/{key}": value for key, value in _of_budget(found, by_target).items()}
    return record


def by_epsilon(record: Mapping[str, float | None]) -> dict[float, Record]:
    """``of_budgets`` by epsilon, as it is drawn."""
    parts: dict[float, Record] = {}
    for name, value in record.items():
        epsilon, _, key = name.partition("/")
        parts.setdefault(float(epsilon), {})[key] = value
    return parts


def of_clean(found: Measured) -> dict[str, float]:
    """Percent of the images as they are that are wrong, under the name that tests have for it."""
    return {"error": _percent(~found.was_right)}


def hash_of_keys(found: Measured) -> str:
    """Of the keys of the images, in order: which images of which data they were."""
    return hashlib.sha256(repr(found.keys).encode()).hexdigest()


def as_name(epsilon: float) -> str:
    """A number as it stands in names of quantities: ``0.1``."""
    return f"{epsilon:g}"


def _of_budget(found: Measured, by_target: Mapping[int | None, Answers]) -> Record:
    labels, targets = found.labels, list(by_target)
    right = torch.cat([each.found == labels for each in by_target.values()])
    reached = {target: _reached(each, labels, target) for target, each in by_target.items()}
    other = {target: torch.ones_like(found.was_right) if target is None else labels != target for target in targets}
    eligible = {target: found.was_right & other[target] for target in targets}
    of_right = torch.cat([reached[target][eligible[target]] for target in targets])
    change = torch.cat([each.change for each in by_target.values()])
    grey = (change * found.grey_levels.repeat(len(targets))).double().mean().item()
    lowest, highest = interval(int(right.sum()) // len(targets), len(labels))
    record: Record = {
        "accuracy": _percent(right),
        "error": _percent(~right),
        "lowest": lowest,
        "highest": highest,
        "success": _percent(torch.cat([*reached.values()])),
        "success_of_right": _percent(of_right) if len(of_right) else None,
        "mean_change": change.double().mean().item(),
        "mean_grey_levels": None if grey != grey else grey,  # nan: JSON has none
    }
    if targets != [None]:
        record |= {f"success_of_class_{target}": _percent(reached[target]) for target in targets}
    return record


def _reached(answers: Answers, labels: Tensor, target: int | None) -> Bool[Tensor, " images"]:
    return answers.found != labels if target is None else answers.found == target


def interval(successes: int, trials: int) -> tuple[float, float]:
    """Of a share, in percent: the 95 % interval of Wilson 1927."""
    from scipy.stats import binomtest  # takes a second

    found = binomtest(successes, trials).proportion_ci(method="wilson")
    return 100 * float(found.low), 100 * float(found.high)


def _percent(which: Bool[Tensor, " some"]) -> float:
    return 100 * which.double().mean().item()
