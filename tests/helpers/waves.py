"""Tensors of sines and cosines of the index, the inputs of golden numbers."""

import torch
from torch import Tensor


def sine(*shape: int, scale: float = 1.0, frequency: float, phase: float = 0.0) -> Tensor:
    """``scale sin(frequency n + phase)`` of the n-th entry, row by row, in float64."""
    entries = torch.Size(shape).numel()
    n = torch.arange(entries, dtype=torch.float64)
    angles = frequency * n + phase
    return scale * angles.sin().view(shape)


def cosine(*shape: int, scale: float = 1.0, frequency: float, phase: float = 0.0) -> Tensor:
    """``scale cos(frequency n + phase)`` of the n-th entry, row by row, in float64."""
    quarter = torch.pi / 2
    return sine(*shape, scale=scale, frequency=frequency, phase=phase + quarter)
