"""Self-routing (Hahn 2019): golden numbers, windows with padding, and wrong versions."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.layers import ClassCapsules, ConvCapsules, DenseCapsules
from capsule_lab.routing import LayerInfo, SelfRouting, self_routing
from capsule_lab.types import RoutingTrace, Votes
from tests.helpers.closeness import assert_close
from tests.helpers.networks import count
from tests.helpers.routing_contract import learned
from tests.helpers.waves import cosine, sine
from tests.reference import wrong


def golden(values: Tensor, *expected: float) -> None:
    """Values equal the official module's numbers to their fourteen printed digits."""
    assert values.flatten().tolist() == pytest.approx(expected, rel=0, abs=2e-14)


def dense_example() -> tuple[Votes, Tensor, Tensor, Tensor]:
    """Votes, activations, weight and bias of the couplings for 6 children of dim 4 and 3 parents of dim 5."""
    poses = sine(1, 6, 4, frequency=0.37, phase=0.1)
    # [i j d c]
    transformations = cosine(6, 3, 5, 4, scale=0.3, frequency=0.53, phase=0.2)
    weight_of_votes = transformations.permute(0, 3, 1, 2)
    votes = Votes(poses, weight_of_votes)
    activations = 0.5 + sine(1, 6, scale=0.4, frequency=0.91)
    weight = sine(6, 3, 4, scale=0.7, frequency=0.29, phase=0.3)
    bias = cosine(6, 3, scale=0.2, frequency=0.61)
    return votes, activations, weight, bias


@pytest.mark.parametrize("backend", ["reference", "matmul", "fused"])
def test_values_are_the_golden_numbers(backend: Any) -> None:
    traces: list[RoutingTrace] = []
    given = dense_example()
    parents = self_routing(*given, on_iteration=traces.append, backend=backend)
    couplings = traces[0].couplings
    golden(couplings[0, 0], 0.43199299645598, 0.46962124405215, 0.09838575949187)
    golden(parents.activations[0], 0.33816042441632, 0.21190647739777, 0.44993309818592)
    pose = (
        0.19500710874925,
        0.09225428133053,
        -0.29132208684438,
        0.21189074054125,
        0.07010468924014,
    )
    golden(parents.poses[0, 0], *pose)
    golden(parents.poses.sum(), 0.29707623004291)
    assert_close(parents.logits, parents.activations.log(), atol=1e-14)


def test_convolution_gives_the_golden_numbers() -> None:
    """Children: 2 types of dim 4 on 5x5. Parents: 3 types of dim 5 in 3x3 windows, stride 2, padding 1, so on 3x3."""
    layer = ConvCapsules((5, 5), 2, 4, 3, 5, routing=SelfRouting, stride=2, padding=1)
    layer.double()
    # [place·type j d c]
    transformations = cosine(18, 3, 5, 4, scale=0.3, frequency=0.53, phase=0.2)
    layer.weight.data = transformations.permute(0, 3, 1, 2)
    layer.routing.weight.data = sine(18, 3, 4, scale=0.7, frequency=0.29, phase=0.3)
    layer.routing.bias.data = cosine(18, 3, scale=0.2, frequency=0.61)
    maps = sine(1, 2, 4, 5, 5, frequency=0.37, phase=0.1)  # [b type c y x]
    poses = maps.permute(0, 3, 4, 1, 2).flatten(1, 3)
    active_maps = 0.5 + sine(1, 2, 5, 5, scale=0.4, frequency=0.91)  # [b type y x]
    activations = active_maps.permute(0, 2, 3, 1).flatten(1)
    parents = layer(poses, activations)
    assert layer.windows.grid == (3, 3)
    active = parents.activations.view(3, 3, 3)  # [y x j]
    golden(active[0, 0], 0.37997715778976, 0.31980960991972, 0.30021323229053)
    golden(active[1, 1], 0.32323359560581, 0.31776668647675, 0.35899971791745)
    pose = (
        0.09466239332460,
        0.04096041426783,
        -0.13742573553567,
        0.10251430058470,
        0.03039912958470,
    )
    golden(parents.poses[0, 0], *pose)
    golden(parents.poses.sum(), -0.04034270968984)


def test_inactive_children_count_equally() -> None:
    votes, activations, weight, bias = dense_example()
    inactive = torch.zeros_like(activations)
    alike = torch.full_like(activations, 1e-3)
    found = self_routing(votes, inactive, weight, bias)
    expected = self_routing(votes, alike, weight, bias)
    assert_close(found[:3], expected[:3], atol=1e-14)


def test_couplings_come_from_poses_without_coordinates() -> None:
    torch.manual_seed(0)
    options = {"routing": SelfRouting, "rows": 2}
    plain = ClassCapsules(3, 2, 4, 5, 4, **options)
    for parameter in plain.routing.parameters():
        assert not parameter.any(), "couplings are equal at first"
    torch.nn.init.normal_(plain.routing.weight)
    coordinates = torch.rand(3, 4)
    added = ClassCapsules(3, 2, 4, 5, 4, coordinates=coordinates, **options)
    added.load_state_dict(plain.state_dict())
    poses = torch.randn(2, 6, 4)
    activations = torch.rand(2, 6)
    parents = added(poses, activations)
    expected = plain(poses, activations)
    torch.testing.assert_close(parents.activations, expected.activations)
    assert not torch.allclose(parents.poses, expected.poses)


@pytest.mark.parametrize(
    "build",
    [
        partial(DenseCapsules, 6, 4, 5, 4),
        partial(ClassCapsules, 3, 2, 4, 5, 4, rows=2, coordinates=torch.rand(3, 4)),
    ],
    ids=["dense", "class"],
)
def test_routing_without_poses_has_no_transformations(build: Callable[..., Any]) -> None:
    with_poses = build(routing=partial(SelfRouting, poses=True))
    without = build(routing=partial(SelfRouting, poses=False))
    transformations = with_poses.weight.numel()
    assert transformations > 0
    assert count(with_poses) - count(without) == transformations
    poses = torch.randn(2, 6, 4)
    activations = torch.rand(2, 6)
    parents = without(poses, activations)
    assert parents.poses.shape == (2, 5, 0)
    expected = with_poses(poses, activations).activations
    torch.testing.assert_close(parents.activations, expected)
    parents.logits[:, 0].sum().backward()
    of_routing = learned(without)
    assert len(of_routing) == 2
    for parameter in of_routing:
        assert parameter.grad is not None


def test_convolutional_capsules_need_poses() -> None:
    without_poses = partial(SelfRouting, poses=False)
    with pytest.raises(ValueError, match=r"routing\.poses is false; expected true"):
        ConvCapsules((5, 5), 2, 4, 3, 4, routing=without_poses)


@pytest.mark.usefixtures("unchecked_types")
def test_input_of_wrong_sizes_is_refused() -> None:
    routing = SelfRouting(3, 5)
    routing.build(LayerInfo(3, 5, 6, 4, shared=False, child_types=6))
    routing.double()
    votes, active, *_ = dense_example()
    five_children = Votes(votes.poses[:, :5], votes.weight[:5])
    two_components = Votes(votes.poses[..., :2], votes.weight[:, :2])
    dense = torch.rand(1, 6, 3, 5)
    with pytest.raises(ValueError, match="received a tensor of votes; expected Votes"):
        routing(dense, active)
    with pytest.raises(ValueError, match="there are 5 children of 6 types; expected a multiple"):
        routing(five_children, active[:, :5])
    with pytest.raises(ValueError, match="poses have 2 components, the routing's weight 4"):
        routing(two_components, active)


def check_finite_without_active_children(routing: Callable[..., tuple[Tensor, Tensor]]) -> None:
    votes = torch.ones(1, 6, 3, 5)
    logits = torch.zeros(1, 6, 3)
    activations = torch.zeros(1, 6)
    for found in routing(votes, logits, activations):
        assert found.isfinite().all()


def test_only_mistakes_are_caught() -> None:
    wrong.check_catches(check_finite_without_active_children, wrong.unguarded, wrong.self_routing)
    votes, activations, weight, bias = dense_example()
    logits = torch.einsum("bic,ijc->bij", votes.poses, weight) + bias
    dense = torch.einsum("bic,icjd->bijd", votes.poses, votes.weight)
    expected = self_routing(votes, activations, weight, bias)
    found = wrong.self_routing(dense, logits, activations)
    assert_close(found, expected[:2], atol=1e-14)
