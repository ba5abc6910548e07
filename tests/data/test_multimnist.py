"""MultiMNIST: the choice of pairs, places of the digits, their overlay, and reproducible pairs."""

import hashlib
from typing import Any

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
    return module.transform_batch(module.dataset(name)[index, 0], name)


def test_labels_differ_and_are_those_of_the_images() -> None:
    images = numbered()
    batch = Pairs(images, 0, size=5000, fixed=True)[torch.arange(5000), 0]
    assert (batch.labels[:, 0] != batch.labels[:, 1]).all()
    assert images.labels[batch.images.flatten(1).long()].equal(batch.labels)


@pytest.mark.parametrize("same_class", ["never", "also", "only"])
@pytest.mark.parametrize("first", range(len(LABELS)))
def test_allowed_partners_are_equally_likely(same_class: Any, first: int) -> None:
    draws = 4000
    pairs = Pairs(numbered(), 3, size=draws * len(LABELS), fixed=True, same_class=same_class)
    seen = pairs[torch.arange(draws) * len(LABELS) + first, 0].images[:, :, 0, 0].long()
    assert (seen[:, 0] == first).all()
    same = [n for n, label in enumerate(LABELS) if label == LABELS[first]]
    others = [n for n in range(len(LABELS)) if n not in same]
    allowed = {"never": others, "also": [*same, *others], "only": same}[same_class]
    allowed = sorted({*allowed} - {first})
    counts = torch.bincount(seen[:, 1], minlength=len(LABELS))
    expected = draws / len(allowed)
    assert counts.nonzero().flatten().tolist() == allowed
    assert (counts[allowed] - expected).abs().max() < 5 * expected**0.5  # 5 standard deviations


@pytest.mark.parametrize(
    ("fixed", "seed", "epoch", "same"),
    [(True, 0, 1, True), (False, 0, 1, False), (True, 1, 0, False)],
)
def test_pairs_depend_on_the_seed_and_on_the_epoch_unless_fixed(
    fixed: bool, seed: int, epoch: int, same: bool
) -> None:
    one = Pairs(numbered(), 0, size=50, fixed=fixed)[torch.arange(50), 0]
    other = Pairs(numbered(), seed, size=50, fixed=fixed)[torch.arange(50), epoch]
    assert one.images.equal(other.images) is one.key.equal(other.key) is same


@pytest.mark.parametrize(("name", "stage"), [("train", "fit"), ("val", "fit"), ("test", "test")])
def test_both_digits_of_a_pair_are_of_one_split(name: str, stage: str) -> None:
    module = data(stage, val_pairs=9, test_pairs=9)
    module.sets[name] = numbered()  # images of 1 pixel that only this split has
    batch = module.dataset(name)[torch.arange(len(LABELS)), 0]
    assert batch.images.max() < len(LABELS)
    assert batch.images.shape == (len(LABELS), 2, 1, 1)


def test_pairs_are_created_on_access() -> None:
    pairs = data("test", test_pairs=359_000).dataset("test")
    last = pairs[torch.tensor([len(pairs) - 1]), 0]
    assert len(pairs) == 1000 * 359
    assert last.images[0, 0].equal(pairs.data.images[-1, 0])


def reference_shift(digit: Tensor, down: int, right: int) -> Tensor:
    """A digit shifted on 36x36 pixels, by slices of a larger canvas."""
    canvas = torch.zeros(48, 48)
    canvas[10 + down : 38 + down, 10 + right : 38 + right] = digit / 255
    return canvas[6:42, 6:42]


def test_digits_of_a_pair_are_shifted_independently() -> None:
    for shift in [4, 6]:
        module = data(shift=shift)
        index = torch.arange(40)
        stored, made = module.dataset("train")[index, 0], pairs_of(module, "train", index)
        shifts = []
        for digit, part in zip(stored.images.flatten(0, 1), made.parts.flatten(0, 2), strict=True):
            places = [(y, x) for y in range(-shift, shift + 1) for x in range(-shift, shift + 1)]
            (place,) = [place for place in places if reference_shift(digit, *place).equal(part)]
            shifts.append(place)
        moves = torch.tensor(shifts).reshape(-1, 2, 2)
        assert moves.amax() == shift
        assert moves.amin() == -shift
        assert not moves[:, 0].equal(moves[:, 1])


@pytest.mark.parametrize("name", ["train", "val"])
def test_image_is_the_sum_or_maximum_of_its_parts(name: str) -> None:
    for blend in ("sum", "max"):
        batch = pairs_of(data(blend=blend), name, torch.arange(20))
        assert batch.parts.shape == (20, 2, 1, 36, 36)
        first, second = batch.parts.unbind(1)
        assert batch.images.equal(
            (first + second).clamp(max=1) if blend == "sum" else torch.maximum(first, second)
        )
        assert 0 <= batch.images.min() < batch.images.max() <= 1


@pytest.mark.whole
def test_boxes_of_20_pixels_have_the_expected_overlap() -> None:
    """In percent, on average. The 80 of CapsNet's authors is the overlap if only one digit moves."""
    for shift, moving, overlap in [(4, 2, 72.6), (4, 1, 79.0), (6, 2, 61.6), (3, 2, 78.4)]:
        box = torch.zeros(28, 28, dtype=torch.uint8)
        box[4:24, 4:24] = 255
        module = MultiMNISTDataModule(source="standin", shift=shift)
        batch = Pairs(
            Images(box.expand(10, 1, 28, 28), torch.arange(10)), 0, size=20_000, fixed=True
        )
        parts = module.transform_batch(batch[torch.arange(20_000), 0], "train").parts
        other = parts[:, 1] if moving == 2 else reference_shift(box, 0, 0)
        assert 100 * (parts[:, 0] * other).sum((1, 2, 3)).mean() / 400 == pytest.approx(
            overlap, abs=0.5
        )


@pytest.mark.parametrize(
    "options",
    [{"shift": 6}, {"placing": "affine"}, {"pad": 0}, {"seed": 1}, {"same_class": "only"}],
    ids=str,
)
def test_every_option_of_the_composition_changes_the_images(options: dict[str, Any]) -> None:
    one, other = (
        pairs_of(data(**given), "train", torch.arange(8)).images for given in ({}, options)
    )
    assert one.shape != other.shape or not one.equal(other)


def test_affine_placing_shrinks_digits_on_28_pixels() -> None:
    module = data(pad=0, placing="affine", blend="max")
    batch = pairs_of(module, "train", torch.arange(200))
    stored = module.dataset("train")[torch.arange(200), 0].images / 255
    assert module.spec.image_shape == (1, 28, 28) == tuple(batch.images.shape[1:])
    shrunk = batch.parts.sum((2, 3, 4)) / stored.sum((2, 3))
    assert 0.2 < shrunk.median() < 0.5  # areas of 0.5^2 to 0.7^2, a few digits being cut off


def test_pairs_have_the_recorded_hash() -> None:
    """Results of other machines and versions can then be compared pair by pair."""
    batch = pairs_of(data("test"), "test", torch.arange(64))
    stored = hashlib.sha256(
        (255 * batch.images).round().to(torch.uint8).numpy().tobytes()
    ).hexdigest()
    assert stored[:16] == "651786a46484438b"


def test_number_of_pairs_follows_the_options() -> None:
    for options, name, size in [
        ({}, "train", 1438 - 240),
        ({"train_images": 100}, "train", 100),
        ({"val_pairs": 300}, "val", 300),
        ({"val_pairs": 300, "eval_images": 20}, "val", 20),
        ({"test_pairs": 500}, "test", 500),
        ({"eval_images": 30}, "test", 30),
    ]:
        module = data("test" if name == "test" else "fit", **options)
        assert len(module.dataset(name)) == size
        assert name != "test" or module.provenance["test_images"] == f"{size} pairs of 359"
    assert module.provenance["source"] == "standin"
    assert module.provenance["name"].startswith("pairs of digits of stand-in")
    assert (module.spec.image_shape, module.spec.num_classes, module.spec.labels_per_image) == (
        (1, 36, 36),
        10,
        2,
    )


@pytest.mark.parametrize(
    ("labels", "same_class", "message"),
    [
        (
            (1, 1),
            "never",
            "an image of class 1 has no partner among 2 images with data.same_class=never",
        ),
        ((0, 0, 2), "only", "an image of class 2 has no partner among 3 images"),
        ((0,), "also", "an image of class 0 has no partner among 1 images"),
    ],
)
def test_image_without_a_partner_is_refused(
    labels: tuple[int, ...], same_class: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Pairs(numbered(labels), 0, size=2, fixed=True, same_class=same_class)
