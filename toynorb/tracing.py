"""Ray tracing and shading, compiled by numba.

Sphere tracing: advance along a ray by the distance to the nearest surface, until the ray hits a surface.

Results are bit-identical on all machines: the code uses only float32 + - * / sqrt, absolute value, minimum and maximum,
one at a time and in the written order, without numba's ``fastmath``, which would reorder sums and fuse products. Rays
are processed in blocks, so that the data of a block stays in the processor's cache and its loops use SIMD instructions.

All compiled functions are in this file, because numba's cache checks only the file that defines a function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

ELLIPSOID, CAPSULE, CYLINDER, BOX = range(4)
# columns of a toy's parts, see ``shapes.Shape.parts``
KIND, MIRRORED, TURNED, BLEND, CENTRE, ROTATION, M, COLUMNS = 0, 1, 2, 3, 6, 9, 18, 30

BLOCK = 1024  # ours: rays per block, whose data fits into the processor's caches
_LANES = 16  # ours: numbers in the widest SIMD registers; a divisor of the block

_HIT_STEPS, _SHADOW_STEPS = 48, 28  # ours: more steps do not change any image
_NEAR = np.float32(2e-3)  # ours: distance that counts as a hit, a fifth of the smallest pixel
# ours: distances to slanted faces are slightly too large at blunt edges
_CAUTION = np.float32(0.92)
_PARALLEL = np.float32(1e-6)  # ours: avoids a division by 0 for rays along a face of the box
_ENDLESS = np.float32(1e9)  # ours: beyond any scene
_TINY = np.float32(1e-6)  # ours: avoids a division by 0 at the centre of an ellipsoid

_SOFTNESS = np.float32(9)  # ours: the width of lamps is a ninth of their distance
_DARK = np.float32(0.02)  # ours: full shadow
_SHORTEST, _LONGEST = np.float32(0.025), np.float32(0.3)  # ours: steps towards a lamp
# ours: start of shadow rays along the ray, because they divide by the distance
_LEAVE = np.float32(0.015)
_LIFT = np.float32(0.012)  # ours: start of shadow rays above the surface

_PROBE = np.float32(0.003)  # ours: half a pixel, within which a surface counts as flat
_TETRAHEDRON = np.array([(1, -1, -1), (-1, -1, 1), (-1, 1, -1), (1, 1, 1)], np.float32)
"""Four directions for finite differences of the distance."""
_SHORTEST_NORMAL = np.float32(1e-9)  # ours: never 0

_OCCLUSION = np.array([(0.06, 3.0), (0.16, 1.6)], np.float32)
"""Distances from the surface at which occlusion is measured, and their weights."""  # ours: by eye
_LEAST_OPENNESS = np.float32(0.25)  # ours: no corner is darker

# ours: reflected shares of light
_TABLE = np.float32(0.54)
_PAINT = np.float32(0.36)
_GLOSS = np.float32(0.16)
# ours: ambient light is brighter from above
_FROM_THE_SIDE = np.float32(0.6)
_FROM_ABOVE = np.float32(0.4)
_BEND = np.float32(0.35)  # ours: squared difference of normals that is an edge

_WHITE = np.float32(255)  # uint8
_GRAIN = np.float32(2)  # ours: grey levels
_GRAIN_SCALE = np.float32(1 / 65535)  # scales the sum of two 16-bit numbers to 0 ... 2

_NONE = np.int64(0)  # with a plain 0, numba would also compile its callees for a constant
_ZERO, _HALF, _ONE, _TWO, _THREE = (np.float32(number) for number in (0, 0.5, 1, 2, 3))


def _compiled(function: Callable[..., Any]) -> Any:
    """Compile ``function`` at its first call, and cache it; unwrap it first, as tests wrap functions to check types."""
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(**options, cache=True)(inspect.unwrap(function))
    except RuntimeError:  # no writable folder for the cache
        return numba.njit(**options)(inspect.unwrap(function))


@_compiled
def _least(a, b):  # type: ignore[no-untyped-def]
    return a if a < b else b


@_compiled
def _most(a, b):  # type: ignore[no-untyped-def]
    return a if a > b else b


@_compiled
def _dot(a0, a1, a2, b0, b1, b2):  # type: ignore[no-untyped-def]
    return a0 * b0 + a1 * b1 + a2 * b2


# --- distances --------------------------------------------------------------------------------------------------------


@_compiled
def distance(parts, count, points, whole):  # type: ignore[no-untyped-def]
    """Compute signed distances of ``count`` points ``(3, n)`` to the shape of all parts, blended in order.

    They are written to ``whole``, ``(n,)``; ``count`` is at most ``n`` and is rounded up to whole SIMD registers.
    """
    # the excess costs less than a loop without SIMD for the remainder
    count = -(-count // _LANES) * _LANES
    for i in range(count):
        whole[i] = np.inf
    for p in range(len(parts)):
        place = (
            parts[p, MIRRORED] != 0, parts[p, TURNED] != 0,
            parts[p, CENTRE], parts[p, CENTRE + 1], parts[p, CENTRE + 2],
            parts[p, ROTATION], parts[p, ROTATION + 1], parts[p, ROTATION + 2],
            parts[p, ROTATION + 3], parts[p, ROTATION + 4], parts[p, ROTATION + 5],
            parts[p, ROTATION + 6], parts[p, ROTATION + 7], parts[p, ROTATION + 8],
        )  # fmt: skip
        melting = parts[p, BLEND], parts[p, BLEND + 1], parts[p, BLEND + 2]
        m0, m1, m2, m3 = parts[p, M], parts[p, M + 1], parts[p, M + 2], parts[p, M + 3]
        m4, m5, m6, m7 = parts[p, M + 4], parts[p, M + 5], parts[p, M + 6], parts[p, M + 7]
        m8, m9, m10, m11 = parts[p, M + 8], parts[p, M + 9], parts[p, M + 10], parts[p, M + 11]
        if parts[p, KIND] == ELLIPSOID:
            for i in range(count):
                x, y, z = _placed(points[0, i], points[1, i], points[2, i], place)
                whole[i] = _melt(whole[i], _ellipsoid(x, y, z, m0, m1, m2, m3, m4, m5), melting)
        elif parts[p, KIND] == CAPSULE:
            for i in range(count):
                x, y, z = _placed(points[0, i], points[1, i], points[2, i], place)
                whole[i] = _melt(whole[i], _capsule(x, y, z, m0, m1, m2, m3, m4, m5), melting)
        elif parts[p, KIND] == CYLINDER:
            for i in range(count):
                x, y, z = _placed(points[0, i], points[1, i], points[2, i], place)
                across, other, along = (y, z, x) if m3 == 0 else (x, z, y) if m3 == 1 else (x, y, z)
                whole[i] = _melt(whole[i], _cylinder(across, other, along, m0, m1, m2), melting)
        else:
            for i in range(count):
                x, y, z = _placed(points[0, i], points[1, i], points[2, i], place)
                before = (x - m0 + m5 * z + m6 * y) * m9
                behind = (-m0 - x + m7 * z + m8 * y) * m10
                wide = (abs(y) - m1 + m4 * z) * m11
                box = _rounded(_most(before, behind), wide, abs(z) - m2, m3)
                whole[i] = _melt(whole[i], box, melting)


@_compiled
def distances(parts, points, whole):  # type: ignore[no-untyped-def]
    """Compute ``distance`` for any number of points."""
    near, free = _vectors(), _numbers()
    for first in range(0, len(whole), BLOCK):
        count = min(BLOCK, len(whole) - first)
        near[:, :count] = points[:, first : first + count]
        distance(parts, count, near, free)
        whole[first : first + count] = free[:count]


@_compiled
def _placed(x, y, z, place):  # type: ignore[no-untyped-def]
    """Transform a point to the coordinates of a part: mirror, shift and rotate it."""
    mirrored, turned, right, left, up, r0, r1, r2, r3, r4, r5, r6, r7, r8 = place
    x, y, z = x - right, (abs(y) if mirrored else y) - left, z - up
    if turned:
        x, y, z = _dot(r0, r1, r2, x, y, z), _dot(r3, r4, r5, x, y, z), _dot(r6, r7, r8, x, y, z)
    return x, y, z


@_compiled
def _melt(whole, part, melting):  # type: ignore[no-untyped-def]
    """Compute the polynomial smooth minimum; the plain minimum for a blend of 0."""
    blend, inverse, quarter = melting
    overlap = _most(blend - abs(whole - part), _ZERO) * inverse
    return _least(whole, part) - overlap * overlap * quarter


@_compiled
def _ellipsoid(x, y, z, a, b, c, aa, bb, cc):  # type: ignore[no-untyped-def]
    """Estimate the distance to first order; it is exact on the surface."""
    rx, ry, rz, sx, sy, sz = x * a, y * b, z * c, x * aa, y * bb, z * cc
    reach = np.sqrt(_dot(rx, ry, rz, rx, ry, rz))  # 1 on the surface
    slope = np.sqrt(_dot(sx, sy, sz, sx, sy, sz))
    return reach * (reach - _ONE) / _most(slope, _TINY)


@_compiled
def _capsule(x, y, z, a, b, c, scale, radius, growth):  # type: ignore[no-untyped-def]
    along = _least(_most(_dot(x, y, z, a, b, c) * scale, _ZERO), _ONE)
    x, y, z = x - along * a, y - along * b, z - along * c
    return np.sqrt(_dot(x, y, z, x, y, z)) - (radius + along * growth)


@_compiled
def _cylinder(x, y, z, radius, half, edge):  # type: ignore[no-untyped-def]
    side, end = np.sqrt(x * x + y * y) - radius, abs(z) - half
    inside = _least(_most(side, end), _ZERO)
    side, end = _most(side, _ZERO), _most(end, _ZERO)
    return inside + np.sqrt(side * side + end * end) - edge


@_compiled
def _rounded(long, wide, high, edge):  # type: ignore[no-untyped-def]
    """Compute the distance to a box with rounded edges from the distances to its faces."""
    inside = _least(_most(_most(long, wide), high), _ZERO)
    long, wide, high = _most(long, _ZERO), _most(wide, _ZERO), _most(high, _ZERO)
    return np.sqrt(_dot(long, wide, high, long, wide, high)) + inside - edge


# --- rays -------------------------------------------------------------------------------------------------------------


@_compiled
def _cut(box, axis, origin, towards, enter, leave):  # type: ignore[no-untyped-def]
    """Intersect an interval of a ray with the space between two sides of the box; reversed if empty."""
    scale = _ONE / (_PARALLEL if abs(towards) < _PARALLEL else towards)
    one, other = (box[0, axis] - origin) * scale, (box[1, axis] - origin) * scale
    return _most(enter, _least(one, other)), _least(leave, _most(one, other))


@_compiled
def _first_hit(parts, box, eye, direction, depth, hit, scratch):  # type: ignore[no-untyped-def]
    """Replace the depth of the table with the depth of the toy for rays that hit the toy."""
    points, free, going, at, end, _, ray = scratch
    for i in range(len(depth)):
        hit[i], at[i], end[i] = False, _ZERO, _ENDLESS
    for axis in range(3):
        for i in range(len(depth)):
            at[i], end[i] = _cut(box, axis, eye[axis], direction[axis, i], at[i], end[i])
    count = _NONE
    for i in range(len(depth)):
        leave = _least(end[i], depth[i])
        if at[i] < leave:
            ray[count], at[count], end[count] = i, at[i], leave
            for axis in range(3):
                going[axis, count] = direction[axis, i]
            count += 1
    for _step in range(_HIT_STEPS):
        for axis in range(3):
            for n in range(count):
                points[axis, n] = eye[axis] + at[n] * going[axis, n]
        distance(parts, count, points, free)
        left = _NONE
        for n in range(count):
            if free[n] < _NEAR:
                hit[ray[n]], depth[ray[n]] = True, at[n]
                continue
            further = at[n] + free[n] * _CAUTION
            if further <= end[n]:
                at[left] = further
                if left < n:
                    ray[left], end[left] = ray[n], end[n]
                    for axis in range(3):
                        going[axis, left] = going[axis, n]
                left += 1
        count = left
        if not count:
            break


@_compiled
def _visibility(parts, box, start, count, lamp, seen, scratch):  # type: ignore[no-untyped-def]
    """Compute the visible share of a lamp for each start, from 0 to 1; below 1 if a ray passes close to the toy.

    ``start`` is overwritten.
    """
    points, free, _, at, end, least, ray = scratch
    for i in range(count):
        seen[i], at[i], end[i] = _ONE, _LEAVE, _ENDLESS
    for axis in range(3):
        for i in range(count):
            at[i], end[i] = _cut(box, axis, start[axis, i], lamp[axis], at[i], end[i])
    left = _NONE
    for i in range(count):
        if at[i] < end[i]:
            ray[left], at[left], end[left], least[left] = i, at[i], end[i], _ONE
            start[0, left], start[1, left], start[2, left] = start[0, i], start[1, i], start[2, i]
            left += 1
    count = left
    for step in range(_SHADOW_STEPS):
        for axis in range(3):
            for n in range(count):
                points[axis, n] = start[axis, n] + at[n] * lamp[axis]
        distance(parts, count, points, free)
        for n in range(count):
            least[n] = _least(least[n], free[n] * _SOFTNESS / at[n])
            at[n] = at[n] + _least(_most(free[n], _SHORTEST), _LONGEST)
        left = _NONE
        for n in range(count):
            if least[n] < _DARK or at[n] > end[n] or step == _SHADOW_STEPS - 1:
                share = _most(least[n], _ZERO)
                # the smoothstep, flat at both ends
                seen[ray[n]] = share * share * (_THREE - _TWO * share)
                continue
            if left < n:
                ray[left], at[left], end[left], least[left] = ray[n], at[n], end[n], least[n]
                for axis in range(3):
                    start[axis, left] = start[axis, n]
            left += 1
        count = left
        if not count:
            break


@_compiled
def _surface(parts, count, point, normal, open_, scratch):  # type: ignore[no-untyped-def]
    """Compute normals of the toy at ``count`` points, and the share of ambient light not blocked by toy and table."""
    points, free = scratch[:2]
    for n in range(count):
        normal[0, n] = normal[1, n] = normal[2, n] = open_[n] = _ZERO
    for signs in _TETRAHEDRON:
        for axis in range(3):
            for n in range(count):
                points[axis, n] = point[axis, n] + _PROBE * signs[axis]
        distance(parts, count, points, free)
        for axis in range(3):
            for n in range(count):
                normal[axis, n] += free[n] * signs[axis]
    for n in range(count):
        x, y, z = normal[0, n], normal[1, n], normal[2, n]
        length = _most(np.sqrt(_dot(x, y, z, x, y, z)), _SHORTEST_NORMAL)
        normal[0, n], normal[1, n], normal[2, n] = x / length, y / length, z / length
    for reach, weight in _OCCLUSION:
        for axis in range(3):
            for n in range(count):
                points[axis, n] = point[axis, n] + normal[axis, n] * reach
        distance(parts, count, points, free)
        for n in range(count):
            open_[n] += _most(reach - _least(free[n], points[2, n]), _ZERO) * weight
    for n in range(count):
        open_[n] = _most(_ONE - open_[n], _LEAST_OPENNESS)


# --- light ------------------------------------------------------------------------------------------------------------


@_compiled
def shade(parts, box, camera, across, upwards, settings, radiance, depth, normal, hit):  # type: ignore[no-untyped-def]
    """Trace rays through points of an image once, and shade the first surfaces they hit under several lightings.

    Args:
        parts: see ``shapes.Shape.parts``.
        box: lowest and highest corners of the bounding box of the toy.
        camera: position, forward, right, up and the direction to each lamp, see ``camera.View``.
        across: from -1 at the left edge of the image to 1 at its right edge.
        upwards: from -1 at the lower edge of the image to 1 at its upper edge.
        settings: for each lighting, the brightness of each lamp and of the ambient light, and the exposure.
        radiance: output, ``(lighting, n)``, linear; 1 is white.
        depth: output, the distance to the toy or else to the table.
        normal: output, ``(3, n)``, unit vectors out of the surface.
        hit: output, whether the ray hits the toy.
    """
    lamps = len(camera) - 4
    eye, forward, right, up = camera[0], camera[1], camera[2], camera[3]
    direction, point = _vectors(), _vectors()
    light, shine, open_ = _numbers(), _numbers(), _numbers()
    matt = np.empty((lamps, BLOCK), np.float32)
    gloss = np.empty((lamps, BLOCK), np.float32)
    ray = np.empty(BLOCK, np.int64)
    scratch = _vectors(), _numbers(), _vectors(), _numbers(), _numbers(), _numbers(), ray
    for first in range(0, len(across), BLOCK):
        block = slice(first, min(first + BLOCK, len(across)))
        far, out, on_toy, count = depth[block], normal[:, block], hit[block], len(depth[block])
        for axis in range(3):
            for i in range(count):
                sideways = forward[axis] + across[first + i] * right[axis]
                direction[axis, i] = sideways + upwards[first + i] * up[axis]
        for i in range(count):
            x, y, z = direction[0, i], direction[1, i], direction[2, i]
            length = np.sqrt(_dot(x, y, z, x, y, z))
            direction[0, i], direction[1, i], direction[2, i] = x / length, y / length, z / length
            far[i] = -eye[2] / direction[2, i]  # to the table
        _first_hit(parts, box, eye, direction, far, on_toy, scratch)
        for axis in range(3):
            for i in range(count):
                point[axis, i] = eye[axis] + far[i] * direction[axis, i]
        _all_surfaces(parts, point, on_toy, out, open_, scratch)
        for lamp in range(lamps):
            if settings[:, lamp].any():
                _under_a_lamp(
                    parts,
                    box,
                    camera[4 + lamp],
                    point,
                    direction,
                    out,
                    matt[lamp],
                    gloss[lamp],
                    scratch,
                )
        for number in range(len(settings)):
            around, exposure = settings[number, lamps], settings[number, lamps + 1]
            for i in range(count):
                light[i] = (_FROM_THE_SIDE + _FROM_ABOVE * out[2, i]) * open_[i] * around
                shine[i] = _ZERO
            for lamp in range(lamps):
                brightness = settings[number, lamp]
                if brightness:
                    for i in range(count):
                        light[i] = light[i] + matt[lamp, i] * brightness
                        shine[i] = shine[i] + gloss[lamp, i] * brightness
            for i in range(count):
                toy = light[i] * _PAINT + shine[i] * _GLOSS
                table = light[i] * _TABLE
                radiance[number, first + i] = (toy if on_toy[i] else table) * exposure


@_compiled
def _vectors():  # type: ignore[no-untyped-def]
    return np.empty((3, BLOCK), np.float32)


@_compiled
def _numbers():  # type: ignore[no-untyped-def]
    return np.empty(BLOCK, np.float32)


@_compiled
def _all_surfaces(parts, point, hit, normal, open_, scratch):  # type: ignore[no-untyped-def]
    """Compute normals and openness of the toy and of the table where rays hit them."""
    ray, count = scratch[6], _NONE
    toy_point, toy_normal, toy_open = _vectors(), _vectors(), _numbers()
    for i in range(len(hit)):
        normal[0, i], normal[1, i], normal[2, i], open_[i] = _ZERO, _ZERO, _ONE, _ONE
        if hit[i]:
            ray[count] = i
            for axis in range(3):
                toy_point[axis, count] = point[axis, i]
            count += 1
    _surface(parts, count, toy_point, toy_normal, toy_open, scratch)
    for n in range(count):
        open_[ray[n]] = toy_open[n]
        for axis in range(3):
            normal[axis, ray[n]] = toy_normal[axis, n]


@_compiled
def _under_a_lamp(parts, box, lamp, point, direction, normal, matt, gloss, scratch):  # type: ignore[no-untyped-def]
    """Compute the light from a lamp at each point, and its specular reflection to the eye (Blinn 1977, exponent 16)."""
    start, seen, lit = _vectors(), _numbers(), np.empty(BLOCK, np.int64)
    count, size = _NONE, normal.shape[1]
    for i in range(size):
        a, b, c = normal[0, i], normal[1, i], normal[2, i]
        matt[i] = _most(_dot(a, b, c, lamp[0], lamp[1], lamp[2]), _ZERO)
        x, y, z = lamp[0] - direction[0, i], lamp[1] - direction[1, i], lamp[2] - direction[2, i]
        aligned = _dot(a, b, c, x, y, z)
        mirrored = _most(aligned / np.sqrt(_dot(x, y, z, x, y, z)), _ZERO)
        mirrored = mirrored * mirrored
        mirrored = mirrored * mirrored
        mirrored = mirrored * mirrored
        gloss[i] = mirrored * mirrored if matt[i] > 0 else _ZERO
    for i in range(size):
        if matt[i] > 0:
            lit[count] = i
            for axis in range(3):
                start[axis, count] = point[axis, i] + normal[axis, i] * _LIFT
            count += 1
    _visibility(parts, box, start, count, lamp, seen, scratch)
    for n in range(count):
        matt[lit[n]] *= seen[n]
        gloss[lit[n]] *= seen[n]


# --- images -----------------------------------------------------------------------------------------------------------


@_compiled
def edges(depth, normal, hit, far, rough):  # type: ignore[no-untyped-def]
    """Mark pixels with a neighbour (of four) on another surface: toy against table, a step of depth, or a bend.

    ``depth``, ``hit`` and ``rough``, which receives the marks, are ``(size, size)``; ``far`` is the smallest step.
    """
    size = len(depth)
    rough[:] = False
    for row in range(size):
        for column in range(size):
            for down, right in ((1, 0), (0, 1)):
                r, c = row + down, column + right
                if r < size and c < size and (hit[r, c] or hit[row, column]):
                    x = normal[0, r, c] - normal[0, row, column]
                    y = normal[1, r, c] - normal[1, row, column]
                    z = normal[2, r, c] - normal[2, row, column]
                    step = abs(depth[r, c] - depth[row, column]) > far
                    if step or _dot(x, y, z, x, y, z) > _BEND or hit[r, c] != hit[row, column]:
                        rough[r, c] = rough[row, column] = True


@_compiled
def expose(radiance, keys, image):  # type: ignore[no-untyped-def]
    """Convert radiance to grey levels with a little grain: numbers in [-1, 1], densest at 0, hashed from pixel and key.

    The hash is two rounds of lowbias32 (Chris Wellons, "Prospecting for Hash Functions", 2018). Each lighting has a
    uint32 key; ``image`` receives the grey levels, ``(lighting, n)`` uint8.
    """
    for number in range(len(keys)):
        # ours: keys use another multiplier than pixels (Knuth's), so that the two do not interfere
        key = np.uint32(keys[number] * np.uint32(40503))
        for i in range(radiance.shape[1]):
            hashed = np.uint32(np.uint32(np.uint32(i) * np.uint32(2654435761)) + key)
            hashed = np.uint32((hashed ^ (hashed >> np.uint32(16))) * np.uint32(0x7FEB352D))
            hashed = np.uint32((hashed ^ (hashed >> np.uint32(15))) * np.uint32(0x846CA68B))
            hashed = np.uint32(hashed ^ (hashed >> np.uint32(16)))
            low = np.float32(hashed & np.uint32(0xFFFF))
            high = np.float32(hashed >> np.uint32(16))
            grain = (low + high) * _GRAIN_SCALE - _ONE
            # the square root is the gamma of eyes and cameras; adding a half makes the floor round
            grey = np.sqrt(_least(radiance[number, i], _ONE)) * _WHITE + grain * _GRAIN + _HALF
            image[number, i] = np.uint8(_least(_most(grey, _ZERO), _WHITE))
