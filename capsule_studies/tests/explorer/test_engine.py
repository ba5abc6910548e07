"""The JavaScript of the explorer equals torch at every iteration of every layer, in node."""

import base64
import json
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from capsule_lab.analysis.trace import trace
from capsule_lab.errors import RunError
from capsule_lab.layers import PrimaryCapsules
from capsule_lab.networks import MatchedCNN, SelfRoutingNet, VBCaps
from capsule_lab.networks.base import AbstractCapsuleNetwork, reconstructs
from capsule_lab.routing import EMRouting, HeinsenRouting, UniformRouting
from capsule_lab.types import RoutingTrace
from capsule_studies.explorer.network import export, rounded
from capsule_studies.tests.explorer_networks import NETWORKS, SHAPE, with_statistics
from tests.helpers.networks import pictures, small_capsnet, small_em_caps
from tests.helpers.tiers import whole_but

pytestmark = [
    pytest.mark.usefixtures("unchecked_types"),
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
]
ENGINE = Path(__file__).parents[2] / "explorer" / "assets" / "engine.js"
RUN = Path(__file__).with_name("run_engine.js")


def in_node(network: Any, images: torch.Tensor, **options: Any) -> list[dict[str, Any]]:
    exported = export(network, "f16")
    given = {
        "index": {"network": exported.network, "tensors": exported.tensors},
        "block": base64.b64encode(exported.block).decode(),
        "images": images.flatten(1).tolist(),
        "options": options,
    }
    command = ["node", RUN, ENGINE]
    ended = subprocess.run(
        command, input=json.dumps(given), capture_output=True, text=True, check=True
    )
    return json.loads(ended.stdout)


def in_torch(network: Any, images: torch.Tensor) -> list[dict[str, Any]]:
    with torch.no_grad():
        if not isinstance(network, AbstractCapsuleNetwork):
            scores = network(images).scores
            shares = scores if isinstance(network, MatchedCNN) else scores.softmax(1)
            return [{"scores": scores, "decoded": None, "steps": []} for scores in shares]
        output, layers = trace(network, images)
        drawn: Any = [None] * len(images)
        if reconstructs(network):
            drawn = network.reconstruct(output, output.scores.argmax(1))
    found = []
    for number, decoded in enumerate(drawn):
        steps = []
        for layer in layers.values():
            steps.append([step_of(step, number, len(images)) for step in layer.iterations])
        found.append({"scores": output.scores[number], "decoded": decoded, "steps": steps})
    return found


def step_of(step: RoutingTrace, number: int, images: int) -> list[torch.Tensor | None]:
    """Return what the engine records of an iteration: EM routing has couplings ordered (window, parent, place)."""
    windows = len(step.couplings) // images
    rows = slice(number * windows, (number + 1) * windows)
    couplings = step.couplings[rows]
    variances = None
    if step.variances is not None:
        couplings = couplings.transpose(1, 2)
        variances = step.variances[rows]
    assert step.activations is not None
    return [couplings, step.poses[rows], variances, step.activations[rows]]


def check_equal(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    if expected is None:
        assert found is None
    elif isinstance(expected, dict):
        for name in expected:
            check_equal(found.get(name), expected[name])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check_equal(one, other)
    else:
        numbers = torch.tensor(found, dtype=torch.float32)
        expected = expected.flatten().float()
        torch.testing.assert_close(numbers, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", whole_but(NETWORKS, "capsnet", "em"))
def test_engine_equals_torch(name: str) -> None:
    torch.manual_seed(0)
    network = rounded(with_statistics(NETWORKS[name]()), "f16")
    images = pictures(2, network.image_shape)
    check_equal(in_node(network, images), in_torch(network, images))


# not "em": capsules of other windows compete there, so that couplings depend on all of the image
FIELDS = ("colour", "em, windows", "em, three convolutions", "same padding", "self-routing network")


@pytest.mark.parametrize("name", whole_but(FIELDS, "colour", "em, windows"))
def test_receptive_field_is_what_a_capsule_depends_on(name: str) -> None:
    network = with_statistics(NETWORKS[name]())
    image = pictures(1, network.image_shape).requires_grad_()
    _, layers = trace(network, image.detach())
    *_, last = layers.values()
    grid = last.child_grid
    assert grid is not None
    row = grid.height // 2
    column = grid.width // 2
    poses = children_of_classes(network, image)
    by_place = grid.at_positions(poses.sum(2))  # [b type h w]
    by_place[:, :, row, column].sum().backward()
    assert image.grad is not None
    seen = image.grad[0].abs().sum(0) > 0
    (found,) = in_node(network, image.detach())
    *_, field = found["fields"]
    assert pixels_of(field["rows"], row, network.image_shape[1]) == indices(seen.any(1))
    assert pixels_of(field["columns"], column, network.image_shape[2]) == indices(seen.any(0))


def pixels_of(field: dict[str, int], place: int, size: int) -> list[int]:
    """The pixels of an image of this size that a place of the grid sees, along an axis."""
    start = field["start"] + place * field["step"]
    end = start + field["size"]
    inside = range(max(0, start), min(size, end))
    return [*inside]


def indices(mask: torch.Tensor) -> list[int]:
    found: list[int] = mask.nonzero().flatten().tolist()
    return found


def children_of_classes(network: Any, image: torch.Tensor) -> torch.Tensor:
    """Return the poses below the class capsules, with their gradient."""
    found: list[torch.Tensor] = []
    below = [*network.capsule_layers().values()][-2]
    hook = below.register_forward_hook(lambda layer, given, output: found.append(output.poses))
    network(image)
    hook.remove()
    return found[0]


def test_half_precision_is_what_the_page_computes_with() -> None:
    network = with_statistics(small_capsnet(SHAPE, 10))
    weight = network.digits.weight
    in_half = rounded(network, "f16").digits.weight
    in_full = rounded(network, "f32").digits.weight
    assert not torch.equal(in_half, weight)
    assert torch.equal(in_full, weight)
    exported = export(network, "f16")
    assert {tensor["dtype"] for tensor in exported.tensors} == {"f16", "f32"}


RELU_SQUASHED = partial(PrimaryCapsules, types=2, squash="relu")
DAMPED = partial(EMRouting, damping=0.1)
MIXTURE = partial(EMRouting, activation="mixing_proportions")
OF_ALL = {"decoder": (8,), "masked_decoder": False}


@pytest.mark.parametrize(
    ("network", "named"),
    [
        (partial(small_capsnet, SHAPE, 10, **OF_ALL), "masked_decoder=false"),
        (partial(small_capsnet, SHAPE, 10, transformation="shared"), "ClassCapsules"),
        (partial(small_capsnet, SHAPE, 10, primary=RELU_SQUASHED), "primary.squash"),
        (partial(small_em_caps, SHAPE, 10, routing=DAMPED), "routing.damping=0.1"),
        (partial(small_em_caps, SHAPE, 10, routing=MIXTURE), "routing.activation=mixing"),
        (partial(small_em_caps, SHAPE, 10, pose="vector"), "poses that are not 4x4 matrices"),
        (partial(SelfRoutingNet, SHAPE, 10, conv_strides=(2,)), "model.conv_strides"),
        (partial(VBCaps, SHAPE, 10), "VBCaps"),
    ],
)
def test_what_the_engine_lacks_is_named(network: Any, named: str) -> None:
    message = f"the explorer has no {named}.*; expected a CapsNet, an Efficient"
    with pytest.raises(RunError, match=message):
        export(network(), "f16")


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (
            partial(small_capsnet, SHAPE, 10, routing=HeinsenRouting),
            "no HeinsenRouting; expected routing=dynamic, uniform, random_couplings",
        ),
        (
            partial(small_em_caps, SHAPE, 10, routing=UniformRouting, class_routing=None),
            "no UniformRouting between matrix capsules; expected routing=em_normalised, em or em_p",
        ),
    ],
    ids=["heinsen", "uniform"],
)
def test_routings_that_the_engine_has_are_named(network: Any, message: str) -> None:
    with pytest.raises(RunError, match=f"^the explorer has {message}"):
        export(network(), "f16")


def test_equal_couplings_are_equal() -> None:
    network = with_statistics(small_capsnet(SHAPE, 10))
    (found,) = in_node(network, pictures(1, SHAPE), equal=True)
    (steps,) = found["steps"]
    for couplings, *_ in steps:
        assert couplings == pytest.approx([0.1] * len(couplings))
