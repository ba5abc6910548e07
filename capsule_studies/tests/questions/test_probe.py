import dataclasses
import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from capsule_lab.networks import AbstractNetwork
from capsule_lab.types import Batch, CapsuleOutput, Capsules
from capsule_studies.questions.probe import _median_angle, probe
from capsule_studies.subject import Subject

FACTORS = ("instance", "elevation", "azimuth", "lighting")
CLASSES = 2


def views(toys: tuple[int, ...]) -> Batch:
    """Images whose pixels are sine and cosine of the azimuth, elevation, lamp and noise; all views of each toy."""
    rows = itertools.product(range(CLASSES), toys, range(0, 9, 4), range(0, 36, 2), range(3))
    table = torch.tensor([*rows])
    label, factors = table[:, 0], table[:, 1:]
    _, elevation, azimuth, lamp = factors.unbind(1)
    angle = (10.0 * azimuth).deg2rad()
    is_first_lamp = (lamp == 0).float()
    generator = torch.Generator().manual_seed(sum(toys))
    noise = torch.randn(len(table), 12, generator=generator)
    numbers = torch.stack([angle.sin(), angle.cos(), elevation / 8, is_first_lamp], 1)
    images = torch.cat([numbers, noise], 1).view(-1, 1, 4, 4)
    return Batch(images, label, label, factors)


class Reads(AbstractNetwork):
    """Poses are the first pixels, or noise."""

    def __init__(self, *, informed: bool) -> None:
        super().__init__()
        self.informed = informed

    def forward(self, images: Tensor) -> CapsuleOutput:
        pixels = images.flatten(1)
        read = pixels[:, :4] if self.informed else pixels[:, 8:12]
        poses = read.unsqueeze(1).expand(-1, CLASSES, -1)
        activations = images.new_ones(len(images), CLASSES)
        return CapsuleOutput(activations, Capsules(poses, activations), activations)


def subject(*, informed: bool = True) -> Subject:
    return Subject(
        network=Reads(informed=informed),
        batches=[views((7, 8))],
        changed=lambda *_: [],
        changes={},
        training=lambda _: [views((0, 1, 2))],
        factors=FACTORS,
        classes=(),
        num_classes=CLASSES,
    )


def test_poses_that_know_the_viewpoint() -> None:
    numbers = probe(subject()).numbers
    assert numbers["linear/azimuth_r2"] > 0.99
    assert numbers["linear/elevation_r2"] > 0.99
    assert numbers["linear/azimuth_degrees"] < 2
    assert numbers["linear/novel_azimuth_degrees"] < 10, "sine and cosine extrapolate"
    assert numbers["network/azimuth_r2"] > 0.8


@pytest.mark.whole
def test_poses_that_do_not() -> None:
    numbers = probe(subject(informed=False)).numbers
    assert numbers["linear/azimuth_r2"] < 0.05
    assert numbers["linear/elevation_r2"] < 0.05
    assert 70 < numbers["linear/azimuth_degrees"] < 110
    assert 75 < numbers["linear/azimuth_degrees_aligned"] < 105
    assert numbers["pixels/azimuth_r2"] > 0.5, "which pixels know anyway"


@pytest.mark.whole
def test_toys_without_a_common_front() -> None:
    """Each toy is turned by its own angle, which is the only error of the prediction."""
    asked = subject()
    (batch,) = asked.batches
    turn = torch.where(batch.factors[:, 0] == 7, 12, 5)
    factors = batch.factors.clone()
    factors[:, 2] = (factors[:, 2] + turn) % 36
    turned = dataclasses.replace(asked, batches=[batch._replace(factors=factors)])
    numbers = probe(turned).numbers
    assert numbers["linear/azimuth_degrees"] > 40
    assert numbers["linear/azimuth_degrees_aligned"] < 2


@pytest.mark.whole
def test_one_view_of_a_toy_cannot_be_aligned() -> None:
    asked = subject()
    (batch,) = asked.batches
    step = len(batch.labels) // 4
    fields = [field[::step] for field in batch[:4]]
    of_one_view = dataclasses.replace(asked, batches=[Batch(*fields)])
    numbers = probe(of_one_view).numbers
    assert np.isnan(numbers["linear/azimuth_degrees_aligned"])


def test_angles_are_within_half_a_turn() -> None:
    angles = np.deg2rad([350.0, 355.0, -5.0])
    assert _median_angle(angles) == pytest.approx(5)
