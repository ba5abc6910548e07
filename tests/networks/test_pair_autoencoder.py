from __future__ import annotations

import pytest
import torch

from capsule_lab.networks import PairAutoencoder
from capsule_lab.networks.base import AbstractPairNetwork

SHAPE = (1, 8, 8)


@pytest.mark.parametrize(("pose", "change"), [("translation", (2,)), ("matrix", (3, 3))])
def test_images_codes_and_the_change(pose: str, change: tuple[int, ...]) -> None:
    network = PairAutoencoder(SHAPE, code=5, hidden=(7, 6), pose=pose)  # type: ignore[arg-type]
    images, told = torch.rand(4, *SHAPE), torch.randn(4, *change)
    output = network(images, told)
    assert isinstance(network, AbstractPairNetwork)
    assert network.change_shape == change
    assert output.images.shape == images.shape
    assert output.poses.shape == (4, 1, 5)
    assert output.presences.equal(torch.ones(4, 1))
    assert not torch.allclose(output.images, network(images, 2 * told).images)
    assert output.poses.equal(network(images, 2 * told).poses)


def test_every_parameter_has_a_gradient() -> None:
    network = PairAutoencoder(SHAPE)
    network(torch.rand(3, *SHAPE), torch.randn(3, 2)).images.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in network.parameters())


def test_as_many_parameters_as_the_transforming_autoencoder_of_shifts() -> None:
    parameters = sum(p.numel() for p in PairAutoencoder((1, 28, 28)).parameters())
    assert parameters == 710_434
    assert abs(parameters / 709_474 - 1) < 0.002


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"code": 0}, "PairAutoencoder has code 0; expected 1 or more"),
        ({"hidden": (0,)}, "PairAutoencoder has hidden 0"),
        ({"pose": "turn"}, "pose is 'turn'; expected 'translation' or 'matrix'"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str, unchecked_types: None) -> None:
    with pytest.raises(ValueError, match=message):
        PairAutoencoder(SHAPE, **options)  # type: ignore[arg-type]


def test_a_change_of_another_kind() -> None:
    with pytest.raises(ValueError, match=r"the change is of shape \(2, 2\); expected \(batch, 3, 3\)"):
        PairAutoencoder(SHAPE, pose="matrix")(torch.rand(2, *SHAPE), torch.zeros(2, 2))
