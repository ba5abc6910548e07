from typing import Any

import pytest
import torch

from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.types import CapsuleOutput, Capsules
from capsule_studies.questions.crowding import _second_by_image, crowding, mixtures
from capsule_studies.tests.subjects import CLASSES, subject
from tests.helpers.networks import small_capsnet


def with_decoder() -> Any:
    torch.manual_seed(0)
    return subject(small_capsnet((1, 24, 24), CLASSES, decoder=[8]))


def test_parts_of_one_class_and_of_several() -> None:
    found = mixtures(with_decoder(), 2, 2, 0, same_class=True)
    assert (found.labels[:, 0] == found.labels[:, 1]).all()
    assert torch.equal(found.images, found.parts.amax(1))
    assert not any(torch.equal(first, second) for first, second in found.parts)
    for parts in [2, 3]:
        labels = mixtures(with_decoder(), parts, 2, 0, same_class=False).labels
        assert all(len({*row}) == parts for row in labels.tolist())


def test_single_images_are_those_of_the_subject_moved() -> None:
    asked = with_decoder()
    numbers = crowding(asked, shift=0).numbers
    right = (asked.outputs().ranking.argmax(1) == asked.labels).double().mean()
    assert numbers["single/found"] == pytest.approx(100 * float(right))


class Brightest(AbstractCapsuleNetwork):
    """Finds each class by its corner, and decodes it: the second look finds what the first left."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = torch.nn.Identity()

    def forward(self, images: torch.Tensor, *, on_iteration: Any = None) -> CapsuleOutput:
        corners = images[:, 0].unflatten(1, (2, 12)).unflatten(3, (2, 12)).amax((2, 4)).flatten(1)
        logits = corners * torch.tensor([1.0, 0.99, 0.98, 0.97])
        return CapsuleOutput(logits, Capsules(logits.unsqueeze(2), logits), logits)

    def reconstruct(self, output: CapsuleOutput, classes: torch.Tensor) -> torch.Tensor:
        corners = torch.nn.functional.one_hot(classes, 4).float().view(-1, 1, 2, 2)
        return torch.nn.functional.interpolate(corners, scale_factor=12)

    def capsule_layers(self) -> dict[str, torch.nn.Module]:
        return {}


def test_looking_again_finds_the_second_of_two_and_no_second_of_one() -> None:
    asked = subject(Brightest())
    pairs, single = (mixtures(asked, parts, 0, 0, same_class=False) for parts in (2, 1))
    found = _second_by_image(asked, pairs)
    assert torch.equal(found.sort(1)[0], pairs.labels.sort(1)[0])
    assert (_second_by_image(asked, single)[:, 1] == -1).all()
