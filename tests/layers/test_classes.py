"""Class capsules: equal to loops, coordinates against section 2.4 of the notes on EM routing. See test_contract."""

from functools import partial
from typing import Any

import pytest
import torch

from capsule_lab.layers import ClassCapsules
from capsule_lab.layers.classes import ReceptiveField, axes_of, coordinate_addition
from capsule_lab.routing import EMRouting
from tests.reference import em_bridge as bridge
from tests.reference import em_golden as golden
from tests.reference import em_loops as loops
from tests.reference.em_bridge import random

HEIGHT, WIDTH, TYPES, CLASSES = 2, 3, 2, 4
BACKENDS = ["reference", "matmul", "fused"]

exact = partial(torch.testing.assert_close, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "pose", "added", "backend"),
    [
        (
            name,
            ("matrix", "vector")[(number + shift) % 2],
            bool(shift),
            BACKENDS[(number + shift) % 3],
        )
        for number, name in enumerate(bridge.PRESETS)
        for shift in (0, 1)
    ],
)
def test_layer_equals_the_loops(name: str, pose: str, added: bool, backend: str) -> None:
    child_dim, dim, rows, inner, columns = (
        (16, 16, 4, 4, 4) if pose == "matrix" else (3, 5, 1, 3, 5)
    )
    poses, activations = (
        random(2, TYPES, child_dim, HEIGHT, WIDTH),
        random(2, TYPES, HEIGHT, WIDTH, seed=1).sigmoid(),
    )
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
    votes = loops.class_votes_loops(
        poses,
        weight,
        offsets=offsets,
        vote=loops.matrix_vote if pose == "matrix" else loops.vector_vote,
    )
    record = loops.dense_em_loops(
        votes,
        activations.flatten(1),
        *bridge.betas_of_the_loops(layer.routing, CLASSES, dim),
        **{**bridge.in_terms_of_the_loops(options), "normalisation": "all_parents"},
    )[-1]
    classes = layer(bridge.as_children(poses), bridge.as_children(activations))
    exact(classes.poses, record.poses)
    exact(classes.activations, record.activations)


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
