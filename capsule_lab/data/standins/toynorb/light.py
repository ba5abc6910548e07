"""Shading: toys of one colour on an even table, under one of six settings of four lamps."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from capsule_lab.data.standins.toynorb import tracing
from capsule_lab.data.standins.toynorb.camera import LAMPS, View
from capsule_lab.data.standins.toynorb.shapes import cosine_and_sine
from capsule_lab.data.standins.toynorb.toys import Toy


class _Setting(NamedTuple):
    """Brightness of each of ``LAMPS``, and of the light from all around."""

    lamps: tuple[float, ...]
    around: float


# ours: both front lamps, one of them, the other, both behind, all, one behind; so bright all around that shapes are
# seen in the shadows
SETTINGS = (
    _Setting((1.0, 1.0, 0.0, 0.0), 0.45),
    _Setting((1.8, 0.0, 0.0, 0.0), 0.42),
    _Setting((0.0, 1.6, 0.0, 0.0), 0.40),
    _Setting((0.0, 0.0, 1.2, 0.8), 0.45),
    _Setting((0.6, 0.6, 0.6, 0.6), 0.45),
    _Setting((0.0, 0.0, 0.0, 1.4), 0.50),
)
"""smallNORB's six lightings."""

_EXPOSURE = 0.5  # ours: the camera makes up for half of how bright a setting is


class Shaded(NamedTuple):
    """The first surface that each ray meets, shaded.

    Attributes:
        radiance: ``(lighting, n)``, linear, 1 is white.
        depth: distance to the toy or else to the table.
        normal: ``(3, n)``, straight out of the surface, of length 1.
        toy: whether it is the toy.
    """

    radiance: np.ndarray
    depth: np.ndarray
    normal: np.ndarray
    toy: np.ndarray


def shade(
    toy: Toy,
    camera: View,
    across: Float32[np.ndarray, " n"],
    upwards: Float32[np.ndarray, " n"],
    lightings: Sequence[int],
) -> Shaded:
    """Trace the rays through some points of an image once, and shade the surfaces they meet under several lightings.

    Args:
        toy: to look at.
        camera: that looks at it.
        across: from -1 at the image's left edge to 1 at its right edge.
        upwards: from -1 at the image's lower edge to 1 at its upper edge.
        lightings: indices in ``SETTINGS``.
    """
    position, forward, right, up, lamps = camera
    vectors = np.array([position, forward, right, up, *lamps], np.float32)
    count = len(across)
    shaded = Shaded(
        radiance=np.empty((len(lightings), count), np.float32),
        depth=np.empty(count, np.float32),
        normal=np.empty((3, count), np.float32),
        toy=np.empty(count, bool),
    )
    tracing.shade(*toy.parts_and_box, vectors, across, upwards, _settings(tuple(lightings)), *shaded)
    return shaded


@functools.cache
def _settings(lightings: tuple[int, ...]) -> Float32[np.ndarray, "lighting column"]:
    """For ``tracing``: the brightness of each lamp and of the light from all around, and the exposure."""
    rows = [(*SETTINGS[number].lamps, SETTINGS[number].around, _exposure(number)) for number in lightings]
    return np.array(rows, np.float32)


def _exposure(lighting: int) -> float:
    """What the camera makes of the brightness of a setting."""
    on_the_table = SETTINGS[lighting].around
    for brightness, (_, elevation) in zip(SETTINGS[lighting].lamps, LAMPS, strict=True):
        if brightness:
            on_the_table = on_the_table + brightness * cosine_and_sine(elevation)[1]
    return round(1.0 / (_EXPOSURE * on_the_table + (1 - _EXPOSURE)), 6)  # 6: digits
