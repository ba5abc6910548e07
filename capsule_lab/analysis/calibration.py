"""Can the confidence of a network be believed? Calibration errors, proper scores and a reliability diagram.

Everything is computed in float64. ``probabilities`` are rows that sum to 1, such as the softmax of logits; lengths of
capsules are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.analysis.curves import look
from capsule_lab.errors import check_number

Probabilities = Float[Tensor, "batch class"]
Labels = Int64[Tensor, " batch"]

BINS = 15
"""Of Guo et al. 2017, table 1."""


class Reliability(NamedTuple):
    """Images in bins of equal width, by the probability of the class that they are taken for.

    Attributes:
        images: how many there are in each bin.
        confidence: mean of that probability, in [0, 1]; ``nan`` in an empty bin.
        accuracy: share of them that are classified right, in [0, 1]; ``nan`` in an empty bin.
    """

    images: Int64[Tensor, " bin"]
    confidence: Float[Tensor, " bin"]
    accuracy: Float[Tensor, " bin"]


def reliability(probabilities: Probabilities, labels: Labels, *, bins: int = BINS) -> Reliability:
    """Confidence and accuracy in bins (Guo et al. 2017, section 2).

    Bin ``m`` of ``M`` is ``((m - 1) / M, m / M]``, so that a confidence of 1 is in the last one; torchmetrics has
    ``[(m - 1) / M, m / M)`` and another bin for 1.

    Args:
        probabilities: of the classes.
        labels: the true ones.
        bins: how many.

    Raises:
        ValueError: for no images, no bins, or rows that are no probabilities.
    """
    check_number("bins", bins, 1)
    probabilities = _checked(probabilities)
    confidence, found = probabilities.max(1)
    right = (found == labels).double()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence.device)
    index = torch.bucketize(confidence, edges[1:-1])
    count, confidences, rights = (
        torch.zeros(bins, dtype=torch.float64, device=confidence.device).index_add(0, index, each)
        for each in (torch.ones_like(right), confidence, right)
    )
    return Reliability(count.long(), confidences / count, rights / count)


def expected_calibration_error(probabilities: Probabilities, labels: Labels, *, bins: int = BINS) -> float:
    """Distance of accuracy and confidence, a mean over images, in [0, 1] (Guo et al. 2017, section 2).

    Args:
        probabilities, labels, bins: see ``reliability``.

    Raises:
        ValueError: see ``reliability``.

    >>> expected_calibration_error(torch.tensor([[0.9, 0.1], [0.7, 0.3]]), torch.tensor([0, 1]))  # (0.1 + 0.7) / 2
    0.4...
    """
    return _expected_error(reliability(probabilities, labels, bins=bins))


def maximum_calibration_error(probabilities: Probabilities, labels: Labels, *, bins: int = BINS) -> float:
    """Distance of accuracy and confidence in the bin where it is largest, in [0, 1] (Guo et al. 2017, section 2).

    Args:
        probabilities, labels, bins: see ``reliability``.

    Raises:
        ValueError: see ``reliability``.
    """
    _, confidence, accuracy = reliability(probabilities, labels, bins=bins)
    return float((accuracy - confidence).abs().nan_to_num(0).max())


def brier_score(probabilities: Probabilities, labels: Labels) -> float:
    """Squared distance of probabilities and truth, summed over classes, a mean over images, in [0, 2] (Brier 1950).

    Args:
        probabilities, labels: see ``reliability``.

    Raises:
        ValueError: see ``reliability``.

    >>> brier_score(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))  # 0.5^2 + 0.5^2
    0.5
    """
    probabilities = _checked(probabilities)
    truth = torch.zeros_like(probabilities).scatter(1, labels[:, None], 1.0)
    return float((probabilities - truth).square().sum(1).mean())


def negative_log_likelihood(logits: Float[Tensor, "batch class"], labels: Labels) -> float:
    """Minus the log of the label's probability, in nats, a mean over images, 0 or more (Guo et al. 2017, section 2).

    Args:
        logits: probabilities are their softmax; logs of probabilities will do as well.
        labels: the true classes.

    Raises:
        ValueError: for no images.
    """
    _check_images(logits)
    return float(torch.nn.functional.cross_entropy(logits.double(), labels))


def reliability_figure(results: Mapping[str, Reliability]) -> Figure:
    """Accuracy over confidence, and how many images have it, for one or several networks (Guo et al. 2017, figure 1).

    Bins without images are left out. Readable at a width of 1280 pixels and less.

    Args:
        results: of ``reliability``, by the names of the curves.
    """
    figure = Figure(figsize=(6.4, 6.4), layout="constrained")  # inches
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot([0, 1], [0, 1], "--", color="0.5", label="calibrated")
    for number, (name, result) in enumerate(results.items()):
        style = look(number)
        count, confidence, accuracy = (each.cpu().numpy() for each in result)
        there = count > 0
        label = f"{name}, ECE {100 * _expected_error(result):.2f} %"
        upper.plot(confidence[there], accuracy[there], label=label, **style)
        edges = torch.linspace(0, 1, len(count) + 1).numpy()
        lower.stairs(100 * count / count.sum(), edges, color=style["color"], linewidth=1.5)
    upper.set(ylabel="accuracy", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    upper.legend()
    lower.set(xlabel="confidence", ylabel="images, %")
    for axis in (upper, lower):
        axis.grid(alpha=0.3)
    return figure


def _expected_error(result: Reliability) -> float:
    images, confidence, accuracy = result
    return float((images * (accuracy - confidence).abs()).nansum() / images.sum())


def _checked(probabilities: Probabilities) -> Probabilities:
    """In float64.

    Raises:
        ValueError: for none, and for rows that are no probabilities.
    """
    _check_images(probabilities)
    probabilities = probabilities.double()
    sums = probabilities.sum(1)
    # written so that nan fails; 1e-3, ours: of thousands of classes in float32, or a few in bfloat16's softmax
    if not ((probabilities >= 0).all() and ((sums - 1).abs() < 1e-3).all()):
        raise ValueError(
            f"rows have a sum from {sums.min():g} to {sums.max():g} and entries of {probabilities.min():g} and more; "
            "expected probabilities, such as logits.softmax(1)"
        )
    return probabilities


def _check_images(rows: Tensor) -> None:
    if not len(rows):
        raise ValueError("there are no images; expected one or more")
