"""Pairs of one image: what is moved by how much, that nothing wraps around, and that matrices compose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.data import MNISTPairsDataModule
from capsule_lab.data.image_pairs import shifted_pair
from capsule_lab.data.loader import Images, SameEveryEpoch
from capsule_lab.data.transforms import affine_matrix, sample_key
from capsule_lab.types import Batch

KEY = sample_key(0, 0, torch.arange(200))


def data(stage: str = "fit", **options: Any) -> MNISTPairsDataModule:
    module = MNISTPairsDataModule(source="standin", **options)
    module.setup(stage)
    return module


def numbered_images(count: int) -> Images:
    """Of one pixel: their own number."""
    return Images(torch.arange(count, dtype=torch.uint8).reshape(-1, 1, 1, 1), torch.zeros(count, dtype=torch.int64))


def pairs_of(module: MNISTPairsDataModule, name: str, index: Tensor, epoch: int = 0) -> Batch:
    return module.transform_batch(module.dataset(name)[index, epoch], name)


def moved(image: Tensor, right: int, down: int) -> Tensor:
    """One pixel after another; what comes from outside is 0."""
    height, width = image.shape[1:]
    found = torch.zeros_like(image)
    for row in range(height):
        for column in range(width):
            if 0 <= row - down < height and 0 <= column - right < width:
                found[:, row, column] = image[:, row - down, column - right]
    return found


def differs(images: Tensor, pair: tuple[Tensor, Tensor, Tensor], margin: int) -> bool:
    """Whether a second image is not the first one moved by the change, in pixels that both have."""
    first, second, change = pair
    inside = slice(margin, -margin)
    return any(
        not moved(a, int(right), int(down))[:, inside, inside].equal(b[:, inside, inside])
        for a, b, (right, down) in zip(first, second, change, strict=True)
    )


def test_the_second_image_is_the_first_moved_by_the_change() -> None:
    for largest in [1, 2, 5]:
        for which in ["both", "target"]:
            images = torch.rand(40, 2, 16, 16)
            pair = shifted_pair(images, KEY[:40], largest, moved=which)
            assert not differs(images, pair, 2 * largest)
            most = 2 * largest if which == "both" else largest
            assert pair.change.abs().max() <= most
            assert pair.first.equal(images) is (which == "target")


def test_ink_does_not_come_back_on_the_other_side() -> None:
    """The classic mistake of ports: ``roll`` in place of a shift."""
    images = torch.zeros(200, 1, 8, 8)
    images[..., 0, :] = images[..., :, 0] = 1.0
    pair = shifted_pair(images, KEY, 2, moved="target")
    wrapped = torch.stack(
        [each.roll((int(d), int(r)), (1, 2)) for each, (r, d) in zip(images, pair.change, strict=True)]
    )
    away = (pair.change < 0).any(1)
    assert (pair.second[away].sum((1, 2, 3)) < images[0].sum()).all()
    assert (wrapped.sum((1, 2, 3)) == images[0].sum()).all()
    assert not wrapped[away].equal(pair.second[away])


def test_no_move_is_no_change() -> None:
    images = torch.rand(3, 1, 8, 8)
    first, second, change = shifted_pair(images, KEY[:3], 0)
    assert first.equal(images)
    assert second.equal(images)
    assert not change.any()


def test_all_shifts_come_and_axes_are_independent() -> None:
    change = shifted_pair(torch.rand(5000, 1, 8, 8), sample_key(1, 0, torch.arange(5000)), 2).change
    assert {*change.flatten().tolist()} == {float(n) for n in range(-4, 5)}
    assert abs(float(torch.corrcoef(change.t())[0, 1])) < 0.05


# --- affine ----------------------------------------------------------------------------------------------------------


def blob(x: float, y: float, size: int = 28) -> Tensor:
    """A Gaussian spot at a place in pixels from the centre, x to the right and y down."""
    places = torch.arange(size) - (size - 1) / 2
    return torch.exp(-((places[None, :] - x) ** 2 + (places[:, None] - y) ** 2) / 4).view(1, 1, size, size)


def centre(image: Tensor) -> Tensor:
    """Where the light of an image is, in pixels from its centre."""
    size = image.shape[-1]
    places = torch.arange(size) - (size - 1) / 2
    light = image[0, 0]
    return torch.stack([(light * places[None, :]).sum(), (light * places[:, None]).sum()]) / light.sum()


def test_the_matrix_takes_places_in_the_first_image_to_those_in_the_second() -> None:
    module = MNISTPairsDataModule(source="standin", change="affine", shift=3)
    first, second, change = module.pair(blob(3.0, -2.0).expand(50, -1, -1, -1), KEY[:50])
    for a, b, matrix in zip(first, second, change, strict=True):
        x, y = (centre(a.unsqueeze(0)) / 14).tolist()
        expected = 14 * (matrix @ torch.tensor([x, y, 1.0]))[:2]
        torch.testing.assert_close(centre(b.unsqueeze(0)), expected, atol=0.15, rtol=0)


def test_the_reverse_order_would_be_found() -> None:
    """T has to be the second matrix times the inverse of the first, not the other way round."""
    module = MNISTPairsDataModule(source="standin", change="affine", shift=3, rotation=40.0)
    first, second, change = module.pair(blob(5.0, -3.0).expand(20, -1, -1, -1), KEY[:20])
    away = []
    for a, b, matrix in zip(first, second, torch.linalg.inv(change), strict=True):
        x, y = (centre(a.unsqueeze(0)) / 14).tolist()
        away.append((centre(b.unsqueeze(0)) - 14 * (matrix @ torch.tensor([x, y, 1.0]))[:2]).norm())
    assert torch.stack(away).mean() > 2


def test_a_matrix_of_a_turn() -> None:
    """A quarter counter-clockwise takes what is on the right to the top, where y is negative."""
    one, zero = torch.ones(1), torch.zeros(1)
    matrix = affine_matrix(rotation=one * torch.pi / 2, shear=zero, scale_x=one, scale_y=one)
    torch.testing.assert_close(matrix[0] @ torch.tensor([1.0, 0.0]), torch.tensor([0.0, -1.0]))


def test_only_the_target_is_changed() -> None:
    module = MNISTPairsDataModule(source="standin", change="affine", moved="target")
    images = torch.rand(5, 1, 28, 28)
    first, second, change = module.pair(images, KEY[:5])
    assert first.equal(images)
    assert not second.equal(images)
    assert change[:, 2].equal(torch.tensor([0.0, 0.0, 1.0]).expand(5, 3))


def test_nothing_to_change_is_the_identity() -> None:
    module = MNISTPairsDataModule(source="standin", change="affine", shift=0, rotation=0.0, scale=1.0, shear=0.0)
    first, second, change = module.pair(torch.rand(3, 1, 28, 28), KEY[:3])
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(change, torch.eye(3).expand(3, 3, 3))


# --- the DataModule --------------------------------------------------------------------------------------------------


def test_pairs_of_training_are_new_in_every_epoch_and_those_of_validation_are_not() -> None:
    module, index = data(), torch.arange(20)
    for name, same in (("train", False), ("val", True)):
        one, other = (pairs_of(module, name, index, epoch) for epoch in (0, 1))
        assert (one.images.equal(other.images) and one.change.equal(other.change)) is same  # type: ignore[union-attr, arg-type]
    still = data(augment=False)
    one, other = (pairs_of(still, "train", index, epoch) for epoch in (0, 1))
    assert one.images.equal(other.images)


def test_batches_have_a_target_and_a_change_and_keep_their_labels() -> None:
    for change, shape in [("shift", (2,)), ("affine", (3, 3))]:
        module = data(change=change)
        batch = pairs_of(module, "train", torch.arange(6))
        assert module.spec.change == shape
        assert batch.targets is not None
        assert batch.change is not None
        assert batch.targets.shape == batch.images.shape == (6, 1, 28, 28)
        assert batch.change.shape == (6, *shape)
        assert batch.labels.equal(module.sets["train"].labels[:6])
        assert float(batch.images.min()) >= 0
        assert float(batch.targets.max()) <= 1
        assert "pairs of" in module.provenance["name"]


def test_an_analysis_sees_images_as_they_are_stored() -> None:
    module = data()
    stored = module.dataset("val")[torch.arange(4), 0]
    seen = module.unpaired_batch(stored, "val").images
    torch.testing.assert_close(seen, stored.images.float() / 255)


def test_wrong_options(unchecked_types: None) -> None:
    for options, message in [
        ({"change": "flip"}, "data.change is 'flip'; expected 'shift' or 'affine'"),
        ({"moved": "none"}, "data.moved is 'none'; expected 'both' or 'target'"),
        ({"shift": -1}, "data.shift is -1; expected 0"),
        ({"shift": 28}, "data.shift is 28; expected fewer than the 28 pixels"),
        ({"rotation": -1.0}, "data.rotation is -1.0; expected 0 or more"),
        ({"scale": 0.5}, "data.scale is 0.5; expected 1 or more"),
        ({"shear": -0.1}, "data.shear is -0.1; expected 0 or more"),
    ]:
        with pytest.raises(ValueError, match=message):
            MNISTPairsDataModule(source="standin", **options)


def test_keys_of_the_first_epoch() -> None:
    images = numbered_images(5)
    fixed, index = SameEveryEpoch(images, 0), torch.arange(5)
    assert fixed[index, 0].key.equal(fixed[index, 7].key)
