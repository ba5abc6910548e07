"""Images in place of rendered toys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def painted(
    category: int,
    instance: int,
    elevations: Sequence[int],
    azimuths: Sequence[int],
    lightings: Sequence[int],
    eyes: Sequence[int] = (-1, 1),
    *,
    size: int = 96,
    seed: int = 0,
) -> np.ndarray:
    """Images whose first pixels are the factors that ``render`` is called with, plus 1, and the seed."""
    grids = np.meshgrid(elevations, azimuths, lightings, eyes, indexing="ij")
    factors = np.stack([np.full(grids[0].shape, category), np.full(grids[0].shape, instance), *grids], axis=-1) + 1
    images = np.zeros((*grids[0].shape, size * size), np.uint8)
    images[..., :6] = factors
    images[..., 6] = seed
    return images.reshape(*grids[0].shape, size, size)


def pixels(size: int) -> tuple[np.ndarray, np.ndarray]:
    """How far the middles of an image's pixels are to the right and up, as the renderer counts them."""
    middles = ((np.arange(size) + 0.5) * 2 / size - 1).astype(np.float32)
    upwards, across = (grid.ravel() for grid in np.meshgrid(-middles, middles, indexing="ij"))
    return across, upwards
