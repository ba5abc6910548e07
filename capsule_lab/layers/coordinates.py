"""Maps of the row and the column of every position, for convolutions that shall see where they are."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class AppendedCoordinates(nn.Module):
    """Appends two maps, row and column from -1 to 1, to images or feature maps (Heinsen 2019, section 4; Liu 2018).

    Args:
        size: height and width of the maps.
    """

    coordinates: Tensor

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        axes = [torch.linspace(-1, 1, side) for side in size]
        coordinates = torch.stack(torch.meshgrid(*axes, indexing="ij"))
        self.register_buffer("coordinates", coordinates, persistent=False)

    def forward(
        self, maps: Float[Tensor, "b channel row column"]
    ) -> Float[Tensor, "b channel_and_two row column"]:
        coordinates = self.coordinates.to(maps.dtype).expand(maps.shape[0], -1, -1, -1)
        return torch.cat([maps, coordinates], 1)
