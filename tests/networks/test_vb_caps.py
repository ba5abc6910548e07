import torch

from capsule_lab.functional import dense_votes
from capsule_lab.networks import VBCaps
from capsule_lab.types import Votes
from tests.helpers.closeness import assert_close


def test_initial_weights_of_the_official_code() -> None:
    network = VBCaps((2, 32, 32), 5)
    for weight, fan_in, fan_out in [
        (network.conv_capsules[0].weight, 8 * 9 * 16, 16 * 9 * 16),
        (network.conv_capsules[1].weight, 16 * 9 * 16, 16 * 9 * 16),
        (network.classes.weight, 16 * 16, 5 * 16),
        (network.primary.pose.weight, 64, 8 * 16),
        (network.primary.activation.weight, 64, 8),
    ]:
        bound = (6 / (fan_in + fan_out)) ** 0.5
        assert 0.98 * bound < weight.abs().max() <= bound


def test_components_of_a_type_are_normalised_together() -> None:
    network = VBCaps((1, 24, 24), 4, channels=6, primary_types=2, conv_types=(3, 2))
    poses = network.primary(torch.rand(8, 6, 10, 10)).poses.view(8, 100, 2, 16)
    of_type = poses.transpose(0, 2).flatten(1)
    assert_close(of_type.mean(1), torch.zeros(2), atol=1e-5)
    torch.testing.assert_close(of_type.var(1, unbiased=False), torch.ones(2), rtol=1e-3, atol=0)
    assert poses.flatten(0, 1).mean(0).abs().max() > 0.05  # those of a component are not


def test_coordinates_of_the_official_code() -> None:
    network = VBCaps((2, 32, 32), 5)
    seen: list[Votes] = []
    torch.nn.init.zeros_(network.classes.weight)
    network.classes.routing.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    network(torch.rand(1, 2, 32, 32))
    votes = dense_votes(*seen[0][:2]).detach()[0]
    votes = votes.unflatten(0, (4, 4, 16))[:, :, 0, 0]  # [row column d]
    steps = torch.tensor([0.025, 0.05, 0.075, 0.1])
    torch.testing.assert_close(votes[..., 3], steps[:, None].expand(4, 4))
    torch.testing.assert_close(votes[..., 7], steps.expand(4, 4))
    votes[..., [3, 7]] = 0
    assert not votes.any(), "no other component has coordinates"
