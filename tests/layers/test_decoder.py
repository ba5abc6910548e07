import torch
from torch import Tensor, nn

from capsule_lab.layers import Decoder


def test_sixteen_of_a_hundred_and_sixty_numbers_reach_the_first_layer() -> None:
    decoder, poses, mask = Decoder(10, 16, (3, 4, 5)), torch.randn(3, 10, 16), torch.eye(10)[2:5]
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
    assert [tuple(p.shape) for p in decoder.parameters() if p.ndim == 2] == [
        (512, 160),
        (1024, 512),
        (784, 1024),
    ]
    assert [type(layer) for layer in decoder.layers] == [
        nn.Linear,
        nn.ReLU,
        nn.Linear,
        nn.ReLU,
        nn.Linear,
    ]
