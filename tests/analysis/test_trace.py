import functools
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_lab import routing as routings
from capsule_lab.analysis.trace import LayerTrace, concatenate, trace
from capsule_lab.functional import dense_votes
from capsule_lab.networks import EfficientCapsNet, EMCaps, HeinsenNet
from capsule_lab.routing import (
    AbstractRouting,
    EMRouting,
    HeinsenRouting,
    NormalisedEMRouting,
    ScaledDistanceAgreement,
)
from capsule_lab.types import RoutingTrace, Votes
from tests.helpers.networks import small_capsnet, small_em_caps

ROUTINGS: list[type[AbstractRouting]] = []
for routing_name in routings.__all__:
    public = getattr(routings, routing_name)
    if isinstance(public, type) and issubclass(public, AbstractRouting):
        ROUTINGS.append(public)
ROUTINGS.remove(AbstractRouting)


@pytest.fixture
def images() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(2, 1, 24, 24, generator=generator)


def random_network(**options: Any) -> EMCaps:
    torch.manual_seed(1)
    options = {"class_routing": None, "conv_weight_std": 0.5, **options}
    network = small_em_caps((1, 24, 24), 4, **options).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return network


def by_name(network: nn.Module, images: Tensor) -> dict[str, LayerTrace]:
    return dict(trace(network, images)[1])


def test_every_layer_that_routes_and_nothing_of_the_network_changes(images: Tensor) -> None:
    network = random_network()
    expected = network(images)
    heard: list[RoutingTrace] = []

    def with_callback(_: nn.Module, inputs: Any, options: dict[str, Any]) -> Any:
        return inputs, {**options, "on_iteration": heard.append}

    hook = network.classes.register_forward_pre_hook(with_callback, with_kwargs=True)
    output, layers = trace(network, images)
    hook.remove()
    torch.testing.assert_close(tuple(heard), layers["classes"].iterations)
    torch.testing.assert_close(output, expected)
    for module in network.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    grids = {name: layer.child_grid for name, layer in layers.items()}
    assert grids == {
        "conv_capsules_1": (10, 10, 2, False),
        "conv_capsules_2": (4, 4, 3, False),
        "classes": (2, 2, 2, False),
    }


@pytest.mark.parametrize("kind", ROUTINGS)
def test_last_iteration_of_every_routing_is_the_output(kind: Any, images: Tensor) -> None:
    options: dict[str, Any] = {}
    if kind.competing == "children":  # it does not route in convolutional layers
        options = {"conv_types": (), "conv_strides": ()}
    layers = by_name(random_network(routing=kind, **options), images)
    for layer in layers.values():
        last = layer.iterations[-1]
        parents = layer.parents
        if kind is EMRouting:
            poses = last.poses.reshape(parents.poses.shape)
            torch.testing.assert_close(poses, parents.poses)
        activations = last.activations.reshape(parents.activations.shape)
        torch.testing.assert_close(activations, parents.activations)


@pytest.mark.parametrize(
    "routing",
    [
        EMRouting,
        functools.partial(NormalisedEMRouting, pose_norm=False),
        HeinsenRouting,
    ],
)
def test_poses_and_variances_are_those_of_the_votes(routing: Any, images: Tensor) -> None:
    layers = by_name(random_network(routing=routing).double(), images.double())
    for name, iteration in itertools.product(["conv_capsules_1", "classes"], range(2)):
        layer = layers[name]
        votes = layer.votes()
        found = layer.iterations[iteration]
        weights = found.couplings * layer.present.unsqueeze(2)
        mass = weights.sum(1).unsqueeze(2)
        means = torch.einsum("bij,bijd->bjd", weights, votes) / mass
        squared = (votes - found.poses.unsqueeze(1)).square()
        variances = torch.einsum("bij,bijd->bjd", weights, squared) / mass
        seen = mass.squeeze(2) > 0.1  # to a smaller mass, mass_eps adds too much
        assert seen.any()
        torch.testing.assert_close(means[seen], found.poses[seen], rtol=1e-3, atol=1e-4)
        floor = (found.variances - variances)[seen]
        assert (floor > 0).all()
        if name == "classes":
            equal = floor.mean().expand_as(floor)
            torch.testing.assert_close(floor, equal, rtol=1e-2, atol=1e-5)


def test_votes_have_the_coordinates_and_transformations_have_not(images: Tensor) -> None:
    network = random_network()
    layers = by_name(network, images)
    conv = network.conv_capsules[0]
    torch.testing.assert_close(layers["conv_capsules_1"].transformations, conv.weight)
    classes = network.classes
    layer = layers["classes"]
    weight = classes.weight.repeat(classes.positions, 1, 1, 1)
    torch.testing.assert_close(layer.transformations, weight)
    plain = dense_votes(layer.given.child_poses, weight)
    of_first_image = (layer.votes() - plain)[0]
    added = of_first_image.unflatten(0, (classes.positions, -1))
    expected = classes.coordinates[:, None, None].expand_as(added)
    torch.testing.assert_close(added, expected, rtol=0, atol=1e-5)


def test_votes_of_scaled_distances_are_shortened(images: Tensor) -> None:
    network = random_network(routing=ScaledDistanceAgreement, class_weight_std=3.0)
    layer = by_name(network, images)["classes"]
    longest = layer.present.unsqueeze(2).expand(-1, -1, 4)
    lengths = layer.votes().norm(dim=3)
    assert (lengths <= longest * 1.001).all()
    given = dense_votes(layer.given.poses, layer.given.weight)
    assert (given.norm(dim=3) > longest).any()


def test_couplings_of_a_layer_sum_to_one_per_child_and_make_its_parents(images: Tensor) -> None:
    layer = by_name(random_network(), images)["conv_capsules_1"]
    couplings = layer.couplings()
    children = layer.children.poses.shape[1]
    parents = layer.parents.poses.shape[1]
    assert couplings.shape == (2, children, parents)
    seen = layer.windows.child.unique()
    sums = couplings[:, seen].sum(2)
    torch.testing.assert_close(sums, torch.ones_like(sums))
    chosen = torch.tensor([7, 0, 30])
    of_chosen = layer.couplings(-1, chosen)
    torch.testing.assert_close(of_chosen, couplings[:, chosen])
    mass = torch.einsum("bip,bi->bp", couplings, layer.children.activations)
    torch.testing.assert_close(layer.mass(), mass)
    weights = layer.iterations[-1].couplings * layer.present.unsqueeze(2)
    of_windows = weights.sum(1).view(mass.shape)
    torch.testing.assert_close(mass, of_windows)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (EfficientCapsNet, {"decoder": None}),
        (HeinsenNet, {"channels": 4, "strides": (1, 2, 2), "parts": 3, "pose_size": 2}),
    ],
)
def test_other_networks(kind: Any, options: dict[str, Any]) -> None:
    network = kind((1, 28, 28), 3, **options).eval()
    layers = by_name(network, torch.rand(2, 1, 28, 28))
    assert layers.keys() <= network.capsule_layers().keys()
    for layer in layers.values():
        parents = layer.parents.poses.shape[1]
        assert layer.couplings().shape[2] == parents


def test_a_routing_that_does_not_tell(images: Tensor) -> None:
    class Silent(EMRouting):
        def forward(
            self, votes: Tensor | Votes, activations: Tensor | None = None, **options: Any
        ) -> Any:
            del options["on_iteration"]
            return super().forward(votes, activations, **options)

    network = random_network(routing=Silent)
    with pytest.raises(ValueError, match="Silent does not call on_iteration"):
        trace(network, images)


def test_batches_concatenated_are_one(images: Tensor) -> None:
    network = random_network()
    whole = by_name(network, images)
    parts = [by_name(network, each) for each in images.split(1)]
    for name, layer in whole.items():
        joined = concatenate([part[name] for part in parts])
        torch.testing.assert_close(joined.iterations, layer.iterations)
        torch.testing.assert_close(joined.votes(), layer.votes())
        torch.testing.assert_close(joined.children, layer.children)
        torch.testing.assert_close(joined.parents, layer.parents)
        torch.testing.assert_close(joined.couplings(), layer.couplings())


def test_children_of_a_capsnet_lie_where_the_image_has_them() -> None:
    """A white corner changes the capsules in that corner."""
    build = functools.partial(small_capsnet, (1, 24, 24), 4, types=3, decoder=None)
    network = build()
    black = torch.zeros(1, 1, 24, 24)
    corner = black.clone()
    corner[:, :, :4, -4:] = 1
    (before,) = by_name(network, black).values()
    (after,) = by_name(network, corner).values()
    assert before.child_grid == (4, 4, 3, True)
    change = after.children.activations - before.children.activations
    changed = before.child_grid.at_positions(change.abs())
    assert changed.shape == (1, 3, 4, 4)
    assert changed[0, :, 0, -1].max() > 0
    assert changed[0, :, -1, 0].max() == 0
    assert [each.iteration for each in before.iterations] == [0, 1, 2]
    initial = before.couplings(0)
    torch.testing.assert_close(initial, torch.full_like(initial, 0.25))
    by_position = build(transformation="shared")
    (layer,) = by_name(by_position, black).values()
    assert layer.child_grid == (4, 4, 3, False)
    numbers = layer.child_grid.at_positions(torch.arange(48.0))
    assert numbers[:, 0, 1].tolist() == [3, 4, 5]
