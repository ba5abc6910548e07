"""What happens to a batch of images on its device, every random draw a function of the sample's key."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

_INCREMENT = 0x9E3779B97F4A7C15  # SplitMix64 (Steele, Lea and Flood 2014)
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # SplitMix64


def random_bits(key: Int64[Tensor, "*shape"], stream: int) -> Int64[Tensor, "*shape"]:
    """63 random bits per key: SplitMix64, the same on every device, whatever the order or grouping of the keys.

    Args:
        key: what the draw depends on.
        stream: number of the draw, so that one key gives many independent ones.
    """
    bits = key + _as_int64((stream + 1) * _INCREMENT)
    for places, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):  # SplitMix64
        bits = (bits ^ _shift_right(bits, places)) * _as_int64(multiplier)
    bits = bits ^ _shift_right(bits, 31)  # SplitMix64
    return _shift_right(bits, 1)


def random_integers(key: Int64[Tensor, "*shape"], stream: int, low: int, high: int) -> Int64[Tensor, "*shape"]:
    """Uniform integers from ``low`` to ``high``, both included."""
    return low + random_bits(key, stream) % (high - low + 1)


def sample_key(seed: int, epoch: int, index: Int64[Tensor, " batch"]) -> Int64[Tensor, " batch"]:
    """The key of samples ``index`` in ``epoch`` of a run with ``seed``."""
    run = random_bits(torch.full_like(index, seed), 0)
    return random_bits(run ^ index, epoch + 1)


def to_unit_interval(images: UInt8[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Pixels 0..255 to [0, 1] (released code of Sabour 2017; the decoder's sigmoid needs it)."""
    return images.float() / 255  # 255: largest uint8


def shift(
    images: Float[Tensor, "batch channel height width"],
    down: Int64[Tensor, " batch"],
    right: Int64[Tensor, " batch"],
    largest: int,
) -> Float[Tensor, "batch channel height width"]:
    """Each image moved by whole pixels of its own, zeros moving in (Sabour 2017, section 5).

    Args:
        images: a batch.
        down, right: pixels per image, from ``-largest`` to ``largest``.
        largest: bound of both.
    """
    height, width = images.shape[2:]
    padded = torch.nn.functional.pad(images, (largest,) * 4)  # 4 sides
    batch = torch.arange(len(images), device=images.device)[:, None, None]
    rows = torch.arange(height, device=images.device)[None, :, None] + (largest - down)[:, None, None]
    columns = torch.arange(width, device=images.device)[None, None, :] + (largest - right)[:, None, None]
    return padded.permute(0, 2, 3, 1)[batch, rows, columns].permute(0, 3, 1, 2).contiguous()


def _as_int64(number: int) -> int:
    """The low 64 bits as a signed number, torch's only 64-bit kind with arithmetic."""
    return (number + 2**63) % 2**64 - 2**63  # 63, 64: bits of an int64


def _shift_right(bits: Tensor, places: int) -> Tensor:
    """Logical shift: torch's own keeps the sign."""
    return (bits >> places) & ((1 << (64 - places)) - 1)  # 64: bits of an int64
