"""Images of bright strokes on black whose shape is known."""

import numpy as np
import torch
from torch import Tensor

SIDE = 28
_SAMPLES = 16  # per pixel and direction, so that edges are grey


def _positions(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the coordinates of all samples, down and right from the centre of the image."""
    line = (np.arange(side * _SAMPLES) + 0.5) / _SAMPLES - side / 2
    down, right = np.meshgrid(line, line, indexing="ij")
    return down, right


def _image(stroke: np.ndarray, side: int) -> Tensor:
    blocks = stroke.reshape(side, _SAMPLES, side, _SAMPLES)
    return torch.tensor(blocks.mean((1, 3)), dtype=torch.float32)[None]


def bar(width: float, slant: float, *, length: float = 18, side: int = SIDE) -> Tensor:
    """An upright bar, sheared by an angle in degrees."""
    down, right = _positions(side)
    sheared = right + np.tan(np.deg2rad(slant)) * down
    inside = (abs(down) <= length / 2) & (abs(sheared) <= width / 2)
    return _image(inside, side)


def ring(thickness: float, *, radius: float, side: int = SIDE) -> Tensor:
    """A circle drawn with a pen."""
    down, right = _positions(side)
    distance = abs(np.hypot(down, right) - radius)
    return _image(distance <= thickness / 2, side)
