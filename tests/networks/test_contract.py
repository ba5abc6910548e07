"""What every network promises: presets are found in ``conf/model``, small networks are rows of ``SMALL``."""

import copy
import functools
import inspect
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
import yaml
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor, nn

from capsule_lab import layers, networks, routing
from capsule_lab.commands import compose
from capsule_lab.config.folders import conf_dir
from capsule_lab.layers import (
    ConvStack,
    CoordinateClassCapsules,
    DepthwisePrimaryCapsules,
    PrimaryCapsules,
)
from capsule_lab.losses import cross_entropy_loss, reconstruction_loss
from capsule_lab.networks import AbstractPairNetwork, reconstructs
from capsule_lab.shapes import LARGEST_PIXEL
from capsule_lab.types import Capsules, RoutingTrace
from tests.helpers.networks import IMAGE, count, pictures
from tests.helpers.tiers import whole_but

Options = dict[str, Any]

PRESETS = sorted(path.stem for path in (conf_dir() / "model").glob("*.yaml"))
SHAPES = {  # images and classes that the heads of presets speak of
    "MNIST": ((1, 28, 28), 10),
    "MultiMNIST": ((1, 36, 36), 10),
    "affNIST": ((1, 40, 40), 10),
    "smallNORB": ((2, 32, 32), 5),
    "smallNORB, 48 pixels": ((2, 48, 48), 5),
    "CIFAR10": ((3, 32, 32), 10),
}
OTHERS = {
    "24 pixels": ((3, 24, 24), 10),
    "CIFAR100": ((3, 32, 32), 100),
    "one eye": ((1, 32, 32), 5),
}


@functools.cache
def composed_model(name: str, *overrides: str) -> Any:
    return compose("train", [f"model={name}", *overrides]).model


def preset(name: str, image_shape: tuple[int, int, int], num_classes: int, *overrides: str) -> Any:
    """The network of ``conf/model/<name>.yaml``."""
    # options of the model need no composition of their own, which takes longer than all else here
    of_model = [each for each in overrides if each.startswith("model.")]
    others = [each for each in overrides if not each.startswith("model.")]
    model = copy.deepcopy(composed_model(name, *others))
    for override in of_model:
        key, _, value = override.removeprefix("model.").partition("=")
        OmegaConf.update(model, key, yaml.safe_load(value))
    build = instantiate(model, _partial_=True, _convert_="all")
    facts = {"image_shape": image_shape, "num_classes": num_classes}
    taken = facts.keys() & inspect.signature(build.func).parameters
    return build(**{key: facts[key] for key in taken})


def parameters_of_preset(name: str, data: str) -> str:
    """Their number as heads write it, or why there is no such network."""
    try:
        with torch.device("meta"):
            return f"{count(preset(name, *SHAPES[data])):,}"
    except ValueError as error:  # such images are too small
        return str(error)


@pytest.mark.parametrize("name", whole_but(PRESETS, "capsnet", "cnn_small", "em_caps"))
def test_the_head_of_a_preset_says_how_many_parameters_it_has(name: str) -> None:
    file = conf_dir() / "model" / f"{name}.yaml"
    head, _, _ = file.read_text().partition("defaults:")
    numbers = {}
    for data in SHAPES:
        numbers[data] = parameters_of_preset(name, data)
        if numbers[data] in head:
            return
    pytest.fail(f"the head names none of {numbers}")


def move_zeros(network: nn.Module) -> None:
    """Move parameters that start at 0, such as those of the couplings of some routings: behind them nothing learns."""
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter)


def learn(network: Any, images: Tensor) -> None:
    """Gradients of all that a network does."""
    move_zeros(network)
    if isinstance(network, AbstractPairNetwork):
        change = torch.randn(len(images), *network.change_shape)
        network(images, change).images.square().sum().backward()
        return
    labels = torch.arange(len(images))
    output = network(images)
    loss = cross_entropy_loss(output.scores, labels)
    if reconstructs(network):
        loss = loss + reconstruction_loss(network.reconstruct(output, labels), images)
    loss.backward()


def without_gradient(network: nn.Module) -> set[str]:
    found = set()
    for name, parameter in network.named_parameters():
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any()):
            found.add(name)
    return found


MULTIMNIST = [
    "experiment=mazzia2021/mnist",
    "data=multimnist",
    "model.strides=[1,1,2,2]",
    "model.primary.kernel_size=5",
    "model.primary.stride=2",
]
LARGE = {"cnn_baseline", "cnn_multimnist", "inverted_attention_caps"}


@pytest.mark.parametrize("name", whole_but(PRESETS, *{*PRESETS} - LARGE))
def test_every_parameter_of_a_preset_gets_a_gradient(name: str) -> None:
    torch.manual_seed(0)
    network = preset(name, (1, 32, 32), 4)
    learn(network, torch.rand(2, 1, 32, 32))
    assert without_gradient(network) == set()


@pytest.mark.parametrize(
    ("name", "overrides", "data", "parameters"),
    [  # what the heads of presets and experiments do not say, or say of several
        ("capsnet", ["model.decoder=null"], "MNIST", 6_804_384),
        ("capsnet", ["routing.bias=false"], "MNIST", 8_215_568),
        ("capsnet", ["routing=uniform"], "MNIST", 8_215_728),
        ("capsnet", ["model.transformation=shared"], "MNIST", 6_782_128),
        ("capsnet", [], "MultiMNIST", 11_361_968),
        ("capsnet", [], "affNIST", 13_475_808),
        ("capsnet", [], "smallNORB", 9_327_184),
        ("capsnet", ["experiment=sabour2017/svhn"], "CIFAR10", 1_004_976),
        ("efficient_capsnet", ["model.decoder=null"], "MNIST", 161_824),
        ("efficient_capsnet", ["model.decoder=null", "model.normalisation=none"], "MNIST", 161_248),
        ("efficient_capsnet", [*MULTIMNIST, "model.decoder=null"], "MultiMNIST", 154_656),
        ("efficient_capsnet", ["experiment=mazzia2021/smallnorb"], "smallNORB, 48 pixels", 151_664),
        ("em_caps_paper", [], "MNIST", 318_420),
        ("em_caps_paper", ["model.stem=padded", "model.primary.bias=true"], "MNIST", 318_964),
        ("em_caps_paper", ["model.channels=256"], "CIFAR10", 458_900),
        ("em_caps_small", [], "smallNORB", 68_618),
        ("em_caps", [], "smallNORB", 76_458),
        ("em_caps_small_normalised", [], "smallNORB", 70_042),
        ("em_caps_paper", [], "smallNORB", 316_650),
        ("cnn_small", [], "smallNORB", 62_341),
        # Sabour 2017, section 5.2
        ("cnn_multimnist", ["model.padding=valid"], "affNIST", 12_767_498),
        ("cnn_pooled", [], "smallNORB", 76_533),
        ("cnn_pooled", ["model.pooled_coordinates=true"], "smallNORB", 77_077),  # 2 x 272 more
        ("em_caps_small", [], "MNIST", 68_308),
        ("em_caps", ["model.decoder=[512,1024]", "module=capsnet"], "smallNORB", 2_742_442),
        ("heinsen", [], "smallNORB, 48 pixels", 271_688),
        ("inverted_attention_caps", [], "CIFAR10", 1_828_817),
        ("self_routing", ["model.conv_strides=[2]"], "CIFAR10", 3_187_536),
        ("vb_caps", [], "MNIST", 68_404),
        ("vb_caps", ["model.primary_types=16", "model.conv_types=[32,32]"], "smallNORB", 244_682),
        ("vb_caps", ["experiment=ribeiro2020/smallnorb"], "smallNORB", 68_640),
        ("cnn_smallnorb", [], "smallNORB", 4_253_349),
        ("transforming_autoencoder", ["model.output_bias=per_capsule"], "MNIST", 732_210),
        (
            "capsnet",
            ["model.padding=same", "model.primary.types=64", "model.decoder=null"],
            "24 pixels",
            22_476_448,
        ),
        (
            "inverted_attention_caps",
            ["model.pose_size=6", "model.dense_types=[20]"],
            "CIFAR100",
            2_799_629,
        ),
        ("self_routing", ["model.trunk=convnet"], "one eye", 814_960),
        ("self_routing", ["model.trunk=convnet", "model.conv_strides=[1]"], "one eye", 3_331_952),
        ("cnn_resnet20", ["model.trunk=convnet"], "one eye", 144_309),
        ("cnn_baseline", [], "MNIST", 35_445_522),
    ],
)
def test_published_parameter_counts(
    name: str, overrides: list[str], data: str, parameters: int
) -> None:
    facts = {**SHAPES, **OTHERS}[data]
    with torch.device("meta"):
        network = preset(name, *facts, *overrides)
    assert count(network) == parameters


def test_no_constructor_has_more_than_twelve_arguments() -> None:
    public = [getattr(networks, name) for name in networks.__all__]
    public += [getattr(layers, name) for name in layers.__all__]
    for each in public:
        if inspect.isclass(each):
            arguments = inspect.signature(each).parameters
            assert len(arguments) <= 12, each


@dataclass(frozen=True)
class Small:
    """A network of few weights.

    Attributes:
        changed: another value of every argument, with further ones where it does nothing alone.
        layers: names of the capsule layers.
        wrong: what is refused, and how the message begins.
        learning: options with which all parameters but those that ``idle`` names get a gradient.
    """

    network: Any
    options: Options
    changed: Options
    layers: list[str] = field(default_factory=list)
    wrong: list[tuple[Options, str]] = field(default_factory=list)
    learning: list[Options] = field(default_factory=list)

    def untouched(self, **options: Any) -> Any:
        """The network as it is initialised."""
        given = {"image_shape": IMAGE, "num_classes": CLASSES, **self.options, **options}
        return self.network(**given)

    def build(self, **options: Any) -> Any:
        """The network with large transformations, so that capsules above depend on those below."""
        torch.manual_seed(0)
        network = self.untouched(**options)
        for layer in network.modules():
            weight = getattr(layer, "weight", None)
            is_transformation = isinstance(weight, nn.Parameter) and weight.ndim == 4
            if is_transformation and not isinstance(layer, nn.Conv2d):
                weight.data *= 5
        move_zeros(network)
        return network


CLASSES = 4
# of routings that read a child's activation from its pose
FROM_POSES = {"primary.activation.weight"}
PRIMARY = partial(PrimaryCapsules, types=2, dim=3)
LINEAR = partial(layers.LinearPrimaryCapsules, types=3)
STACK = partial(ConvStack, types=(4, 2))
CONV = ["primary", "conv_capsules_1", "conv_capsules_2"]
PARTS: dict[str, Any] = {
    "CapsNet": (
        {"channels": 4, "kernel_size": 3, "primary": PRIMARY, "class_dim": 5, "decoder": (6, 7)},
        {
            "routing": partial(routing.DynamicRouting, iterations=1),
            "channels": 5,
            "kernel_size": 4,
            "primary": partial(PRIMARY, types=3),
            "transformation": "shared",
            "hidden": [(3, 4)],
            "class_dim": 6,
            "decoder": None,
            "masked_decoder": False,
            "padding": "same",
        },
        ["primary", "digits"],
        [
            ({"image_shape": 28}, "image_shape is 28; expected (channel, height, width), such"),
            (
                {"image_shape": (0, 28, 28)},
                "image_shape is (0, 28, 28); expected (channel, height, width)",
            ),
            (
                {"image_shape": (1, 4, 9)},
                "images are 4x9; CapsNet needs at least 5x5: use larger images (with data=folder in a command, "
                "data.size=[5,9])",
            ),
            (
                {"image_shape": (1, 4, 4)},
                "images are 4x4; CapsNet needs at least 5x5: use larger images (with data=folder in a command, "
                "data.size=5)",
            ),
            ({"num_classes": "10"}, "CapsNet has num_classes '10'; expected a whole number"),
            ({"decoder": [0]}, "the network has decoder 0; expected 1 or more"),
            (
                {"routing": routing.DynamicRouting(10, 4)},
                "routing is a DynamicRouting that is already built; exp",
            ),
            (
                {"transformation": "none"},
                "transformation is 'none', and primary capsules are 2 types of 3 comp",
            ),
            ({"hidden": [3]}, "hidden is [3]; expected [cap"),
            ({"hidden": [[3]]}, "hidden is [[3]]; expected [cap"),
            ({"hidden": [[3, 0]]}, "hidden is [[3, 0]]; expected [cap"),
            ({"hidden": [["3", 4]]}, "hidden is [['3', 4]]; expected [cap"),
            (
                {"hidden": [(3, 4)], "transformation": "shared"},
                "transformation is 'shared', and hidden capsules, whi",
            ),
        ],
        [
            {"padding": "same"},
            {"primary": partial(PRIMARY, uniform_coupling=False)},
            {"transformation": "shared"},
            {"transformation": "none", "primary": partial(PrimaryCapsules, types=4, dim=5)},
            {
                "routing": partial(routing.DynamicRouting, squash="exponential"),
                "primary": partial(PRIMARY, squash="exponential"),
            },
            {"routing": routing.UniformRouting},
            {"hidden": [(6, 4), (5, 8)]},
            {"routing": partial(routing.DynamicRouting, gradient="last")},
        ],
    ),
    "EfficientCapsNet": (
        {
            "channels": (4, 6),
            "kernel_sizes": (3, 2),
            "strides": (1, 2),
            "class_dim": 5,
            "decoder": (6, 7),
            "primary": partial(DepthwisePrimaryCapsules, dim=3),
        },
        {
            "routing": routing.DynamicRouting,
            "channels": (5, 6),
            "kernel_sizes": (2, 2),
            "strides": (1, 1),
            "activation": "leaky_relu",
            "normalisation": "instance",
            "class_dim": 6,
            "decoder": None,
            "primary": partial(DepthwisePrimaryCapsules, dim=2),
        },
        ["primary", "digits"],
        [
            (
                {"strides": (1,)},
                "EfficientCapsNet has 2 channels, 2 kernel_sizes, 1 strides; expected equal ",
            ),
            ({"image_shape": (1, 3, 9)}, "images are 3x9; EfficientCapsNet needs at least 4x4"),
            (
                {"primary": partial(DepthwisePrimaryCapsules, dim=3, kernel_size=10)},
                "feature maps are 9x11, smaller",
            ),
        ],
        [
            {"normalisation": "instance", "activation": "leaky_relu"},
            {"primary": partial(DepthwisePrimaryCapsules, dim=2, kernel_size=3)},
        ],
    ),
    "EMCaps": (
        {"channels": 5, "primary": LINEAR, "conv": STACK},
        {
            "routing": partial(routing.EMRouting, iterations=2),
            "class_routing": None,
            "stem": "padded",
            "channels": 6,
            "batch_norm": True,
            "primary": partial(LINEAR, types=4),
            "conv": partial(ConvStack, types=(4, 3)),
            "classes": partial(CoordinateClassCapsules, coordinates="none"),
            "pose": "vector",
            "decoder": (8,),
        },
        [*CONV, "classes"],
        [
            (
                {"image_shape": (1, 12, 25), "stem": "padded"},
                "the grid of children is 2x6, smaller than the 3x3",
            ),
            (
                {"stem": "small"},
                "stem is 'small'; expected 'paper', 'padded', 'conv2', 'conv3', 'resnet', ",
            ),
            (
                {"primary": partial(LINEAR, dim=8)},
                "poses have 8 components; expected a square number, such as 16 for",
            ),
            ({"routing": routing.UniformRouting}, "class_routing has cost, "),
            (
                {
                    "decoder": (8,),
                    "class_routing": {"poses": False},
                    "routing": routing.SelfRouting,
                },
                "routing.poses is false; expected true or model.decoder=null, since the decoder reads poses",
            ),
        ],
        [
            {"pose": "vector", "batch_norm": True, "primary": partial(LINEAR, bias=True)},
            {"primary": partial(LINEAR, dim=9)},
            {"conv": partial(ConvStack, types=(4, 3, 2), strides=(1, 2, 1))},
            {"conv": partial(ConvStack, types=(), strides=())},
            {"primary": partial(LINEAR, norm=True), "stem": [[6, 5, 2]]},
            {"routing": partial(routing.EMRouting, shared_betas=True)},
            {"decoder": (4,)},
            {"stem": "resnet", "conv": partial(ConvStack, types=(), strides=())},
            {
                "primary": partial(LINEAR, dim=1),
                "classes": partial(CoordinateClassCapsules, coordinates="none"),
            },
            {"routing": partial(routing.EMRouting, activation="mixing_proportions")},
            {"routing": routing.DynamicRouting, "class_routing": None, "idle": FROM_POSES},
            {"routing": partial(routing.EMRouting, backend="matmul")},
            {"routing": partial(routing.EMRouting, backend="fused")},
        ],
    ),
    "VBCaps": (
        {"channels": 6, "primary_types": 2, "conv_types": (3, 2)},
        {
            "routing": routing.EMRouting,
            "channels": 7,
            "primary_types": 3,
            "conv_types": (3, 3),
            "kernel_size": 2,
            "conv_strides": (1, 1),
        },
        [*CONV, "classes"],
        [({"image_shape": (1, 4, 9)}, "images are 4x9; VBCaps needs at least 5x5")],
        [{"routing": partial(routing.VariationalBayesRouting, affine=False)}],
    ),
    "InvertedAttentionCaps": (
        {
            "channels": (4, 6),
            "blocks": (1, 2),
            "primary_types": 3,
            "conv_types": (4, 2),
            "dense_types": (3,),
        },
        {
            "routing": partial(routing.InvertedAttention, iterations=3),
            "class_routing": None,
            "channels": (4, 5),
            "blocks": (2, 2),
            "primary_types": 2,
            "conv_types": (4, 3),
            "conv_strides": (2, 2),
            "dense_types": (),
            "kernel_size": 2,
            "pose_size": 3,
        },
        [*CONV, "dense_capsules_1", "classes"],
        [
            ({"blocks": (1,)}, "there are 2 channels and 1 blocks; expected equal numbers"),
            (
                {"channels": (), "blocks": ()},
                "InvertedAttentionCaps has stages 0; expected 1 or more",
            ),
        ],
        [
            {"routing": routing.DynamicRouting, "class_routing": None},
            {"routing": routing.EMRouting, "class_routing": None},
        ],
    ),
    "HeinsenNet": (
        {"channels": 4, "strides": (1, 2, 2), "parts": 3, "pose_size": 2},
        {
            "routing": routing.EMRouting,
            "class_routing": {"iterations": 1},
            "channels": 5,
            "strides": (2, 2, 2),
            "parts": 2,
            "pose_size": 3,
        },
        ["primary", "parts", "classes"],
        [({"image_shape": (2, 8, 28)}, "images are 8x28; HeinsenNet needs at least 9x9")],
    ),
    "SelfRoutingNet": (
        {"planes": 4, "types": 3, "dim": 4, "conv_strides": (2,)},
        {
            "routing": {"routing": routing.EMRouting, "class_routing": None},
            "class_routing": {"poses": True},
            "trunk": "convnet",
            "planes": 5,
            "types": 2,
            "dim": 5,
            "conv_strides": (1,),
            "class_dim": {"class_routing": {"poses": True}, "class_dim": 6},
        },
        ["primary", "conv_capsules_1", "classes"],
        [({"trunk": "vgg"}, "trunk is 'vgg'; expected 'resnet20' or 'convnet'")],
        [
            {"routing": routing.EMRouting, "class_routing": None, "trunk": "convnet"},
            {
                "routing": routing.DynamicRouting,
                "class_routing": {"iterations": 1},
                "conv_strides": (1, 2),
                "idle": {
                    "primary.activation.0.weight",
                    "primary.activation.1.weight",
                    "primary.activation.1.bias",
                },
            },
        ],
    ),
    "BaselineCNN": (
        {"channels": (3, 4), "kernel_size": 3, "hidden": (6, 5), "dropout": 0.5},
        {
            "channels": (3, 5),
            "kernel_size": 5,
            "padding": "valid",
            "pooling": 2,
            "hidden": (6, 6),
            "dropout": 0.1,
        },
        [],
        [
            ({"dropout": 1.0}, "dropout is 1.0; expected 0 or more, less than 1"),
            (
                {"image_shape": (1, 6, 3), "pooling": 2},
                "images are 6x3; BaselineCNN needs at least 4x4",
            ),
            (
                {"image_shape": (1, 7, 6), "kernel_size": [5, 3], "padding": "valid"},
                "images are 7x6; Base",
            ),
            ({"kernel_size": 2}, "kernel_size is 2; expected one odd number"),
            ({"kernel_size": [3, 4]}, "kernel_size is [3, 4]; expected one odd number"),
            ({"kernel_size": [3]}, "kernel_size is [3]; expected one odd number"),
        ],
        [{"pooling": 2, "dropout": 0.0}],
    ),
    "SmallCNN": (
        {"channels": (3, 4), "kernel_sizes": (5, 3), "dropout": 0.5},
        {
            "channels": (3, 5),
            "kernel_sizes": (3, 3),
            "dropout": 0.1,
            "batch_norm": False,
            "pooled": 7,
            "pooled_coordinates": {"pooled": 7, "pooled_coordinates": True},
        },
        [],
        [
            ({"pooled_coordinates": True}, "pooled_coordinates needs the convolution of pooled"),
            (
                {"kernel_sizes": (4, 3)},
                "kernel_sizes are [4, 3]; expected 2 odd sizes, as channels",
            ),
            ({"channels": (), "kernel_sizes": ()}, "SmallCNN has layers 0; expected 1 or more"),
        ],
        [{"pooled": 7, "dropout": 0.0}],
    ),
    "MatchedCNN": (
        {
            "channels": (4, 4),
            "kernel_sizes": (3, 2),
            "strides": (1, 2),
            "class_dim": 3,
            "decoder": (6, 5),
        },
        {
            "channels": (3, 3),
            "kernel_sizes": (2, 3),
            "strides": (2, 1),
            "depthwise": True,
            "last_initial": "xavier",
            "batch_norm": True,
            "averaged": True,
            "class_dim": 2,
            "decoder": None,
        },
        [],
        [
            ({"image_shape": (1, 3, 5)}, "images are 3x5; MatchedCNN needs at least 4x4"),
            (
                {"strides": (1,)},
                "MatchedCNN has 2 channels, 2 kernel_sizes, 1 strides; expected equal numbers",
            ),
            (
                {"depthwise": True, "channels": (4, 5)},
                "channels are [4, 5]; a depthwise convolution needs",
            ),
            ({"class_dim": None}, "class_dim is None, but there is a decoder"),
            ({"last_initial": "glorot"}, "last_initial is 'glorot'; expected"),
        ],
        [
            {"averaged": True, "class_dim": None, "decoder": None},
            {"depthwise": True, "batch_norm": True},
        ],
    ),
    "AveragePoolingNet": ({"planes": 4}, {"trunk": "convnet", "planes": 3}),
}
SMALL = {name: Small(getattr(networks, name), *parts) for name, parts in PARTS.items()}


def test_every_network_has_a_row() -> None:
    """Those of pairs are tested in test_transforming_autoencoder.py."""
    of_pairs = {"PairAutoencoder", "TransformingAutoencoder"}
    concrete = {name for name in networks.__all__ if not name.startswith("Abstract")}
    assert concrete - of_pairs - {"Reconstructs", "reconstructs"} == {*SMALL}


CAPSULES = [name for name, each in SMALL.items() if each.layers]


def outputs(network: Any, images: Tensor) -> list[Tensor]:
    """All that a network says of images, from the same random numbers."""
    torch.manual_seed(0)
    output = network(images)
    found = [output.scores]
    if output.logits is not None:
        found.append(output.logits)
    if reconstructs(network):
        found.append(network.reconstruct(output, torch.arange(len(images))))
    return found


@pytest.mark.parametrize("name", SMALL)
def test_scores_capsules_and_state(name: str) -> None:
    """Shapes, dtypes, one image alone as in a batch, and weights that make another network equal."""
    small = SMALL[name]
    network = small.build()
    network(pictures(8))  # statistics of batch normalisation
    network.eval()
    images = pictures()
    output = network(images)
    assert output.scores.shape == (3, CLASSES)
    assert torch.equal(output.scores.argsort(), output.logits.argsort())
    # the scores of MatchedCNN are sigmoids, as the margin loss expects
    without_bounds = not small.layers and name != "MatchedCNN"
    assert (network.scores_are == "logits") == without_bounds
    of_batch = outputs(network, images)
    alone = outputs(network, images[1:2])[:2]
    together = [each[1:2] for each in of_batch[:2]]
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = outputs(network, images)
    assert {each.dtype for each in half} == {torch.float32}
    torch.testing.assert_close(half, of_batch, rtol=0.1, atol=0.1)

    buffers = dict(network.named_buffers())
    in_half = outputs(copy.deepcopy(network).bfloat16(), images.bfloat16())
    torch.testing.assert_close([each.float() for each in in_half], of_batch, rtol=0.1, atol=0.1)

    statistics = [key for key in buffers if "running" in key or "num_batches" in key]
    saved = {*dict(network.named_parameters()), *statistics}
    assert network.state_dict().keys() == saved
    torch.manual_seed(7)
    other = small.untouched().eval()
    assert not torch.equal(other(images).scores, output.scores)
    other.load_state_dict(network.state_dict())
    assert torch.equal(other(images).scores, output.scores)


@pytest.mark.parametrize("name", CAPSULES)
def test_capsules_and_what_on_iteration_sees(name: str) -> None:
    network = SMALL[name].build()
    images = pictures()
    layers = network.capsule_layers()
    seen: list[tuple[nn.Module, Any]] = []
    for layer in layers.values():
        layer.register_forward_hook(lambda layer, _, output: seen.append((layer, output)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        network(images)
    assert list(layers) == SMALL[name].layers
    assert [layer for layer, _ in seen] == list(layers.values())
    capsules = [output for _, output in seen]
    for each in capsules:
        assert type(each) is Capsules
        assert {tensor.dtype for tensor in each if tensor is not None} == {torch.float32}
    torch.manual_seed(0)
    traces: list[RoutingTrace] = []
    output = network(images, on_iteration=traces.append)
    children = capsules[-2].activations.shape[1]
    assert traces
    for number, trace in enumerate(traces):
        assert trace.couplings.shape == (3, children, CLASSES)
        assert trace.iteration == number
    assert torch.equal(output.scores, output.capsules.activations)
    torch.manual_seed(0)
    assert torch.equal(output.scores, network(images).scores), "observing changes nothing"


LEARNING: list[tuple[str, Options]] = []
for network_name, small_network in SMALL.items():
    LEARNING.append((network_name, {}))
    for learning_options in small_network.learning:
        LEARNING.append((network_name, learning_options))


@pytest.mark.parametrize(("name", "options"), LEARNING)
def test_every_parameter_gets_a_gradient(name: str, options: Options) -> None:
    options = dict(options)
    idle = options.pop("idle", set())
    network = SMALL[name].build(**options)
    learn(network, pictures(4))
    assert without_gradient(network) == idle


@pytest.mark.parametrize("name", SMALL)
def test_every_argument_does_something(name: str) -> None:
    small = SMALL[name]
    changed = {"image_shape": (1, 21, 25), "num_classes": 5, **small.changed}
    assert changed.keys() == inspect.signature(small.network).parameters.keys()
    network = small.build()
    expected = outputs(network, pictures())
    idle = []
    for argument, value in changed.items():
        several = isinstance(value, dict) and argument in value
        options = value if several else {argument: value}
        other = small.build(**options)
        if sizes_of(network) != sizes_of(other):
            continue
        pairs = zip(expected, outputs(other, pictures()), strict=True)
        equal = [torch.allclose(*pair, atol=1e-5) for pair in pairs]
        if all(equal):
            idle.append(argument)
    assert idle == []


def sizes_of(network: Any) -> tuple[Any, dict[str, torch.Size]]:
    shapes = {name: parameter.shape for name, parameter in network.named_parameters()}
    return network.image_shape, shapes


WRONG: list[tuple[str, Options, str]] = []
for network_name, small_network in SMALL.items():
    for wrong_options, expected_message in small_network.wrong:
        WRONG.append((network_name, wrong_options, expected_message))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    WRONG,
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.usefixtures("unchecked_types")
def test_wrong_arguments(name: str, options: Options, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{re.escape(message)}.*$"):
        SMALL[name].build(**options)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.usefixtures("unchecked_types")
def test_wrong_images(name: str) -> None:
    network = SMALL[name].build()
    for shape in [IMAGE, (2, 2, 32, 32), (2, 3, 21, 25)]:
        message = f"{name} received images of shape {shape}; expected (batch, 2, 21, 25)"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            network(torch.zeros(shape))
    message = f"^{name} received images of torch.uint8; expected floats in"
    with pytest.raises(TypeError, match=message):
        network(torch.zeros(2, *IMAGE, dtype=torch.uint8))


@pytest.mark.parametrize("name", CAPSULES)
def test_extreme_images_give_finite_values_and_gradients(name: str) -> None:
    for pixels in (0.0, LARGEST_PIXEL, -LARGEST_PIXEL):
        network = SMALL[name].build()
        images = torch.full((2, *IMAGE), pixels, requires_grad=True)
        output = network(images)
        loss = output.scores.sum() + output.capsules.poses.sum()
        loss.backward()
        assert output.scores.isfinite().all()
        assert output.capsules.poses.isfinite().all()
        for tensor in (images, *network.parameters()):
            assert tensor.grad is None or tensor.grad.isfinite().all()


WITH_DECODER = [name for name in CAPSULES if "decoder" in SMALL[name].changed]


@pytest.mark.parametrize("name", WITH_DECODER)
def test_a_decoder_sees_one_class_capsule(name: str) -> None:
    network = SMALL[name].build(decoder=(4,))
    output = network(pictures(2))
    output.capsules.poses.retain_grad()
    network.reconstruct(output, torch.tensor([1, 3])).sum().backward()
    seen = output.capsules.poses.grad.any(2)
    assert seen.nonzero().tolist() == [[0, 1], [1, 3]]
    assert reconstructs(network)


@pytest.mark.parametrize("name", WITH_DECODER)
def test_a_network_without_a_decoder_reconstructs_nothing(name: str) -> None:
    network = SMALL[name].build(decoder=None)
    output = network(pictures(2))
    assert not reconstructs(network)
    with pytest.raises(ValueError, match=f"this {name} has no decoder; build it with decoder="):
        network.reconstruct(output, torch.tensor([0, 1]))
