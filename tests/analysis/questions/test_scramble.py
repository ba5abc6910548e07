from __future__ import annotations

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.analysis.questions.scramble import blurred, changes, permuted_tiles, scramble
from capsule_lab.networks import AbstractNetwork
from capsule_lab.types import CapsuleOutput
from tests.helpers.subjects import small_network, subject


def images(side: int = 8) -> Tensor:
    return torch.arange(2 * side * side, dtype=torch.float32).view(2, 1, side, side)


def permuted(pictures: Tensor, tiles: int, moved: int) -> Tensor:
    return permuted_tiles(pictures, tiles, moved, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("moved", [2, 3, 4, 16])
def test_as_many_tiles_as_asked_are_elsewhere(moved: int) -> None:
    before = images()
    after = permuted(before, 4, moved)
    differ = (after != before).unflatten(2, (4, 2)).unflatten(4, (4, 2)).any(5).any(3).sum((1, 2, 3))
    assert differ.tolist() == [moved, moved]


def test_pixels_are_the_same_ones() -> None:
    before = images()
    assert torch.equal(permuted(before, 4, 16).flatten(1).sort()[0], before.flatten(1).sort()[0])


def test_tiles_stay_whole() -> None:
    after = permuted(images(), 2, 4).unflatten(2, (2, 4)).unflatten(4, (2, 4))
    rows = after.diff(dim=3)
    assert (rows == 8).all()  # as below each other as in the image


def test_pixels_beyond_the_last_tile_stay() -> None:
    before = images(9)
    after = permuted(before, 4, 16)
    assert torch.equal(after[..., 8:], before[..., 8:])
    assert torch.equal(after[..., 8:, :], before[..., 8:, :])


def test_images_differ_in_which_tiles_move() -> None:
    same = images()[:1].expand(6, -1, -1, -1)
    after = permuted(same, 4, 2)
    assert not all(torch.equal(after[0], each) for each in after[1:])


def test_blur_is_the_mean_of_a_square() -> None:
    before = torch.rand(1, 1, 7, 7)
    torch.testing.assert_close(blurred(before, 3)[0, 0, 3, 3], before[0, 0, 2:5, 2:5].mean())
    torch.testing.assert_close(blurred(torch.ones(1, 1, 5, 5), 3), torch.ones(1, 1, 5, 5))


@pytest.mark.parametrize("kind", ["em_caps", "capsnet", "cnn"])
def test_numbers(kind: str) -> None:
    numbers = scramble(subject(small_network(kind)), tiles=3).numbers
    for change in ("two_tiles", "all_tiles", "swapped_halves", "halves_of_class", "halves_of_classes", "blur"):
        assert 0 <= numbers[f"{change}/kept"] <= 100
        assert 0 <= numbers[f"{change}/auc"] <= 1
    assert numbers["all_tiles/distance"] > numbers["two_tiles/distance"] > 0
    assert 0 < numbers["blur/distance"] <= numbers["two_tiles/distance"] * 1.001


def test_halves_are_those_of_the_class_that_is_asked_for() -> None:
    asked = subject(small_network("cnn"))
    found = changes(asked, 4, 0)
    lower = asked.images[:, :, 12:].flatten(1)
    for name, same in (("halves_of_class", True), ("halves_of_classes", False)):
        assert torch.equal(found[name][:, :, :12], asked.images[:, :, :12])
        partner = torch.cdist(found[name][:, :, 12:].flatten(1), lower).argmin(1)
        assert (partner != torch.arange(len(partner))).all()
        assert ((asked.labels[partner] == asked.labels) == same).all()


def test_blur_is_as_far_as_two_tiles_where_it_can_be() -> None:
    asked = subject(small_network("cnn"))
    found = changes(asked, 4, 0)
    two, blur = ((found[name] - asked.images).flatten(1).norm(dim=1) for name in ("two_tiles", "blur"))
    assert (blur <= two * 1.001).all()


def test_a_network_that_sees_no_places_cannot_tell() -> None:
    """Sums over all pixels stay, whichever tiles change places."""

    class Bag(AbstractNetwork):
        def forward(self, images: Tensor) -> CapsuleOutput:
            total = images.sum((1, 2, 3))
            return CapsuleOutput(scores := torch.stack([total, -total, 0 * total, total / 2], 1), None, scores)

    numbers = scramble(subject(Bag()), tiles=4).numbers
    assert numbers["all_tiles/auc"] == pytest.approx(0.5, abs=0.01)
    assert numbers["swapped_halves/auc"] == pytest.approx(0.5, abs=0.01)


def test_same_again() -> None:
    asked = subject(small_network("cnn"))
    assert scramble(asked).numbers == scramble(asked).numbers
    assert scramble(asked).numbers != scramble(asked, seed=1).numbers


def test_figure() -> None:
    assert isinstance(scramble(subject(small_network("cnn"))).draw()["images"], Figure)
    assert scramble(subject(small_network("cnn")), shown=0).draw() == {}


@pytest.mark.parametrize("tiles", [1, 25])
def test_wrong_number_of_tiles(tiles: int) -> None:
    with pytest.raises(ValueError, match=f"tiles is {tiles}"):
        scramble(subject(small_network("cnn")), tiles=tiles)
