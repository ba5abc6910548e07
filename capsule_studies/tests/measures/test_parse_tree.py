import pytest
import torch

from capsule_lab.analysis.trace import ChildGrid, trace
from capsule_lab.networks import EfficientCapsNet
from capsule_studies.measures.parse_tree import ACTIVE, parse, places, receptive_centres
from capsule_studies.tests.subjects import small_network, subject


def test_branches_are_of_active_children_and_their_best_parent() -> None:
    network = small_network()
    question = subject(network)
    output, layers = trace(network, question.images[:1])
    found = parse(layers, int(output.ranking.argmax(1)))
    assert [*found] == ["classes", "conv_capsules_2", "conv_capsules_1"]
    assert found["classes"]
    for name, branches in found.items():
        layer = layers[name]
        couplings, activations = layer.couplings()[0], layer.children.activations[0]
        for child, parent, weight in branches:
            assert int(couplings[child].argmax()) == parent
            assert float(activations[child]) > ACTIVE
            assert weight == pytest.approx(float(activations[child] * couplings[child, parent]))
    assert {branch.parent for branch in found["conv_capsules_2"]} <= {
        branch.child for branch in found["classes"]
    }


@pytest.mark.parametrize("by_type", [True, False])
def test_places_are_those_of_the_grid(by_type: bool) -> None:
    grid = ChildGrid(2, 3, 4, by_type)
    rows, columns, kinds = places(grid, 24)
    assert torch.equal(grid.at_positions(kinds.float())[:, 1, 2], torch.arange(4.0))
    torch.testing.assert_close(grid.at_positions(rows)[0, :, 0], torch.tensor([0.25, 0.75]))
    torch.testing.assert_close(grid.at_positions(columns)[3, 1], torch.tensor([1.0, 3.0, 5.0]) / 6)


def test_children_look_where_their_convolutions_do() -> None:
    """Of a CapsNet: 9x9, then 9x9 of stride 2: the first looks at pixel 8, the next at 10."""
    torch.manual_seed(0)
    network = small_network("capsnet")
    (top, down), (left, right) = receptive_centres(network, torch.rand(1, 1, 24, 24))
    assert down == pytest.approx(2, abs=0.4)
    assert right == pytest.approx(2, abs=0.4)
    assert (top, left) == (pytest.approx(8, abs=1.5), pytest.approx(8, abs=1.5))


def test_children_without_positions() -> None:
    with pytest.raises(ValueError, match="children of the last layer have no positions"):
        receptive_centres(EfficientCapsNet((1, 28, 28), 4).eval(), torch.rand(1, 1, 28, 28))
