"""Is the confidence of a network calibrated? Calibration error, Brier score and a reliability diagram, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.analysis.curves import look

Probabilities = Float[Tensor, "batch class"]
Labels = Int64[Tensor, " batch"]

BINS = 15
"""Number of bins of Guo et al. 2017, table 1."""


class Reliability(NamedTuple):
    """Number of images, mean probability in [0, 1] and accuracy, in bins of equal width of the predicted class's
    probability; means are ``nan`` in an empty bin.
    """

    images: Int64[Tensor, " bin"]
    confidence: Float[Tensor, " bin"]
    accuracy: Float[Tensor, " bin"]

    @property
    def expected_error(self) -> float:
        """Mean distance of accuracy and confidence over images, in [0, 1] (Guo et al. 2017, section 2)."""
        distance = (self.accuracy - self.confidence).abs()
        weighted = self.images * distance
        return float(weighted.nansum() / self.images.sum())


def reliability(probabilities: Probabilities, labels: Labels, *, bins: int = BINS) -> Reliability:
    """Compute confidence and accuracy in bins (Guo et al. 2017, section 2).

    Bin ``m`` of ``M`` is ``((m - 1) / M, m / M]``, so that a confidence of 1 is in the last bin. ``torchmetrics`` uses
    ``[(m - 1) / M, m / M)`` and a separate bin for 1, frequent in attacked networks, so that its error differs.

    ``probabilities`` are class probabilities, such as a softmax of logits; lengths of capsules are no probabilities.
    """
    confidence, predicted = probabilities.double().max(1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence.device)
    index = torch.bucketize(confidence, edges[1:-1])
    right = (predicted == labels).double()
    empty = confidence.new_zeros(bins)
    count = empty.index_add(0, index, torch.ones_like(right))
    return Reliability(
        images=count.long(),
        confidence=empty.index_add(0, index, confidence) / count,
        accuracy=empty.index_add(0, index, right) / count,
    )


def brier_score(probabilities: Probabilities, labels: Labels) -> float:
    """Return the squared distance of probabilities and one-hot labels, a mean over images, in [0, 2] (Brier 1950).

    >>> brier_score(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))  # 0.5^2 + 0.5^2
    0.5
    """
    probabilities = probabilities.double()
    truth = torch.zeros_like(probabilities).scatter(1, labels[:, None], 1.0)
    distances = (probabilities - truth).square().sum(1)
    return float(distances.mean())


def reliability_figure(results: Mapping[str, Reliability]) -> Figure:
    """Draw accuracy over confidence and the distribution of confidence by name (Guo et al. 2017, figure 1)."""
    figure = Figure(figsize=(6.4, 6.4), layout="constrained")  # inches
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot([0, 1], [0, 1], "--", color="0.5", label="calibrated")
    for number, (name, result) in enumerate(results.items()):
        style = look(number)
        count, confidence, accuracy = (tensor.cpu().numpy() for tensor in result)
        there = count > 0
        label = f"{name}, ECE {100 * result.expected_error:.2f} %"
        upper.plot(confidence[there], accuracy[there], label=label, **style)
        percentages = 100 * count / count.sum()
        edges = torch.linspace(0, 1, len(count) + 1).numpy()
        lower.stairs(percentages, edges, color=style["color"], linewidth=1.5)
    upper.set(ylabel="accuracy", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    upper.legend()
    lower.set(xlabel="confidence", ylabel="images, %")
    for axis in (upper, lower):
        axis.grid(alpha=0.3)
    return figure
