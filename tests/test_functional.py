from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import get_args

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
    squash_logits,
    truncated_normal_,
)
from tests.reference.attention_loops import exponential_squash_loops
from tests.reference.loops import length_loops, softmax_list, squash_loops

# ------------------------------------------------------------------------------------------------- squash


@pytest.mark.parametrize("scale", [1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e6])
def test_squash_equals_the_loops(scale: float) -> None:
    vectors = scale * torch.randn(6, 4, dtype=torch.float64)
    torch.testing.assert_close(squash(vectors), squash_loops(vectors), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.0), (0.5, 0.2), (1.0, 0.5), (3.0, 0.9), (7.0, 0.98)])
def test_squash_shrinks_lengths(before: float, after: float) -> None:
    vector = before * torch.tensor([0.6, 0.8], dtype=torch.float64)
    assert squash(vector).norm().item() == pytest.approx(after, abs=1e-7)


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e2])
def test_length_of_squashed_vectors_is_the_logistic_of_their_logits(scale: float) -> None:
    vectors = scale * torch.randn(20, 8, dtype=torch.float64)
    torch.testing.assert_close(squash_logits(vectors).sigmoid(), squash(vectors).norm(dim=-1), rtol=1e-4, atol=1e-8)


def test_logits_of_the_zero_vector_are_finite() -> None:
    vector = torch.zeros(3, requires_grad=True)
    squash_logits(vector).backward()
    assert vector.grad is not None
    assert vector.grad.tolist() == [0, 0, 0]


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e2])
def test_squash_keeps_directions_and_stays_below_one(scale: float) -> None:
    vectors = scale * torch.randn(20, 8, dtype=torch.float64)
    poses = squash(vectors)
    torch.testing.assert_close(torch.cosine_similarity(poses, vectors), torch.ones(20, dtype=torch.float64))
    assert (poses.norm(dim=1) < 1).all()


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_squash_along_any_dimension(dim: int) -> None:
    x = torch.randn(3, 4, 5)
    torch.testing.assert_close(squash(x, dim=dim), squash(x.movedim(dim, -1)).movedim(-1, dim))


def test_squash_of_zero_has_value_and_gradient_zero() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    squash(x).sum().backward()
    assert torch.equal(squash(x), torch.zeros(2, 3))
    assert torch.equal(x.grad, torch.zeros(2, 3))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_squash_gradient(scale: float) -> None:
    x = (scale * torch.randn(3, 4, dtype=torch.float64)).requires_grad_()
    assert gradcheck(squash, (x,), eps=1e-6 * scale)


def test_squash_eps_is_used() -> None:
    x = torch.full((1, 3), 0.1)
    assert squash(x, eps=0.1).norm() < squash(x).norm()


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1.0, 1e2])
def test_exponential_squash_equals_the_loops(scale: float) -> None:
    vectors = scale * torch.randn(6, 4, dtype=torch.float64)
    torch.testing.assert_close(exponential_squash(vectors), exponential_squash_loops(vectors), rtol=1e-10, atol=0)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-4, 1.0, 1e15])
def test_exponential_squash_has_a_finite_gradient_in_float32(scale: float) -> None:
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


def test_every_squash_has_functions() -> None:
    assert get_args(Squash) == tuple(SQUASHES)


@pytest.mark.parametrize("name", SQUASHES)
def test_squashes_are_finite_at_zero(name: str) -> None:
    total = torch.zeros(2, 3, requires_grad=True)
    poses, logits = SQUASHES[name].poses(total), SQUASHES[name].logits(total)
    (poses.sum() + logits.sum()).backward()
    assert torch.stack([*poses.flatten(), *logits, *total.grad.flatten()]).isfinite().all()


def test_exponential_squash_along_another_dimension() -> None:
    x = torch.randn(3, 4)
    torch.testing.assert_close(exponential_squash(x, dim=0), exponential_squash(x.T).T)


def test_exponential_squash_eps_is_used() -> None:
    x = torch.full((1, 3), 0.1)
    assert exponential_squash(x, eps=0.1).norm() < exponential_squash(x).norm()


def test_exponential_squash_gradient() -> None:
    assert gradcheck(exponential_squash, (torch.randn(3, 4, dtype=torch.float64).requires_grad_(),))


# ------------------------------------------------------------------------------------------------- length


def test_length_equals_the_loops() -> None:
    poses = torch.randn(2, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(length(poses), length_loops(poses), rtol=1e-14, atol=0)


def test_length_has_a_gradient_at_zero() -> None:
    poses = torch.zeros(1, 2, 3, requires_grad=True)
    length(poses).sum().backward()
    assert torch.equal(poses.grad, torch.zeros(1, 2, 3))


def test_length_eps_is_used() -> None:
    assert length(torch.zeros(1, 1, 2), eps=0.25).item() == 0.5


# -------------------------------------------------------------------------------------------- dense votes


def test_dense_votes_is_one_matrix_product_per_child_and_parent() -> None:
    poses = torch.randn(2, 3, 4, dtype=torch.float64)
    weight = torch.randn(3, 4, 5, 6, dtype=torch.float64)
    expected = torch.einsum("bic,icjd->bijd", poses, weight)
    torch.testing.assert_close(dense_votes(poses, weight), expected, rtol=0, atol=1e-13)


def matrix_votes_by_loops(poses: Tensor, weight: Tensor) -> Tensor:
    """``V = M W``, entry by entry; matrices are stored row by row."""
    inner, columns = weight.shape[1], weight.shape[3]
    rows = poses.shape[2] // inner
    votes = torch.zeros(len(poses), len(weight), weight.shape[2], rows * columns, dtype=torch.float64)
    for b, i, j, row, column, x in itertools.product(*map(range, (*votes.shape[:3], rows, columns, inner))):
        entry = poses[b, i, row * inner + x] * weight[i, x, j, column]
        votes[b, i, j, row * columns + column] += entry
    return votes


@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(4, 4, 4), (1, 4, 4), (1, 3, 5), (2, 3, 5), (3, 2, 1), (4, 1, 2)]
)
def test_dense_votes_of_matrices_have_the_pose_on_the_left(rows: int, inner: int, columns: int) -> None:
    poses = torch.randn(2, 3, rows * inner, dtype=torch.float64)
    weight = torch.randn(3, inner, 2, columns, dtype=torch.float64)
    torch.testing.assert_close(dense_votes(poses, weight), matrix_votes_by_loops(poses, weight), rtol=0, atol=1e-13)


def test_dense_votes_of_matrices_are_a_matrix_product() -> None:
    poses, weight = torch.randn(2, 3, 16, dtype=torch.float64), torch.randn(3, 4, 5, 4, dtype=torch.float64)
    product = poses.view(2, 3, 1, 4, 4) @ weight.transpose(1, 2)
    torch.testing.assert_close(dense_votes(poses, weight), product.flatten(3), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("components", "rows"), [(5, 4), (3, 4), (7, 3)])
def test_dense_votes_of_half_a_row_are_refused(components: int, rows: int) -> None:
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


def test_dense_votes_gradient_of_matrices() -> None:
    poses = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    assert gradcheck(dense_votes, (poses, weight))


def test_dense_votes_are_laid_out_by_parent() -> None:
    votes = dense_votes(torch.randn(2, 3, 4), torch.randn(3, 4, 5, 6))
    assert votes.transpose(1, 2).is_contiguous()


def test_dense_votes_gradient() -> None:
    poses = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    assert gradcheck(dense_votes, (poses, weight))


def test_dense_votes_of_non_contiguous_poses() -> None:
    poses, weight = torch.randn(4, 3, 2).transpose(0, 2), torch.randn(3, 4, 5, 6)
    assert torch.equal(dense_votes(poses, weight), dense_votes(poses.contiguous(), weight))


# ---------------------------------------------------------------------------------- softmax over parents


def test_softmax_over_parents_equals_the_loops() -> None:
    logits = torch.randn(1, 4, 3, dtype=torch.float64)
    expected = torch.tensor([softmax_list(child) for child in logits[0].T.tolist()], dtype=torch.float64).T
    torch.testing.assert_close(softmax_over_parents(logits)[0], expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize(("leaky", "share"), [(False, 1 / 10), (True, 1 / 11)])
def test_equal_logits_give_equal_shares(leaky: bool, share: float) -> None:
    couplings = softmax_over_parents(torch.zeros(2, 10, 3), leaky=leaky)
    torch.testing.assert_close(couplings, torch.full((2, 10, 3), share))


def test_leaky_softmax_drops_the_share_of_one_more_logit_at_zero() -> None:
    logits = torch.randn(2, 3, 4)
    expected = torch.cat([logits, torch.zeros(2, 1, 4)], dim=1).softmax(1)[:, :3]
    torch.testing.assert_close(softmax_over_parents(logits, leaky=True), expected)


# ------------------------------------------------------------------------------------------- same padding


@pytest.mark.parametrize(
    ("size", "kernel_size", "stride", "padding"),
    [
        ((24, 24), 9, 1, (4, 4, 4, 4)),
        ((24, 24), 9, 2, (3, 4, 3, 4)),  # an odd pixel goes right and down
        ((28, 28), 9, 2, (3, 4, 3, 4)),
        ((25, 25), 9, 2, (4, 4, 4, 4)),
        ((5, 8), 3, 2, (0, 1, 1, 1)),
        ((4, 4), 1, 2, (0, 0, 0, 0)),  # never negative
    ],
)
def test_same_padding_is_tensorflows(
    size: tuple[int, int], kernel_size: int, stride: int, padding: tuple[int, int, int, int]
) -> None:
    assert same_padding(size, kernel_size, stride) == padding


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel_size", [1, 2, 3, 9])
@pytest.mark.parametrize("size", [(7, 12), (9, 10)])
def test_same_padding_gives_size_over_stride_rounded_up(size: tuple[int, int], kernel_size: int, stride: int) -> None:
    images = torch.nn.functional.pad(torch.zeros(1, 1, *size), same_padding(size, kernel_size, stride))
    output = torch.nn.functional.conv2d(images, torch.zeros(1, 1, kernel_size, kernel_size), stride=stride)
    assert output.shape[2:] == (math.ceil(size[0] / stride), math.ceil(size[1] / stride))


# --------------------------------------------------------------------------------------- truncated normal


@pytest.mark.parametrize("std", [0.05, 0.1])
def test_truncated_normal_is_cut_at_two_std(std: float) -> None:
    torch.manual_seed(0)
    weight = truncated_normal_(torch.empty(100, 100), std)
    assert weight.abs().max() <= 2 * std
    assert weight.std().item() == pytest.approx(0.8796 * std, rel=0.02)
    assert weight.mean().item() == pytest.approx(0, abs=0.05 * std)


def test_truncated_normal_fills_in_place() -> None:
    weight = torch.nn.Parameter(torch.zeros(5))
    assert truncated_normal_(weight, 0.1) is weight
    assert (weight != 0).all()


# ------------------------------------------------------------------------------------------------ float32


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(squash, id="squash"),
        pytest.param(length, id="length"),
        pytest.param(lambda poses: dense_votes(poses, torch.ones(3, 4, 2, 2)), id="dense_votes"),
    ],
)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(function: Callable[[Tensor], Tensor], half: torch.dtype) -> None:
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


@pytest.mark.parametrize("crops", [1, 2, 13])
def test_crops_are_normalised_then_summed(crops: int) -> None:
    scores = torch.rand(3, crops, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(combine_crops(scores), combine_crops_loops(scores), rtol=1e-12, atol=0)


def test_every_crop_has_one_vote_however_sure_it_is() -> None:
    scores = torch.tensor([[[0.9, 0.8], [0.01, 0.03]]])
    assert combine_crops(scores).argmax(1).item() == 1
    assert scores.sum(1).argmax(1).item() == 0


def test_crops_of_logits_vote_with_their_probabilities() -> None:
    logits = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(combine_crops(logits, logits=True), combine_crops(logits.softmax(2)))
    assert not torch.allclose(combine_crops(logits.sigmoid()), combine_crops(logits, logits=True))


def test_crop_that_sees_nothing_does_not_vote() -> None:
    scores = torch.tensor([[[0.0, 0.0], [0.25, 0.75]]])
    assert combine_crops(scores).tolist() == [[0.25, 0.75]]


def test_one_crop_predicts_as_the_image_does() -> None:
    scores = torch.rand(20, 1, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(combine_crops(scores).argmax(1), scores[:, 0].argmax(1))


# ------------------------------------------------------------------------------------- several labels per image


def by_label(scores: list[float], labels: list[int]) -> list[int]:
    """One image: right predictions at their labels, the others at the labels that remain, the highest first."""
    highest = sorted(range(len(scores)), key=lambda k: -scores[k])[: len(labels)]
    wrong = [k for k in highest if k not in labels]
    return [label if label in highest else wrong.pop(0) for label in labels]


@pytest.mark.parametrize("several", [1, 2, 3])
def test_predictions_by_label_equal_the_loops(several: int) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(200, 5, generator=generator)
    labels = torch.stack([torch.randperm(5, generator=generator)[:several] for _ in range(200)])
    expected = [by_label(*pair) for pair in zip(scores.tolist(), labels.tolist(), strict=True)]
    assert predictions_by_label(scores, labels).tolist() == expected


@pytest.mark.parametrize(
    ("scores", "prediction"), [([0.9, 0.1, 0.2], [0, 0]), ([0.8, 0.9, 0.2], [1, 0]), ([0.1, 0.9, 0.8], [1, 2])]
)
def test_one_label_twice_is_predicted_by_the_highest_score(scores: list[float], prediction: list[int]) -> None:
    assert predictions_by_label(torch.tensor([scores]), torch.tensor([[0, 0]])).tolist() == [prediction]


def test_images_in_the_unit_range_stay_as_they_are() -> None:
    images = torch.rand(4, 2, 5, 5)
    assert in_unit_range(images).equal(images)


def test_standardised_images_are_stretched_each_by_itself() -> None:
    pixels = torch.rand(3, 2, 6, 6)
    pixels[0, :, 1:] = 1  # mostly bright: standardised, its brightest pixel is below 1
    standardised = (pixels - pixels.mean((1, 2, 3), keepdim=True)) / pixels.std((1, 2, 3), keepdim=True)
    low, high = pixels.amin((1, 2, 3), keepdim=True), pixels.amax((1, 2, 3), keepdim=True)
    assert standardised[0].max() < 1
    torch.testing.assert_close(in_unit_range(standardised), (pixels - low) / (high - low))


def test_images_of_one_colour_stay_finite() -> None:
    assert in_unit_range(torch.full((1, 1, 2, 2), -3.0)).tolist() == [[[[0.0, 0.0], [0.0, 0.0]]]]


def test_he_std_gives_the_variance_of_keras() -> None:
    weight = truncated_normal_(torch.empty(200, 1000), he_std(50))
    assert weight.std().item() == pytest.approx((2 / 50) ** 0.5, rel=0.01)
    assert weight.abs().max() <= 2 * he_std(50)
