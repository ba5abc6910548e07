"""What a network that is told a change makes of it: its images, and whether its poses follow (Hinton et al. 2011)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric

from capsule_lab.metrics import WIDEST

_PRESENT = 0.5  # ours: probability above which a capsule's pose counts
_DEAD = 0.01  # ours: one that is nowhere more probable is dead
_UNUSED = 0.01  # ours: and one that draws less than this share of what capsules draw in the mean
_SMALL = 1e-12  # ours: no number that is divided by is smaller
_SELDOM = 0.01  # ours: share of the pairs in which a capsule has to be present, to have a slope


class PairMetric(Metric):
    """A metric of several quantities.

    Attributes:
        quantities: their names; of ``ShiftMetrics`` slopes are there only where a capsule has one.
    """

    quantities: ClassVar[tuple[str, ...]]


class ImagePairMetrics(PairMetric):
    """Squared errors per image that a reconstruction has to beat.

    ``copying``: of the first image for the second. ``mean_image``: of the mean of all second images, the best answer
    that does not look.

    Args:
        image_shape: ``(channel, height, width)``.
    """

    quantities = ("copying", "mean_image")
    full_state_update = False
    pairs: Tensor
    copied: Tensor
    total: Tensor
    squares: Tensor

    def __init__(self, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.add_state("pairs", torch.zeros((), dtype=WIDEST), "sum")
        self.add_state("copied", torch.zeros((), dtype=WIDEST), "sum")
        self.add_state("total", torch.zeros(image_shape, dtype=WIDEST), "sum")
        self.add_state("squares", torch.zeros((), dtype=WIDEST), "sum")

    def update(
        self,
        images: Float[Tensor, "batch channel height width"],
        targets: Float[Tensor, "batch channel height width"],
    ) -> None:
        """Add pairs."""
        images, targets = images.to(WIDEST), targets.to(WIDEST)
        self.pairs += len(images)
        self.copied += (images - targets).square().sum()
        self.total += targets.sum(0)
        self.squares += targets.square().sum()

    def compute(self) -> dict[str, Tensor]:
        """See the class."""
        of_mean = self.squares - self.total.square().sum() / self.pairs
        return {"copying": self.copied / self.pairs, "mean_image": of_mean / self.pairs}


class PresenceMetrics(PairMetric):
    """Whether capsules are as probable in both images, and which are never used.

    ``presence_change``: mean change of a presence between the two images of a pair, over the standard deviation of
    presences over images. ``dead_capsules``: percent of the capsules that are nowhere more probable than 0.01, or draw
    less than a hundredth of what capsules draw in the mean.

    Args:
        capsules: how many.
    """

    quantities = ("presence_change", "dead_capsules")
    full_state_update = False
    pairs: Tensor
    changes: Tensor
    total: Tensor
    squares: Tensor
    largest: Tensor
    energy: Tensor

    def __init__(self, capsules: int) -> None:
        super().__init__()
        for name in ("changes", "total", "squares", "energy"):
            self.add_state(name, torch.zeros(capsules, dtype=WIDEST), "sum")
        self.add_state("pairs", torch.zeros((), dtype=WIDEST), "sum")
        self.add_state("largest", torch.zeros(capsules, dtype=WIDEST), "max")

    def update(
        self,
        presences: Float[Tensor, "batch capsule"],
        others: Float[Tensor, "batch capsule"],
        energies: Float[Tensor, "batch capsule"],
    ) -> None:
        """Add pairs: presences in the first and the second image, and squared sums of what capsules draw."""
        presences, others = presences.to(WIDEST), others.to(WIDEST)
        self.pairs += len(presences)
        self.changes += (others - presences).abs().sum(0)
        self.total += presences.sum(0)
        self.squares += presences.square().sum(0)
        self.energy += energies.to(WIDEST).sum(0)
        self.largest = torch.maximum(self.largest, presences.amax(0))

    @property
    def used(self) -> Tensor:
        """Which capsules are not dead."""
        return (self.largest >= _DEAD) & (self.energy >= _UNUSED * self.energy.mean())

    def compute(self) -> dict[str, Tensor]:
        """See the class."""
        mean = self.total / self.pairs
        deviation = (self.squares / self.pairs - mean.square()).clamp_min(0).sqrt()
        return {
            "presence_change": (self.changes / self.pairs).sum() / deviation.sum().clamp_min(_SMALL),
            "dead_capsules": 100 * (~self.used).to(WIDEST).mean(),
        }


class ShiftMetrics(PairMetric):
    """Whether poses of two numbers move by as many pixels as the image.

    Of each capsule, the slope is the 2x2 matrix that takes the shift to the change of its pose, by least squares over
    the pairs in both of whose images it is more probable than 0.5; the identity is ideal. Over the capsules that are
    so in a hundredth of the pairs, weighted by their pairs: ``slope_right`` and ``slope_down``, its diagonal, and
    ``slope_error``, the mean over capsules of the entry that is furthest from the identity's. ``slope_capsules`` is
    how many these are. ``shift_r2``: of the change of poses, a mean over capsules weighted by presences, as an
    estimate of the shift.

    Args:
        capsules: how many.
    """

    quantities = ("shift_r2", "slope_capsules", "slope_right", "slope_down", "slope_error")
    full_state_update = False
    pairs: Tensor
    seen: Tensor
    cross: Tensor
    moments: Tensor
    residual: Tensor
    total: Tensor
    squares: Tensor

    def __init__(self, capsules: int) -> None:
        super().__init__()
        self.add_state("pairs", torch.zeros((), dtype=WIDEST), "sum")
        self.add_state("seen", torch.zeros(capsules, dtype=WIDEST), "sum")
        for name in ("cross", "moments"):
            self.add_state(name, torch.zeros(capsules, 2, 2, dtype=WIDEST), "sum")
        self.add_state("residual", torch.zeros((), dtype=WIDEST), "sum")
        self.add_state("total", torch.zeros(2, dtype=WIDEST), "sum")
        self.add_state("squares", torch.zeros((), dtype=WIDEST), "sum")

    def update(
        self,
        moved: Float[Tensor, "batch capsule 2"],
        shift: Float[Tensor, "batch 2"],
        presences: Float[Tensor, "batch capsule"],
        others: Float[Tensor, "batch capsule"],
    ) -> None:
        """Add pairs: changes of poses, the shifts, and presences in the first and the second image."""
        moved, shift = moved.to(WIDEST), shift.to(WIDEST)
        both = ((presences > _PRESENT) & (others > _PRESENT)).to(WIDEST)
        self.pairs += len(shift)
        self.seen += both.sum(0)
        self.cross += torch.einsum("bk,bki,bj->kij", both, moved, shift)
        self.moments += torch.einsum("bk,bi,bj->kij", both, shift, shift)
        weights = presences.to(WIDEST) * others.to(WIDEST)
        estimate = (weights.unsqueeze(2) * moved).sum(1) / weights.sum(1, keepdim=True).clamp_min(_SMALL)
        self.residual += (estimate - shift).square().sum()
        self.total += shift.sum(0)
        self.squares += shift.square().sum()

    def slopes(self) -> tuple[Float[Tensor, "chosen 2 2"], Float[Tensor, " chosen"]]:
        """Of the capsules that have one, and over how many pairs; none where all shifts are along one line."""
        solvable = torch.linalg.det(self.moments) > 1e-9 * self.moments.diagonal(dim1=1, dim2=2).prod(1).clamp_min(1)
        chosen = (self.seen >= _SELDOM * self.pairs) & (self.seen > 0) & solvable
        return torch.linalg.solve(self.moments[chosen], self.cross[chosen], left=False), self.seen[chosen]

    def compute(self) -> dict[str, Tensor]:
        """See the class; without slopes where no capsule has one, without R2 where all shifts are the same."""
        variance = self.squares - self.total.square().sum() / self.pairs
        found = {"shift_r2": 1 - self.residual / variance} if variance > _SMALL else {}
        slopes, seen = self.slopes()
        found["slope_capsules"] = seen.new_tensor(float(len(seen)))
        if len(seen):
            mean = (seen.view(-1, 1, 1) * slopes).sum(0) / seen.sum()
            away = (slopes - torch.eye(2, dtype=slopes.dtype, device=slopes.device)).abs().amax((1, 2))
            found |= {
                "slope_right": mean[0, 0],
                "slope_down": mean[1, 1],
                "slope_error": (seen * away).sum() / seen.sum(),
            }
        return found


class MatrixMetrics(PairMetric):
    """Whether poses that are matrices are multiplied by the change.

    ``matrix_error``: the norm of what ``T A`` of the first image is away from ``A`` of the second, over that of ``A``,
    means over capsules and pairs weighted by presence. ``matrix_error_unchanged``: the same of ``A`` in place of
    ``T A``, which a pose that follows the change is much better than.
    """

    quantities = ("matrix_error", "matrix_error_unchanged")
    full_state_update = False
    away: Tensor
    unchanged: Tensor
    size: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("away", "unchanged", "size"):
            self.add_state(name, torch.zeros((), dtype=WIDEST), "sum")

    def update(
        self,
        poses: Float[Tensor, "batch capsule component"],
        changed: Float[Tensor, "batch capsule component"],
        others: Float[Tensor, "batch capsule component"],
        presences: Float[Tensor, "batch capsule"],
    ) -> None:
        """Add pairs: poses of the first image, those after the change, those of the second image, and presences."""
        poses, changed, others, presences = (each.to(WIDEST) for each in (poses, changed, others, presences))
        self.away += (presences * torch.linalg.vector_norm(others - changed, dim=2)).sum()
        self.unchanged += (presences * torch.linalg.vector_norm(others - poses, dim=2)).sum()
        self.size += (presences * torch.linalg.vector_norm(poses, dim=2)).sum()

    def compute(self) -> dict[str, Tensor]:
        """See the class."""
        size = self.size.clamp_min(_SMALL)
        return {"matrix_error": self.away / size, "matrix_error_unchanged": self.unchanged / size}


def pair_metrics(network: Any) -> dict[str, PairMetric]:
    """The metrics of a network that is told a change, by name.

    Args:
        network: a ``TransformingAutoencoder``, or one without capsules, whose ``capsules`` are 0.
    """
    found: dict[str, PairMetric] = {"images": ImagePairMetrics(network.image_shape)}
    if network.capsules:
        found["presences"] = PresenceMetrics(network.capsules)
        found["poses"] = ShiftMetrics(network.capsules) if network.pose == "translation" else MatrixMetrics()
    return found


def update_pair_metrics(
    metrics: Mapping[str, Metric],
    network: Any,
    images: Float[Tensor, "batch channel height width"],
    change: Float[Tensor, "batch 2"] | Float[Tensor, "batch 3 3"],
    targets: Float[Tensor, "batch channel height width"],
    output: Any,
) -> None:
    """Add a batch of pairs to ``pair_metrics``.

    Args:
        metrics: of the network.
        network: in evaluation mode.
        images, change, targets: see ``Batch``.
        output: what the network gives for images and change, ``TransformedImages``.
    """
    cast(ImagePairMetrics, metrics["images"]).update(images, targets)
    if "poses" not in metrics:
        return
    poses, presences = output.poses, output.presences
    others, later = network.recognise(targets)
    changed = network.changed(poses, change)
    cast(PresenceMetrics, metrics["presences"]).update(presences, later, network.energies(changed, presences))
    of_poses = metrics["poses"]
    if isinstance(of_poses, ShiftMetrics):
        of_poses.update(others - poses, change, presences, later)
    else:
        cast(MatrixMetrics, of_poses).update(poses, changed, others, presences)
