import pytest
import torch
from torch import nn
from torchvision.models import get_model

from capsule_lab.layers import Trunk
from capsule_lab.layers.classes import axes_of
from capsule_lab.networks import EMCaps

CHANNELS = {
    "resnet18.layer1": 64,
    "resnet18.layer2": 128,
    "resnet50.layer1": 256,
    "resnet18.layer4": 512,
}


@pytest.mark.parametrize("stem", CHANNELS)
def test_sizes_are_those_of_the_feature_maps(stem: str) -> None:
    trunk = Trunk(stem, 3, (28, 65)).eval()
    features = trunk(torch.rand(2, 3, 28, 65))
    assert features.shape == (2, CHANNELS[stem], *trunk.grid)
    assert trunk.channels == CHANNELS[stem]


def test_features_are_those_of_torchvision_for_normalised_images() -> None:
    """With a state dict of torchvision, whose later stages have no place; grey images are repeated."""
    network = get_model("resnet18", weights=None).eval()
    trunk = Trunk("resnet18.layer2", 1, (30, 40)).eval()
    missing, unexpected = trunk.load_state_dict(network.state_dict(), strict=False)
    assert missing == []
    later = ("layer3", "layer4", "fc")
    assert all(name.startswith(later) for name in unexpected)
    grey = torch.rand(2, 1, 30, 40)
    colour = grey.repeat(1, 3, 1, 1)
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    expected = (colour - mean) / std
    for name in ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2"):
        expected = network.get_submodule(name)(expected)
    torch.testing.assert_close(trunk(grey), expected)


def test_what_a_position_sees() -> None:
    """The middle of the pixels with a gradient is where the receptive field says, away from the edges."""
    trunk = Trunk("resnet18.layer2", 1, (128, 128)).double().eval()
    for parameter in trunk.parameters():
        nn.init.ones_(parameter)
    images = torch.ones(1, 1, 128, 128).double().requires_grad_()
    row = column = trunk.grid[0] // 2
    features = trunk(images)
    features[0, 0, row, column].backward()
    seen = images.grad[0, 0].nonzero().double()  # type: ignore[index]
    axes = axes_of("receptive_field", trunk.grid, trunk.field)
    assert axes is not None
    rows, columns = axes
    expected = torch.stack([rows[row], columns[column]]) * 100 + 64
    middle = seen.mean(0)
    assert middle.tolist() == pytest.approx(expected.tolist(), abs=8)


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameters_of_a_network_are_those_of_the_stages_and_of_its_capsules() -> None:
    """683,072 is the sum in torchvision's resnet18 of the first convolution and two stages."""
    network = EMCaps((3, 64, 64), 3, stem="resnet18.layer2")
    other = EMCaps((3, 64, 64), 3, stem=[[128, 3, 8]])
    assert size(network.conv) == 683_072
    of_capsules = size(network) - size(network.conv)
    assert of_capsules == size(other) - size(other.conv)
    output = network(torch.rand(2, 3, 64, 64))
    output.scores.sum().backward()
    for name, parameter in network.conv.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


UNKNOWN = {
    "resnet18": "expected resnet18 or .*, such as 'resnet18.layer2'",
    "resnet18.layer5": "expected",
    "resnet18.conv1": "expected",
}


@pytest.mark.parametrize("stem", UNKNOWN)
def test_unknown_stages_are_refused(stem: str) -> None:
    message = f"stem is '{stem}'; {UNKNOWN[stem]}"
    with pytest.raises(ValueError, match=message):
        EMCaps((3, 32, 32), 5, stem=stem)


TWO_CHANNELS = "received images of 2 channels; expected 3, or 1 for grey images"


def test_stereo_images_are_refused() -> None:
    with pytest.raises(ValueError, match=TWO_CHANNELS):
        EMCaps((2, 32, 32), 5, stem="resnet18.layer2")


def test_images_of_another_number_of_channels_are_refused() -> None:
    trunk = Trunk("resnet18.layer1", 3, (8, 8))
    images = torch.rand(1, 2, 8, 8)
    with pytest.raises(ValueError, match=TWO_CHANNELS):
        trunk(images)
