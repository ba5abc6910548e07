"""Squashes, lengths, votes, couplings, crops, labels: against loops, and at what is extreme."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from capsule_lab.functional import (
    SQUASHES,
    Squash,
    combine_crops,
    dense_votes,
    exponential_squash,
    float32_under_autocast,
    he_std,
    in_unit_range,
    length,
    predictions_by_label,
    same_padding,
    softmax_over_parents,
    squash,
    truncated_normal_,
)
from tests.reference.loops import length_loops, softmax_list, squash_loops
from tests.reference.self_attention_loops import exponential_squash_loops

# ------------------------------------------------------------------------------------------------- squashes

KINDS: dict[str, Any] = {"squash": squash, "exponential": exponential_squash}
LOOPS: dict[str, Any] = {"squash": squash_loops, "exponential": exponential_squash_loops}
both = pytest.mark.parametrize("name", KINDS)


@both
def test_squash_equals_the_loops_and_has_its_gradient(name: str) -> None:
    for scale in (1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e6):
        vectors = scale * torch.randn(6, 4, dtype=torch.float64)
        rtol = 1e-12 if name == "squash" else 1e-10
        torch.testing.assert_close(KINDS[name](vectors), LOOPS[name](vectors), rtol=rtol, atol=0)
    for scale in (1e-3, 1.0, 1e3) if name == "squash" else (1.0,):
        x = (scale * torch.randn(3, 4, dtype=torch.float64)).requires_grad_()
        assert gradcheck(KINDS[name], (x,), eps=1e-6 * scale)


@both
def test_squash_keeps_directions_stays_below_one_and_takes_any_dimension(name: str) -> None:
    for scale in (1e-2, 1.0, 10.0):
        vectors = scale * torch.randn(20, 8, dtype=torch.float64)
        poses = KINDS[name](vectors)
        torch.testing.assert_close(torch.cosine_similarity(poses, vectors), torch.ones(20, dtype=torch.float64))
        assert (poses.norm(dim=1) <= 1).all()
        logits = SQUASHES[name].logits(vectors)
        torch.testing.assert_close(logits.sigmoid(), poses.norm(dim=-1), rtol=1e-4, atol=1e-8)
    x = torch.randn(3, 4, 5)
    for dim in (0, 1, -1, -2):
        torch.testing.assert_close(KINDS[name](x, dim=dim), KINDS[name](x.movedim(dim, -1)).movedim(-1, dim))
    assert KINDS[name](x / 10, eps=0.1).norm() < KINDS[name](x / 10).norm()


def test_squash_shrinks_lengths() -> None:
    for before, after in [(0.0, 0.0), (0.5, 0.2), (1.0, 0.5), (3.0, 0.9), (7.0, 0.98)]:
        vector = before * torch.tensor([0.6, 0.8], dtype=torch.float64)
        assert squash(vector).norm().item() == pytest.approx(after, abs=1e-7)


def test_exponential_squash_has_a_finite_gradient_in_float32() -> None:
    for scale in (0.0, 1e-30, 1e-4, 1.0, 1e15):
        x = (scale * torch.ones(2, 3)).requires_grad_()
        poses = exponential_squash(x)
        poses.sum().backward()
        assert x.grad.isfinite().all()
        assert (poses.norm(dim=1) < 1 + 1e-6).all()


@pytest.mark.parametrize(
    ("name", "pose", "logit"),
    [
        ("squash", [-15 / 26, 20 / 26], math.log(25)),  # 25 / 26 times (-3, 4) / 5
        ("exponential", [-3 * (1 - math.exp(-5)) / 5, 4 * (1 - math.exp(-5)) / 5], math.log(math.exp(5) - 1)),
        ("half", [-15 / 25.5, 20 / 25.5], math.log(50)),  # 25 / 25.5 times (-3, 4) / 5
        ("relu", [0.0, 4.0], 4.0),
        ("none", [-3.0, 4.0], 5.0),
    ],
)
def test_squashes_by_name(name: str, pose: list[float], logit: float) -> None:
    total = torch.tensor([[-3.0, 4.0]], dtype=torch.float64)
    functions = SQUASHES[name]
    torch.testing.assert_close(functions.poses(total)[0].tolist(), pose, rtol=1e-8, atol=1e-12)
    assert functions.logits(total).item() == pytest.approx(logit, rel=1e-8)
    long = functions.poses(1000 * total).norm().item()
    assert (long <= 1) is functions.bounded


@pytest.mark.parametrize("name", SQUASHES)
def test_squashes_at_zero(name: str) -> None:
    """Finite; the paper's has value and gradient 0 there, and so have its logits."""
    assert get_args(Squash) == tuple(SQUASHES)
    total = torch.zeros(2, 3, requires_grad=True)
    poses, logits = SQUASHES[name].poses(total), SQUASHES[name].logits(total)
    (poses.sum() + logits.sum()).backward()
    assert torch.stack([*poses.flatten(), *logits, *total.grad.flatten()]).isfinite().all()
    if name == "squash":
        assert torch.equal(poses, torch.zeros(2, 3))
        assert torch.equal(total.grad, torch.zeros(2, 3))


def test_length() -> None:
    """That of the loops, with a gradient at zero and the given epsilon."""
    poses = torch.randn(2, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(length(poses), length_loops(poses), rtol=1e-14, atol=0)
    zero = torch.zeros(1, 2, 3, requires_grad=True)
    length(zero).sum().backward()
    assert torch.equal(zero.grad, torch.zeros(1, 2, 3))
    assert length(torch.zeros(1, 1, 2), eps=0.25).item() == 0.5


# -------------------------------------------------------------------------------------------- dense votes


def matrix_votes_by_loops(poses: Tensor, weight: Tensor) -> Tensor:
    """``V = M W``, entry by entry; matrices are stored row by row."""
    inner, columns = weight.shape[1], weight.shape[3]
    rows = poses.shape[2] // inner
    votes = torch.zeros(len(poses), len(weight), weight.shape[2], rows * columns, dtype=torch.float64)
    for b, i, j, row, column, x in itertools.product(*map(range, (*votes.shape[:3], rows, columns, inner))):
        entry = poses[b, i, row * inner + x] * weight[i, x, j, column]
        votes[b, i, j, row * columns + column] += entry
    return votes


def test_dense_votes_are_products_with_the_pose_on_the_left() -> None:
    for rows, inner, columns in [(4, 4, 4), (1, 4, 4), (1, 3, 5), (2, 3, 5), (3, 2, 1), (4, 1, 2)]:
        poses = torch.randn(2, 3, rows * inner, dtype=torch.float64)
        weight = torch.randn(3, inner, 2, columns, dtype=torch.float64)
        votes = dense_votes(poses, weight)
        torch.testing.assert_close(votes, matrix_votes_by_loops(poses, weight), rtol=0, atol=1e-13)
        assert votes.transpose(1, 2).is_contiguous()  # by parent
    strided = torch.randn(5, 3, 2, dtype=torch.float64).transpose(0, 2)
    weight = torch.randn(3, 5, 2, 2, dtype=torch.float64)
    assert torch.equal(dense_votes(strided, weight), dense_votes(strided.contiguous(), weight))


def test_dense_votes_gradient() -> None:
    weight = torch.randn(3, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    for components in (2, 4):  # a vector, a matrix
        poses = torch.randn(2, 3, components, dtype=torch.float64, requires_grad=True)
        assert gradcheck(dense_votes, (poses, weight))


def test_dense_votes_of_half_a_row_are_refused() -> None:
    for components, rows in [(5, 4), (3, 4), (7, 3)]:
        message = f"^poses have {components} components and weights {rows} rows; expected a multiple$"
        with pytest.raises(ValueError, match=message):
            dense_votes(torch.randn(2, 3, components), torch.randn(3, rows, 2, 4))


@pytest.mark.parametrize(("std", "ratio"), [(1.0, 4 * 0.774), (0.5, 0.774)])
def test_votes_vary_as_four_products_of_a_pose_and_a_weight(std: float, ratio: float) -> None:
    """The tutorial's deviation of 1 makes the variance of votes three times as large per layer: 4, less what is cut."""
    generator = torch.Generator().manual_seed(0)
    poses = torch.randn(200, 20, 16, generator=generator)
    torch.manual_seed(0)
    weight = truncated_normal_(torch.empty(20, 4, 8, 4), std)
    assert (dense_votes(poses, weight).var() / poses.var()).item() == pytest.approx(ratio, rel=0.05)


# ------------------------------------------------------------------- couplings, padding, initial weights


def test_softmax_over_parents() -> None:
    """That of the loops; leaky, it drops the share of one more logit at zero."""
    logits = torch.randn(1, 4, 3, dtype=torch.float64)
    expected = torch.tensor([softmax_list(child) for child in logits[0].T.tolist()], dtype=torch.float64).T
    torch.testing.assert_close(softmax_over_parents(logits)[0], expected, rtol=1e-14, atol=0)
    expected = torch.cat([logits, torch.zeros(1, 1, 3)], dim=1).softmax(1)[:, :4]
    torch.testing.assert_close(softmax_over_parents(logits, leaky=True), expected)
    for leaky, share in ((False, 1 / 10), (True, 1 / 11)):
        couplings = softmax_over_parents(torch.zeros(2, 10, 3), leaky=leaky)
        torch.testing.assert_close(couplings, torch.full((2, 10, 3), share))


def test_same_padding_is_tensorflows() -> None:
    for size, kernel_size, stride, padding in [
        ((24, 24), 9, 1, (4, 4, 4, 4)),
        ((24, 24), 9, 2, (3, 4, 3, 4)),  # an odd pixel goes right and down
        ((28, 28), 9, 2, (3, 4, 3, 4)),
        ((25, 25), 9, 2, (4, 4, 4, 4)),
        ((5, 8), 3, 2, (0, 1, 1, 1)),
        ((4, 4), 1, 2, (0, 0, 0, 0)),  # never negative
    ]:
        assert same_padding(size, kernel_size, stride) == padding
    for size, kernel_size, stride in itertools.product([(7, 12), (9, 10)], [1, 2, 3, 9], [1, 2, 3]):
        images = torch.nn.functional.pad(torch.zeros(1, 1, *size), same_padding(size, kernel_size, stride))
        output = torch.nn.functional.conv2d(images, torch.zeros(1, 1, kernel_size, kernel_size), stride=stride)
        assert output.shape[2:] == (math.ceil(size[0] / stride), math.ceil(size[1] / stride))


def test_truncated_normal_is_cut_at_two_std_and_fills_in_place() -> None:
    torch.manual_seed(0)
    for std in (0.05, 0.1):
        given = torch.empty(100, 100)
        weight = truncated_normal_(given, std)
        assert weight is given
        assert weight.abs().max() <= 2 * std
        assert weight.std().item() == pytest.approx(0.8796 * std, rel=0.02)
        assert weight.mean().item() == pytest.approx(0, abs=0.05 * std)


def test_he_std_gives_the_variance_of_keras() -> None:
    weight = truncated_normal_(torch.empty(200, 1000), he_std(50))
    assert weight.std().item() == pytest.approx((2 / 50) ** 0.5, rel=0.01)
    assert weight.abs().max() <= 2 * he_std(50)


# ------------------------------------------------------------------------------------------------ float32


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(half: torch.dtype) -> None:
    functions: list[Callable[[Tensor], Tensor]] = [squash, length]
    for function in [*functions, lambda poses: dense_votes(poses, torch.ones(3, 4, 2, 2))]:
        poses = torch.randn(2, 3, 4).to(half)
        result = function(poses)
        assert result.dtype == torch.float32
        assert torch.equal(result, function(poses.float()))


def test_autocast_is_off_inside_and_on_again_after() -> None:
    @float32_under_autocast
    def product(x: Tensor, *, y: Tensor) -> tuple[Tensor, bool]:
        return x @ y, torch.is_autocast_enabled("cpu")

    x, y = torch.randn(3, 3), torch.randn(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result, inside = product(x, y=y.bfloat16())
        assert torch.is_autocast_enabled("cpu")
    assert not inside
    assert torch.equal(result, x @ y.bfloat16().float())


def test_float64_stays_float64_under_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert squash(torch.ones(2, dtype=torch.float64)).dtype == torch.float64


# -------------------------------------------------------------------------------------------------- crops


def combine_crops_loops(scores: Tensor) -> Tensor:
    """Section 6.3 of the notes on EM routing: divided by their sum over classes, summed over crops."""
    combined = []
    for image in scores.tolist():
        combined.append([0.0] * len(image[0]))
        for crop in image:
            for k in range(len(crop)):
                combined[-1][k] += crop[k] / sum(crop)
    return torch.tensor(combined, dtype=torch.float64)


def test_crops_are_normalised_then_summed() -> None:
    """Every crop has one vote, however sure it is; one that sees nothing has none; one crop predicts as the image."""
    for crops in (1, 2, 13):
        scores = torch.rand(3, crops, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(combine_crops(scores), combine_crops_loops(scores), rtol=1e-12, atol=0)
    scores = torch.tensor([[[0.9, 0.8], [0.01, 0.03]]])
    assert combine_crops(scores).argmax(1).item() == 1
    assert scores.sum(1).argmax(1).item() == 0
    assert combine_crops(torch.tensor([[[0.0, 0.0], [0.25, 0.75]]])).tolist() == [[0.25, 0.75]]
    scores = torch.rand(20, 1, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(combine_crops(scores).argmax(1), scores[:, 0].argmax(1))


def test_crops_of_logits_vote_with_their_probabilities() -> None:
    logits = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(combine_crops(logits, logits=True), combine_crops(logits.softmax(2)))
    assert not torch.allclose(combine_crops(logits.sigmoid()), combine_crops(logits, logits=True))


# ------------------------------------------------------------------------------------- several labels per image


def by_label(scores: list[float], labels: list[int]) -> list[int]:
    """One image: right predictions at their labels, the others at the labels that remain, the highest first."""
    highest = sorted(range(len(scores)), key=lambda k: -scores[k])[: len(labels)]
    wrong = [k for k in highest if k not in labels]
    return [label if label in highest else wrong.pop(0) for label in labels]


def test_predictions_by_label_equal_the_loops() -> None:
    """Of one label twice, the highest score."""
    generator = torch.Generator().manual_seed(0)
    for several in (1, 2, 3):
        scores = torch.rand(200, 5, generator=generator)
        labels = torch.stack([torch.randperm(5, generator=generator)[:several] for _ in range(200)])
        expected = [by_label(*pair) for pair in zip(scores.tolist(), labels.tolist(), strict=True)]
        assert predictions_by_label(scores, labels).tolist() == expected
    for row, prediction in [([0.9, 0.1, 0.2], [0, 0]), ([0.8, 0.9, 0.2], [1, 0]), ([0.1, 0.9, 0.8], [1, 2])]:
        assert predictions_by_label(torch.tensor([row]), torch.tensor([[0, 0]])).tolist() == [prediction]


def test_only_images_outside_of_the_unit_range_are_stretched() -> None:
    """Each by itself; one of a single colour stays finite."""
    images = torch.rand(4, 2, 5, 5)
    assert in_unit_range(images).equal(images)
    pixels = torch.rand(3, 2, 6, 6)
    pixels[0, :, 1:] = 1  # mostly bright: standardised, its brightest pixel is below 1
    standardised = (pixels - pixels.mean((1, 2, 3), keepdim=True)) / pixels.std((1, 2, 3), keepdim=True)
    low, high = pixels.amin((1, 2, 3), keepdim=True), pixels.amax((1, 2, 3), keepdim=True)
    assert standardised[0].max() < 1
    torch.testing.assert_close(in_unit_range(standardised), (pixels - low) / (high - low))
    assert in_unit_range(torch.full((1, 1, 2, 2), -3.0)).tolist() == [[[[0.0, 0.0], [0.0, 0.0]]]]
