"""Sphere tracing: walk along a ray by as much as the nearest surface is away, until there is one.

Only float32 + - * / sqrt, absolute value, minimum and maximum, one at a time, so that every machine sees the same.
Vectors are ``(3, n)``. Rays that have hit or left drop out.
"""

from __future__ import annotations

import numpy as np

from capsule_lab.data.standins.toynorb.camera import dot
from capsule_lab.data.standins.toynorb.toys import Toy

_HIT_STEPS, _SHADOW_STEPS = 48, 28  # ours: more change no image
_NEAR = np.float32(2e-3)  # ours: closer counts as touching, a fifth of the smallest pixel
_CAUTION = np.float32(0.92)  # ours: distances to leaning faces are a little too large at blunt edges
_PARALLEL = np.float32(1e-6)  # ours: rays along a face of the box are bent a little rather than divided by 0
_ENDLESS = np.float32(1e9)  # ours: beyond any scene

_SOFTNESS = np.float32(9)  # ours: lamps as wide as a ninth of their distance
_DARK = np.float32(0.02)  # ours: full shadow
_SHORTEST, _LONGEST = np.float32(0.025), np.float32(0.3)  # ours: of the steps towards a lamp
_LEAVE = 0.015  # ours: shadow rays begin so far away, for they divide by the distance

_PROBE = 0.003  # ours: half a pixel, over which a surface counts as flat
_TETRAHEDRON = ((1, -1, -1), (-1, -1, 1), (-1, 1, -1), (1, 1, 1))
"""Four directions in which distances make a gradient."""

_OCCLUSION = ((0.06, 3.0), (0.16, 1.6))
"""Distances from the surface at which occlusion is measured, and their weights."""  # ours: by eye
_LEAST_OPENNESS = np.float32(0.25)  # ours: no corner is darker

_ZERO, _ONE = np.float32(0), np.float32(1)


def box_interval(toy: Toy, origin: np.ndarray, direction: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Where rays enter and leave the box around the toy, as distances; they never enter where these are reversed.

    Args:
        toy: in its box.
        origin: of the rays.
        direction: of the rays, of length 1.
        least: distance at which rays begin.
    """
    enter, leave = np.full(origin[0].size, least, np.float32), np.full(origin[0].size, _ENDLESS)
    for low, high, start, towards in zip(toy.low, toy.high, origin, direction, strict=True):
        scale = _ONE / np.where(np.abs(towards) < _PARALLEL, _PARALLEL, towards)
        one, other = (np.float32(low) - start) * scale, (np.float32(high) - start) * scale
        enter = np.maximum(enter, np.minimum(one, other))
        leave = np.minimum(leave, np.maximum(one, other))
    return enter, leave


def first_hit(toy: Toy, origin: np.ndarray, direction: np.ndarray, enter: np.ndarray, leave: np.ndarray) -> np.ndarray:
    """Distance along each ray to the toy, between ``enter`` and ``leave``; infinite where it is missed."""
    found = np.full(enter.size, np.inf, np.float32)
    ray = np.flatnonzero(enter < leave)
    origin, direction, at, end = origin[:, ray], direction[:, ray], enter[ray], leave[ray]
    for _ in range(_HIT_STEPS):
        if not ray.size:
            break
        free = toy.shape.distance(*(origin + at * direction))
        hit = free < _NEAR
        found[ray[hit]] = at[hit]
        at = at + free * _CAUTION
        going = np.flatnonzero(~(hit | (at > end)))
        if going.size < ray.size:
            origin, direction = origin.take(going, 1), direction.take(going, 1)
            ray, at, end = ray[going], at[going], end[going]
    return found


def visibility(toy: Toy, origin: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Share of a lamp that is visible from each origin, from 0 to 1; less than 1 where rays pass the toy closely."""
    enter, leave = box_interval(toy, origin, direction, _LEAVE)
    seen = np.ones(enter.size, np.float32)
    ray = np.flatnonzero(enter < leave)
    origin, direction, at, end = origin[:, ray], direction[:, ray], enter[ray], leave[ray]
    least = np.ones(ray.size, np.float32)
    for step in range(_SHADOW_STEPS):
        if not ray.size:
            break
        free = toy.shape.distance(*(origin + at * direction))
        least = np.minimum(least, free * _SOFTNESS / at)
        at = at + np.minimum(np.maximum(free, _SHORTEST), _LONGEST)
        done = (least < _DARK) | (at > end) if step < _SHADOW_STEPS - 1 else np.ones(at.size, bool)
        share = np.maximum(least[done], _ZERO)
        seen[ray[done]] = share * share * (3 - 2 * share)  # the smoothstep, level at both ends
        going = np.flatnonzero(~done)
        if going.size < ray.size:
            origin, direction = origin.take(going, 1), direction.take(going, 1)
            ray, at, end, least = ray[going], at[going], end[going], least[going]
    return seen


def normals(toy: Toy, points: np.ndarray) -> np.ndarray:
    """Directions of length 1 straight out of the surface."""
    gradient = np.zeros_like(points)
    for signs in _TETRAHEDRON:
        offsets = [np.float32(_PROBE * sign) for sign in signs]
        free = toy.shape.distance(*(values + offset for values, offset in zip(points, offsets, strict=True)))
        gradient = np.stack([values + free * np.float32(sign) for values, sign in zip(gradient, signs, strict=True)])
    return gradient / np.maximum(np.sqrt(dot(gradient, gradient)), np.float32(1e-9))  # ours: never 0


def openness(toy: Toy, points: np.ndarray, outwards: np.ndarray) -> np.ndarray:
    """Ambient occlusion: the share of light from all around that toy and table leave, from 0.25 to 1."""
    occluded = _ZERO
    for reach, weight in _OCCLUSION:
        x, y, z = points + outwards * np.float32(reach)
        free = np.minimum(toy.shape.distance(x, y, z), z)
        occluded = occluded + np.maximum(np.float32(reach) - free, _ZERO) * np.float32(weight)
    return np.maximum(1 - occluded, _LEAST_OPENNESS)
