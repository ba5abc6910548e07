"""Which children each position of a convolutional capsule layer sees, and who competes for them.

Children are ordered ``(y, x, type)``, and so are parents. A parent at ``(y, x)`` sees the children of a
``kernel_size``-sized window that starts at ``(stride y, stride x)``: in the order (row of the window, column of
the window, type). Routing takes positions as if they were images: its batch is ``image * position``, its children
are those of one window. Competition between positions is the normaliser's.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from capsule_lab.kernels import couplings_of_children
from capsule_lab.routing.base import Normalisation, Normaliser

FLOOR = 1e-6  # official code, fast: least mass that divides a child's shares
EPS = 1e-7  # official code, legacy: added to it


class Windows(nn.Module):
    """The receptive fields of a convolutional capsule layer without padding.

    Args:
        size: ``(height, width)`` of the grid of children.
        types: child types per position.
        kernel_size, stride: of the window.

    Attributes:
        grid: ``(height, width)`` of the grid of parents.
        positions: how many those are.
        places: children in a window.
        child_count: how many children there are.
        child: which child each place of each window is, ``(position, place)``.
        as_if_stride_1: the same if the stride were 1: whom the legacy code takes a place for.

    Raises:
        ValueError: if the window does not fit into the grid.
    """

    child: Int64[Tensor, "position place"]
    as_if_stride_1: Int64[Tensor, "position place"]

    def __init__(self, size: tuple[int, int], types: int, *, kernel_size: int = 3, stride: int = 1) -> None:
        super().__init__()
        if min(types, kernel_size, stride) < 1:
            raise ValueError(f"types, kernel_size and stride are {types}, {kernel_size}, {stride}; expected 1 or more")
        if min(size) < kernel_size:
            raise ValueError(
                f"the grid of children is {size[0]}x{size[1]}, smaller than the {kernel_size}x{kernel_size} window of "
                "the capsules above; take larger images, a smaller kernel or padding='same'"
            )
        self.size = size
        self.types = types
        self.kernel_size = kernel_size
        self.stride = stride
        height, width = ((n - kernel_size) // stride + 1 for n in size)
        self.grid = (height, width)
        self.positions = self.grid[0] * self.grid[1]
        self.places = kernel_size * kernel_size * types
        self.child_count = size[0] * size[1] * types
        self.register_buffer("child", self._child_at(stride), persistent=False)
        self.register_buffer("as_if_stride_1", self._child_at(1), persistent=False)

    def _child_at(self, stride: int) -> Tensor:
        window = torch.arange(self.kernel_size)
        y, x = (stride * torch.arange(n)[:, None] + window for n in self.grid)  # [position, place] along each axis
        place = (y[:, None, :, None] * self.size[1] + x[None, :, None, :]).reshape(self.positions, -1)
        return (place[:, :, None] * self.types + torch.arange(self.types)).flatten(1)

    def poses(self, poses: Float[Tensor, "batch child dim"]) -> Float[Tensor, "window place dim"]:
        """Poses of the children of each window; windows are ordered (image, position)."""
        return self._unfold(poses).reshape(-1, self.places, poses.shape[2])

    def activations(self, activations: Float[Tensor, "batch child"]) -> Float[Tensor, "window place"]:
        """Activations of the children of each window."""
        return self._unfold(activations.unsqueeze(2)).reshape(-1, self.places)

    def _unfold(self, values: Tensor) -> Tensor:
        grid = values.unflatten(1, (*self.size, self.types))  # [b h w type dim]
        windows = grid.unfold(1, self.kernel_size, self.stride).unfold(2, self.kernel_size, self.stride)
        return windows.permute(0, 1, 2, 5, 6, 3, 4)  # [b h' w' kh kw type dim]

    def normaliser(self, normalisation: Normalisation) -> Normaliser:
        """Who competes for a child, see ``Normalisation``."""
        return {
            "all_parents": AllParents,
            "window": WindowOnly,
            "official_legacy": OfficialLegacy,
            "official_fast": OfficialFast,
        }[normalisation](self)


class WindowOnly(Normaliser):
    """Only the parents of one position compete for a child, as in most ports: it is handed up many times over.

    Args:
        windows: of the layer.
    """

    def __init__(self, windows: Windows) -> None:
        super().__init__()
        self.windows = windows
        self.together = windows.positions

    def total(self, mass: Float[Tensor, "window parent"]) -> Float[Tensor, "window 1"]:
        by_image = mass.view(-1, self.windows.positions * mass.shape[1])
        return by_image.sum(1, keepdim=True).repeat_interleave(self.windows.positions, 0)

    def _per_child(self, values: Tensor, child: Tensor) -> Tensor:
        """Sums the places of all windows per child: ``(batch, position * place) -> (batch, child)``."""
        sums = values.new_zeros(len(values), self.windows.child_count)
        return sums.index_add(1, child.flatten(), values)


class AllParents(WindowOnly):
    """All parents at all positions that see a child compete for it (Hinton 2018, section 4), in log-space.

    Children that nobody sees, at the edge of a grid that the stride does not divide, take no part.
    """

    def fast(self, log_couplings: Float[Tensor, "window parent place"]) -> Float[Tensor, "window parent place"]:
        found = couplings_of_children(log_couplings, self.windows.child, self.windows.child_count)
        return self(log_couplings) if found is None else found

    def __call__(self, log_couplings: Float[Tensor, "window parent place"]) -> Float[Tensor, "window parent place"]:
        windows = self.windows
        child = windows.child.flatten()
        log_here = log_couplings.logsumexp(1).view(-1, len(child))  # [b position·place]
        log_largest = log_here.new_full((len(log_here), windows.child_count), -torch.inf)
        log_largest = log_largest.scatter_reduce(1, child.expand(len(log_here), -1), log_here.detach(), "amax")
        log_largest = log_largest.index_select(1, child)
        total = self._per_child((log_here - log_largest).exp(), child).index_select(1, child)
        log_total = (log_largest + total.log()).view(-1, 1, windows.places)
        return (log_couplings - log_total).exp()


class OfficialFast(WindowOnly):
    """The official code's ``fast`` path: all parents compete, relative to the best of each child *type*.

    One maximum per (image, child type) is subtracted, and a child's mass is at least 1e-6: a child about 14 nats
    below the best one of its type hands up less than all of itself.
    """

    def __call__(self, log_couplings: Float[Tensor, "window parent place"]) -> Float[Tensor, "window parent place"]:
        windows, parents = self.windows, log_couplings.shape[1]
        child = windows.child.flatten()
        by_type = log_couplings.view(-1, windows.positions, parents, windows.places // windows.types, windows.types)
        weights = (by_type - by_type.amax((1, 2, 3), keepdim=True)).exp().view_as(log_couplings)
        here = weights.sum(1).view(-1, len(child))
        mass = self._per_child(here, child).index_select(1, child).clamp_min(FLOOR)
        return weights / mass.view(-1, 1, windows.places)


class OfficialLegacy(WindowOnly):
    """The official code's default path: positions compete, separately for each parent type.

    Types do not compete, so a child may give one unit to each of them; and the stride is ignored in telling which
    places are the same child, so that with stride 2 wrong children are pooled. For parity with the authors.
    """

    def __call__(self, log_couplings: Float[Tensor, "window parent place"]) -> Float[Tensor, "window parent place"]:
        windows, parents = self.windows, log_couplings.shape[1]
        child = windows.as_if_stride_1.flatten()
        by_type = log_couplings.view(-1, windows.positions, parents, windows.places // windows.types, windows.types)
        weights = (by_type - by_type.amax((1, 3), keepdim=True)).exp().flatten(3)  # [b position j place]
        of_parent = weights.transpose(1, 2).flatten(0, 1).flatten(1)  # [b·j position·place]
        mass = self._per_child(of_parent, child).index_select(1, child) + EPS
        shares = (of_parent / mass).view(-1, parents, windows.positions, windows.places)
        return shares.transpose(1, 2).reshape(log_couplings.shape)
