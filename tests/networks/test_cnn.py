"""Convolutional baselines: pooling, kernels, the mean over positions; the rest is in test_contract."""

from typing import Any

import pytest
import torch
from torch import nn

from capsule_lab.networks import BaselineCNN, EfficientCapsNet, MatchedCNN, SmallCNN
from tests.helpers.closeness import assert_close
from tests.helpers.networks import count, pictures


def build(image_shape: tuple[int, int, int] = (1, 6, 7), **options: Any) -> BaselineCNN:
    torch.manual_seed(0)
    options = {"channels": (3, 4), "kernel_size": 3, "hidden": (6, 5), **options}
    return BaselineCNN(image_shape, 4, **options)


@pytest.mark.parametrize(("pooling", "size"), [(1, (9, 14)), (2, (2, 3)), (3, (1, 1))])
def test_pooling_after_every_convolution(pooling: int, size: tuple[int, int]) -> None:
    network = build((1, 9, 14), pooling=pooling)
    features = network.features(pictures(2, (1, 9, 14)))
    assert features.shape == (2, 4, *size)
    images = pictures(2, (1, 6, 7))
    plain = build(channels=(3,)).features(images)
    pooled = build(channels=(3,), pooling=pooling).features(images)
    expected = nn.functional.max_pool2d(plain, pooling)
    torch.testing.assert_close(pooled, expected)


def test_names_of_the_convolutions() -> None:
    names = dict(build().features.named_parameters()).keys()
    assert [*names] == ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize(("sizes", "smallest"), [([3], 3), ([5, 3], 7)])
def test_kernels_of_different_size_without_padding(sizes: list[int], smallest: int) -> None:
    options = {
        "kernel_size": sizes,
        "channels": (2,) * len(sizes),
        "padding": "valid",
    }
    image_shape = 1, smallest, smallest
    network = build(image_shape, **options)
    features = network.features(pictures(2, image_shape))
    assert features.shape == (2, 2, 1, 1)
    convolutions = [layer for layer in network.features if isinstance(layer, nn.Conv2d)]
    assert [layer.kernel_size[0] for layer in convolutions] == sizes
    with pytest.raises(ValueError, match=f"needs at least {smallest}x{smallest}"):
        build((1, smallest, smallest - 1), **options)


def test_averaged_maps_and_a_linear_layer() -> None:
    options = {
        "channels": (3, 5),
        "kernel_sizes": (3, 3),
        "averaged": True,
        "class_dim": None,
    }
    network = MatchedCNN((1, 7, 8), 4, **options).double()
    images = pictures(8, (1, 7, 8)).double()
    first, _, second, *_ = network.features
    features = second(first(images).relu()).relu()
    assert features.shape == (8, 5, 2, 2)
    averages = features.flatten(2).mean(2)
    classifier = network.classifier
    expected = averages @ classifier.weight.T + classifier.bias
    assert_close(network(images).logits, expected)


def control_of_efficient_capsnet(**options: Any) -> MatchedCNN:
    return MatchedCNN(
        (1, 28, 28),
        10,
        channels=(32, 64, 64, 128, 128),
        kernel_sizes=(5, 3, 3, 3, 9),
        strides=(1, 1, 1, 2, 1),
        depthwise=True,
        batch_norm=True,
        **options,
    )


def test_control_of_efficient_capsnet_has_its_convolutions_and_its_size() -> None:
    """The convolutions are equal weight for weight; the dense units replace transformations of the same size."""
    torch.manual_seed(0)
    capsules = EfficientCapsNet((1, 28, 28), 10).double().eval()
    control = control_of_efficient_capsnet(decoder=(512, 1024)).double().eval()
    assert abs(count(capsules) - count(control)) <= 200
    copied = [
        *capsules.features.state_dict().values(),
        *capsules.primary.conv.state_dict().values(),
    ]
    names = control.features.state_dict()
    state = dict(zip(names, copied, strict=True))
    control.features.load_state_dict(state)
    images = pictures(2, (1, 28, 28)).double()
    maps = capsules.primary.conv(capsules.features(images)).relu()
    torch.testing.assert_close(control.features(images), maps)
    output = control(images)
    units = control.units(maps.flatten(1)).relu().unflatten(1, (10, 16))
    classifier = control.classifier
    sums = torch.einsum("bkd,kd->bk", units, classifier.weight)
    torch.testing.assert_close(output.logits, sums + classifier.bias)
    torch.testing.assert_close(output.scores, output.logits.sigmoid())
    classes = torch.tensor([3, 1])
    drawn = control.reconstruct(output, classes)
    mask = nn.functional.one_hot(classes, 10).double()
    torch.testing.assert_close(drawn, control.decoder(units, mask))


@pytest.mark.parametrize(("initial", "share"), [("he", 129**0.5), ("xavier", 1)])
def test_initial_weights_of_the_last_convolution(initial: str, share: float) -> None:
    """Those of Xavier are as large as in Efficient-CapsNet; those of He sqrt(129) times larger.

    A depthwise convolution of 128 channels has a fan-in of k^2 and a fan-out of 128 k^2; He's variance is 2 / k^2, and
    Xavier's 2 / (k^2 + 128 k^2).
    """
    torch.manual_seed(0)
    capsules = EfficientCapsNet((1, 28, 28), 10)
    control = control_of_efficient_capsnet(last_initial=initial)
    *others, last = deviations(control.features)
    *same, primary = deviations(capsules.features) + deviations(capsules.primary)
    assert last / primary == pytest.approx(share, rel=0.03)
    assert others == pytest.approx(same, rel=0.1)


def deviations(layers: nn.Module) -> list[float]:
    convolutions = [layer for layer in layers.modules() if isinstance(layer, nn.Conv2d)]
    return [conv.weight.std().item() for conv in convolutions]


def test_pooled_features_see_the_position() -> None:
    """A mean over positions of features without coordinates is the same for exchanged positions."""
    options = {"channels": (3,), "kernel_sizes": (1,), "dropout": 0.0, "pooled": 7}
    images = pictures(2, (1, 8, 8))
    exchanged = images.flip(2, 3).roll(
        (1, 1), (2, 3)
    )  # a stride of 2 sees the same pixels elsewhere
    for sees_position in (False, True):
        torch.manual_seed(0)
        network = SmallCNN((1, 8, 8), 4, pooled_coordinates=sees_position, **options).eval()
        same = torch.allclose(network(images).scores, network(exchanged).scores, atol=1e-6)
        assert same is not sees_position
