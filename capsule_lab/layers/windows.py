"""Windows of a convolutional capsule layer: the children that each position sees.

Children and parents are ordered ``(y, x, type)``. A parent at ``(y, x)`` sees the children of a window of size
``kernel_size`` that starts at ``(stride y, stride x)``, in the order (row of the window, column of the window,
type). Routing treats positions like images: its batch is ``image * position``, and its children are those of one
window. Normalisers implement the competition between positions, see ``capsule_lab.layers.normalisers``.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from capsule_lab.shapes import checks_shapes


class Windows(nn.Module):
    """Windows of a convolutional capsule layer without padding.

    Args:
        size: ``(height, width)`` of the grid of children.
        types: child types per position.
        kernel_size, stride: size and stride of the window.

    Attributes:
        grid: ``(height, width)`` of the grid of parents.
        positions: number of parent positions.
        places: children in a window.
        child_count: children in the grid.
        child: index of the child at each place of each window, ``(position, place)``.
        child_at_stride_1: the same for a stride of 1, which the legacy code assumes.
    """

    child: Int64[Tensor, "position place"]
    child_at_stride_1: Int64[Tensor, "position place"]

    def __init__(
        self, size: tuple[int, int], types: int, *, kernel_size: int = 3, stride: int = 1
    ) -> None:
        super().__init__()
        if min(types, kernel_size, stride) < 1:
            raise ValueError(
                f"types, kernel_size and stride are {types}, {kernel_size}, {stride}; expected 1 or more"
            )
        if min(size) < kernel_size:
            raise ValueError(
                f"the grid of children is {size[0]}x{size[1]}, smaller than the {kernel_size}x{kernel_size} window of "
                "the capsules above; expected larger images or a smaller kernel"
            )
        self.size = size
        self.types = types
        self.kernel_size = kernel_size
        self.stride = stride
        height = (size[0] - kernel_size) // stride + 1
        width = (size[1] - kernel_size) // stride + 1
        self.grid = (height, width)
        self.positions = height * width
        self.places = kernel_size * kernel_size * types
        self.child_count = size[0] * size[1] * types
        self.register_buffer("child", self._child_at(stride), persistent=False)
        self.register_buffer("child_at_stride_1", self._child_at(1), persistent=False)

    def _child_at(self, stride: int) -> Tensor:
        height, width = self.grid
        window = torch.arange(self.kernel_size)
        # rows and columns of the children, [position, place] along each axis
        y = stride * torch.arange(height)[:, None] + window
        x = stride * torch.arange(width)[:, None] + window
        cell = y[:, None, :, None] * self.size[1] + x[None, :, None, :]
        cell = cell.reshape(self.positions, -1, 1)
        return (cell * self.types + torch.arange(self.types)).flatten(1)

    @checks_shapes
    def poses(
        self, poses: Float[Tensor, "batch {self.child_count} dim"]
    ) -> Float[Tensor, "window place dim"]:
        """Return the poses of the children of each window; windows are ordered (image, position).

        In memory the components of a window's children follow each other, ``(window, dim, place)``, as the fused
        kernels read them, so that poses are copied once.
        """
        components_first = self._unfold(poses).movedim(-1, 3)  # [b h' w' dim kh kw type]
        return components_first.reshape(-1, poses.shape[2], self.places).transpose(1, 2)

    @checks_shapes
    def activations(
        self, activations: Float[Tensor, "batch {self.child_count}"]
    ) -> Float[Tensor, "window place"]:
        """Return the activations of the children of each window."""
        return self._unfold(activations.unsqueeze(2)).reshape(-1, self.places)

    def _unfold(self, values: Tensor) -> Tensor:
        grid = values.unflatten(1, (*self.size, self.types))  # [b h w type dim]
        rows = grid.unfold(1, self.kernel_size, self.stride)
        windows = rows.unfold(2, self.kernel_size, self.stride)
        return windows.permute(0, 1, 2, 5, 6, 3, 4)  # [b h' w' kh kw type dim]
