"""Which parents compete for a child in a convolutional capsule layer: four ways to normalise couplings.

Windows of up to ``kernel_size ** 2`` positions see the same child. With a softmax in each window, the couplings of a
child sum to one per window; with ``AllParents``, they sum to one over all windows.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from capsule_lab.kernels import child_softmax
from capsule_lab.layers.windows import Windows
from capsule_lab.routing.base import Normalisation, Normaliser
from capsule_lab.shapes import checks_shapes

FLOOR = 1e-6  # official code, fast: lower bound of the mass that divides the couplings of a child
LogCouplings = Float[Tensor, "window parent {self.windows.places}"]
EPS = 1e-7  # official code, legacy: added to this mass


class WindowNormaliser(Normaliser):
    """Base of normalisers that use the positions of a layer."""

    def __init__(self, windows: Windows) -> None:
        super().__init__()
        self.windows = windows
        self.rows_per_image = windows.positions

    def total(self, mass: Float[Tensor, "window parent"]) -> Float[Tensor, "window 1"]:
        by_image = mass.view(-1, self.windows.positions * mass.shape[1])
        return by_image.sum(1, keepdim=True).repeat_interleave(self.windows.positions, 0)

    def _per_child(self, values: Tensor, child: Tensor) -> Tensor:
        """Sum the places of all windows per child: ``(batch, position * place) -> (batch, child)``."""
        sums = values.new_zeros(values.shape[0], self.windows.child_count)
        return sums.index_add(1, child, values)

    def _by_type(self, log_couplings: Tensor) -> Float[Tensor, "batch position parent place type"]:
        windows = self.windows
        parents = log_couplings.shape[1]
        cells = windows.kernel_size**2
        return log_couplings.view(-1, windows.positions, parents, cells, windows.types)


class AllParents(WindowNormaliser):
    """All parents at all positions that see a child compete for it (Hinton 2018, section 4), in log-space.

    Children outside all windows, at the edge of a grid that the stride does not divide, have no couplings.
    """

    def __init__(self, windows: Windows) -> None:
        super().__init__(windows)
        self.by_child = windows.child, windows.child_count

    def fused(
        self, log_couplings: Float[Tensor, "window parent place"]
    ) -> Float[Tensor, "window parent place"]:
        couplings = child_softmax(log_couplings, self.windows.child, self.windows.child_count)
        return self(log_couplings) if couplings is None else couplings

    @checks_shapes
    def __call__(self, log_couplings: LogCouplings) -> Float[Tensor, "window parent place"]:
        windows = self.windows
        child = windows.child.flatten()
        log_here = log_couplings.logsumexp(1).view(-1, len(child))  # [b position·place]
        images = log_here.shape[0]  # not len: a program for other batch sizes is exported
        log_largest = log_here.new_full((images, windows.child_count), -torch.inf)
        log_largest = log_largest.scatter_reduce(
            1, child.expand(images, -1), log_here.detach(), "amax"
        )
        log_largest = log_largest.index_select(1, child)
        shares = (log_here - log_largest).exp()  # [b position·place]
        total = self._per_child(shares, child).index_select(1, child)
        log_total = log_largest + total.log()
        return (log_couplings - log_total.view(-1, 1, windows.places)).exp()


class WindowOnly(WindowNormaliser):
    """Only the parents of one position compete for a child, as in most ports: each position receives its full mass."""


class OfficialFast(WindowNormaliser):
    """The official code's ``fast`` path: all parents compete, relative to the best of each child *type*.

    One maximum per (image, child type) is subtracted, and the mass of a child is at least 1e-6. The couplings of a
    child about 14 nats below the best child of its type therefore sum to less than one.
    """

    @checks_shapes
    def __call__(self, log_couplings: LogCouplings) -> Float[Tensor, "window parent place"]:
        child = self.windows.child.flatten()
        by_type = self._by_type(log_couplings)
        largest = by_type.amax((1, 2, 3), keepdim=True)
        weights = (by_type - largest).exp().view_as(log_couplings)
        here = weights.sum(1).view(-1, len(child))  # [b position·place]
        mass = self._per_child(here, child).index_select(1, child).clamp_min(FLOOR)
        return weights / mass.view(-1, 1, self.windows.places)


class OfficialLegacy(WindowNormaliser):
    """The official code's default path: positions compete, separately for each parent type.

    Types do not compete, so the couplings of a child sum to one for each type. The code ignores the stride when it
    matches places to children, so with stride 2 it pools wrong children. Kept for parity with the authors.
    """

    @checks_shapes
    def __call__(self, log_couplings: LogCouplings) -> Float[Tensor, "window parent place"]:
        windows = self.windows
        child = windows.child_at_stride_1.flatten()
        by_type = self._by_type(log_couplings)
        largest = by_type.amax((1, 3), keepdim=True)
        weights = (by_type - largest).exp().flatten(3)  # [b position j place]
        by_parent = weights.transpose(1, 2).flatten(0, 1).flatten(1)  # [b·j position·place]
        mass = self._per_child(by_parent, child).index_select(1, child) + EPS
        parents = log_couplings.shape[1]
        shares = (by_parent / mass).view(-1, parents, windows.positions, windows.places)
        return shares.transpose(1, 2).reshape(log_couplings.shape)


def build_normaliser(normalisation: Normalisation, windows: Windows) -> Normaliser:
    """Return the normaliser of a convolutional layer, see ``Normalisation``."""
    kinds: dict[Normalisation, type[WindowNormaliser]] = {
        "all_parents": AllParents,
        "window": WindowOnly,
        "official_legacy": OfficialLegacy,
        "official_fast": OfficialFast,
    }
    return kinds[normalisation](windows)
