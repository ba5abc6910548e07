import torch
from torch import Tensor, nn

from capsule_lab.layers import Decoder


def test_sixteen_of_a_hundred_and_sixty_numbers_reach_the_first_layer() -> None:
    decoder = Decoder(10, 16, (3, 4, 5))
    poses = torch.randn(3, 10, 16)
    mask = torch.eye(10)[2:5]
    seen: list[Tensor] = []
    decoder.layers[0].register_forward_hook(lambda _, inputs, output: seen.append(inputs[0]))
    images = decoder(poses, mask)
    assert images.shape == (3, 3, 4, 5)
    assert 0 <= images.min() <= images.max() <= 1
    assert seen[0].shape == (3, 160)
    assert (seen[0] != 0).sum(1).tolist() == [16, 16, 16]
    assert torch.equal(seen[0][1, 3 * 16 : 4 * 16], poses[1, 3])


def test_layers_of_the_paper() -> None:
    decoder = Decoder(10, 16, (1, 28, 28))
    first, _, second, _, third = layers = decoder.layers
    assert [type(layer) for layer in layers[::2]] == [nn.Linear] * 3
    assert [type(layer) for layer in layers[1::2]] == [nn.ReLU] * 2
    assert first.weight.shape == (512, 160)
    assert second.weight.shape == (1024, 512)
    assert third.weight.shape == (784, 1024)
