"""Parameters, multiplications and minutes of the networks of a claim: results/claims_computation.csv."""

from functools import partial

import pytest
import torch
from torch import nn

from capsule_lab.layers import DenseCapsules, DepthwisePrimaryCapsules
from capsule_lab.routing import UniformRouting
from capsule_studies.claims import computation
from capsule_studies.claims.effects import read_csv
from capsule_studies.claims.read import RESULTS, read

CLAIMS = {claim["id"]: claim for claim in read()}
RECORDED = computation.recorded()


def test_multiplications_are_those_of_convolutions_and_matrix_products() -> None:
    """3x3 windows at 6x6 positions of 8x8 pixels, 4 channels; then 144 inputs of 10 units."""
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    assert computation.multiplications(network, (1, 8, 8)) == 36 * 9 * 4 + 144 * 10


def test_a_sum_of_products_counts_the_same_in_every_form() -> None:
    class Sum(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return (images * 0.5).sum((1, 2, 3))

    class Product(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten(1) @ torch.full((30, 1), 0.5)

    for network in (Sum(), Product(), nn.Conv2d(1, 1, (5, 6), bias=False)):
        assert computation.multiplications(network, (1, 5, 6)) == 30


@pytest.mark.usefixtures("unchecked_types")
def test_votes_and_their_sums_count() -> None:
    """Votes of 5 children for 3 parents by 4x6 matrices, and their sum over children for each of 6 components."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            routing = partial(UniformRouting, backend="matmul")
            self.layer = DenseCapsules(5, 4, 3, 6, routing=routing)

        def forward(self, images: torch.Tensor) -> object:
            return self.layer(images.flatten(1).unflatten(1, (5, 4)))

    arithmetic_of_squash = 3 * 6 + 3
    counted = computation.multiplications(Network(), (1, 4, 5))
    assert counted == 5 * 3 * 4 * 6 + 5 * 3 * 6 + arithmetic_of_squash


@pytest.mark.usefixtures("unchecked_types")
def test_primary_capsules_at_one_position_count_their_convolution() -> None:
    """A depthwise convolution whose kernel has the size of its input, which is computed as a sum of products."""
    layer = DepthwisePrimaryCapsules(8, (5, 5), dim=4)
    assert 8 * 25 <= computation.multiplications(layer, (8, 5, 5)) < 2 * 8 * 25


@pytest.mark.whole  # composes a table
@pytest.mark.usefixtures("unchecked_types")
def test_a_line_is_that_of_the_networks_of_its_rows() -> None:
    found = computation.networks_of(CLAIMS["C-115"])
    assert found is not None
    for network, recorded in zip(found, RECORDED["C-115"], strict=True):
        assert network.parameters == recorded.parameters
        assert network.multiplications == recorded.multiplications


@pytest.mark.whole  # composes tables
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("C-142", id="a number"),
        pytest.param("C-117", id="one network"),
        pytest.param("C-054", id="no classifier"),
    ],
)
def test_claims_without_two_classifiers_of_tables_have_no_line(name: str) -> None:
    assert computation.networks_of(CLAIMS[name]) is None
    assert name not in RECORDED


def test_more_iterations_compute_more() -> None:
    two, one = RECORDED["C-013"]
    assert two.parameters == one.parameters
    assert two.multiplications > one.multiplications


def test_minutes_are_medians_on_one_kind_of_hardware() -> None:
    runs = read_csv(RESULTS / "algorithms_mnist_runs.csv")
    one = runs[runs["row"] == "EM (Hinton 2018), 1 iteration"]["minutes"].median()
    minutes = computation.minutes_of(CLAIMS["C-013"])
    assert minutes is not None
    assert minutes[1] == one
    assert computation.minutes_of(CLAIMS["C-109"]) is None, "two generations of processor"
    assert computation.minutes_of(CLAIMS["C-120"]) is None, "analyses"


def test_every_claim_with_two_rows_of_a_table_of_classifiers_has_a_line() -> None:
    """After new results of a table: ``python -m capsule_studies.claims.computation``."""
    of_pairs = {"hinton2011_matrices", "hinton2011_shifts", "capsule_counts"}
    for name, claim in CLAIMS.items():
        places = computation.rows_of(claim)
        if places is not None and places[0][0] not in of_pairs:
            assert name in RECORDED, name


@pytest.mark.slow
def test_the_file_is_that_of_the_tables() -> None:
    """After new results of a table: ``python -m capsule_studies.claims.computation``."""
    found = computation.frame(read())
    assert [*found["id"]] == [*RECORDED]
    for line in found.to_dict("records"):
        for side, recorded in zip(("first", "second"), RECORDED[line["id"]], strict=True):
            assert line[f"parameters_{side}"] == recorded.parameters, line["id"]
            assert line[f"multiplications_{side}"] == recorded.multiplications, line["id"]
