from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.types import CapsuleOutput, Capsules
from capsule_studies.questions.crowding import _second_by_image, crowding, mixtures
from capsule_studies.tests.subjects import CLASSES, subject
from tests.helpers.networks import small_capsnet


def with_decoder() -> Any:
    torch.manual_seed(0)
    return subject(small_capsnet((1, 24, 24), CLASSES, decoder=[8]))


def test_parts_of_one_class() -> None:
    found = mixtures(with_decoder(), 2, 2, 0, same_class=True)
    first_labels, second_labels = found.labels.unbind(1)
    assert torch.equal(first_labels, second_labels)
    assert torch.equal(found.images, found.parts.amax(1))
    for first, second in found.parts:
        assert not torch.equal(first, second)


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_several_classes(parts: int) -> None:
    found = mixtures(with_decoder(), parts, 2, 0, same_class=False)
    for labels in found.labels.tolist():
        assert len(set(labels)) == parts


def test_single_images_are_those_of_the_subject_moved() -> None:
    asked = with_decoder()
    numbers = crowding(asked, shift=0).numbers
    predicted = asked.outputs().ranking.argmax(1)
    right = (predicted == asked.labels).double().mean()
    assert numbers["single/found"] == pytest.approx(100 * right.item())


class Brightest(AbstractCapsuleNetwork):
    """It recognises each class by its corner and decodes it, so that the second pass finds the remaining class."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.Identity()

    def forward(self, images: Tensor, *, on_iteration: Any = None) -> CapsuleOutput:
        corners = functional.max_pool2d(images, 12).flatten(1)
        logits = corners * torch.tensor([1.0, 0.99, 0.98, 0.97])
        capsules = Capsules(logits.unsqueeze(2), logits)
        return CapsuleOutput(logits, capsules, logits)

    def reconstruct(self, output: CapsuleOutput, classes: Tensor) -> Tensor:
        corners = functional.one_hot(classes, 4).float()
        return functional.interpolate(corners.view(-1, 1, 2, 2), scale_factor=12)

    def capsule_layers(self) -> dict[str, nn.Module]:
        return {}


def test_looking_again_finds_the_second_of_two_and_no_second_of_one() -> None:
    asked = subject(Brightest())
    pairs = mixtures(asked, 2, 0, 0, same_class=False)
    found = _second_by_image(asked, pairs)
    for classes, labels in zip(found.tolist(), pairs.labels.tolist(), strict=True):
        assert sorted(classes) == sorted(labels)
    single = mixtures(asked, 1, 0, 0, same_class=False)
    _, second = _second_by_image(asked, single).unbind(1)
    assert (second == -1).all()
