"""Parameters, multiply-adds and minutes of the networks of a claim: results/claims_computation.csv."""

from functools import partial

import pytest
import torch
from torch import nn

from capsule_lab.layers import DenseCapsules
from capsule_lab.routing import DynamicRouting
from capsule_studies.claims import computation
from capsule_studies.claims.read import read

CLAIMS = {claim["id"]: claim for claim in read()}
RECORDED = computation.recorded()


def test_multiply_adds_are_those_of_convolutions_and_matrix_products() -> None:
    """3x3 windows at 6x6 positions of 8x8 pixels, 4 channels; then 144 inputs of 10 units."""
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    assert computation.multiply_adds(network, (1, 8, 8)) == 36 * 9 * 4 + 144 * 10


@pytest.mark.usefixtures("unchecked_types")
def test_votes_and_their_sums_count() -> None:
    """Votes of 5 children for 3 parents by 4x6 matrices; at most as many again to sum them over children."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            routing = partial(DynamicRouting, iterations=1, backend="matmul")
            self.layer = DenseCapsules(5, 4, 3, 6, routing=routing)

        def forward(self, images: torch.Tensor) -> object:
            return self.layer(images.flatten(1).unflatten(1, (5, 4)))

    votes = 5 * 3 * 4 * 6
    assert votes <= computation.multiply_adds(Network(), (1, 4, 5)) <= 2 * votes


@pytest.mark.whole  # composes a table
@pytest.mark.usefixtures("unchecked_types")
def test_a_line_is_that_of_the_networks_of_its_rows() -> None:
    found = computation.networks_of(CLAIMS["C-115"])
    assert found is not None
    for network, recorded in zip(found, RECORDED["C-115"], strict=True):
        assert network.parameters == recorded.parameters
        assert network.multiply_adds == recorded.multiply_adds
        assert network.minutes == pytest.approx(recorded.minutes)


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
    assert two.multiply_adds > one.multiply_adds
    assert two.minutes is not None


@pytest.mark.slow
def test_the_file_is_that_of_the_tables() -> None:
    """After new results of a table: ``python -m capsule_studies.claims.computation``."""
    found = computation.frame(read())
    assert [*found["id"]] == [*RECORDED]
    for line in found.to_dict("records"):
        for side, recorded in zip(("first", "second"), RECORDED[line["id"]], strict=True):
            assert line[f"parameters_{side}"] == recorded.parameters, line["id"]
            assert line[f"multiply_adds_{side}"] == recorded.multiply_adds, line["id"]
