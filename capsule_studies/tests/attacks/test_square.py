import pytest
import torch
from torch import Tensor

from capsule_studies.attacks.evaluation import NetworkObjective
from capsule_studies.attacks.gradient import Box
from capsule_studies.attacks.gradient import noise as random_signs
from capsule_studies.attacks.square import square

KEYS = torch.arange(40, 46)


@pytest.fixture
def images() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(6, 2, 9, 7, generator=generator)


@pytest.mark.whole
def test_comes_near_the_best_there_is_and_far_beyond_noise(images: Tensor) -> None:
    """The best attack on a linear margin, which is -1 for each image, is the sign of its gradient."""
    generator = torch.Generator().manual_seed(2)
    direction = torch.rand(2 * 9 * 7, generator=generator) - 0.5
    # half of the margin, so that no image is done early
    epsilon = 0.5 / direction.abs().sum().item()

    def gained(attacked: Tensor) -> Tensor:
        change = attacked - images[: len(attacked)]
        return change.flatten(1) @ direction

    def logits(attacked: Tensor) -> Tensor:
        of_label = 1 - gained(attacked)
        return torch.stack([of_label, torch.zeros_like(of_label)], 1)

    objective = NetworkObjective("margin", torch.tensor([0]), None, logits)
    attacked = square(objective, images[:1], epsilon, KEYS[:1], Box(), queries=2000)
    assert 0.4 < gained(attacked) <= 0.5 + 1e-5
    noisy = random_signs(None, images, epsilon, key=KEYS, box=Box())
    assert gained(noisy).abs().max() < 0.3


def test_the_objective_never_falls_and_images_that_are_fooled_are_left(images: Tensor) -> None:
    asked = []

    def logits(images: Tensor) -> Tensor:
        asked.append(len(images))
        brightness = images.mean((1, 2, 3))
        of_label = torch.full_like(brightness, 0.55)
        return torch.stack([of_label, brightness], 1)

    labels = torch.zeros(6, dtype=torch.int64)
    objective = NetworkObjective("margin", labels, None, logits)

    def value(queries: int) -> Tensor:
        attacked = square(objective, images, 0.1, KEYS, Box(), queries=queries)
        return objective(attacked)

    # the same key gives other squares where there are fewer queries; the first query is the same
    best = torch.maximum(value(20), value(100))
    assert (value(1) <= best).all()
    asked.clear()
    square(objective, images, 0.2, KEYS, Box(), queries=50)
    assert asked == sorted(asked, reverse=True)
    assert asked[0] == 6
    assert sum(asked) < 6 * 50
