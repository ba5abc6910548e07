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
    predicted = int(output.ranking.argmax(1))
    found = parse(layers, predicted)
    assert list(found) == ["classes", "conv_capsules_2", "conv_capsules_1"]
    assert found["classes"]
    for name, branches in found.items():
        couplings = layers[name].couplings()[0]
        activations = layers[name].children.activations[0]
        best_parents = couplings.argmax(1)
        for child, parent, weight in branches:
            assert best_parents[child] == parent
            assert activations[child] > ACTIVE
            expected = activations[child] * couplings[child, parent]
            assert weight == pytest.approx(float(expected))
    children = {branch.child for branch in found["classes"]}
    for branch in found["conv_capsules_2"]:
        assert branch.parent in children


@pytest.mark.parametrize("by_type", [True, False])
def test_places_are_those_of_the_grid(by_type: bool) -> None:
    grid = ChildGrid(2, 3, 4, by_type)
    rows, columns, kinds = places(grid, 24)
    kinds_at = grid.at_positions(kinds.float())  # [type row column]
    rows_at = grid.at_positions(rows)
    columns_at = grid.at_positions(columns)
    assert kinds_at[:, 1, 2].tolist() == [0, 1, 2, 3]
    assert rows_at[0, :, 0].tolist() == [0.25, 0.75]
    assert columns_at[3, 1].tolist() == pytest.approx([1 / 6, 3 / 6, 5 / 6])


def test_children_look_where_their_convolutions_do() -> None:
    """A CapsNet has 9x9 convolutions, the second with stride 2: the first position sees pixel 8, the next pixel 10."""
    torch.manual_seed(0)
    network = small_network("capsnet")
    image = torch.rand(1, 1, 24, 24)
    for first, step in receptive_centres(network, image):
        assert first == pytest.approx(8, abs=1.5)
        assert step == pytest.approx(2, abs=0.4)


def test_children_without_positions() -> None:
    network = EfficientCapsNet((1, 28, 28), 4).eval()
    image = torch.rand(1, 1, 28, 28)
    with pytest.raises(ValueError, match="children of the last layer have no positions"):
        receptive_centres(network, image)
