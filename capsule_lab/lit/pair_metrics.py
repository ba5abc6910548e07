"""Metrics of networks that receive a change: how well images and poses follow it (Hinton et al. 2011)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric

from capsule_lab.metrics import WIDEST

Images = Float[Tensor, "batch channel height width"]
PerCapsule = Float[Tensor, "batch capsule"]
Poses = Float[Tensor, "batch capsule component"]

_PRESENT = 0.5  # ours: probability above which a capsule's pose counts
_SMALL = 1e-12  # ours: lower bound of divisors


class PairMetric(Metric):
    """A metric of several quantities, computed from sums over pairs.

    Attributes:
        quantities: names of the quantities; ``ShiftMetrics`` has slopes only if a capsule has one.
    """

    quantities: ClassVar[tuple[str, ...]]
    full_state_update = False

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in {"pairs": (), **shapes}.items():
            self.add_state(name, torch.zeros(shape, dtype=WIDEST), "sum")

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class ImagePairMetrics(PairMetric):
    """Baselines for a reconstruction: squared errors per image of shape ``(channel, height, width)``.

    ``copying``: the error of the first image as the prediction. ``mean_image``: the error of the mean of all second
    images, the best prediction that does not depend on the input.
    """

    quantities = ("copying", "mean_image")

    def __init__(self, image_shape: tuple[int, int, int]) -> None:
        super().__init__(copied=(), total=image_shape, squares=())

    def update(self, images: Images, targets: Images) -> None:
        images, targets = images.to(WIDEST), targets.to(WIDEST)
        self.pairs += len(images)
        self.copied += (images - targets).square().sum()
        self.total += targets.sum(0)
        self.squares += targets.square().sum()

    def compute(self) -> dict[str, Tensor]:
        of_mean = self.squares - self.total.square().sum() / self.pairs
        return {"copying": self.copied / self.pairs, "mean_image": of_mean / self.pairs}


class PresenceMetrics(PairMetric):
    """Measures whether capsules are equally probable in both images, and which capsules are unused.

    ``presence_change``: mean change of a presence between the two images of a pair, divided by the standard deviation
    of presences over images. ``dead_capsules``: percent of the capsules whose presence is always below 0.01, or whose
    output has less than a hundredth of the mean energy of all capsules (ours).
    """

    quantities = ("presence_change", "dead_capsules")
    largest: Tensor

    def __init__(self, capsules: int) -> None:
        shape = (capsules,)
        super().__init__(changes=shape, total=shape, squares=shape, energy=shape)
        self.add_state("largest", torch.zeros(capsules, dtype=WIDEST), "max")

    def update(self, presences: PerCapsule, others: PerCapsule, energies: PerCapsule) -> None:
        """Add pairs: presences in the first and second images, and energies (squared sums) of the capsules' outputs."""
        presences, others = presences.to(WIDEST), others.to(WIDEST)
        self.pairs += len(presences)
        self.changes += (others - presences).abs().sum(0)
        self.total += presences.sum(0)
        self.squares += presences.square().sum(0)
        self.energy += energies.to(WIDEST).sum(0)
        self.largest = torch.maximum(self.largest, presences.amax(0))

    def compute(self) -> dict[str, Tensor]:
        mean = self.total / self.pairs
        deviation = (self.squares / self.pairs - mean.square()).clamp_min(0).sqrt()
        change = (self.changes / self.pairs).sum() / deviation.sum().clamp_min(_SMALL)
        used = (self.largest >= 0.01) & (self.energy >= 0.01 * self.energy.mean())
        dead = 100 * (~used).to(WIDEST).mean()
        return {"presence_change": change, "dead_capsules": dead}


class ShiftMetrics(PairMetric):
    """Measures whether poses of two components move by the same number of pixels as the image.

    The slope of a capsule is the 2x2 matrix that maps the shift to the change of its pose, fitted by least squares on
    the pairs where its presence exceeds 0.5 in both images; the identity is ideal. The following are means over the
    capsules with at least a hundredth of the pairs (ours), weighted by their number of pairs: ``slope_right`` and
    ``slope_down``, the diagonal; ``slope_error``, the largest deviation of an entry from the identity.
    ``slope_capsules`` counts these capsules. ``shift_r2`` is the R^2 of the mean change of poses, weighted by
    presences, as an estimate of the shift; it is undefined, and left out, if all shifts are equal.
    """

    quantities = ("shift_r2", "slope_capsules", "slope_right", "slope_down", "slope_error")

    def __init__(self, capsules: int) -> None:
        matrices = (capsules, 2, 2)
        super().__init__(
            seen=(capsules,),
            cross=matrices,
            moments=matrices,
            residual=(),
            total=(2,),
            squares=(),
        )

    def update(
        self,
        moved: Poses,
        shift: Float[Tensor, "batch 2"],
        presences: PerCapsule,
        others: PerCapsule,
    ) -> None:
        """Add pairs: changes of poses, the shifts, and presences in the first and second images."""
        moved, shift = moved.to(WIDEST), shift.to(WIDEST)
        present = ((presences > _PRESENT) & (others > _PRESENT)).to(WIDEST)
        self.pairs += len(shift)
        self.seen += present.sum(0)
        self.cross += torch.einsum("bk,bki,bj->kij", present, moved, shift)
        self.moments += torch.einsum("bk,bi,bj->kij", present, shift, shift)
        weights = presences.to(WIDEST) * others.to(WIDEST)
        total_weight = weights.sum(1, keepdim=True).clamp_min(_SMALL)
        estimate = (weights.unsqueeze(2) * moved).sum(1) / total_weight
        self.residual += (estimate - shift).square().sum()
        self.total += shift.sum(0)
        self.squares += shift.square().sum()

    def compute(self) -> dict[str, Tensor]:
        variance = self.squares - self.total.square().sum() / self.pairs
        results = {}
        if variance > _SMALL:
            results["shift_r2"] = 1 - self.residual / variance
        # not solvable if all shifts are along one line
        diagonal = self.moments.diagonal(dim1=1, dim2=2).prod(1)
        solvable = torch.linalg.det(self.moments) > 1e-9 * diagonal.clamp_min(1)
        chosen = (self.seen >= 0.01 * self.pairs) & (self.seen > 0) & solvable
        seen = self.seen[chosen]
        slopes = torch.linalg.solve(self.moments[chosen], self.cross[chosen], left=False)
        results["slope_capsules"] = seen.new_tensor(float(len(seen)))
        if len(seen) == 0:
            return results
        mean = (seen.view(-1, 1, 1) * slopes).sum(0) / seen.sum()
        identity = torch.eye(2, dtype=slopes.dtype, device=slopes.device)
        away = (slopes - identity).abs().amax((1, 2))
        results["slope_right"] = mean[0, 0]
        results["slope_down"] = mean[1, 1]
        results["slope_error"] = (seen * away).sum() / seen.sum()
        return results


class MatrixMetrics(PairMetric):
    """Measures whether the change ``T`` of an image multiplies the matrix ``A`` that is a capsule's pose.

    ``matrix_error``: norm of the difference between ``T A`` of the first image and ``A`` of the second, divided by the
    norm of ``A``; both are means over capsules and pairs, weighted by presence. ``matrix_error_unchanged``: the same
    with ``A`` in place of ``T A``; for poses that follow the change, ``matrix_error`` is much smaller.
    """

    quantities = ("matrix_error", "matrix_error_unchanged")

    def __init__(self) -> None:
        super().__init__(away=(), unchanged=(), size=())

    def update(self, poses: Poses, changed: Poses, others: Poses, presences: PerCapsule) -> None:
        """Add pairs: poses of the first image, the same after the change, poses of the second image, and presences."""
        poses, changed, others = poses.to(WIDEST), changed.to(WIDEST), others.to(WIDEST)
        presences = presences.to(WIDEST)
        self.away += (presences * (others - changed).norm(dim=2)).sum()
        self.unchanged += (presences * (others - poses).norm(dim=2)).sum()
        self.size += (presences * poses.norm(dim=2)).sum()

    def compute(self) -> dict[str, Tensor]:
        size = self.size.clamp_min(_SMALL)
        return {"matrix_error": self.away / size, "matrix_error_unchanged": self.unchanged / size}


def pair_metrics(network: Any) -> dict[str, PairMetric]:
    """Return the metrics of a network that receives a change, by name; without capsules, only those of images."""
    metrics: dict[str, PairMetric] = {"images": ImagePairMetrics(network.image_shape)}
    if network.capsules:
        metrics["presences"] = PresenceMetrics(network.capsules)
        if network.pose == "translation":
            metrics["poses"] = ShiftMetrics(network.capsules)
        else:
            metrics["poses"] = MatrixMetrics()
    return metrics


def update_pair_metrics(
    metrics: Mapping[str, Metric],
    network: Any,
    images: Images,
    change: Float[Tensor, "batch 2"] | Float[Tensor, "batch 3 3"],
    targets: Images,
    output: Any,
) -> None:
    """Add a batch of pairs, see ``Batch``, to the ``pair_metrics`` of a network in evaluation mode.

    ``output`` is the network's output for images and change, ``TransformedImages``.
    """
    cast(ImagePairMetrics, metrics["images"]).update(images, targets)
    if "poses" not in metrics:
        return
    poses, presences = output.poses, output.presences
    others, later = network.recognise(targets)
    changed = network.changed(poses, change)
    energies = network.energies(changed, presences)
    cast(PresenceMetrics, metrics["presences"]).update(presences, later, energies)
    of_poses = metrics["poses"]
    if isinstance(of_poses, ShiftMetrics):
        of_poses.update(others - poses, change, presences, later)
    else:
        cast(MatrixMetrics, of_poses).update(poses, changed, others, presences)
