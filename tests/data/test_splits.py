from fractions import Fraction

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from capsule_lab.data.splits import index_hash, split_validation, take_stratified
from capsule_lab.data.stratified import stratified_split

MNIST_LABELS = np.arange(60_000, dtype=np.int64) * 7 % 10  # 6,000 of each class, as nearly in MNIST
UNEVEN = np.repeat(np.arange(4, dtype=np.int64), [50, 30, 15, 5])
SIXTH = Fraction(1, 6)
FIFTH = Fraction(1, 5)


@pytest.mark.parametrize(
    ("validation", "hashes"),
    [
        ("first", ("76c0f2b801e9eb38", "9e1c19b3fdc18541")),
        ("stratified", ("8c3a030976d82146", "b4e8d45538aceb35")),
        ("none", ("fe4e39bbf5e7508e", "e3b0c44298fc1c14")),
    ],
)
def test_split_of_60_000_images_has_the_published_hashes(validation, hashes):
    train, held_out = split_validation(MNIST_LABELS, validation, SIXTH, seed=0)
    assert (index_hash(train), index_hash(held_out)) == hashes


@pytest.mark.parametrize(
    ("validation", "share", "size"),
    [
        ("first", SIXTH, 10_000),
        ("stratified", SIXTH, 10_000),
        ("none", Fraction(0), 0),
        ("stratified", Fraction("0.1"), 6_000),
        ("first", Fraction(1, 60_000), 1),
        ("first", Fraction(59_999, 60_000), 59_999),
    ],
)
def test_split_has_every_image_once(validation, share, size):
    train, held_out = split_validation(MNIST_LABELS, validation, share, seed=0)
    assert len(held_out) == size
    everything = np.sort(np.concatenate([train, held_out]))
    np.testing.assert_array_equal(everything, np.arange(60_000))
    if validation == "first":
        np.testing.assert_array_equal(held_out, np.arange(size))


def is_sorted_without_repetition(indices):
    return (np.diff(indices) > 0).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_stratified_takes_the_same_share_of_every_class(seed):
    train, held_out = split_validation(UNEVEN, "stratified", FIFTH, seed)
    of_train = np.bincount(UNEVEN[train])
    of_held_out = np.bincount(UNEVEN[held_out])
    assert of_train.tolist() == [40, 24, 12, 4]
    assert of_held_out.tolist() == [10, 6, 3, 1]
    assert is_sorted_without_repetition(train)
    assert is_sorted_without_repetition(held_out)


def test_stratified_split_depends_on_the_seed():
    one, _ = split_validation(UNEVEN, "stratified", FIFTH, seed=0)
    other, _ = split_validation(UNEVEN, "stratified", FIFTH, seed=1)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("validation", ["first", "stratified"])
@pytest.mark.parametrize("share", [Fraction(0), Fraction(1, 1000), Fraction(1), Fraction(-1, 2)])
def test_share_that_leaves_one_side_empty_is_refused(validation, share):
    message = r"^data\.validation_share is .*of 100 images; expected .*data\.validation=none$"
    with pytest.raises(ValueError, match=message):
        split_validation(UNEVEN, validation, share, seed=0)


def test_take_stratified_keeps_the_proportions_of_classes():
    indices = np.arange(99, 4, -1)
    taken = take_stratified(indices, UNEVEN, 19, seed=0)
    assert len(taken) == 19
    assert np.isin(taken, indices).all()
    assert is_sorted_without_repetition(taken)
    assert np.bincount(UNEVEN[taken]).tolist() == [9, 6, 3, 1]


@pytest.mark.parametrize("size", [1, 3, 20, 97, 99, 100])  # most of them cannot be in proportion
def test_take_stratified_depends_on_size_and_seed(size):
    everything = np.arange(100)
    one = take_stratified(everything, UNEVEN, size, seed=0)
    again = take_stratified(everything, UNEVEN, size, seed=0)
    other = take_stratified(everything, UNEVEN, size, seed=1)
    assert len(np.unique(one)) == size
    assert np.array_equal(one, again)
    assert np.array_equal(one, other) is (size == 100)


@pytest.mark.parametrize("seed", range(30))
def test_stratified_split_is_that_of_scikit_learn(seed):
    generator = np.random.default_rng(seed)
    classes = generator.integers(2, 9)
    counts = generator.integers(2, 200, size=classes)
    in_order = np.repeat(3 * np.arange(classes), counts)
    labels = generator.permutation(in_order)
    number = len(labels)
    size = int(generator.integers(classes, number - classes + 1))
    found = stratified_split(labels, size, seed)
    expected = train_test_split(
        np.arange(number), train_size=size, stratify=labels, random_state=seed
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert np.array_equal(ours, np.sort(theirs))
