"""MultiMNIST: the choice of pairs, places of the digits, their overlay, and reproducible pairs."""

import hashlib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from capsule_lab.data import MultiMNISTDataModule
from capsule_lab.data.loader import Images
from capsule_lab.data.multimnist import Pairs
from capsule_lab.types import Batch

LABELS = (0, 0, 0, 1, 1, 2, 2, 2, 2)


def numbered(labels: tuple[int, ...] = LABELS) -> Images:
    """Images of one pixel, whose value is the index of the image."""
    pixels = torch.arange(len(labels), dtype=torch.uint8).reshape(-1, 1, 1, 1)
    return Images(pixels, torch.tensor(labels))


def data(stage: str = "fit", **options: Any) -> MultiMNISTDataModule:
    module = MultiMNISTDataModule(source="standin", **options)
    module.setup(stage)
    return module


def pairs_of(module: MultiMNISTDataModule, name: str, index: Tensor) -> Batch:
    stored = module.dataset(name)[index, 0]
    return module.transform_batch(stored, name)


def test_labels_differ_and_are_those_of_the_images() -> None:
    images = numbered()
    pairs = Pairs(images, 0, size=5000, fixed=True)
    batch = pairs[torch.arange(5000), 0]
    first, second = batch.labels.T
    assert (first != second).all()
    numbers = batch.images.flatten(1).long()
    assert images.labels[numbers].equal(batch.labels)


@pytest.mark.parametrize("same_class", ["never", "also", "only"])
@pytest.mark.parametrize("first", range(len(LABELS)))
def test_allowed_partners_are_equally_likely(same_class: Any, first: int) -> None:
    draws = 4000
    number = len(LABELS)
    pairs = Pairs(numbered(), 3, size=draws * number, fixed=True, same_class=same_class)
    index = torch.arange(draws) * number + first
    firsts, partners = pairs[index, 0].images[:, :, 0, 0].long().T
    assert (firsts == first).all()
    everything = {*range(number)}
    same = {other for other in everything if LABELS[other] == LABELS[first]}
    allowed_partners = {"never": everything - same, "also": everything, "only": same}
    allowed = sorted(allowed_partners[same_class] - {first})
    counts = torch.bincount(partners, minlength=number)
    assert counts.nonzero().flatten().tolist() == allowed
    expected = draws / len(allowed)
    deviation = (counts[allowed] - expected).abs()
    assert deviation.max() < 5 * expected**0.5  # 5 standard deviations


@pytest.mark.parametrize(
    ("fixed", "seed", "epoch", "same"),
    [(True, 0, 1, True), (False, 0, 1, False), (True, 1, 0, False)],
)
def test_pairs_depend_on_the_seed_and_on_the_epoch_unless_fixed(
    fixed: bool, seed: int, epoch: int, same: bool
) -> None:
    index = torch.arange(50)
    one = Pairs(numbered(), 0, size=50, fixed=fixed)[index, 0]
    other = Pairs(numbered(), seed, size=50, fixed=fixed)[index, epoch]
    assert one.images.equal(other.images) is one.key.equal(other.key) is same


@pytest.mark.parametrize(("name", "stage"), [("train", "fit"), ("val", "fit"), ("test", "test")])
def test_both_digits_of_a_pair_are_of_one_split(name: str, stage: str) -> None:
    module = data(stage, val_pairs=9, test_pairs=9)
    number = len(LABELS)
    module.sets[name] = numbered()  # images of 1 pixel that only this split has
    batch = module.dataset(name)[torch.arange(number), 0]
    assert batch.images.shape == (number, 2, 1, 1)
    assert batch.images.max() < number


def test_pairs_are_created_on_access() -> None:
    pairs = data("test", test_pairs=359_000).dataset("test")
    number = len(pairs)
    assert number == 1000 * 359
    last = pairs[torch.tensor([number - 1]), 0]
    first_digit = last.images[0, 0]
    assert first_digit.equal(pairs.data.images[-1, 0])


def reference_shift(digit: Tensor, down: int, right: int) -> Tensor:
    """A digit shifted on 36x36 pixels, by slices of a larger canvas."""
    canvas = torch.zeros(48, 48)
    canvas[10 + down : 38 + down, 10 + right : 38 + right] = digit / 255
    return canvas[6:42, 6:42]


def shift_of(part: Tensor, digit: Tensor, largest: int) -> tuple[int, int]:
    """Pixels down and to the right by which a digit was shifted."""
    steps = range(-largest, largest + 1)
    (found,) = [
        (down, right)
        for down, right in product(steps, steps)
        if reference_shift(digit, down, right).equal(part)
    ]
    return found


@pytest.mark.parametrize("largest", [4, 6])
def test_digits_of_a_pair_are_shifted_independently(largest: int) -> None:
    module = data(shift=largest)
    index = torch.arange(40)
    digits = module.dataset("train")[index, 0].images.flatten(0, 1)
    parts = pairs_of(module, "train", index).parts.flatten(0, 2)
    shifts = [shift_of(part, digit, largest) for part, digit in zip(parts, digits, strict=True)]
    of_pairs = torch.tensor(shifts).view(-1, 2, 2)
    assert of_pairs.max() == largest
    assert of_pairs.min() == -largest
    first, second = of_pairs.unbind(1)
    assert not first.equal(second)


BLENDS = {
    "sum": lambda first, second: (first + second).clamp(max=1),
    "max": torch.maximum,
}


@pytest.mark.parametrize("blend", BLENDS)
@pytest.mark.parametrize("name", ["train", "val"])
def test_image_is_the_sum_or_maximum_of_its_parts(name: str, blend: Any) -> None:
    module = data(blend=blend)
    batch = pairs_of(module, name, torch.arange(20))
    assert batch.parts.shape == (20, 2, 1, 36, 36)
    first, second = batch.parts.unbind(1)
    expected = BLENDS[blend](first, second)
    assert batch.images.equal(expected)
    assert 0 <= batch.images.min() < batch.images.max() <= 1


@pytest.mark.whole
@pytest.mark.parametrize(
    ("shift", "moving", "overlap"), [(4, 2, 72.6), (4, 1, 79.0), (6, 2, 61.6), (3, 2, 78.4)]
)
def test_boxes_of_20_pixels_have_the_expected_overlap(
    shift: int, moving: int, overlap: float
) -> None:
    """In percent, on average. The 80 of CapsNet's authors is the overlap if only one digit moves."""
    count = 20_000
    box = torch.zeros(28, 28, dtype=torch.uint8)
    box[4:24, 4:24] = 255
    boxes = Images(box.expand(10, 1, 28, 28), torch.arange(10))
    stored = Pairs(boxes, 0, size=count, fixed=True)[torch.arange(count), 0]
    module = MultiMNISTDataModule(source="standin", shift=shift)
    first, second = module.transform_batch(stored, "train").parts.unbind(1)
    if moving == 1:
        second = reference_shift(box, 0, 0)
    shares = (first * second).sum((1, 2, 3)) / 20**2
    assert 100 * shares.mean() == pytest.approx(overlap, abs=0.5)


@pytest.mark.parametrize(
    "options",
    [{"shift": 6}, {"placing": "affine"}, {"pad": 0}, {"seed": 1}, {"same_class": "only"}],
    ids=str,
)
def test_every_option_of_the_composition_changes_the_images(options: dict[str, Any]) -> None:
    index = torch.arange(8)
    one = pairs_of(data(), "train", index).images
    other = pairs_of(data(**options), "train", index).images
    assert one.shape != other.shape or not one.equal(other)


def test_affine_placing_shrinks_digits_on_28_pixels() -> None:
    module = data(pad=0, placing="affine", blend="max")
    assert module.spec.image_shape == (1, 28, 28)
    index = torch.arange(200)
    batch = pairs_of(module, "train", index)
    assert batch.images.shape == (200, 1, 28, 28)
    stored = module.dataset("train")[index, 0].images / 255
    shrunk = batch.parts.sum((2, 3, 4)) / stored.sum((2, 3))
    assert 0.2 < shrunk.median() < 0.5  # areas of 0.5^2 to 0.7^2, a few digits being cut off


def test_pairs_have_the_recorded_hash() -> None:
    """Results of other machines and versions can then be compared pair by pair."""
    batch = pairs_of(data("test"), "test", torch.arange(64))
    grey = (255 * batch.images).round().to(torch.uint8)
    content = grey.numpy().tobytes()
    digest = hashlib.sha256(content).hexdigest()
    assert digest[:16] == "651786a46484438b"


@pytest.mark.parametrize(
    ("options", "name", "size"),
    [
        ({}, "train", 1438 - 240),
        ({"train_images": 100}, "train", 100),
        ({"val_pairs": 300}, "val", 300),
        ({"val_pairs": 300, "eval_images": 20}, "val", 20),
    ],
)
def test_number_of_pairs_follows_the_options(options: dict[str, Any], name: str, size: int) -> None:
    assert len(data(**options).dataset(name)) == size


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"test_pairs": 500}, 500),
        ({"eval_images": 30}, 30),
    ],
)
def test_number_of_test_pairs_is_in_the_provenance(options: dict[str, Any], size: int) -> None:
    module = data("test", **options)
    assert len(module.dataset("test")) == size
    provenance = module.provenance
    assert provenance["test_images"] == f"{size} pairs of 359"
    assert provenance["source"] == "standin"
    assert provenance["name"].startswith("pairs of digits of stand-in")


def test_specification_is_that_of_two_digits_on_a_larger_canvas() -> None:
    spec = MultiMNISTDataModule(source="standin").spec
    assert spec.image_shape == (1, 36, 36)
    assert spec.num_classes == 10
    assert spec.labels_per_image == 2


@pytest.mark.parametrize(
    ("labels", "same_class", "message"),
    [
        ((1, 1), "never", r"class 1 has no partner among 2 images with data\.same_class=never"),
        ((0, 0, 2), "only", "class 2 has no partner among 3 images"),
        ((0,), "also", "class 0 has no partner among 1 images"),
    ],
)
def test_image_without_a_partner_is_refused(
    labels: tuple[int, ...], same_class: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^an image of {message}"):
        Pairs(numbered(labels), 0, size=2, fixed=True, same_class=same_class)


@pytest.mark.parametrize("pad", [0, 4])
def test_a_file_of_arrays_has_composites_that_are_not_placed(tmp_path: Path, pad: int) -> None:
    size = 28 + 2 * pad
    composites = np.zeros((2, size, size), dtype=np.uint8)
    composites[:, 10:18, 12:16] = 255
    np.save(tmp_path / "composites.npy", composites)
    prepared = MultiMNISTDataModule(pad=pad).from_arrays(tmp_path / "composites.npy")
    assert prepared.equal(torch.from_numpy(composites[:, None] / np.float32(255)))
