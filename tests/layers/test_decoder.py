import torch
from torch import Tensor, nn

from capsule_lab.layers import Decoder


def test_sixteen_of_a_hundred_and_sixty_numbers_reach_the_first_layer() -> None:
    decoder = Decoder(10, 16, (3, 4, 5))
    poses = torch.randn(3, 10, 16)
    mask = torch.eye(10)[2:5]
    inputs: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Tensor]) -> None:
        inputs.append(given[0])

    decoder.layers[0].register_forward_pre_hook(keep)
    images = decoder(poses, mask)
    assert images.shape == (3, 3, 4, 5)
    assert 0 <= images.min() <= images.max() <= 1
    (seen,) = inputs
    assert seen.shape == (3, 160)
    assert seen.count_nonzero(dim=1).tolist() == [16, 16, 16]
    of_second_image = seen[1].view(10, 16)
    assert torch.equal(of_second_image[3], poses[1, 3])


def test_layers_of_the_paper() -> None:
    decoder = Decoder(10, 16, (1, 28, 28))
    kinds = [type(layer) for layer in decoder.layers]
    assert kinds == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    first, _, second, _, third = decoder.layers
    assert first.weight.shape == (512, 160)
    assert second.weight.shape == (1024, 512)
    assert third.weight.shape == (784, 1024)
