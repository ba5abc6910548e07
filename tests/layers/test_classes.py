"""Class capsules: equal to loops, coordinates against section 2.4 of the notes on EM routing. See test_contract."""

from functools import partial
from typing import Any

import pytest
import torch

from capsule_lab.layers import ClassCapsules
from capsule_lab.layers.classes import ReceptiveField, axes_of, coordinate_addition
from capsule_lab.routing import EMRouting
from tests.helpers.closeness import assert_close
from tests.reference import em_bridge as bridge
from tests.reference import em_golden as golden
from tests.reference import em_loops as loops
from tests.reference.em_bridge import random

HEIGHT, WIDTH, TYPES, CLASSES = 2, 3, 2, 4
BACKENDS = ["reference", "matmul", "fused"]

exact = partial(assert_close, atol=1e-10)

CASES = []
"""Each preset without and with coordinates; poses and backends alternate."""
for number, preset in enumerate(bridge.PRESETS):
    for added in (False, True):
        turn = number + added
        CASES.append((preset, ("matrix", "vector")[turn % 2], added, BACKENDS[turn % 3]))


@pytest.mark.parametrize(("name", "pose", "added", "backend"), CASES)
def test_layer_equals_the_loops(name: str, pose: str, added: bool, backend: str) -> None:
    if pose == "matrix":
        rows, inner, columns = 4, 4, 4
        vote = loops.matrix_vote
    else:
        rows, inner, columns = 1, 3, 5
        vote = loops.vector_vote
    child_dim = rows * inner
    dim = rows * columns
    poses = random(2, TYPES, child_dim, HEIGHT, WIDTH)
    activations = random(2, TYPES, HEIGHT, WIDTH, seed=1).sigmoid()
    weight = 0.5 * random(TYPES, inner, columns, CLASSES, seed=2)
    offsets = added * random(dim, HEIGHT, WIDTH, seed=3)
    coordinates = offsets.permute(1, 2, 0).flatten(0, 1) if added else None
    options = {**bridge.class_preset(name), "backend": backend}
    routing = partial(EMRouting, **options)
    layer = ClassCapsules(
        HEIGHT * WIDTH,
        TYPES,
        child_dim,
        CLASSES,
        dim,
        rows=rows,
        coordinates=coordinates,
        routing=routing,
    ).double()
    layer.weight.data = bridge.as_class_weight(weight)
    of_loops = {**bridge.in_terms_of_the_loops(options), "normalisation": "all_parents"}
    records = loops.dense_em_loops(
        loops.class_votes_loops(poses, weight, offsets=offsets, vote=vote),
        activations.flatten(1),
        *bridge.betas_of_the_loops(layer.routing, CLASSES, dim),
        **of_loops,
    )
    classes = layer(bridge.as_children(poses), bridge.as_children(activations))
    exact(classes.poses, records[-1].poses)
    exact(classes.activations, records[-1].activations)


def coordinates(
    size: int, layers: Any, outside: Any = (0, 0, 0, 0), *, n: int, kind: Any = "receptive_field"
) -> Any:
    return axes_of(kind, (n, n), ReceptiveField((size, size), tuple(layers), outside))


@pytest.mark.parametrize("size", golden.COORDINATES)
def test_receptive_fields_are_where_the_official_code_says(size: int) -> None:
    expected = torch.tensor(golden.COORDINATES[size])
    exact(coordinates(size, golden.LAYERS, n=len(expected)), (expected, expected), atol=1e-6)


@pytest.mark.parametrize(
    ("size", "padding"), [(28, (1, 2, 1, 2)), (32, (0, 0, 0, 0))], ids=["padded", "not"]
)
def test_centres_as_a_share_of_the_image_are_those_of_the_tutorial(
    size: int, padding: tuple[int, ...]
) -> None:
    first = 8 if size == 28 else 9
    expected = torch.tensor([first, first + 4, first + 8, first + 12]) / size
    found = coordinates(size, [(5, 2), (3, 2), (3, 1)], padding, n=4, kind="image_share")
    exact(found, (expected, expected), atol=1e-6)


def test_golden_class_test_has_the_coordinates_of_24_pixels() -> None:
    added = coordinate_addition(axes=coordinates(24, golden.LAYERS, n=2), entries=(1, 0), dim=16)
    exact(added.double(), golden.class_offsets().permute(1, 2, 0).flatten(0, 1), atol=1e-6)
