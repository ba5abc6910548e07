from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor

from benchmarks.textbook_capsnet import TextbookCapsNet
from capsule_lab.data.standins.digits import standin_digits
from capsule_lab.functional import dense_votes
from capsule_lab.losses import logits_cross_entropy_loss, margin_loss, reconstruction_loss
from capsule_lab.networks import CapsNet, SmallCNN, reconstructs
from capsule_lab.routing import DynamicRouting, UniformRouting
from capsule_lab.types import RoutingTrace

UNTRANSFORMED = {"transformation": "none", "primary_types": 10, "primary_dim": 16}
SMALL = {"channels": 4, "kernel_size": 3, "primary_types": 2, "primary_dim": 3, "class_dim": 5, "decoder": (6, 7)}


def build(image_shape: tuple[int, int, int] = (1, 9, 9), num_classes: int = 4, **options: Any) -> CapsNet:
    """A small network with large weights, so that the votes outweigh the biases and routing matters."""
    torch.manual_seed(0)
    network = CapsNet(image_shape, num_classes, **{**SMALL, **options})
    for parameter in network.parameters():
        if parameter.ndim > 1:
            parameter.data *= 5
    return network


def digits(batch: int, *image_shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(batch, *(image_shape or (1, 9, 9)), generator=generator), torch.arange(batch) % 4


def count(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


# --------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("image_shape", "num_classes", "options", "parameters"),
    [
        pytest.param((1, 28, 28), 10, {}, 8_215_728, id="MNIST"),
        pytest.param((1, 28, 28), 10, {"decoder": None}, 6_804_384, id="MNIST encoder"),
        pytest.param(
            (1, 28, 28), 10, {"routing": partial(DynamicRouting, bias=False)}, 8_215_568, id="MNIST without bias"
        ),
        pytest.param((1, 28, 28), 10, {"routing": UniformRouting}, 8_215_728, id="MNIST without routing"),
        pytest.param((1, 36, 36), 10, {}, 11_361_968, id="MultiMNIST"),
        pytest.param((1, 40, 40), 10, {}, 13_475_808, id="affNIST"),
        pytest.param((2, 32, 32), 5, {}, 9_327_184, id="smallNORB"),
        pytest.param(
            (3, 24, 24), 10, {"padding": "same", "primary_types": 64, "decoder": None}, 22_476_448, id="CIFAR10"
        ),
        pytest.param(
            (3, 32, 32),
            10,
            {"channels": 64, "primary_types": 16, "primary_dim": 6, "class_dim": 8, "decoder": None},
            1_004_976,
            id="SVHN",
        ),
        pytest.param((1, 28, 28), 10, {"transformation": "shared"}, 6_782_128, id="MNIST, 32 types and not 1,152"),
        pytest.param(
            (1, 40, 40),
            10,
            {**UNTRANSFORMED, "decoder": None},
            20_992 + 256 * 160 * 81 + 160 + 160,
            id="affNIST without transformations",
        ),
    ],
)
def test_published_parameter_counts(
    image_shape: tuple[int, int, int], num_classes: int, options: dict[str, Any], parameters: int
) -> None:
    with torch.device("meta"):
        network = CapsNet(image_shape, num_classes, **options)
    assert count(network) == parameters


def test_initial_values_of_the_official_code() -> None:
    network = CapsNet((1, 9, 9), 4, **{**SMALL, "channels": 200})
    assert torch.equal(network.conv.bias, torch.full((200,), 0.1))
    assert network.conv.weight.abs().max() <= 0.1
    assert network.conv.weight.std().item() == pytest.approx(0.044, rel=0.05)  # cut at 2 std of 0.05


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": "same"},
        {"uniform_coupling": False},
        {"transformation": "shared"},
        {"transformation": "none", "primary_types": 4, "primary_dim": 5},
        {"primary_squash": "exponential", "routing": partial(DynamicRouting, squash="exponential")},
        {"primary_squash": "none"},
        {"routing": UniformRouting},
        {"routing": partial(DynamicRouting, gradient="last")},
        {"routing": partial(DynamicRouting, leaky=True)},
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_every_parameter_gets_a_gradient(batch: int, options: dict[str, Any]) -> None:
    network, (images, labels) = build(**options), digits(batch)
    output = network(images)
    decoded = network.reconstruct(output, labels)
    (margin_loss(output.scores, labels) + reconstruction_loss(decoded, images)).backward()
    assert [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()] == []


# ------------------------------------------------------------------------------------------------ textbook


def in_textbook_order(values: dict[str, Tensor]) -> list[Tensor]:
    """Parameters of a CapsNet, or their gradients, as ``TextbookCapsNet`` orders and shapes its own."""
    return [
        values["primary.bias"].flatten(),
        values["digits.weight"].permute(0, 2, 3, 1).unsqueeze(0),  # [. i j d c]
        values["digits.routing.bias"][None, None],
        values["conv.weight"],
        values["conv.bias"],
        values["primary.conv.weight"],
        *(value for name, value in values.items() if name.startswith("decoder.")),
    ]


@pytest.mark.parametrize("iterations", [1, 3])
def test_equals_the_textbook(iterations: int) -> None:
    network = build((2, 9, 11), routing=partial(DynamicRouting, iterations=iterations)).double()
    encoder = {name: size for name, size in SMALL.items() if name != "decoder"}
    textbook = TextbookCapsNet((2, 9, 11), 4, hidden=SMALL["decoder"], iterations=iterations, **encoder).double()
    parameters = dict(network.named_parameters())
    for theirs, ours in zip(textbook.parameters(), in_textbook_order(parameters), strict=True):
        theirs.data.copy_(ours)

    images, labels = digits(5, 2, 9, 11)
    images = images.double()
    output = network(images)
    loss = margin_loss(output.scores, labels) + reconstruction_loss(network.reconstruct(output, labels), images)
    expected = textbook(images, labels)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)

    gradients = torch.autograd.grad(loss, list(parameters.values()))
    torch.testing.assert_close(
        in_textbook_order(dict(zip(parameters, gradients, strict=True))),
        list(torch.autograd.grad(expected, list(textbook.parameters()))),
        rtol=1e-8,
        atol=1e-14,
    )


def test_textbook_has_the_published_size() -> None:
    with torch.device("meta"):
        assert count(TextbookCapsNet()) == 8_215_728


# ----------------------------------------------------------------------------------------------- arguments

CHANGED = {
    "image_shape": (1, 11, 9),
    "num_classes": 5,
    "routing": UniformRouting,
    "channels": 5,
    "kernel_size": 4,
    "padding": "same",
    "primary_types": 3,
    "primary_dim": 4,
    "primary_bias": False,
    "uniform_coupling": False,
    "primary_weight_std": 0.5,
    "primary_relu": True,
    "primary_squash": "none",
    "transformation": "shared",
    "hidden": [(3, 4)],
    "class_dim": 6,
    "decoder": None,
    "masked_decoder": False,
}


@pytest.mark.parametrize("argument", list(inspect.signature(CapsNet).parameters))
def test_every_argument_does_something(argument: str) -> None:
    network, other = build(), build(**{argument: CHANGED[argument]})
    shapes, other_shapes = ({n: p.shape for n, p in each.named_parameters()} for each in (network, other))
    if shapes == other_shapes:
        images, labels = digits(2)
        outputs = [(each, each(images)) for each in (network, other)]
        scores, other_scores = (output.scores for _, output in outputs)
        decoded, other_decoded = (each.reconstruct(output, labels) for each, output in outputs)
        assert not (torch.allclose(scores, other_scores, atol=1e-3) and torch.allclose(decoded, other_decoded))


def test_small_undivided_weights_begin_like_divided_ones_and_adam_moves_them_further() -> None:
    """What ``uniform_coupling`` divides by, two types here, can as well be in the weights."""
    images, labels = digits(2)
    scores, steps = [], []
    for options in ({}, {"uniform_coupling": False, "primary_weight_std": 0.1 / 2}):
        torch.manual_seed(0)
        network = CapsNet((1, 9, 9), 4, **{**SMALL, **options})
        weight, scale = network.primary.conv.weight, network.primary.scale
        before = weight.detach() * scale
        output = network(images)
        margin_loss(output.scores, labels).backward()
        torch.optim.Adam([weight], lr=1e-3).step()
        scores.append(output.scores.detach())
        steps.append((weight.detach() * scale - before).abs().median().item())
    torch.testing.assert_close(*scores)
    assert steps[1] == pytest.approx(2 * steps[0], rel=0.01)


# ------------------------------------------------------------------------------------------------ components


def test_shared_transformations_are_those_of_every_position() -> None:
    """A network with a matrix for each pair, of which those of a type are the same, gives the same."""
    shared, pairs = build(transformation="shared").double(), build().double()
    state = shared.state_dict()
    assert state["digits.weight"].shape == (2, 3, 4, 5)
    state["digits.weight"] = state["digits.weight"].repeat_interleave(9, 0)  # children are ordered (type, position)
    pairs.load_state_dict(state)
    images = digits(3)[0].double()
    torch.testing.assert_close(shared(images)[0], pairs(images)[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(shared(images)[1].poses, pairs(images)[1].poses, rtol=0, atol=1e-12)


def test_without_transformations_primary_capsules_are_votes() -> None:
    """Those of type k, for class k: equal couplings give a quarter of their sum over positions."""
    options = {"primary_types": 4, "primary_dim": 5, "routing": partial(UniformRouting, squash="none", bias=False)}
    network = build(transformation="none", **options).double()
    images = digits(3)[0].double()
    primary = network.primary(network.conv(images).relu()).poses.view(3, 4, 9, 5)  # [b type position c]
    output = network(images)
    torch.testing.assert_close(output.capsules.poses, primary.sum(2) / 4, rtol=0, atol=1e-12)
    torch.testing.assert_close(output.scores, (primary.sum(2) / 4).norm(dim=2), rtol=1e-6, atol=0)


@pytest.mark.parametrize("options", [{}, {"primary_types": 4}, {"primary_dim": 5}])
def test_primary_capsules_that_cannot_be_votes_are_refused(options: dict[str, int]) -> None:
    types, dim = options.get("primary_types", 2), options.get("primary_dim", 3)
    sentence = f"transformation is 'none', and primary capsules are {types} types of {dim} components; expected those "
    with pytest.raises(ValueError, match=sentence + r"of the classes, .*: primary_types=4, primary_dim=5"):
        build(transformation="none", **options)


@pytest.mark.usefixtures("unchecked_types")
def test_unknown_transformation_is_named() -> None:
    with pytest.raises(ValueError, match="transformation is 'mine'; expected 'per_pair', 'shared' or 'none'"):
        build(transformation="mine")


@pytest.mark.parametrize("transformation", ["per_pair", "shared", "none"])
@pytest.mark.parametrize("squash", ["exponential", "relu", "none"])
def test_logits_are_right_for_every_squash(squash: Any, transformation: Any) -> None:
    routing = partial(DynamicRouting, squash=squash)
    sizes = {"primary_types": 4, "primary_dim": 5} if transformation == "none" else {}
    network = build(routing=routing, primary_squash=squash, transformation=transformation, **sizes).double()
    images, labels = digits(4)
    output = network(images.double())
    bounded = squash == "exponential"
    assert network.scores_are == ("activations" if bounded else "logits")
    expected = output.scores.logit() if bounded else output.scores
    torch.testing.assert_close(output.logits, expected, rtol=1e-5, atol=1e-5)
    logits_cross_entropy_loss(output.logits, labels).backward()
    missing = [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    assert [name for name in missing if not name.startswith("decoder.")] == []


def test_decoder_without_a_mask_sees_all_classes() -> None:
    network = build(masked_decoder=False)
    network.load_state_dict(build().state_dict())
    output = network(digits(2)[0])
    output.capsules.poses.retain_grad()
    decoded = network.reconstruct(output, torch.tensor([1, 3]))
    decoded.sum().backward()
    assert output.capsules.poses.grad.all()
    assert torch.equal(decoded, network.reconstruct(output, torch.tensor([0, 2])))
    flat = output.capsules.poses.flatten(1)
    torch.testing.assert_close(decoded.flatten(1), network.decoder.layers(flat).sigmoid())


@pytest.mark.parametrize("hidden", [(6,), (6, 7), (6, 7, 8)])
def test_decoder_widths(hidden: tuple[int, ...]) -> None:
    network = build(decoder=hidden)
    assert [p.shape[0] for p in network.decoder.parameters() if p.ndim == 2] == [*hidden, 81]


@pytest.mark.parametrize(("leaky", "share"), [(False, 1 / 2), (True, 1 / 3)])
def test_leaky_routing_reaches_the_primary_capsules(leaky: bool, share: float) -> None:
    network = build(routing=partial(DynamicRouting, leaky=leaky))
    assert network.primary.scale == share
    traces: list[RoutingTrace] = []
    network(digits(1)[0], on_iteration=traces.append)
    assert (traces[0].couplings.sum(2).max().item() < 0.9) == leaky


@pytest.mark.parametrize("image_shape", [(1, 16, 28), (1, 28, 16), (3, 2, 2)])
def test_too_small_images_are_refused(image_shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=f"{image_shape[1]}x{image_shape[2]}; CapsNet needs at least 17x17"):
        CapsNet(image_shape, 10, channels=2, primary_types=1)


@pytest.mark.parametrize(
    ("image_shape", "options"), [((1, 17, 17), {}), ((1, 17, 18), {}), ((1, 1, 1), {"padding": "same"})]
)
def test_smallest_images(image_shape: tuple[int, int, int], options: dict[str, Any]) -> None:
    network = CapsNet(image_shape, 3, channels=2, primary_types=1, decoder=(4,), **options)
    assert network(torch.rand(2, *image_shape)).scores.shape == (2, 3)


def test_image_shape_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"image_shape is \(0, 28, 28\); expected \(channel, height, width\)"):
        CapsNet((0, 28, 28), 10)


def test_unknown_padding_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # in training nothing else checks
    with pytest.raises(ValueError, match="padding is 'full'; expected 'valid' or 'same'"):
        build(padding="full")


# ------------------------------------------------------------------------------------------------- forward


@pytest.mark.parametrize("options", [{}, {"padding": "same"}, {"kernel_size": 4}])
@pytest.mark.parametrize("image_shape", [(1, 9, 9), (2, 9, 12), (3, 10, 8)])
def test_shapes(image_shape: tuple[int, int, int], options: dict[str, Any]) -> None:
    network = build(image_shape, **options)
    output = network(torch.rand(2, *image_shape))
    assert output.scores.shape == (2, 4)
    assert output.capsules.poses.shape == (2, 4, 5)
    assert torch.equal(output.scores, output.capsules.activations)
    assert network.reconstruct(output, torch.tensor([0, 3])).shape == (2, *image_shape)


def test_scores_are_lengths() -> None:
    output = build()(digits(3)[0])
    torch.testing.assert_close(output.scores, output.capsules.poses.norm(dim=2))
    assert 0 <= output.scores.min() <= output.scores.max() < 1


def test_same_padding_keeps_the_image_centred() -> None:
    network = build((1, 8, 8), padding="same", kernel_size=3)
    image = torch.zeros(1, 1, 8, 8)
    image[..., 2:6, 2:6] = 1
    features: list[Tensor] = []
    network.conv.register_forward_hook(lambda _, inputs, output: features.append(inputs[0]))
    network(image)
    assert features[0].shape == (1, 1, 10, 10)
    assert torch.equal(features[0][..., 1:-1, 1:-1], image)


def test_batch_of_one_equals_its_row() -> None:
    network, (images, labels) = build(), digits(3)
    output, alone = network(images), network(images[1:2])
    torch.testing.assert_close(alone.scores, output.scores[1:2])
    torch.testing.assert_close(
        network.reconstruct(alone, labels[1:2]), network.reconstruct(output, labels)[1:2], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("iterations", [1, 3])
def test_on_iteration_is_called_in_every_iteration(iterations: int) -> None:
    network = build(routing=partial(DynamicRouting, iterations=iterations))
    traces: list[RoutingTrace] = []
    output = network(digits(2)[0], on_iteration=traces.append)
    assert [trace.couplings.shape for trace in traces] == iterations * [(2, 2 * 3 * 3, 4)]
    assert torch.equal(traces[-1].poses, output.capsules.poses)


def test_scores_are_float32_under_autocast() -> None:
    network, (images, labels) = build(), digits(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = network(images)
        decoded = network.reconstruct(output, labels)
    assert output.scores.dtype == decoded.dtype == torch.float32
    torch.testing.assert_close(output.scores, network(images).scores, rtol=0.02, atol=0.01)


# ------------------------------------------------------------------------------------------ reconstruction


def test_reconstruction_looks_at_one_class_capsule() -> None:
    network, (images, _) = build(), digits(2)
    output = network(images)
    output.capsules.poses.retain_grad()
    network.reconstruct(output, torch.tensor([1, 3])).sum().backward()
    assert output.capsules.poses.grad.abs().sum(2).bool().tolist() == [
        [False, True, False, False],
        [False, False, False, True],
    ]


def test_reconstruction_without_a_decoder_is_refused() -> None:
    network = build(decoder=None)
    with pytest.raises(ValueError, match="no decoder; build it with decoder="):
        network.reconstruct(network(digits(1)[0]), torch.tensor([0]))


@pytest.mark.parametrize(("decoder", "expected"), [((8,), True), (None, False)])
def test_whether_a_network_reconstructs(decoder: Any, expected: bool) -> None:
    assert reconstructs(build(decoder=decoder)) is expected


def test_networks_without_reconstruct_do_not() -> None:
    assert not reconstructs(SmallCNN((1, 28, 28), 10))


# -------------------------------------------------------------------------------------- initial statistics

# Published for 100 real MNIST test images, three seeds. The stand-in's digits and another draw of the weights
# move them by less than a tenth, except where a line says otherwise.
SLACK = 0.1
INITIAL_STATISTICS = [
    # quantity, with 1/32, without
    ("first convolution, mean", (0.12, 0.13), (0.12, 0.13)),
    ("first convolution, rms", (0.17, 0.18), (0.17, 0.18)),
    ("second convolution, rms", (2.4, 2.6), (2.4, 2.6)),
    ("primary length, mean", (0.10, 0.12), (0.97, 0.97)),
    ("primary length, 5th percentile", (0.05, 0.06), (0.93, 0.93)),  # 0.05, to one digit
    ("primary length, 95th percentile", (0.18, 0.20), (0.99, 0.99)),  # 0.20, to one digit
    ("vote, rms", (0.009, 0.012), (0.085, 0.085)),
    ("digit length, mean", (0.14, 0.17), (0.82, 0.82)),
    ("digit length, smallest", (0.09, 0.14), (0.50, 0.65)),  # 0.58; one of 1000, stand-in 0.46 to 0.70
    ("digit length, largest", (0.17, 0.23), (0.92, 0.92)),
    ("logit, largest", (0.04, 0.06), (0.94, 0.99)),  # 0.99; stand-in 0.86 to 0.89
    ("margin loss, paper", (0.56, 0.59), (2.35, 2.35)),
    ("margin loss, official", (0.028, 0.029), (0.117, 0.117)),
]


@pytest.fixture(scope="module", params=[True, False], ids=["divided", "undivided"])
def initial_statistics(request: pytest.FixtureRequest) -> tuple[bool, dict[str, float]]:
    """What a fresh CapsNet makes of 100 digits."""
    images, labels = standin_digits(train=False).subset(range(100))[:2]
    torch.manual_seed(0)
    network = CapsNet((1, 28, 28), 10, uniform_coupling=request.param, decoder=None)
    seen: dict[str, Any] = {}
    traces: list[RoutingTrace] = []
    network.primary.register_forward_hook(lambda _, inputs, capsules: seen.update(features=inputs[0], primary=capsules))
    network.primary.conv.register_forward_hook(lambda _, inputs, output: seen.update(convolved=output))
    with torch.no_grad():
        scores = network(images / 255, on_iteration=traces.append).scores
        votes = dense_votes(seen["primary"].poses, network.digits.weight)
        logits = torch.einsum("bijd,bjd->bij", votes, sum(trace.poses for trace in traces))
    lengths = seen["primary"].activations
    values = {
        "first convolution, mean": seen["features"].mean(),
        "first convolution, rms": seen["features"].square().mean().sqrt(),
        "second convolution, rms": seen["convolved"].square().mean().sqrt(),
        "primary length, mean": lengths.mean(),
        "primary length, 5th percentile": lengths.quantile(0.05),
        "primary length, 95th percentile": lengths.quantile(0.95),
        "vote, rms": votes.square().mean().sqrt(),
        "digit length, mean": scores.mean(),
        "digit length, smallest": scores.min(),
        "digit length, largest": scores.max(),
        "logit, largest": logits.abs().max(),
        "margin loss, paper": margin_loss(scores, labels, reduction="paper"),
        "margin loss, official": margin_loss(scores, labels, reduction="official"),
    }
    return request.param, {name: value.item() for name, value in values.items()}


@pytest.mark.parametrize(("quantity", "divided", "undivided"), INITIAL_STATISTICS)
def test_initial_statistics(
    initial_statistics: tuple[bool, dict[str, float]],
    quantity: str,
    divided: tuple[float, float],
    undivided: tuple[float, float],
) -> None:
    is_divided, values = initial_statistics
    low, high = divided if is_divided else undivided
    assert (1 - SLACK) * low <= values[quantity] <= (1 + SLACK) * high


def test_hidden_layers_are_routed_between_primary_and_class_capsules() -> None:
    network = build(hidden=[(6, 4), (5, 8)])
    assert [*network.capsule_layers()] == ["primary", "hidden_1", "hidden_2", "digits"]
    assert network.digits.weight.shape[:2] == (5, 8)
    images, _ = digits(2)
    by_hand = network.primary(network.conv(images).relu())
    for layer in (*network.hidden, network.digits):
        by_hand = layer(by_hand.poses)
    torch.testing.assert_close(network(images).scores, by_hand.activations)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("hidden", [[3], [[3]], [[3, 0]], [["3", 4]], ["ab"]])
def test_wrong_hidden_layers(hidden: Any) -> None:
    with pytest.raises(ValueError, match=r"hidden is .*; expected \[capsules, components\] of each layer"):
        build(hidden=hidden)


def test_hidden_layers_have_transformations_of_their_own() -> None:
    with pytest.raises(ValueError, match="hidden capsules, which have no positions to share"):
        build(hidden=[(3, 4)], transformation="shared")
