from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from torch import nn

from capsule_lab.config.compose import compose
from capsule_lab.losses import cross_entropy_loss
from capsule_lab.networks import AveragedCNN, BaselineCNN, SmallCNN

SMALL = {"channels": (3, 4), "kernel_size": 3, "hidden": (6, 5), "dropout": 0.5}


def build(image_shape: tuple[int, int, int] = (1, 6, 7), num_classes: int = 4, **options: Any) -> BaselineCNN:
    torch.manual_seed(0)
    return BaselineCNN(image_shape, num_classes, **{**SMALL, **options})


def images(batch: int, *image_shape: int) -> torch.Tensor:
    return torch.rand(batch, *(image_shape or (1, 6, 7)), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("model", "image_shape", "num_classes", "parameters"),
    [
        pytest.param("cnn_baseline", (1, 28, 28), 10, 35_445_522, id="Sabour 2017, MNIST, the paper's 35.4M"),
        pytest.param("cnn_smallnorb", (2, 32, 32), 5, 4_253_349, id="Hinton 2018, stereo, the paper's 4.2M"),
        pytest.param("cnn_smallnorb", (1, 32, 32), 5, 4_252_549, id="Hinton 2018, mono"),
        pytest.param("cnn_multimnist", (1, 36, 36), 10, 24_563_978, id="Sabour 2017, MultiMNIST, the paper's 24.56M"),
        pytest.param("cnn_affnist", (1, 40, 40), 10, 12_767_498, id="ours, of about a CapsNet's size at 40x40"),
        pytest.param("cnn_averaged", (1, 40, 40), 10, 5_332_234, id="Gu 2021, the paper's 5.3M"),
    ],
)
def test_published_parameter_count(
    model: str, image_shape: tuple[int, int, int], num_classes: int, parameters: int
) -> None:
    options = compose("train", [f"model={model}"]).model
    with torch.device("meta"):
        network = instantiate(options, _partial_=True, _convert_="all")(image_shape, num_classes)
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters


def test_parameter_count_of_sabour_2017_is_that_of_the_defaults() -> None:
    with torch.device("meta"):
        network = BaselineCNN((1, 28, 28), 10)
    assert sum(parameter.numel() for parameter in network.parameters()) == 35_445_522


@pytest.mark.parametrize("pooling", [1, 2])
def test_every_parameter_gets_a_gradient(pooling: int) -> None:
    network = build(dropout=0.0, pooling=pooling)
    cross_entropy_loss(network(images(8)).scores, torch.arange(8) % 4).backward()
    assert [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()] == []


CHANGED = {
    "image_shape": (1, 8, 7),
    "num_classes": 5,
    "channels": (3, 5),
    "kernel_size": 5,
    "padding": "valid",
    "pooling": 2,
    "hidden": (6, 6),
    "dropout": 0.1,
}


@pytest.mark.parametrize("argument", list(inspect.signature(BaselineCNN).parameters))
def test_every_argument_does_something(argument: str) -> None:
    network, other = build(), build(**{argument: CHANGED[argument]})
    shapes, other_shapes = ([p.shape for p in each.parameters()] for each in (network, other))
    torch.manual_seed(0)
    scores = network(images(8)).scores
    torch.manual_seed(0)
    assert shapes != other_shapes or not torch.allclose(scores, other(images(8)).scores)


@pytest.mark.parametrize("image_shape", [(1, 6, 7), (3, 5, 5), (2, 1, 1)])
def test_shapes(image_shape: tuple[int, int, int]) -> None:
    output = build(image_shape)(images(2, *image_shape))
    assert output.scores.shape == (2, 4)
    assert output.capsules is None


def test_convolutions_keep_the_image_size() -> None:
    assert build().features(images(2)).shape == (2, 4, 6, 7)


@pytest.mark.parametrize(
    ("pooling", "size"), [(1, (9, 14)), (2, (2, 3)), (3, (1, 1))], ids=["none", "halves twice", "a third twice"]
)
def test_pooling_after_every_convolution(pooling: int, size: tuple[int, int]) -> None:
    network = build((1, 9, 14), pooling=pooling)
    assert network.features(images(2, 1, 9, 14)).shape == (2, 4, *size)
    assert network(images(2, 1, 9, 14)).scores.shape == (2, 4)


def test_pooling_takes_the_maximum_of_what_the_convolution_gives() -> None:
    plain, pooled = build((1, 6, 7), channels=(3,)), build((1, 6, 7), channels=(3,), pooling=2)
    expected = nn.functional.max_pool2d(plain.features(images(2)), 2)
    torch.testing.assert_close(pooled.features(images(2)), expected)


def test_without_pooling_the_weights_are_named_as_before() -> None:
    assert [name for name, _ in build().features.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_image_of_which_pooling_leaves_nothing_is_named() -> None:
    with pytest.raises(ValueError, match="images are 6x3; BaselineCNN needs at least 4x4"):
        build((1, 6, 3), pooling=2)


def test_pooling_of_nothing_is_named() -> None:
    with pytest.raises(ValueError, match="BaselineCNN has pooling 0; expected 1 or more"):
        build(pooling=0)


def test_scores_are_logits() -> None:
    assert BaselineCNN.scores_are == "logits"


def test_dropout_is_off_when_evaluating() -> None:
    network = build().eval()
    assert torch.equal(network(images(3)).scores, network(images(3)).scores)


def test_batch_of_one_equals_its_row() -> None:
    network = build().eval()
    torch.testing.assert_close(network(images(3)[1:2]).scores, network(images(3)).scores[1:2])


def test_scores_are_float32_under_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert build()(images(2)).scores.dtype == torch.float32


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 2.0])
def test_wrong_dropout_is_named(dropout: float) -> None:
    with pytest.raises(ValueError, match=f"dropout is {dropout}; expected"):
        build(dropout=dropout)


@pytest.mark.parametrize("kernel_size", [2, 4, [3, 4], [3], [3, 3, 3]], ids=str)
def test_kernel_sizes_that_are_refused(kernel_size: Any) -> None:
    words = re.escape(f"kernel_size is {kernel_size}; expected an odd number")
    with pytest.raises(ValueError, match=f"{words}.* one for each of the 2"):
        build(kernel_size=kernel_size, channels=(2, 3))


def test_convolutions_may_differ_in_size() -> None:
    sizes = [
        module.kernel_size
        for module in build(kernel_size=[5, 3], channels=(2, 3)).features
        if isinstance(module, nn.Conv2d)
    ]
    assert sizes == [(5, 5), (3, 3)]


@pytest.mark.parametrize(("size", "smallest"), [([3], 3), ([3, 3], 5), ([5, 3], 7)], ids=str)
@pytest.mark.parametrize("missing", [0, 1])
def test_without_padding_an_image_must_be_large_enough(size: list[int], smallest: int, missing: int) -> None:
    shape, channels = (1, smallest, smallest - missing), (2,) * len(size)
    if missing:
        with pytest.raises(ValueError, match=f"{smallest}"):
            build(shape, kernel_size=size, channels=channels, padding="valid")
    else:
        assert build(shape, kernel_size=size, channels=channels, padding="valid")(images(2, *shape)).scores.shape == (
            2,
            4,
        )


def small(image_shape: tuple[int, int, int] = (1, 6, 7), num_classes: int = 4, **options: Any) -> SmallCNN:
    torch.manual_seed(0)
    return SmallCNN(image_shape, num_classes, **{"channels": (3, 4), "kernel_sizes": (5, 3), "dropout": 0.5, **options})


def test_small_cnn_has_a_fraction_of_the_parameters() -> None:
    options = compose("train", ["model=cnn_small"]).model
    network = instantiate(options, _partial_=True, _convert_="all")((2, 32, 32), 5)
    by_hand = 2 * 25 * 32 + 32 * 9 * 64 + 64 * 9 * 64 + 2 * (32 + 64 + 64) + (64 * 4 * 4 + 1) * 5
    assert sum(parameter.numel() for parameter in network.parameters()) == by_hand == 62_341


@pytest.mark.parametrize("image_shape", [(1, 6, 7), (3, 5, 5), (2, 1, 1)])
def test_small_cnn_shapes(image_shape: tuple[int, int, int]) -> None:
    network = small(image_shape).eval()
    assert network(images(2, *image_shape)).scores.shape == (2, 4)


@pytest.mark.parametrize(
    ("argument", "other"),
    [
        ("channels", (3, 5)),
        ("kernel_sizes", (3, 3)),
        ("dropout", 0.1),
        ("num_classes", 5),
        ("image_shape", (1, 9, 7)),
        ("batch_norm", False),
    ],
)
def test_every_argument_of_the_small_cnn_does_something(argument: str, other: Any) -> None:
    networks = small(), small(**{argument: other})
    shapes = [[p.shape for p in network.parameters()] for network in networks]
    outputs = []
    for network in networks:
        torch.manual_seed(0)
        outputs.append(network(images(8)).scores if shapes[0] == shapes[1] else None)
    assert shapes[0] != shapes[1] or not torch.allclose(*outputs)


def test_without_batch_norm_an_image_is_seen_by_itself() -> None:
    network, several = small(batch_norm=False, dropout=0.0), images(8)
    torch.testing.assert_close(network(several).scores[:1], network(several[:1]).scores)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 1.0}, r"dropout is 1.0; expected a probability in \[0, 1\)"),
        ({"kernel_sizes": (4, 3)}, r"kernel_sizes are \[4, 3\]; expected 2 odd ones, as channels"),
        ({"kernel_sizes": (3,)}, r"kernel_sizes are \[3\]; expected 2 odd ones, as channels"),
        ({"channels": (), "kernel_sizes": ()}, "SmallCNN has layers 0; expected 1 or more"),
    ],
)
def test_small_cnn_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**options)


# --- AveragedCNN -----------------------------------------------------------------------------------------------------


def averaged(**options: Any) -> AveragedCNN:
    torch.manual_seed(0)
    return AveragedCNN(**{"image_shape": (1, 7, 8), "num_classes": 4, "channels": (3, 5), "kernel_size": 3, **options})


def test_averaged_cnn_takes_the_mean_over_positions() -> None:
    network, pixels = averaged().double(), images(8, 1, 7, 8).double()
    first, last = (network.features[number] for number in (0, 2))
    features = last(first(pixels).relu()).relu()
    assert features.shape == (8, 5, 2, 2)
    expected = features.flatten(2).mean(2) @ network.classifier.weight.T + network.classifier.bias
    output = network(pixels)
    torch.testing.assert_close(output.scores, expected, rtol=0, atol=1e-12)
    assert torch.equal(output.scores, output.logits)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("image_shape", (1, 9, 9)), ("num_classes", 5), ("channels", (3, 4)), ("channels", (5,)), ("kernel_size", 2)],
)
def test_every_argument_of_the_averaged_cnn_does_something(argument: str, value: Any) -> None:
    network, other = averaged(), averaged(**{argument: value})
    shapes, other_shapes = ([p.shape for p in each.parameters()] for each in (network, other))
    pixels = images(2, *other.image_shape)
    if argument == "image_shape":
        with pytest.raises(ValueError, match=r"expected \(batch, 1, 7, 8\)"):
            network(pixels)
    else:
        assert shapes != other_shapes
    assert other(pixels).scores.shape == (2, other.classifier.out_features)


def test_smallest_images_of_the_averaged_cnn() -> None:
    assert averaged(image_shape=(1, 5, 5))(images(2, 1, 5, 5)).scores.shape == (2, 4)
    with pytest.raises(ValueError, match="images are 4x5; AveragedCNN needs at least 5x5"):
        averaged(image_shape=(1, 4, 5))


@pytest.mark.parametrize("options", [{"channels": ()}, {"kernel_size": 0}, {"num_classes": 0}])
def test_sizes_of_the_averaged_cnn_are_positive(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"AveragedCNN has .* 0; expected 1 or more"):
        averaged(**options)


def test_every_parameter_of_the_averaged_cnn_gets_a_gradient() -> None:
    network = averaged()
    cross_entropy_loss(network(images(8, 1, 7, 8)).scores, torch.arange(8) % 4).backward()
    assert [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()] == []
