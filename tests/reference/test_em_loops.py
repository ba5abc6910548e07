"""The slow EM loops: golden numbers, and properties that the golden numbers do not show."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.reference import em_golden as golden
from tests.reference import em_loops as loops
from tests.reference import em_wrong as wrong
from tests.reference.em_bridge import random
from tests.reference.em_loops import Record, conv_em_loops, dense_em_loops

BATCH, PARENTS, DIM = 2, 3, 4

close = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


def double(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def golden_convolution(row: golden.ConvGolden, betas: tuple[Tensor, Tensor], **options: Any) -> list[Record]:
    inputs = golden.conv_poses(), golden.conv_activations(), golden.conv_weight()
    return conv_em_loops(*inputs, *betas, stride=row.stride, **{**row.options, **options})


@pytest.mark.parametrize("row", golden.CONV, ids=lambda row: row.name)
def test_convolution_gives_golden_numbers(row: golden.ConvGolden) -> None:
    """The paper's cost gives them as well, with converted betas."""
    records = golden_convolution(row, golden.betas(row, 3))
    of_parent = "masses", "logits"
    masses, logits = (torch.stack([getattr(each, name)[0, 0, 0, 0] for each in records]) for name in of_parent)
    row.check(records[-1].activations, records[-1].poses, records[-1].couplings, masses, logits)
    beta_u, beta_a, final = golden.in_paper_form(row.cost, row.b_s, row.b_a, row.final)
    betas = double(beta_u, beta_u, beta_u), double(beta_a, beta_a, beta_a)
    options = {"cost": "paper", "inverse_temperatures": loops.inverse_temperatures(final, 3)}
    last = golden_convolution(row, betas, **options)[-1]
    close(last.logits, records[-1].logits)
    close(last.poses, records[-1].poses)


@pytest.mark.parametrize("row", golden.CLASS, ids=lambda row: row.name)
def test_class_layer_gives_golden_numbers(row: golden.ClassGolden) -> None:
    votes = loops.class_votes_loops(golden.class_poses(), golden.class_weight(), offsets=golden.class_offsets())
    last = dense_em_loops(votes, golden.class_activations().flatten(1), *golden.betas(row, 4), **row.options)[-1]
    row.check(last.activations, last.poses, last.logits)


def test_coordinates_are_centres_of_receptive_fields() -> None:
    for size, expected in golden.COORDINATES.items():
        close(double(*loops.receptive_field_centres(size, golden.LAYERS)), double(*expected))
    columns, rows = golden.class_offsets()[:2]
    close(columns[0], double(*golden.COORDINATES[24]))
    close(rows[:, 0], double(*golden.COORDINATES[24]))


def test_density_is_that_of_a_gaussian() -> None:
    vote, pose, variance = random(DIM), random(DIM, seed=1), random(DIM, seed=2).exp()
    expected = torch.distributions.Normal(pose, variance.sqrt()).log_prob(vote).sum()
    close(double(loops.log_density(vote.tolist(), pose.tolist(), variance.tolist())), expected[None])
    given = vote.view(1, 1, 1, -1), pose.view(1, 1, -1), variance.view(1, 1, -1)
    close(wrong.Right().log_density(*given), expected.view(1, 1, 1))
    assert (wrong.ConstantOfTheDensity().log_density(*given) - expected).abs() > 0.1


def conv_inputs() -> tuple[Tensor, ...]:
    """Two child types on 5 x 6 and three parent types; the votes are of the order of one."""
    poses, activations = random(BATCH, 2, 16, 5, 6), random(BATCH, 2, 5, 6, seed=1).sigmoid()
    weight = 0.5 * random(2, 3, 3, 4, 4, PARENTS, seed=2)
    return poses, activations, weight, random(PARENTS, seed=3), random(PARENTS, seed=4)


def conv(*inputs: Tensor, stride: int, **options: Any) -> list[Record]:
    return conv_em_loops(*inputs, stride=stride, **{"inverse_temperatures": wrong.INVERSE_TEMPERATURES, **options})


def windows_of_each_child(stride: int) -> Tensor:
    """Number of 3 x 3 windows on 5 x 6 that see each position: (5, 6)."""
    seen = {
        1: (double(1, 2, 3, 2, 1), double(1, 2, 3, 3, 2, 1)),
        2: (double(1, 1, 2, 1, 1), double(1, 1, 2, 1, 1, 0)),  # the last column has no parent
    }[stride]
    return seen[0][:, None] * seen[1]


@pytest.mark.parametrize("stride", [1, 2])
def test_couplings_sum_to_one_over_all_parents_or_those_of_a_window(stride: int) -> None:
    seen = windows_of_each_child(stride)
    for record in conv(*conv_inputs(), stride=stride):
        close(record.couplings.sum((4, 5, 6)), (seen > 0).double().expand(BATCH, 2, 5, 6))
    by_window = conv(*conv_inputs(), stride=stride, normalisation="window")[-1].couplings
    by_types = conv(*conv_inputs(), stride=stride, initial="types")[0].couplings
    for couplings in (by_window, by_types):
        close(couplings.sum((4, 5, 6)), seen.expand(BATCH, 2, 5, 6))
    by_parents = conv(*conv_inputs(), stride=stride, initial="parents")[0].couplings
    close(by_parents[0, 0, 2, 2], (by_types[0, 0, 2, 2] > 0) / (PARENTS * seen[2, 2]))


def test_legacy_normalisation_ignores_the_stride() -> None:
    """At stride 1 each child has one unit for each type; at stride 2 the official code gives another sum."""
    one, two = (
        conv(*conv_inputs(), stride=n, normalisation="official_legacy")[1].couplings.sum((5, 6)) for n in (1, 2)
    )
    assert (one < 1 + 1e-12).all()
    assert (one > 1 - 1e-3).any()
    assert (two > 1 + 1e-3).any()


def test_costs_are_standardised_over_the_types_at_one_position() -> None:
    """Logits equal the standardised costs; costs are minus the paper's logits at temperature 1 without beta_a."""
    *inputs, beta_a = conv_inputs()
    options = {"stride": 2, "inverse_temperatures": [1.0]}
    minus_costs = conv(*inputs, 0 * beta_a, cost="paper", **options)[-1].logits
    deviations, means = torch.std_mean(minus_costs, dim=1, correction=0, keepdim=True)
    expected = beta_a.view(-1, 1, 1) + (minus_costs - means) / (deviations + 1e-4)
    close(conv(*inputs, beta_a, cost="standardised", **options)[-1].logits, expected)
