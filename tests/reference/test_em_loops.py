"""The slow EM loops give the golden numbers, obey their invariants, and differ from every wrong version."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.reference import em_golden as golden
from tests.reference import em_loops as loops
from tests.reference import em_wrong as wrong
from tests.reference.em_loops import Record, conv_em_loops, dense_em_loops

BATCH, CHILDREN, PARENTS, DIM = 2, 5, 3, 4
TEMPERATURES = wrong.INVERSE_TEMPERATURES

close = partial(torch.testing.assert_close, rtol=0, atol=1e-12)
exact_golden = partial(torch.testing.assert_close, rtol=0, atol=golden.TOLERANCE)


def double(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ----------------------------------------------------------------------------------------- golden numbers


@cache
def conv_golden(row: golden.ConvGolden) -> list[Record]:
    inputs = golden.conv_poses(), golden.conv_activations(), golden.conv_weight()
    return conv_em_loops(*inputs, *golden.betas(row, 3), stride=row.stride, **row.options)


CONV_QUANTITIES = {
    "first_activations": lambda records: records[-1].activations[0, :, 0, 0],
    "last_activations": lambda records: records[-1].activations[0, :, -1, -1],
    "mean_activation": lambda records: records[-1].activations.mean()[None],
    "first_pose": lambda records: records[-1].poses[0, 0, :4, 0, 0],
    "pose_std": lambda records: records[-1].poses.std(correction=0)[None],
    "total_couplings": lambda records: records[-1].couplings.sum()[None],
    "masses": lambda records: torch.stack([record.masses[0, 0, 0, 0] for record in records]),
    "logits": lambda records: torch.stack([record.logits[0, 0, 0, 0] for record in records]),
}


def check_golden(row: Any, quantities: dict[str, Any], records: list[Record]) -> None:
    for quantity, found in quantities.items():
        if (expected := getattr(row, quantity)) != ():
            exact_golden(found(records), double(*expected) if isinstance(expected, tuple) else double(expected))


@pytest.mark.parametrize("row", golden.CONV, ids=lambda row: row.name)
def test_convolution_gives_golden_numbers(row: golden.ConvGolden) -> None:
    """And the paper's cost does, with betas in other units."""
    check_golden(row, CONV_QUANTITIES, conv_golden(row))
    beta_u, beta_a, final = golden.in_paper_form(row.cost, row.b_s, row.b_a, row.final)
    inputs = golden.conv_poses(), golden.conv_activations(), golden.conv_weight()
    betas = double(beta_u, beta_u, beta_u), double(beta_a, beta_a, beta_a)
    options = {**row.options, "cost": "paper", "inverse_temperatures": golden.ramp(final)}
    records = conv_em_loops(*inputs, *betas, stride=row.stride, **options)
    close(records[-1].logits, conv_golden(row)[-1].logits)
    close(records[-1].poses, conv_golden(row)[-1].poses)


@cache
def class_golden(row: golden.ClassGolden) -> list[Record]:
    votes = loops.class_votes_loops(golden.class_poses(), golden.class_weight(), offsets=golden.class_offsets())
    return dense_em_loops(votes, golden.class_activations().flatten(1), *golden.betas(row, 4), **row.options)


CLASS_QUANTITIES = {
    "activations": lambda records: records[-1].activations[0],
    "first_pose": lambda records: records[-1].poses[0, 0, :4],
    "logits": lambda records: records[-1].logits[0],
}


@pytest.mark.parametrize("row", golden.CLASS, ids=lambda row: row.name)
def test_class_layer_gives_golden_numbers(row: golden.ClassGolden) -> None:
    check_golden(row, CLASS_QUANTITIES, class_golden(row))


def test_coordinates_are_the_receptive_fields_centres() -> None:
    for size, expected in golden.COORDINATES.items():
        close(double(*loops.receptive_field_centres(size, golden.LAYERS)), double(*expected))
    columns, rows = golden.class_coordinates()
    close(columns[0], double(*golden.COORDINATES[24]))
    close(rows[:, 0], double(*golden.COORDINATES[24]))


def test_published_inverse_temperatures() -> None:
    """Sections 3.2 to 3.4 print them."""
    close(double(*loops.inverse_temperatures(0.01, 3)), double(0.0005, 0.000975, 0.00142625))
    close(double(*loops.inverse_temperatures(0.04, 3)), double(0.002, 0.0039, 0.005705))
    torch.testing.assert_close(
        double(*golden.ramp(0.0025)), double(0.000125, 0.00024375, 0.00035656), rtol=0, atol=5e-9
    )


# ------------------------------------------------------------------------------------------------- votes


def test_matrix_vote_has_the_pose_on_the_left() -> None:
    poses, weight = random(BATCH, CHILDREN, 16), random(CHILDREN, 4, 4, PARENTS, seed=1)
    votes = loops.matrix_votes_loops(poses, weight)
    matrices = poses.view(BATCH, CHILDREN, 1, 4, 4) @ weight.permute(0, 3, 1, 2)
    close(votes, matrices.flatten(3))


def test_vector_vote() -> None:
    poses, weight = random(BATCH, CHILDREN, 6), random(CHILDREN, 6, DIM, PARENTS, seed=1)
    close(loops.vector_votes_loops(poses, weight), torch.einsum("bin,indj->bijd", poses, weight))


def test_class_votes_share_transforms_and_add_coordinates() -> None:
    poses, weight, offsets = random(BATCH, 2, 16, 2, 3), random(2, 4, 4, PARENTS, seed=1), random(16, 2, 3, seed=2)
    votes = loops.class_votes_loops(poses, weight, offsets=offsets).view(BATCH, 2, 2, 3, PARENTS, 16)
    at_0_1 = loops.matrix_votes_loops(poses[..., 1, 2], weight) + offsets[:, 1, 2]
    close(votes[:, :, 1, 2], at_0_1)


def test_density_is_the_gaussians() -> None:
    vote, pose, variance = random(DIM), random(DIM, seed=1), random(DIM, seed=2).exp()
    expected = torch.distributions.Normal(pose, variance.sqrt()).log_prob(vote).sum()
    close(double(loops.log_density(vote.tolist(), pose.tolist(), variance.tolist())), expected[None])
    close(wrong.Right().log_density(vote.view(1, 1, -1), pose[None], variance[None]), expected.view(1, 1))


# ------------------------------------------------------------------------------------------------ a dense layer


def dense_inputs(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        random(BATCH, CHILDREN, PARENTS, DIM, seed=seed),
        random(BATCH, CHILDREN, seed=seed + 1).sigmoid(),
        random(PARENTS, seed=seed + 2),
        random(PARENTS, seed=seed + 3),
    )


def dense(*inputs: Tensor, **options: Any) -> list[Record]:
    return dense_em_loops(*inputs, **{"inverse_temperatures": TEMPERATURES, **options})


@pytest.mark.parametrize("cost", loops.COSTS)
def test_couplings_sum_to_one_and_records_agree_with_themselves(cost: str) -> None:
    for options in ({}, {"normalisation": "window"}, {"initial": "types"}, {"activation": "mixing_proportions"}):
        records = dense(*dense_inputs(), cost=cost, **options)
        assert len(records) == len(TEMPERATURES)
        for record in records:
            close(record.couplings.sum(2), torch.ones(BATCH, CHILDREN, dtype=torch.float64))
            close(record.activations.log(), record.log_activations)
            close(record.logits.sigmoid(), record.activations)


def test_one_child_one_iteration_by_hand() -> None:
    """One child of activation 1/2 with two parents: mass 1/4, mean its vote, variance the floor."""
    votes = double(3.0, -1.0).view(1, 1, 2, 1)
    beta_u, beta_a = double(1.0, 2.0), double(5.0, 6.0)
    options = {"inverse_temperatures": [0.1], "mass_epsilon": 0.0, "min_variance": 0.01}
    record = dense_em_loops(votes, double(0.5)[None], beta_u, beta_a, **options)[-1]
    close(record.couplings, double(0.5, 0.5).view(1, 1, 2))
    close(record.masses, double(0.25, 0.25)[None])
    close(record.poses, votes[:, 0])
    close(record.variances, double(0.01, 0.01).view(1, 2, 1))
    close(record.logits, 0.1 * (beta_a - 0.25 * (beta_u + double(0.1).log()))[None])  # ln sigma = ln 0.1


def test_mass_epsilon_is_added_to_masses() -> None:
    """One child of weight 1 and epsilon 1: half the vote, and half the squared distance to it."""
    options = {"inverse_temperatures": [0.1], "mass_epsilon": 1.0, "min_variance": 0.0}
    record = dense_em_loops(double(4.0).view(1, 1, 1, 1), double(1.0)[None], double(0.0), double(0.0), **options)[-1]
    close(record.masses, double(2.0)[None])
    close(record.poses, double(2.0).view(1, 1, 1))
    close(record.variances, double(2.0).view(1, 1, 1))


# ------------------------------------------------------------------------------------------- a convolution


def conv_inputs(height: int = 5, width: int = 6, types: int = 2, kernel: int = 3) -> tuple[Tensor, ...]:
    """Two child types and three parent types, poses of 16 numbers; the votes are of the order of one."""
    return (
        random(BATCH, types, 16, height, width),
        random(BATCH, types, height, width, seed=1).sigmoid(),
        0.5 * random(types, kernel, kernel, 4, 4, PARENTS, seed=2),
        random(PARENTS, seed=3),
        random(PARENTS, seed=4),
    )


def conv(*inputs: Tensor, stride: int, **options: Any) -> list[Record]:
    return conv_em_loops(*inputs, stride=stride, **{"inverse_temperatures": TEMPERATURES, **options})


def windows_of_each_child(stride: int) -> Tensor:
    """How many of the 3 x 3 windows on 5 x 6 see each position: (5, 6)."""
    seen = {
        1: (double(1, 2, 3, 2, 1), double(1, 2, 3, 3, 2, 1)),
        2: (double(1, 1, 2, 1, 1), double(1, 1, 2, 1, 1, 0)),  # the last column has no parent
    }[stride]
    return seen[0][:, None] * seen[1]


@pytest.mark.parametrize("stride", [1, 2])
def test_children_share_themselves_over_all_parents_or_over_those_of_a_window(stride: int) -> None:
    seen = windows_of_each_child(stride)
    for record in conv(*conv_inputs(), stride=stride):
        close(record.couplings.sum((4, 5, 6)), (seen > 0).double().expand(BATCH, 2, 5, 6))
    by_window = conv(*conv_inputs(), stride=stride, normalisation="window")[-1].couplings
    by_types = conv(*conv_inputs(), stride=stride, initial="types")[0].couplings
    for couplings in (by_window, by_types):
        close(couplings.sum((4, 5, 6)), seen.expand(BATCH, 2, 5, 6))
    by_parents = conv(*conv_inputs(), stride=stride, initial="parents")[0].couplings
    close(by_parents[0, 0, 2, 2], (by_types[0, 0, 2, 2] > 0) / (PARENTS * seen[2, 2]))


def test_legacy_ignores_the_stride() -> None:
    """At stride 1 each child has one unit for each type; at stride 2 the official code gives it something else."""
    one = conv(*conv_inputs(), stride=1, normalisation="official_legacy")[1].couplings
    assert (one.sum((5, 6)) < 1 + 1e-12).all()
    assert (one.sum((5, 6)) > 1 - 1e-3).any()
    two = conv(*conv_inputs(), stride=2, normalisation="official_legacy")[1].couplings
    assert (two.sum((5, 6)) > 1 + 1e-3).any()


def test_fast_is_exact_where_nothing_underflows() -> None:
    """Votes so close that no child falls below the floor: the official fast normaliser is then the paper's."""
    poses, activations, weight, *betas = conv_inputs()
    options = {"stride": 2, "min_variance": 1.0}
    fast = conv(0.1 * poses, activations, weight, *betas, normalisation="official_fast", **options)[-1]
    close(fast.couplings, conv(0.1 * poses, activations, weight, *betas, **options)[-1].couplings)


def test_standardised_costs_compare_the_types_at_one_position() -> None:
    """The paper's logits with an inverse temperature of 1 and no beta_a are minus the costs."""
    *inputs, beta_a = conv_inputs()
    options = {"stride": 2, "inverse_temperatures": [1.0]}
    minus_costs = conv(*inputs, 0 * beta_a, cost="paper", **options)[-1].logits
    deviations, means = torch.std_mean(minus_costs, dim=1, correction=0, keepdim=True)
    expected = beta_a.view(-1, 1, 1) + (minus_costs - means) / (deviations + 1e-4)
    close(conv(*inputs, beta_a, cost="standardised", **options)[-1].logits, expected)


@pytest.mark.parametrize("stride", [1, 2])
def test_kernel_of_the_whole_grid_is_a_dense_layer(stride: int) -> None:
    poses, activations, weight, *betas = conv_inputs(height=3, width=3)
    record = conv(poses, activations, weight, *betas, stride=stride)[-1]
    votes = loops.matrix_votes_loops(poses.permute(0, 1, 3, 4, 2).flatten(1, 3), weight.flatten(0, 2))
    expected = dense(votes, activations.flatten(1), *betas)[-1]
    close(record.poses[..., 0, 0], expected.poses)
    close(record.logits[..., 0, 0], expected.logits)


def test_kernel_of_one_is_a_dense_layer_at_each_position() -> None:
    poses, activations, weight, *betas = conv_inputs(kernel=1)
    record = conv(poses, activations, weight, *betas, stride=2)[-1]
    votes = loops.matrix_votes_loops(poses[..., 2, 4], weight[:, 0, 0])
    expected = dense(votes, activations[..., 2, 4], *betas)[-1]
    close(record.poses[..., 1, 2], expected.poses)
    close(record.activations[..., 1, 2], expected.activations)


def test_convolution_of_vectors() -> None:
    poses, activations, weight = random(1, 2, 3, 3, 3), random(1, 2, 3, 3).sigmoid(), random(2, 3, 3, 3, 4, PARENTS)
    betas = random(PARENTS), random(PARENTS, seed=1)
    record = conv(poses, activations, weight, *betas, stride=1, vote=loops.vector_vote)[-1]
    votes = loops.vector_votes_loops(poses.permute(0, 1, 3, 4, 2).flatten(1, 3), weight.flatten(0, 2))
    close(record.poses[..., 0, 0], dense(votes, activations.flatten(1), *betas)[-1].poses)


def test_zero_activations_have_finite_gradients() -> None:
    votes, activations, *betas = dense_inputs()
    inputs = [votes.requires_grad_(), torch.zeros_like(activations).requires_grad_(), *betas]
    poses, parent_activations = wrong.Right()(*inputs)
    (poses.sum() + parent_activations.sum()).backward()
    assert all(tensor.grad.isfinite().all() for tensor in inputs[:2])
