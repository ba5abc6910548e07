"""Does an image look like what it is taken for? Attacks told by reconstruction errors (Frosst et al. 2018).

The class capsule that wins is decoded. An image that was changed to be taken for another class looks unlike the
reconstruction, so that it is far from it (Frosst, Sabour and Hinton 2018, arXiv 1811.06969). An attack that lowers the
error as well, their R-BIM, is not told as easily.
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
    network: AbstractNetwork, images: Float[Tensor, "batch channel height width"], *, output: Any = None
) -> Float[Tensor, " batch"]:
    """Squared distance of each image and what the class capsule with the highest score decodes to, in [0, 1].

    Differentiable by the images. Pixels and channels are summed, as by ``losses.reconstruction_loss``. ``output`` is
    that of the network, in evaluation mode, for the images, where it is known.
    """
    decoding = network if reconstructs(network) else None
    if decoding is None:
        raise ValueError(
            f"this {type(network).__name__} has no decoder; expected a network that reconstructs images, "
            "such as a CapsNet with decoder=(512, 1024)"
        )
    output = network(images) if output is None else output
    decoded = decoding.reconstruct(output, output.ranking.argmax(1))
    return (decoded - in_unit_range(images)).square().flatten(1).sum(1)


def threshold(errors: Float[Tensor, " batch"], false_alarms: float = 0.05) -> float:  # 0.05: Frosst 2018
    """The smallest of these errors above which there is no larger share of them than ``false_alarms``, in [0, 1).

    Errors are of clean images that are not tested: of the validation set.

    >>> import torch
    >>> threshold(torch.arange(1.0, 101.0))  # 5 of 100 are larger
    95.0
    """
    check_number("false_alarms", false_alarms, 0, below=1)
    return float(np.quantile(_checked("errors", errors), 1 - false_alarms, method="inverted_cdf"))


def area_under_roc(clean: Float[Tensor, " batch"], attacked: Float[Tensor, " other"]) -> float:
    """How often an attacked image has a larger error than a clean one, ties counting half: 0.5 is chance, 1 always.

    It is the area under the curve of detected attacks over false alarms (Hanley and McNeil 1982).

    >>> import torch
    >>> area_under_roc(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0]))  # 3 of 4 pairs, and a tie
    0.875
    """
    below, above = _checked("clean", clean), _checked("attacked", attacked)
    ranks = scipy.stats.rankdata(np.concatenate([above, below]))[: len(above)]
    smallest = len(above) * (len(above) + 1) / 2  # sum of the ranks if every attacked one were below the clean ones
    return float((ranks.sum() - smallest) / (len(above) * len(below)))


def _checked(name: str, errors: Float[Tensor, " batch"]) -> np.ndarray:
    if not len(errors) or not errors.isfinite().all():
        what = "an error that is not finite" if len(errors) else "no errors"
        raise ValueError(f"{name} has {what}; expected one finite number for each image")
    return errors.detach().double().cpu().numpy()
