import pytest
import torch

from capsule_studies.questions.coding import _Layer, _layers, _moved, _numbers, coding
from capsule_studies.tests.subjects import small_network, subject

SHIFTS = torch.arange(-3.0, 4.0)
WIDTH = 12


def asked(stride: int, *, rate: bool) -> dict[str, float]:
    """One type on one row: the active column moves every ``stride`` pixels, the pose as the image or at random."""
    generator = torch.Generator().manual_seed(0)
    layers = []
    for shift in range(-3, 4):
        poses = torch.randn(5, 2, generator=generator)
        if rate:
            poses = torch.tensor([shift, -2 * shift]).float().expand(5, 2)
        poses = poses + torch.arange(5.0)[:, None]  # [image dim]
        column = 4 + (shift + 3) // stride
        activations = torch.zeros(5, 1, WIDTH)  # [image type position]
        activations[:, 0, column] = 1
        everywhere = poses[:, None, None].expand(-1, 1, WIDTH, -1)
        layers.append(_Layer(activations, everywhere, WIDTH))
    before = layers[3].activations.argmax(2)
    moved = [_moved(layer, before) for layer in layers]
    active = torch.ones(5, 1, dtype=torch.bool)
    return _numbers(moved, active, SHIFTS)


def test_place_coding_moves_the_place() -> None:
    place = asked(1, rate=False)
    assert place["place_slope"] == pytest.approx(1)
    assert place["domain"] == 1
    assert place["at_limit"] == 0


def test_rate_coding_moves_the_pose() -> None:
    rate = asked(100, rate=True)
    assert rate["place_slope"] == 0
    assert rate["domain"] == 7
    assert rate["at_limit"] == 1
    assert rate["rate_share"] == pytest.approx(1, abs=1e-5)
    at_random = asked(100, rate=False)
    assert at_random["rate_share"] < 0.4


def test_a_pose_that_moves_within_a_column_and_jumps_back_with_the_next() -> None:
    both = asked(2, rate=True)
    assert 0.4 < both["place_slope"] < 0.6
    assert both["rate_share"] == pytest.approx(1, abs=1e-5)
    assert both["domain"] == 2
    assert both["at_limit"] == 0


@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        ("capsnet", ["primary", "digits"]),
        ("em_caps", ["primary", "conv_capsules_1", "conv_capsules_2", "classes"]),
    ],
)
def test_every_layer_with_positions_and_the_classes(kind: str, layers: list[str]) -> None:
    answer = coding(subject(small_network(kind)), shift=2)
    assert [row["layer"] for row in answer.rows] == layers
    assert f"{layers[-1]}/place_slope" not in answer.numbers
    for layer in layers:
        assert 1 <= answer.numbers[f"{layer}/domain"] <= 5


def test_poses_and_activations_are_those_of_the_layer() -> None:
    """The primary capsules of a CapsNet are ordered (type, y, x)."""
    asked = subject(small_network("capsnet"))
    network = asked.network
    found = _layers(asked, asked.batches)["primary"]
    features = network.conv(asked.images).relu()
    poses = network.primary(features).poses
    lengths = poses.norm(dim=2)
    torch.testing.assert_close(found.poses.flatten(1, 2), poses)
    torch.testing.assert_close(found.activations.flatten(1), lengths)
