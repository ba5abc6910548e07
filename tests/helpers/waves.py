"""Tensors of sines and cosines of the index, the inputs of golden numbers."""

import torch
from torch import Tensor


def sine(*shape: int, scale: float = 1.0, frequency: float, phase: float = 0.0) -> Tensor:
    """``scale sin(frequency n + phase)`` of the n-th entry, row by row, in float64."""
    n = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return (scale * (frequency * n + phase).sin()).view(shape)


def cosine(*shape: int, scale: float = 1.0, frequency: float, phase: float = 0.0) -> Tensor:
    """``scale cos(frequency n + phase)`` of the n-th entry, row by row, in float64."""
    return sine(*shape, scale=scale, frequency=frequency, phase=phase + torch.pi / 2)
