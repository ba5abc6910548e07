import pytest
import torch

from capsule_studies.questions.coding import _Layer, _layers, _moved, _numbers, coding
from capsule_studies.tests.subjects import small_network, subject

SHIFTS = torch.arange(-3.0, 4.0)
WIDTH = 12


def asked(stride: int, *, rate: bool) -> dict[str, float]:
    """Of one type on one row: the active column moves by one in so many pixels, the pose as the image or at random."""
    images = torch.arange(5)
    generator = torch.Generator().manual_seed(0)
    layers = []
    for shift in SHIFTS:
        noise = torch.randn(5, 2, generator=generator)
        poses = torch.stack([shift.expand(5), -2 * shift.expand(5)], 1) if rate else noise
        column = 4 + torch.div(shift.long() + 3, stride, rounding_mode="floor") + 0 * images
        activations = (
            torch.nn.functional.one_hot(column, WIDTH).float().unsqueeze(1)
        )  # [image type position]
        of_images = poses + images[:, None].float()
        layers.append(_Layer(activations, of_images[:, None, None].expand(-1, 1, WIDTH, -1), WIDTH))
    before = layers[len(SHIFTS) // 2].activations.argmax(2)
    return _numbers(
        [_moved(each, before) for each in layers], torch.ones(5, 1, dtype=torch.bool), SHIFTS
    )


def test_place_coding_moves_the_place_and_rate_coding_the_pose() -> None:
    place, rate = asked(1, rate=False), asked(100, rate=True)
    assert (place["place_slope"], place["domain"], place["at_limit"]) == pytest.approx((1, 1, 0))
    assert (rate["place_slope"], rate["domain"], rate["at_limit"]) == (0, len(SHIFTS), 1)
    assert rate["rate_share"] == pytest.approx(1, abs=1e-5)
    assert asked(100, rate=False)["rate_share"] < 0.4, "a pose that moves at random"

    both = asked(2, rate=True)  # the pose moves along within a column and jumps back with the next
    assert 0.4 < both["place_slope"] < 0.6
    assert (both["rate_share"], both["domain"], both["at_limit"]) == pytest.approx(
        (1, 2, 0), abs=1e-5
    )


def test_every_layer_with_positions_and_the_classes() -> None:
    for kind, layers in [
        ("capsnet", {"primary", "digits"}),
        ("em_caps", {"primary", "conv_capsules_1", "conv_capsules_2", "classes"}),
    ]:
        answer = coding(subject(small_network(kind)), shift=2)
        assert {key.split("/")[0] for key in answer.numbers} == layers
        classes = [*layers & {"digits", "classes"}]
        assert f"{classes[0]}/place_slope" not in answer.numbers
        assert all(
            1 <= value <= 5 for key, value in answer.numbers.items() if key.endswith("domain")
        )


def test_poses_and_activations_are_those_of_the_layer() -> None:
    """On the grid of a CapsNet's primary capsules, ordered (type, y, x)."""
    asked = subject(small_network("capsnet"))
    network = asked.network
    found = _layers(asked, asked.batches)["primary"]
    capsules = network.primary(network.conv(asked.batches[0].images).relu())
    first = len(asked.batches[0].labels)
    torch.testing.assert_close(found.poses[:first].flatten(1, 2), capsules.poses)
    torch.testing.assert_close(found.activations[:first].flatten(1), capsules.poses.norm(dim=2))
