"""Does an image look like its predicted class? Detection of attacks by reconstruction errors (Frosst et al. 2018).

The winning class capsule is decoded. An image that was changed to be classified as another class is far from this
reconstruction (Frosst, Sabour and Hinton 2018, arXiv 1811.06969). An attack that also reduces the reconstruction
error, their R-BIM, is harder to detect.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.stats
from jaxtyping import Float
from torch import Tensor

from capsule_lab.errors import check_number
from capsule_lab.functional import in_unit_range
from capsule_lab.networks.base import AbstractNetwork, reconstructs


def winning_reconstruction_error(
    network: AbstractNetwork,
    images: Float[Tensor, "batch channel height width"],
    *,
    output: Any = None,
) -> Float[Tensor, " batch"]:
    """Return the squared distance of each image, in [0, 1], from the reconstruction by its highest-scoring capsule.

    It is differentiable by the images and a sum over pixels and channels, as in ``losses.reconstruction_loss``.
    ``output`` is the network's output for the images in evaluation mode, if it is known.
    """
    decoding = network if reconstructs(network) else None
    if decoding is None:
        raise ValueError(
            f"this {type(network).__name__} has no decoder; expected a network that reconstructs images, "
            "such as a CapsNet with decoder=(512, 1024)"
        )
    output = network(images) if output is None else output
    predicted = output.ranking.argmax(1)
    decoded = decoding.reconstruct(output, predicted)
    differences = decoded - in_unit_range(images)
    return differences.square().flatten(1).sum(1)


def threshold(
    errors: Float[Tensor, " batch"],
    false_alarms: float = 0.05,  # Frosst 2018
) -> float:
    """Return the smallest error that at most a share of ``false_alarms``, in [0, 1), of the errors exceeds.

    Errors are those of clean validation images, not of test images.

    >>> import torch
    >>> threshold(torch.arange(1.0, 101.0))  # 5 of 100 are larger
    95.0
    """
    check_number("false_alarms", false_alarms, 0, below=1)
    values = _checked("errors", errors)
    return float(np.quantile(values, 1 - false_alarms, method="inverted_cdf"))


def area_under_roc(clean: Float[Tensor, " batch"], attacked: Float[Tensor, " other"]) -> float:
    """Return how often an attacked image has a larger error than a clean one; ties count half, 0.5 is chance, 1 always.

    It is the area under the curve of detected attacks over false alarms (Hanley and McNeil 1982).

    >>> import torch
    >>> area_under_roc(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0]))  # 3 of 4 pairs, and a tie
    0.875
    """
    below = _checked("clean", clean)
    above = _checked("attacked", attacked)
    larger = scipy.stats.mannwhitneyu(above, below, method="asymptotic").statistic
    pairs = len(above) * len(below)
    return float(larger / pairs)


def _checked(name: str, errors: Float[Tensor, " batch"]) -> np.ndarray:
    if not len(errors) or not errors.isfinite().all():
        what = "an error that is not finite" if len(errors) else "no errors"
        raise ValueError(f"{name} has {what}; expected one finite number for each image")
    return errors.detach().double().cpu().numpy()
