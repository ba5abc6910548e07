from collections.abc import Sequence

import numpy as np


def painted(
    category: int, instance: int, *levels: Sequence[int], size: int = 96, seed: int = 0
) -> np.ndarray:
    """Images whose first pixels are the factors given to ``render``, plus 1, and the seed."""
    grids = np.meshgrid([category], [instance], *levels, indexing="ij")
    images = np.zeros((*grids[0].shape, size * size), np.uint8)
    images[..., :6] = np.stack(grids, axis=-1) + 1
    images[..., 6] = seed
    return images.reshape(*grids[0].shape[2:], size, size)
