"""Inverted dot-product attention: golden numbers of the official code, and a mistake of that code."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.functional import dense_votes
from capsule_lab.layers import ConvCapsules, Windows
from capsule_lab.routing import InvertedAttention, inverted_attention
from capsule_lab.types import RoutingTrace, Votes
from tests.helpers.closeness import assert_close
from tests.helpers.waves import cosine, sine
from tests.reference.wrong import scrambled_windows, windows

every_backend = pytest.mark.parametrize("backend", ["reference", "matmul", "fused"])


def golden(found: Tensor, numbers: tuple[float, ...]) -> None:
    expected = torch.tensor(numbers, dtype=torch.float64)
    assert_close(found, expected)


POSES = sine(1, 6, 4, 4, frequency=0.37, phase=0.1).flatten(2)
# given as [i x d j]
WEIGHT = cosine(6, 4, 4, 3, scale=0.3, frequency=0.53, phase=0.2)
WEIGHT = WEIGHT.permute(0, 1, 3, 2)

FIRST_POSE = {  # of parent 0, components 0 to 3, after so many iterations
    1: (0.32931677600623, 0.71479958571380, -0.35971937642755, -0.70393530064861),
    2: (0.32351725850799, 0.71346787044731, -0.35387411741148, -0.70283347545974),
    3: (0.32186618972809, 0.71385918294694, -0.35223970104332, -0.70328918175753),
}
LAST_POSE = {  # of parent 2, components 12 to 15
    2: (0.63826681995090, 1.58455756265021, -0.69925483254031, -1.55783579262475),
    3: (0.63985427658264, 1.57909142234928, -0.70062239186474, -1.55230716096071),
}
COUPLINGS = {  # of child 0
    2: (0.33276076363550, 0.33637754871967, 0.33086168764484),
    3: (0.33146251184382, 0.33938068014507, 0.32915680801111),
}


@every_backend
def test_dense_golden_numbers(backend: Any) -> None:
    for iterations in (1, 2, 3):
        traces: list[RoutingTrace] = []
        poses = inverted_attention(
            Votes(POSES, WEIGHT),
            iterations=iterations,
            backend=backend,
            on_iteration=traces.append,
        ).poses
        golden(poses[0, 0, :4], FIRST_POSE[iterations])
        if iterations > 1:
            golden(poses[0, 2, 12:], LAST_POSE[iterations])
            golden(traces[-1].couplings[0, 0], COUPLINGS[iterations])


GRID = sine(1, 2, 5, 5, 16, frequency=0.37, phase=0.1)  # given as [b type y x d]
GRID = GRID.permute(0, 2, 3, 1, 4)
KERNEL = cosine(3, 3, 2, 4, 4, 3, scale=0.3, frequency=0.53, phase=0.2)
KERNEL = KERNEL.flatten(0, 2).permute(0, 1, 3, 2)
CONVOLUTIONAL = {
    1: (-0.00149928735592, 1.42837436164249, -0.05594932269180, -1.42881754166572),
    2: (-0.05188538418582, 1.46703966244159, -0.00713319134316, -1.46944265044923),
    3: (-0.18059808884661, 1.55096608706636, 0.11814822928146, -1.55838859714444),
}


@every_backend
def test_convolutional_golden_numbers(backend: Any) -> None:
    for iterations, pose in CONVOLUTIONAL.items():
        routing = partial(InvertedAttention, iterations=iterations, backend=backend)
        layer = ConvCapsules((5, 5), 2, 16, 3, 16, rows=4, stride=2, routing=routing)
        layer.double()
        layer.weight.data = KERNEL.contiguous()
        poses = GRID.flatten(1, 3)
        activations = torch.ones(1, 50).double()
        parents = layer(poses, activations)
        golden(parents.poses[0, 0, :4], pose)


def test_windows_equal_those_of_the_correct_version() -> None:
    """The numbers of a pose encode child and component, so that a permutation shows."""
    numbers = torch.arange(5 * 6 * 2 * 3, dtype=torch.float64)
    coded = numbers.view(1, 5, 6, 2, 3)
    ours = Windows((5, 6), 2, kernel_size=3, stride=2)
    found = ours.poses(coded.flatten(1, 3))
    expected = windows(coded, 3, 2).flatten(0, 2).flatten(1, 3)
    assert torch.equal(found, expected)


def poses_from(children: Tensor) -> Tensor:
    """Poses from windows of children, ``(image, y, x, row, column, type, d)``."""
    by_window = children.flatten(0, 2).flatten(1, 3).contiguous()
    votes = dense_votes(by_window, KERNEL)
    return inverted_attention(votes).poses


def test_scrambled_windows_are_caught() -> None:
    right = poses_from(windows(GRID, 3, 2))
    wrong = poses_from(scrambled_windows(GRID, 3, 2))
    golden(right[0, 0, :4], CONVOLUTIONAL[2])
    assert wrong.shape == right.shape
    assert (wrong - right).abs().max() > 1


def test_poses_of_one_component_are_refused() -> None:
    message = "poses have 1 component, which layer normalisation makes 0; expected 2 or"
    with pytest.raises(ValueError, match=message):
        InvertedAttention(3, 1)
