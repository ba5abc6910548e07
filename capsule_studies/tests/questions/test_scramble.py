from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.networks import AbstractNetwork
from capsule_lab.types import Batch, CapsuleOutput
from capsule_studies.questions.scramble import blurred, blurred_as_far, changes, scramble
from capsule_studies.tests.subjects import small_network, subject


def tiles_that_differ(before: Tensor, after: Tensor, tiles: int) -> list[int]:
    """Return the number for each image."""
    size = before.shape[2] // tiles
    changed_pixels = (after != before).float()
    changed_tiles = torch.nn.functional.max_pool2d(changed_pixels, size)
    return changed_tiles.sum((1, 2, 3)).tolist()


def of_images(pictures: Tensor, keys: list[int] | None = None, batch: int = 2) -> Any:
    """A subject with these images, of classes 0 and 1 in turn."""
    labels = torch.arange(len(pictures)) % 2
    key = torch.tensor(keys or range(len(pictures)))
    batches = []
    for start in range(0, len(pictures), batch):
        part = slice(start, start + batch)
        batches.append(Batch(pictures[part], labels[part], key[part]))
    return replace(subject(small_network("cnn")), batches=batches)


def sparse() -> Tensor:
    """Images with bright and dark columns of tiles, without contrast, with equal tiles, and with nearly equal tiles."""
    checkerboard = torch.eye(2).repeat(4, 4)
    pictures = torch.zeros(4, 1, 8, 8)
    pictures[0, 0, :, [0, 1, 4, 5]] = 1
    pictures[2] = checkerboard
    pictures[3] = checkerboard
    pictures[3, 0, :2, :2] *= 1.1
    return pictures.repeat_interleave(3, 2).repeat_interleave(3, 3)


def test_the_two_tiles_differ() -> None:
    """Empty tiles are never exchanged; an image without two different tiles is left out and counted."""
    asked = of_images(sparse())
    for seed in range(5):
        found, left_out = changes(asked, 4, seed)
        changed, counted = found["two_tiles"]
        assert counted.tolist() == [True, False, False, False]
        assert tiles_that_differ(asked.images, changed, 4) == [2, 0, 0, 0]
        assert left_out == {"without_pair": 3, "too_far_for_blur": 0}
    numbers = scramble(asked).numbers
    assert numbers["two_tiles/images"] == 1
    assert numbers["blur/images"] == 1


def test_all_tiles_move_and_pixels_beyond_the_last_tile_stay() -> None:
    pictures = torch.rand(2, 1, 27, 27)
    found, _ = changes(of_images(pictures), 4, 0)
    changed = found["all_tiles"].images
    tiled, tiled_before = changed[..., :24, :24], pictures[..., :24, :24]
    assert tiles_that_differ(tiled_before, tiled, 4) == [16, 16]
    assert torch.equal(changed[..., 24:], pictures[..., 24:])


def test_neither_order_nor_batches_matter() -> None:
    generator = torch.Generator().manual_seed(0)
    pictures = torch.rand(6, 1, 24, 24, generator=generator)
    there = of_images(pictures)
    back = of_images(pictures.flip(0), [5, 4, 3, 2, 1, 0], batch=6)
    (batch,) = back.batches
    batch = batch._replace(labels=there.labels.flip(0))
    back = replace(back, batches=[batch])
    one, _ = changes(there, 4, 0)
    other, _ = changes(back, 4, 0)
    for name, (changed, counted) in one.items():
        torch.testing.assert_close(changed, other[name].images.flip(0))
        assert torch.equal(counted, other[name].counted.flip(0))


def test_halves_are_those_of_the_class_that_is_asked_for() -> None:
    asked = subject(small_network("cnn"))
    found, _ = changes(asked, 4, 0)
    upper, lower = asked.images.split(12, 2)
    itself = torch.arange(len(asked.labels))
    for name, same in (("halves_of_class", True), ("halves_of_classes", False)):
        changed, counted = found[name]
        assert counted.all()
        new_upper, new_lower = changed.split(12, 2)
        assert torch.equal(new_upper, upper)
        distances = torch.cdist(new_lower.flatten(1), lower.flatten(1))
        partner = distances.argmin(1)
        assert (partner != itself).all()
        is_same = asked.labels[partner] == asked.labels
        assert (is_same == same).all()


def test_an_image_without_another_of_its_class_does_not_count() -> None:
    asked = of_images(torch.rand(3, 1, 24, 24))
    found, _ = changes(asked, 4, 0)
    counted = found["halves_of_class"].counted
    assert counted.tolist() == [True, False, True]


def test_blurred_pixel_is_the_mean_of_its_square() -> None:
    pictures = torch.rand(1, 1, 9, 9)
    square = pictures[0, 0, 2:5, 2:5]
    found = blurred(pictures, 3)[0, 0]
    torch.testing.assert_close(found[3, 3], square.mean())


def test_blur_has_the_requested_distance_or_warns() -> None:
    pictures = torch.rand(3, 1, 24, 24, generator=torch.Generator().manual_seed(0))
    wanted = torch.tensor([1.0, 5.0, 50.0])
    found, reached = blurred_as_far(pictures, wanted)
    assert reached.tolist() == [True, True, False]
    distances = (found - pictures).flatten(1).norm(dim=1)
    near, farther, farthest = distances.tolist()
    assert near == pytest.approx(1)
    assert farther == pytest.approx(5)
    assert 0 < farthest < 50


def test_a_network_that_sees_no_places_cannot_tell() -> None:
    """Sums over all pixels do not depend on the order of tiles."""

    class Bag(AbstractNetwork):
        def forward(self, images: Tensor) -> CapsuleOutput:
            total = images.sum((1, 2, 3))
            scores = torch.stack([total, -total, 0 * total, total / 2], 1)
            return CapsuleOutput(scores, None, scores)

    numbers = scramble(subject(Bag()), tiles=4).numbers
    assert numbers["all_tiles/auc"] == pytest.approx(0.5, abs=0.01)
    assert numbers["swapped_halves/auc"] == pytest.approx(0.5, abs=0.01)
