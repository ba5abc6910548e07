"""Validation splits: sizes, classes, fingerprints, errors."""

from __future__ import annotations

import hashlib
import struct
from fractions import Fraction

import numpy as np
import pytest

from capsule_lab.data import MNISTDataModule
from capsule_lab.data.splits import index_hash, split_validation, take_stratified

MNIST_LABELS = np.arange(60_000, dtype=np.int64) * 7 % 10  # 6,000 of each class, as nearly in MNIST
UNEVEN = np.repeat(np.arange(4, dtype=np.int64), [50, 30, 15, 5])
SIXTH = Fraction(1, 6)


def test_split_of_60_000_is_the_one_we_publish():
    for validation, train_hash, validation_hash in [
        ("first", "76c0f2b801e9eb38", "9e1c19b3fdc18541"),
        ("stratified", "8c3a030976d82146", "b4e8d45538aceb35"),
        ("none", "fe4e39bbf5e7508e", "e3b0c44298fc1c14"),
    ]:
        train, held_out = split_validation(MNIST_LABELS, validation, SIXTH, seed=0)
        assert (index_hash(train), index_hash(held_out)) == (train_hash, validation_hash)


def test_sizes_and_nothing_twice_or_lost():
    for validation, share, size in [
        ("first", SIXTH, 10_000),
        ("stratified", SIXTH, 10_000),
        ("none", SIXTH, 0),
        ("first", Fraction(1, 10), 6_000),
        ("stratified", Fraction("0.1"), 6_000),
        ("first", Fraction(1, 60_000), 1),
        ("first", Fraction(59_999, 60_000), 59_999),
    ]:
        train, held_out = split_validation(MNIST_LABELS, validation, share, seed=0)
        assert len(held_out) == size
        assert np.array_equal(np.sort(np.concatenate([train, held_out])), np.arange(60_000))


def test_first_takes_the_first():
    train, held_out = split_validation(UNEVEN, "first", Fraction(1, 4), seed=0)
    assert held_out.tolist() == list(range(25))
    assert train.tolist() == list(range(25, 100))


def test_none_leaves_all_for_training_whatever_the_share():
    train, held_out = split_validation(UNEVEN, "none", Fraction(0), seed=0)
    assert train.tolist() == list(range(100))
    assert held_out.shape == (0,)


def test_stratified_takes_the_same_share_of_every_class():
    for seed in [0, 1]:
        train, held_out = split_validation(UNEVEN, "stratified", Fraction(1, 5), seed)
        assert np.bincount(UNEVEN[held_out]).tolist() == [10, 6, 3, 1]
        assert np.bincount(UNEVEN[train]).tolist() == [40, 24, 12, 4]
        assert (np.diff(train) > 0).all()
        assert (np.diff(held_out) > 0).all()


def test_seed_is_of_the_stratified_draw_alone():
    for validation, same in [("first", True), ("stratified", False), ("none", True)]:
        one, other = (split_validation(UNEVEN, validation, Fraction(1, 5), seed)[0] for seed in (0, 1))
        assert np.array_equal(one, other) is same


def test_share_that_leaves_nothing_on_one_side():
    for validation in ["first", "stratified"]:
        for share in [Fraction(0), Fraction(1, 1000), Fraction(1), Fraction(3, 2), Fraction(-1, 2)]:
            with pytest.raises(
                ValueError, match=r"^data\.validation_share is .*of 100 images; expected .*validation=none$"
            ):
                split_validation(UNEVEN, validation, share, seed=0)


@pytest.mark.usefixtures("unchecked_types")
def test_unknown_validation_lists_the_options():
    with pytest.raises(ValueError, match=r"data\.validation is 'last'; expected 'first', 'stratified' or 'none'"):
        MNISTDataModule(validation="last")


def test_take_stratified_keeps_proportions_and_stays_inside():
    indices = np.arange(0, 100, 1)[::-1].copy()[:95]
    taken = take_stratified(indices, UNEVEN, 19, seed=0)
    assert len(set(taken.tolist())) == 19
    assert set(taken) <= set(indices)
    assert (np.diff(taken) > 0).all()
    assert np.bincount(UNEVEN[taken]).tolist() == [9, 6, 3, 1]


def test_take_stratified_of_sizes_that_cannot_be_in_proportion():
    for size in [1, 3, 97, 99, 100]:
        taken = take_stratified(np.arange(100), UNEVEN, size, seed=0)
        assert len(np.unique(taken)) == size


def test_take_stratified_depends_on_the_seed_alone():
    for size in [2, 20, 98]:
        assert np.array_equal(*(take_stratified(np.arange(100), UNEVEN, size, seed=0) for _ in range(2)))
        assert not np.array_equal(*(take_stratified(np.arange(100), UNEVEN, size, seed) for seed in (0, 1)))


def test_take_stratified_of_too_few_or_too_many():
    for size in [-1, 0, 101]:
        with pytest.raises(ValueError, match=rf"data\.train_images is {size}; expected 1 to 100, or null for all"):
            take_stratified(np.arange(100), UNEVEN, size, seed=0)


def test_index_hash_tells_splits_apart():
    for indices, same in [([0, 1, 2], True), ([0, 2, 1], False), ([0, 1], False), ([0, 1, 3], False)]:
        assert (index_hash(np.array(indices)) == index_hash(np.arange(3))) is same


def test_index_hash_is_of_little_endian_64_bit_numbers():
    assert index_hash(np.array([3, 1, 2])) == hashlib.sha256(struct.pack("<3q", 3, 1, 2)).hexdigest()[:16]
