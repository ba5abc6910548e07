"""Blocks of a fit."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton, which compiles the kernels of a GPU, is not installed", allow_module_level=True)

from capsule_lab.kernels.gpu.tuning import Blocks

from capsule_lab.kernels.gpu.em import fit_blocks


@pytest.mark.parametrize(
    ("child", "bytes_per_vote", "default"),
    [
        (1, 64, Blocks(32, 1)),
        (72, 64, Blocks(64, 2, kept=2)),
        (288, 64, Blocks(64, 2, kept=5)),
        (288, 128, Blocks(64, 2, kept=4)),  # float64: the fifth is computed again in each pass
        (512, 64, Blocks(64, 2, kept=8)),
        (9999, 4, Blocks(64, 2, kept=9)),  # a kernel of any size compiles in time
        (40, 4096, Blocks(64, 2)),
    ],
)
def test_default_keeps_as_many_votes_as_find_room(child: int, bytes_per_vote: int, default: Blocks) -> None:
    assert fit_blocks(child, bytes_per_vote)[0] == default


@pytest.mark.parametrize("blocks", fit_blocks(288, 64))
def test_every_candidate_is_of_powers_of_two_and_leaves_no_thread_idle(blocks: Blocks) -> None:
    assert blocks.children & (blocks.children - 1) == 0
    assert blocks.children >= 32 * blocks.warps
