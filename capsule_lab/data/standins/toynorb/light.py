"""Shading: toys of one colour on an even table, under one of six settings of four lamps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from capsule_lab.data.standins.toynorb.camera import LAMPS, Rays, dot
from capsule_lab.data.standins.toynorb.shapes import cosine_and_sine
from capsule_lab.data.standins.toynorb.toys import Toy
from capsule_lab.data.standins.toynorb.tracing import box_interval, first_hit, normals, openness, visibility


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

_TABLE, _PAINT, _GLOSS = np.float32(0.54), np.float32(0.36), np.float32(0.16)  # ours: shares of light given back
_FROM_THE_SIDE, _FROM_ABOVE = np.float32(0.6), np.float32(0.4)  # ours: light from all around is brighter above
_LIFT = np.float32(0.012)  # ours: shadow rays begin off the surface they leave
_EXPOSURE = 0.5  # ours: the camera makes up for half of how bright a setting is

_ZERO = np.float32(0)


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


class _Surface(NamedTuple):
    point: np.ndarray
    normal: np.ndarray
    open: np.ndarray
    toy: np.ndarray


def shade(toy: Toy, rays: Rays, lightings: Sequence[int]) -> Shaded:
    """Trace the rays once, and shade the surfaces they meet under several lightings."""
    origin, direction, _ = rays
    table = -origin[2] / direction[2]
    enter, leave = box_interval(toy, origin, direction, 0.0)
    depth = first_hit(toy, origin, direction, enter, np.minimum(leave, table))
    hit = np.isfinite(depth)
    depth = np.where(hit, depth, table)
    point = origin + depth * direction
    normal, open_ = np.zeros_like(point), np.ones_like(depth)
    normal[2] = 1  # of the table
    if hit.any():
        normal[:, hit] = normals(toy, point[:, hit])
        open_[hit] = openness(toy, point[:, hit], normal[:, hit])
    radiance = _light(toy, rays, _Surface(point, normal, open_, hit), lightings)
    return Shaded(radiance, depth, normal, hit)


def _light(toy: Toy, rays: Rays, surface: _Surface, lightings: Sequence[int]) -> np.ndarray:
    """Radiance of the surface under each lighting; a lamp's shadows are found once for all."""
    settings = [SETTINGS[lighting] for lighting in lightings]
    needed = [lamp for lamp in range(len(LAMPS)) if any(setting.lamps[lamp] for setting in settings)]
    matt_and_gloss = {lamp: _under_a_lamp(toy, rays, surface, rays.lamps[lamp]) for lamp in needed}
    radiance = np.empty((len(settings), surface.open.size), np.float32)
    for number, (lamps, around) in enumerate(settings):
        light = (_FROM_THE_SIDE + _FROM_ABOVE * surface.normal[2]) * surface.open * np.float32(around)
        shine = np.zeros_like(light)
        on_the_table = around
        for lamp, brightness in enumerate(lamps):
            if brightness:
                matt, gloss = matt_and_gloss[lamp]
                light = light + matt * np.float32(brightness)
                shine = shine + gloss * np.float32(brightness)
                on_the_table = on_the_table + brightness * cosine_and_sine(LAMPS[lamp][1])[1]
        exposure = np.float32(round(1.0 / (_EXPOSURE * on_the_table + (1 - _EXPOSURE)), 6))  # 6: digits
        radiance[number] = np.where(surface.toy, light * _PAINT + shine * _GLOSS, light * _TABLE) * exposure
    return radiance


def _under_a_lamp(toy: Toy, rays: Rays, surface: _Surface, lamp: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What reaches the surface from a lamp, and what it mirrors into the eye (Blinn 1977, exponent 16)."""
    facing = np.maximum(dot(surface.normal, lamp), _ZERO)
    to_light = np.flatnonzero(facing > 0)
    start = surface.point[:, to_light] + surface.normal[:, to_light] * _LIFT
    seen = np.zeros_like(facing)
    seen[to_light] = visibility(toy, start, lamp[:, to_light])
    halfway = lamp - rays.direction
    gloss = np.maximum(dot(surface.normal, halfway) / np.sqrt(dot(halfway, halfway)), _ZERO)
    for _ in range(4):  # four squares make the 16th power
        gloss = gloss * gloss
    return facing * seen, gloss * seen
