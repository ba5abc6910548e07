import itertools
import math
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from capsule_lab.layers import Windows, build_normaliser
from tests.helpers.closeness import assert_close
from tests.reference import em_loops as loops
from tests.reference.loops import double

Geometry = tuple[tuple[int, int], int, int, int]
"""Size, types, kernel size, stride."""

GEOMETRIES: list[Geometry] = [
    ((3, 3), 1, 3, 1),
    ((5, 7), 3, 3, 2),
    ((7, 5), 1, 2, 1),
    ((4, 6), 2, 3, 2),  # the last row and column have no parent
    ((6, 5), 2, 2, 3),  # nor have those between two windows
    ((7, 9), 1, 5, 2),
]
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
NORMALISATIONS = ["all_parents", "window", "official_legacy", "official_fast"]
every_normalisation = pytest.mark.parametrize("normalisation", NORMALISATIONS)

BATCH, PARENTS = 2, 3


def build(geometry: Geometry) -> Windows:
    size, types, kernel_size, stride = geometry
    return Windows(size, types, kernel_size=kernel_size, stride=stride)


def fields(geometry: Geometry, stride: int | None = None) -> list[list[int]]:
    """Children that each position sees, ``[position][place]``, one by one; with another stride at as many positions."""
    (height, width), types, kernel, own = geometry
    step = own if stride is None else stride
    rows = (height - kernel) // own + 1
    columns = (width - kernel) // own + 1
    positions = []
    for y, x in product(range(rows), range(columns)):
        places = []
        for row, column, kind in product(range(kernel), range(kernel), range(types)):
            child_row = step * y + row
            child_column = step * x + column
            cell = child_row * width + child_column
            places.append(cell * types + kind)
        positions.append(places)
    return positions


def log_couplings(geometry: Geometry, scale: float = 1.0) -> Tensor:
    of_image = fields(geometry)
    positions = len(of_image)
    places = len(of_image[0])
    shape = BATCH * positions, PARENTS, places
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(shape, dtype=torch.float64, generator=generator)


def test_poses_of_windows_are_copied_once() -> None:
    """Fused kernels read ``(window, dim, place)``; that order needs no second copy."""
    windows = build(GEOMETRIES[1])
    poses = torch.randn(BATCH, windows.child_count, 4)
    found = windows.poses(poses)
    assert found.transpose(1, 2).is_contiguous()
    expected = poses[:, fields(GEOMETRIES[1])]  # [image window place dim]
    assert torch.equal(found, expected.flatten(0, 1))


def total_couplings(couplings: Tensor, geometry: Geometry) -> Tensor:
    """Sum of the couplings of each child that has parents, over all positions, ``(batch, child)``."""
    (height, width), types, *_ = geometry
    child = torch.tensor(fields(geometry)).flatten()
    children = height * width * types
    total = torch.zeros(BATCH, children, dtype=couplings.dtype)
    over_parents = couplings.sum(1).view(BATCH, -1)
    total.index_add_(1, child, over_parents)
    return total[:, child.unique()]


def by_loops(log_weights: Tensor, geometry: Geometry, normalisation: str) -> Tensor:
    """The same through ``em_loops.normalise``, one image at a time."""
    (height, width), types, *_ = geometry
    windows = fields(geometry)
    at_stride_one = fields(geometry, stride=1)
    numbers = range(height * width * types)
    children = [loops.Child(1.0, type=number % types) for number in numbers]
    parents: list[loops.Parent] = []
    edges = []
    for position, kind in product(range(len(windows)), range(PARENTS)):
        pairs = zip(windows[position], at_stride_one[position], strict=True)
        for child, legacy_child in pairs:
            edge = loops.Edge(child, len(parents), [], stride_one_child=legacy_child)
            edges.append(edge)
        parents.append(loops.Parent(type=kind, position=position))
    images = log_weights.view(BATCH, -1).tolist()
    couplings = []
    for image in images:
        of_image = loops.normalise(image, children, parents, edges, normalisation)
        couplings.append(of_image)
    return double(couplings).view_as(log_weights)


@every_geometry
def test_windows_hold_their_children(geometry: Geometry) -> None:
    """Child by child; the number of a pose encodes image, index and component."""
    (height, width), types, kernel, stride = geometry
    windows = build(geometry)
    of_image = fields(geometry)
    children = height * width * types
    assert windows.child.tolist() == of_image
    assert windows.child_at_stride_1.tolist() == fields(geometry, stride=1)
    poses = torch.arange(BATCH * children * 4.0).view(BATCH, children, 4)
    activations = poses[..., 0]
    expected_poses = poses[:, of_image].flatten(0, 1)
    expected_activations = activations[:, of_image].flatten(0, 1)
    assert torch.equal(windows.poses(poses), expected_poses)
    assert torch.equal(windows.activations(activations), expected_activations)
    image = torch.zeros(1, 1, height, width)
    weight = torch.zeros(1, 1, kernel, kernel)
    convolved = torch.nn.functional.conv2d(image, weight, stride=stride)
    assert windows.grid == tuple(convolved.shape[2:])
    assert windows.positions == len(of_image)
    assert windows.places == len(of_image[0])


@every_normalisation
def test_couplings_equal_the_loops(normalisation: str) -> None:
    scales = itertools.cycle([0.0, 1.0, 20.0])
    for geometry, scale in zip(GEOMETRIES, scales, strict=False):
        weights = log_couplings(geometry, scale)
        normaliser = build_normaliser(normalisation, build(geometry))
        couplings = normaliser(weights)
        expected = by_loops(weights, geometry, normalisation)
        assert_close(couplings, expected)
        of_smaller = normaliser(weights - 1e4)
        assert_close(of_smaller, couplings, atol=1e-10)
        alone = [normaliser(image) for image in weights.chunk(BATCH)]
        assert_close(torch.cat(alone), couplings, atol=1e-15)


@every_geometry
def test_all_parents_of_a_child_share_it(geometry: Geometry) -> None:
    normaliser = build_normaliser("all_parents", build(geometry))
    for scale in (0.0, 1.0, 300.0, 1e5):
        couplings = normaliser(log_couplings(geometry, scale))
        assert (couplings >= 0).all()
        total = total_couplings(couplings, geometry)
        tolerance = 1e-10 if scale > 1e3 else 1e-12
        assert_close(total, torch.ones_like(total), atol=tolerance)


def totals_of(normalisation: str, geometry: Geometry) -> Tensor:
    normaliser = build_normaliser(normalisation, build(geometry))
    couplings = normaliser(log_couplings(geometry))
    return total_couplings(couplings, geometry)


def test_each_window_takes_a_whole_child() -> None:
    """From corner to centre of 5x5 at stride 1 the couplings of a child sum to 1 to 9."""
    total = totals_of("window", ((5, 5), 1, 3, 1))
    along = double([1, 2, 3, 2, 1])
    expected = torch.outer(along, along).flatten()
    assert_close(total, expected.expand(BATCH, 25))


def test_legacy_couplings_sum_to_one_per_type() -> None:
    """Up to one unit per parent type at stride 1: three of them for a child that no better one silences."""
    total = totals_of("official_legacy", ((5, 5), 2, 3, 1))
    assert_close(total, torch.full_like(total, PARENTS), atol=1e-4)


def test_legacy_pools_the_wrong_children_at_stride_2() -> None:
    total = totals_of("official_legacy", ((5, 7), 2, 3, 2))
    assert total.max() > PARENTS + 0.1
    assert total.min() < PARENTS - 0.1


def test_fast_silences_a_child_far_below_the_best_of_its_type() -> None:
    """Two children of one type seen by one parent each, 20 nats apart: e^-20 over the floor of 1e-6 is left."""
    windows = Windows((1, 3), 2, kernel_size=1)
    normaliser = build_normaliser("official_fast", windows)
    weights = double([[0.0, 5.0], [-10.0, 5.0], [-20.0, 5.0]])
    expected = torch.ones(3, 2).double()
    expected[2, 0] = math.exp(-20) / 1e-6
    couplings = normaliser(weights.unsqueeze(1))
    assert_close(couplings, expected.unsqueeze(1))


@every_normalisation
def test_couplings_have_their_gradient(normalisation: str) -> None:
    geometry = (4, 3), 1, 2, 1
    weights = log_couplings(geometry).requires_grad_()
    normaliser = build_normaliser(normalisation, build(geometry))
    assert gradcheck(normaliser, (weights,), fast_mode=True)


@every_normalisation
def test_total_is_the_images(normalisation: str) -> None:
    windows = Windows((4, 4), 1)
    mass = torch.rand(BATCH * 4, PARENTS, dtype=torch.float64)
    of_image = mass.view(BATCH, -1).sum(1)
    expected = of_image.repeat_interleave(4)[:, None]
    normaliser = build_normaliser(normalisation, windows)
    assert_close(normaliser.total(mass), expected)
