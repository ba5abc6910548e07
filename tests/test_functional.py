"""Squashes, lengths, votes, couplings, crops and labels: equal to loops, and finite for extreme inputs."""

import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from capsule_lab import functional
from tests.reference.em_loops import votes_loops
from tests.reference.loops import double, length_loops, softmax_list, squash_vector
from tests.reference.self_attention_loops import exponential_squash_vector

close = torch.testing.assert_close


@pytest.mark.parametrize(
    ("kind", "loops", "tolerance", "scales_of_gradients"),
    [
        (functional.squash, squash_vector, 1e-12, [1e-3, 1.0, 1e3]),
        (functional.exponential_squash, exponential_squash_vector, 1e-10, [1.0]),
    ],
)
def test_squash_equals_the_loops_and_has_its_gradient(
    kind: Any, loops: Any, tolerance: float, scales_of_gradients: list[float]
) -> None:
    for scale in (1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e6):
        vectors = scale * torch.randn(6, 4).double()
        rows = [loops(row) for row in vectors.tolist()]
        expected = double(rows)
        close(kind(vectors), expected, rtol=tolerance, atol=0)
    for scale in scales_of_gradients:
        vectors = scale * torch.randn(3, 4).double()
        vectors.requires_grad_()
        assert gradcheck(kind, (vectors,), eps=1e-6 * scale)


@pytest.mark.parametrize("kind", [functional.squash, functional.exponential_squash])
def test_squash_along_another_dimension_and_with_another_epsilon(kind: Any) -> None:
    x = torch.randn(3, 4, 5)
    for dim in (0, 1, -1, -2):
        found = kind(x, dim=dim)
        along_last = kind(x.movedim(dim, -1))
        close(found, along_last.movedim(-1, dim))
    short = x / 10
    with_large_epsilon = kind(short, eps=0.1)
    assert with_large_epsilon.norm() < kind(short).norm()


def test_exponential_squash_has_a_finite_gradient_in_float32() -> None:
    for scale in (0.0, 1e-30, 1e-4, 1.0, 1e15):
        x = torch.full((2, 3), scale, requires_grad=True)
        poses = functional.exponential_squash(x)
        poses.sum().backward()
        assert x.grad.isfinite().all()
        assert (poses.norm(dim=1) < 1 + 1e-6).all()


EXPONENTIAL_LENGTH = 1 - math.exp(-5)


@pytest.mark.parametrize(
    ("name", "pose", "logit"),
    [
        # 25 / 26 times (-3, 4) / 5
        ("squash", [-15 / 26, 20 / 26], math.log(25)),
        (
            "exponential",
            [-0.6 * EXPONENTIAL_LENGTH, 0.8 * EXPONENTIAL_LENGTH],
            math.log(math.exp(5) - 1),
        ),
        # 25 / 25.5 times (-3, 4) / 5
        ("half", [-15 / 25.5, 20 / 25.5], math.log(50)),
        ("relu", [0.0, 4.0], 4.0),
        ("none", [-3.0, 4.0], 5.0),
    ],
)
def test_squash_by_name_has_its_poses_and_logits(
    name: str, pose: list[float], logit: float
) -> None:
    total = double([[-3.0, 4.0]])
    functions = functional.SQUASHES[name]
    (found_pose,) = functions.poses(total).tolist()
    assert found_pose == pytest.approx(pose, rel=1e-8, abs=1e-12)
    found_logit = functions.logits(total)
    assert found_logit.item() == pytest.approx(logit, rel=1e-8)
    pose_of_long = functions.poses(1000 * total)
    is_bounded = pose_of_long.norm().item() <= 1
    assert is_bounded is functions.bounded


@pytest.mark.parametrize("name", functional.SQUASHES)
def test_squashes_are_finite_at_zero(name: str) -> None:
    """The paper's squash has value and gradient 0 at zero."""
    assert get_args(functional.Squash) == tuple(functional.SQUASHES)
    total = torch.zeros(2, 3, requires_grad=True)
    functions = functional.SQUASHES[name]
    poses = functions.poses(total)
    logits = functions.logits(total)
    sum_of_all = poses.sum() + logits.sum()
    sum_of_all.backward()
    for tensor in (poses, logits, total.grad):
        assert tensor.isfinite().all()
    if name == "squash":
        assert not poses.any()
        assert not total.grad.any()


def test_length_equals_the_loops_and_has_a_gradient_at_zero() -> None:
    poses = torch.randn(2, 3, 4).double()
    found = functional.length(poses)
    close(found, length_loops(poses), rtol=1e-14, atol=0)
    zero = torch.zeros(1, 2, 3, requires_grad=True)
    lengths = functional.length(zero)
    lengths.sum().backward()
    assert not zero.grad.any()
    with_large_epsilon = functional.length(zero, eps=0.25)
    assert with_large_epsilon.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("rows", "inner", "columns"),
    [
        (4, 4, 4),
        (1, 4, 4),
        (1, 3, 5),
        (2, 3, 5),
        (3, 2, 1),
        (4, 1, 2),
    ],
)
def test_dense_votes_are_products_with_the_pose_on_the_left(
    rows: int, inner: int, columns: int
) -> None:
    options: Any = {"dtype": torch.float64, "requires_grad": True}
    poses = torch.randn(2, 3, rows * inner, **options)
    weight = torch.randn(3, inner, 2, columns, **options)
    votes = functional.dense_votes(poses, weight)
    expected = votes_loops(poses, weight.transpose(2, 3))
    close(votes, expected, rtol=0, atol=1e-13)
    assert votes.transpose(1, 2).is_contiguous()  # by parent
    assert gradcheck(functional.dense_votes, (poses, weight), fast_mode=True)
    by_component = poses.transpose(0, 2).contiguous()
    of_strided = functional.dense_votes(by_component.transpose(0, 2), weight)
    assert torch.equal(of_strided, votes)


@pytest.mark.parametrize("std", [1.0, 0.5])
def test_variance_of_votes_is_that_of_sums_of_four_products(std: float) -> None:
    """Four times the variances of pose and weight: weights of std 1 make votes three times as variable as poses.

    It would be four times, but weights are cut at two std, which leaves 0.774 of their variance.
    """
    torch.manual_seed(0)
    poses = torch.randn(200, 20, 16).double()
    weight = torch.empty(20, 4, 8, 4).double()
    functional.truncated_normal_(weight, std)
    votes = functional.dense_votes(poses, weight)
    variance_of_weight = 0.774 * std**2
    ratio = votes.var() / poses.var()
    assert weight.var().item() == pytest.approx(variance_of_weight, rel=0.05)
    assert ratio.item() == pytest.approx(4 * variance_of_weight, rel=0.05)


def test_dense_votes_refuse_poses_that_do_not_fit_the_weights() -> None:
    poses = torch.randn(2, 3, 5)
    weight = torch.randn(3, 4, 2, 4)
    message = "poses have 5 components and weights 4 rows; expected a multiple"
    with pytest.raises(ValueError, match=message):
        functional.dense_votes(poses, weight)


def test_softmax_over_parents_equals_the_loops() -> None:
    """The leaky softmax drops the share of one more logit at zero."""
    logits = torch.randn(1, 4, 3).double()
    for leaky in (False, True):
        (found,) = functional.softmax_over_parents(logits, leaky=leaky)
        for number, child in enumerate(logits[0].T.tolist()):
            if leaky:
                child.append(0.0)
            shares = softmax_list(child)
            expected = double(shares[:4])
            close(found[:, number], expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("size", "kernel_size", "stride", "padding"),
    [
        ((24, 24), 9, 1, (4, 4, 4, 4)),
        # an odd pixel goes right and down
        ((24, 24), 9, 2, (3, 4, 3, 4)),
        ((25, 25), 9, 2, (4, 4, 4, 4)),
        ((5, 8), 3, 2, (0, 1, 1, 1)),
        # never negative
        ((4, 4), 1, 2, (0, 0, 0, 0)),
    ],
)
def test_same_padding_is_tensorflows(
    size: tuple[int, int], kernel_size: int, stride: int, padding: tuple[int, ...]
) -> None:
    assert functional.same_padding(size, kernel_size, stride) == padding
    images = torch.zeros(1, 1, *size)
    padded = torch.nn.functional.pad(images, padding)
    kernel = torch.zeros(1, 1, kernel_size, kernel_size)
    output = torch.nn.functional.conv2d(padded, kernel, stride=stride)
    _, _, *sides = output.shape
    expected = [math.ceil(side / stride) for side in size]
    assert sides == expected


@pytest.mark.parametrize(
    ("std", "expected"),
    [
        (0.05, 0.8796 * 0.05),
        (functional.he_std(50), math.sqrt(2 / 50)),
    ],
)
def test_truncated_normal_is_cut_at_two_std(std: float, expected: float) -> None:
    """``he_std`` gives the variance of Keras's initialiser."""
    torch.manual_seed(0)
    weight = torch.empty(200, 1000)
    functional.truncated_normal_(weight, std)
    assert weight.abs().max() <= 2 * std
    assert weight.std().item() == pytest.approx(expected, rel=0.01)
    assert weight.mean().item() == pytest.approx(0, abs=0.05 * std)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(half: torch.dtype) -> None:
    weight = torch.ones(3, 4, 2, 2)

    def votes(poses: Tensor) -> Tensor:
        return functional.dense_votes(poses, weight)

    functions: list[Callable[[Tensor], Tensor]] = [functional.squash, functional.length, votes]
    for function in functions:
        poses = torch.randn(2, 3, 4).to(half)
        result = function(poses)
        of_float32 = function(poses.float())
        assert result.dtype == torch.float32
        assert torch.equal(result, of_float32)


def test_autocast_is_off_inside_and_on_again_after() -> None:
    @functional.float32_under_autocast
    def product(x: Tensor, *, y: Tensor) -> tuple[Tensor, bool]:
        return x @ y, torch.is_autocast_enabled("cpu")

    x = torch.randn(3, 3)
    y = torch.randn(3, 3).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result, inside = product(x, y=y)
        assert torch.is_autocast_enabled("cpu")
        squashed = functional.squash(x.double())
    assert not inside
    assert torch.equal(result, x @ y.float())
    assert squashed.dtype == torch.float64


def combine_crops_loops(scores: Tensor) -> Tensor:
    """Section 6.3 of the notes on EM routing: scores are divided by their sum over classes and summed over crops."""
    combined = []
    for image in scores.tolist():
        sums = [0.0] * len(image[0])
        for crop in image:
            total = sum(crop)
            for k, score in enumerate(crop):
                sums[k] += score / total
        combined.append(sums)
    return double(combined)


def test_crops_are_normalised_then_summed() -> None:
    """Every crop counts equally, except one with scores of 0."""
    for crops in (1, 2, 13):
        torch.manual_seed(0)
        scores = torch.rand(3, crops, 5).double()
        found = functional.combine_crops(scores)
        close(found, combine_crops_loops(scores), rtol=1e-12, atol=0)
    scores = torch.tensor([[[0.9, 0.8], [0.01, 0.03]]])
    combined = functional.combine_crops(scores)
    added = scores.sum(1)
    assert combined.argmax(1).item() == 1
    assert added.argmax(1).item() == 0
    first_is_zero = torch.tensor([[[0.0, 0.0], [0.25, 0.75]]])
    of_second = functional.combine_crops(first_is_zero)
    assert of_second.tolist() == [[0.25, 0.75]]


def test_logits_of_crops_count_by_their_softmax() -> None:
    logits = torch.randn(3, 4, 5)
    found = functional.combine_crops(logits, logits=True)
    expected = functional.combine_crops(logits.softmax(2))
    close(found, expected)


def by_label(scores: list[float], labels: list[int]) -> list[int]:
    """For one image: right predictions at their labels, wrong ones at the other labels, the highest score first."""
    classes = sorted(range(len(scores)), key=lambda k: -scores[k])
    highest = classes[: len(labels)]
    wrong = [k for k in highest if k not in labels]
    predicted = []
    for label in labels:
        predicted.append(label if label in highest else wrong.pop(0))
    return predicted


def test_predictions_by_label_equal_the_loops() -> None:
    """If one label is given twice, the highest score is its prediction."""
    generator = torch.Generator().manual_seed(0)
    for several in (1, 2, 3):
        scores = torch.rand(200, 5, generator=generator)
        orders = [torch.randperm(5, generator=generator) for _ in range(200)]
        classes = torch.stack(orders)
        labels = classes[:, :several]
        images = zip(scores.tolist(), labels.tolist(), strict=True)
        expected = [by_label(*image) for image in images]
        found = functional.predictions_by_label(scores, labels)
        assert found.tolist() == expected
    scores = torch.tensor(
        [
            [0.9, 0.1, 0.2],
            [0.8, 0.9, 0.2],
            [0.1, 0.9, 0.8],
        ]
    )
    twice = torch.zeros(3, 2, dtype=torch.int64)
    found = functional.predictions_by_label(scores, twice)
    assert found.tolist() == [[0, 0], [1, 0], [1, 2]]


def test_only_images_outside_the_unit_range_are_rescaled() -> None:
    """Each image is rescaled by itself; an image of one colour stays finite."""
    images = torch.rand(4, 2, 5, 5)
    unchanged = functional.in_unit_range(images)
    assert unchanged.equal(images)
    pixels = torch.rand(3, 2, 6, 6)
    pixels[0, :, 1:] = 1  # mostly bright: standardised, its brightest pixel is below 1
    mean = pixels.mean((1, 2, 3), keepdim=True)
    standardised = (pixels - mean) / pixels.std((1, 2, 3), keepdim=True)
    low = pixels.amin((1, 2, 3), keepdim=True)
    high = pixels.amax((1, 2, 3), keepdim=True)
    assert standardised[0].max() < 1
    rescaled = functional.in_unit_range(standardised)
    expected = (pixels - low) / (high - low)
    close(rescaled, expected)
    one_colour = torch.full((1, 1, 2, 2), -3.0)
    black = functional.in_unit_range(one_colour)
    assert not black.any()
