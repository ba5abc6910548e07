"""EM routing: fit of the parents of a row to the votes of its children (Hinton 2018, procedure 1)."""
# ruff: noqa: N803, N806 (Triton's constants are upper case)

from __future__ import annotations

from typing import NamedTuple, no_type_check

import triton
import triton.language as tl
from torch import Tensor

from capsule_lab.kernels.em_arguments import FitInputs, FitOptions, FitOutputs
from capsule_lab.kernels.gpu.blocks import launch, load_children, number_type, parents_per_program
from capsule_lab.kernels.gpu.tiles import tile_children, tile_components, tile_sizes, tile_votes
from capsule_lab.kernels.gpu.votes import sum_components

VOTES_KEPT = 144  # ours: registers of a thread (of 255) for votes; the compiler spills none in the layers of the papers
WARP = 32  # threads
MOST_WARPS = 4  # ours: of a program; with more children, votes are computed in each pass over them


def fit(inputs: FitInputs, options: FitOptions) -> FitOutputs:
    """Compute mass, poses, variances and, with ``measure``, distances."""
    poses, weight, _, couplings, previous = inputs
    row, parent, child = couplings.shape
    outputs = FitOutputs(
        mass=couplings.new_empty(row, parent),
        poses=previous.new_empty(previous.shape),
        variances=previous.new_empty(previous.shape),
        distances=couplings.new_empty(row, parent, child if options.measure else 0),
    )
    group = parents_per_program(row, parent)
    constants = tile_sizes(poses, weight, options.inner)
    slots = constants["ROW_SLOTS"] * constants["COLUMN_SLOTS"]
    tiles = fit_tiles(child, slots * number_type(poses).primitive_bitwidth // 8, options.inner)
    if tiles.rest is not None:
        constants["REST"] = tiles.rest
    launch(
        _fit if tiles.rest is not None else _fit_in_passes, (row, triton.cdiv(parent, group)),
        inputs, outputs, parent, group, options.measure,
        DAMPING=options.damping, MIN_VARIANCE=options.min_variance, MASS_EPS=options.mass_eps, CHILD=child,
        LANES=WARP * tiles.warps, KEPT=tiles.kept, num_warps=tiles.warps, **constants,
    )  # fmt: skip
    return outputs


class FitTiles(NamedTuple):
    """Children whose votes a program has in registers, in units of ``warps * WARP`` children.

    Attributes:
        warps: of a program.
        kept: units of a tile, a power of two.
        rest: units of a second tile for the remaining children, a power of two or 0; ``None`` if registers do not
            suffice for the votes of all children, so that each pass over the children computes them again.
    """

    warps: int
    kept: int
    rest: int | None


def fit_tiles(child: int, bytes_per_vote: int, inner: int = 4) -> FitTiles:
    """Return the tiles of a fit of ``child`` children, whose poses have ``inner`` columns; not tuned.

    A 3x3 window has 9 * 2^n children, which are exactly two tiles of 8 * 2^n and 2^n children; a single tile would
    leave nearly half of the threads idle. Few warps exchange few sums.
    """
    registers = VOTES_KEPT if inner <= 4 else VOTES_KEPT // 2  # the others hold poses and weights
    most = max(registers * 4 // bytes_per_vote, 1)
    warps = 1
    while warps < MOST_WARPS and triton.cdiv(child, WARP * warps) > most:
        warps *= 2
    units = triton.cdiv(child, WARP * warps)
    kept = 1 << (min(units, most).bit_length() - 1)
    if units > most:
        return FitTiles(warps, kept, None)
    return FitTiles(warps, kept, triton.next_power_of_2(units - kept) if units > kept else 0)


def distances(
    poses: Tensor, weight: Tensor, parents: Tensor, variances: Tensor, inner: int
) -> Tensor:
    """Compute half the squared distances of votes from parents in units of the variance, ``(row, parent, child)``."""
    return sum_components(poses, weight, parents, 0.5 / variances, inner)


@triton.jit
@no_type_check
def load_assigned(activations, couplings, i, child, NUMBER: tl.constexpr):
    """Load the share of the children ``i`` that is assigned to a parent."""
    return load_children(activations, i, child, NUMBER) * load_children(couplings, i, child, NUMBER)


@triton.jit
@no_type_check
def damped(pose, previous, d, exists, DAMPING: tl.constexpr, NUMBER: tl.constexpr):
    """Return the pose of a parent, which keeps the share DAMPING of the previous pose."""
    if DAMPING != 0:
        before = tl.load(previous + d, mask=exists, other=0.0).to(NUMBER)
        pose = (1 - DAMPING) * pose + DAMPING * before
    return pose


@triton.jit
@no_type_check
def squared_errors(votes, pose):
    error = votes - pose[:, :, None, None]
    return error * error


@triton.jit
@no_type_check
def sum_weighted(weights, tile):
    """Sum a tile with a weight for each child over the children of each thread, ``(slots, slots, LANES)``."""
    return tl.sum(weights[None, None, :, :] * tile, 2)


@triton.jit
@no_type_check
def store_distances(distances, squares, variance, i, child):
    precision = (0.5 / variance)[:, :, None, None]
    of_columns = tl.sum(precision * squares, 0)
    tl.store(distances + i, tl.sum(of_columns, 0), mask=i < child)


@triton.jit(do_not_specialize=["parent", "group"])
@no_type_check
def _fit(
    poses, weight, activations, couplings, previous, mass, parents, variances, distances, parent, group, measure,
    DAMPING: tl.constexpr, MIN_VARIANCE: tl.constexpr, MASS_EPS: tl.constexpr, CHILD: tl.constexpr,
    ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr, ROW_SLOTS: tl.constexpr,
    COLUMN_SLOTS: tl.constexpr, LANES: tl.constexpr, KEPT: tl.constexpr, REST: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """A program fits ``group`` parents of a row, one after the other; the votes of all children stay in registers."""
    D: tl.constexpr = ROWS * COLUMNS
    n = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * group
    d, exists = tile_components(ROWS, COLUMNS, ROW_SLOTS, COLUMN_SLOTS)
    poses += n * (ROWS * INNER * CHILD)
    activations += n * CHILD
    i = tile_children(0, KEPT, LANES)
    if REST > 0:
        i2 = tile_children(KEPT * LANES, REST, LANES)
    for j in range(first, tl.minimum(first + group, parent)):
        at = n * parent + j
        coupling = couplings + at * CHILD
        entries = weight + j * (INNER * COLUMNS * CHILD)
        assigned = load_assigned(activations, coupling, i, CHILD, NUMBER)
        votes = tile_votes(
            poses, entries, i, CHILD, ROWS, INNER, COLUMNS, ROW_SLOTS, COLUMN_SLOTS, NUMBER
        )
        total = tl.sum(assigned, 0)
        mean = sum_weighted(assigned, votes)
        if REST > 0:
            assigned2 = load_assigned(activations, coupling, i2, CHILD, NUMBER)
            votes2 = tile_votes(
                poses, entries, i2, CHILD, ROWS, INNER, COLUMNS, ROW_SLOTS, COLUMN_SLOTS, NUMBER
            )
            total += tl.sum(assigned2, 0)
            mean += sum_weighted(assigned2, votes2)
        filled = tl.sum(total, 0) + MASS_EPS
        share = 1 / filled  # a division takes ten instructions
        pose = damped(tl.sum(mean, 2) * share, previous + at * D, d, exists, DAMPING, NUMBER)
        squares = squared_errors(votes, pose)
        squared = sum_weighted(assigned, squares)
        if REST > 0:
            squares2 = squared_errors(votes2, pose)
            squared += sum_weighted(assigned2, squares2)
        variance = MIN_VARIANCE + tl.sum(squared, 2) * share
        tl.store(mass + at, filled)
        tl.store(parents + at * D + d, pose, mask=exists)
        tl.store(variances + at * D + d, variance, mask=exists)
        if measure:
            store_distances(distances + at * CHILD, squares, variance, i, CHILD)
            if REST > 0:
                store_distances(distances + at * CHILD, squares2, variance, i2, CHILD)


@triton.jit(do_not_specialize=["parent", "group"])
@no_type_check
def _fit_in_passes(
    poses, weight, activations, couplings, previous, mass, parents, variances, distances, parent, group, measure,
    DAMPING: tl.constexpr, MIN_VARIANCE: tl.constexpr, MASS_EPS: tl.constexpr, CHILD: tl.constexpr,
    ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr, ROW_SLOTS: tl.constexpr,
    COLUMN_SLOTS: tl.constexpr, LANES: tl.constexpr, KEPT: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """Like ``_fit`` for more children: each pass over them computes the votes of a tile at a time."""
    D: tl.constexpr = ROWS * COLUMNS
    TILE: tl.constexpr = KEPT * LANES
    n = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * group
    d, exists = tile_components(ROWS, COLUMNS, ROW_SLOTS, COLUMN_SLOTS)
    poses += n * (ROWS * INNER * CHILD)
    activations += n * CHILD
    for j in range(first, tl.minimum(first + group, parent)):
        at = n * parent + j
        coupling = couplings + at * CHILD
        entries = weight + j * (INNER * COLUMNS * CHILD)
        total = tl.full([LANES], 0.0, NUMBER)
        mean = tl.full([ROW_SLOTS, COLUMN_SLOTS, LANES], 0.0, NUMBER)
        for start in range(0, CHILD, TILE):
            i = tile_children(start, KEPT, LANES)
            assigned = load_assigned(activations, coupling, i, CHILD, NUMBER)
            votes = tile_votes(
                poses, entries, i, CHILD, ROWS, INNER, COLUMNS, ROW_SLOTS, COLUMN_SLOTS, NUMBER
            )
            total += tl.sum(assigned, 0)
            mean += sum_weighted(assigned, votes)
        filled = tl.sum(total, 0) + MASS_EPS
        share = 1 / filled  # a division takes ten instructions
        pose = damped(tl.sum(mean, 2) * share, previous + at * D, d, exists, DAMPING, NUMBER)
        squared = tl.full([ROW_SLOTS, COLUMN_SLOTS, LANES], 0.0, NUMBER)
        for start in range(0, CHILD, TILE):
            i = tile_children(start, KEPT, LANES)
            assigned = load_assigned(activations, coupling, i, CHILD, NUMBER)
            votes = tile_votes(
                poses, entries, i, CHILD, ROWS, INNER, COLUMNS, ROW_SLOTS, COLUMN_SLOTS, NUMBER
            )
            squared += sum_weighted(assigned, squared_errors(votes, pose))
        variance = MIN_VARIANCE + tl.sum(squared, 2) * share
        tl.store(mass + at, filled)
        tl.store(parents + at * D + d, pose, mask=exists)
        tl.store(variances + at * D + d, variance, mask=exists)
        if measure:
            for start in range(0, CHILD, TILE):
                i = tile_children(start, KEPT, LANES)
                votes = tile_votes(
                    poses, entries, i, CHILD, ROWS, INNER, COLUMNS, ROW_SLOTS, COLUMN_SLOTS, NUMBER
                )
                store_distances(
                    distances + at * CHILD, squared_errors(votes, pose), variance, i, CHILD
                )
