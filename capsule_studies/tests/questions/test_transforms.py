from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from capsule_lab.networks import AbstractNetwork
from capsule_lab.types import CapsuleOutput, Capsules
from capsule_studies.questions.transforms import (
    _explained,
    _monotony,
    _presence_change,
    _Shown,
    transforms,
)
from capsule_studies.subject import Change
from capsule_studies.tests.subjects import column_of_square, moved, subject


def brighter(images: Tensor, strength: float) -> Tensor:
    return images * (1 + strength)


CHANGES: Mapping[str, Change] = {
    "translation": moved,
    "scaling": brighter,
    "rotation": brighter,
    "shear": brighter,
}


class Ideal(AbstractNetwork):
    """Presence does not depend on the position of the digit; the pose is its position."""

    def forward(self, images: Tensor) -> CapsuleOutput:
        which = images.amax((1, 2, 3))
        poses = torch.stack([column_of_square(images), which], 1)
        return output_of(poses, which)


def output_of(poses: Tensor, activations: Tensor) -> CapsuleOutput:
    """The output of four classes with the same pose and activation."""
    poses = poses.unsqueeze(1).expand(-1, 4, -1)
    activations = activations.unsqueeze(1).expand(-1, 4)
    return CapsuleOutput(activations, Capsules(poses, activations), activations)


def asked(network: AbstractNetwork) -> Any:
    return subject(network, CHANGES, images=48)


class Unrelated(AbstractNetwork):
    """Random poses, the same at every call with the same images."""

    def forward(self, images: Tensor) -> CapsuleOutput:
        weights = torch.arange(images[0].numel(), dtype=torch.float64).sin()
        seed = int(1e6 * (images.double().flatten(1) @ weights).abs().sum())
        generator = torch.Generator().manual_seed(seed)
        poses = torch.randn(len(images), 3, generator=generator)
        return output_of(poses, images.amax((1, 2, 3)))


def test_a_pose_that_is_independent_of_the_change_has_no_monotony() -> None:
    """Without a change, every angle is 0, which is no evidence."""
    answer = transforms(asked(Unrelated()), kinds=["translation"])
    assert answer.numbers["translation/monotony"] == pytest.approx(0, abs=0.15)


def test_monotony_is_the_mean_of_spearmans_correlations() -> None:
    sizes = torch.tensor([2.0, 1.0, 1.0, 2.0])
    generator = torch.Generator().manual_seed(0)
    angles = torch.rand(4, 6, generator=generator)
    expected = np.mean([spearmanr(sizes, angles[:, image]).statistic for image in range(6)])
    assert _monotony(sizes, angles) == pytest.approx(expected)
    assert _monotony(sizes, torch.zeros(4, 6)) == 0


def test_an_ideal_network_moves_its_pose_with_the_image() -> None:
    answer = transforms(asked(Ideal()), kinds=["translation"])
    (point,) = [row for row in answer.rows if row["strength"] == 0]
    assert point["distance"] == pytest.approx(0, abs=0.1)
    assert point["angle"] == pytest.approx(0, abs=0.1)
    numbers = answer.numbers
    assert numbers["translation/presence_change"] == pytest.approx(0, abs=1e-5)
    assert numbers["translation/linear_share"] == pytest.approx(1, abs=0.01)
    assert numbers["translation/map_error"] < 1e-3
    assert numbers["translation/monotony"] > 0.6


def test_presence_change_is_a_share() -> None:
    strength = torch.arange(3.0).view(3, 1, 1)
    image = torch.arange(5.0).view(1, 5, 1)
    labels = torch.tensor([0, 1, 0, 1, 0])

    def share(presences: Tensor) -> float:
        return _presence_change(presences.expand(3, 5, 2), labels)

    assert share(image) == pytest.approx(0)
    assert share(strength) == pytest.approx(1)
    assert share(image + strength) == pytest.approx(2 / 3 / (2 / 3 + 2))
    own = torch.nn.functional.one_hot(labels)  # all images of a class are as good
    assert share(own * (1 - 0.01 * strength)) < 0.01


def test_presences_of_other_classes_may_change() -> None:
    by_strength = torch.tensor([[1.0, 0.4], [1.0, 0.1], [1.0, 0.7]])  # of the label, of the other
    presences = torch.stack([by_strength, by_strength.flip(1)], 1)
    labels = torch.tensor([0, 1])
    assert _presence_change(presences, labels) == pytest.approx(0)


def test_telling_classes_apart_is_no_map() -> None:
    """Poses that depend on the class alone are not equivariant: there is no variance within a class to explain."""

    class ClassOnly(AbstractNetwork):
        def forward(self, images: Tensor) -> CapsuleOutput:
            upper, lower = images[:, 0].split(12, 1)
            is_upper = upper.mean((1, 2)) > lower.mean((1, 2))
            noise = images[:, 0, :2, :2].flatten(1)
            noise = noise * torch.tensor([1.0, -1.0, 1.0, -1.0])
            poses = 10 * is_upper.float().unsqueeze(1) + noise
            return output_of(poses, poses[:, 0])

    numbers = transforms(asked(ClassOnly()), kinds=["translation"]).numbers
    assert numbers["translation/map_error"] > 0.5


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("shift", (1, 1)),
        ("rotation", (1, 0)),
        ("noise", (0, 0)),
    ],
)
def test_change_explained_by_one_map(kind: str, expected: tuple[int, int]) -> None:
    """A shift of all poses and a rotation are explained; changes that do not depend on the pose are not."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 4
    classes = 10 * torch.randn(4, 3, generator=generator)[labels]
    poses = (classes + torch.randn(200, 3, generator=generator)).double()
    skew = torch.tensor([[0.0, 0.3, 0.0], [-0.3, 0.0, 0.1], [0.0, -0.1, 0.0]])
    turn = torch.linalg.matrix_exp(skew).double()
    after = {
        "shift": poses + torch.tensor([1.0, -2.0, 0.5]),
        "rotation": classes + (poses - classes) @ turn,
        "noise": poses + torch.randn(200, 3, generator=generator),
    }[kind]
    shares = _explained(labels, poses, after, ridge=0.001)
    assert shares == pytest.approx(expected, abs=0.15)


def test_a_shift_of_all_poses_is_explained_but_is_no_gain() -> None:
    numbers = transforms(asked(Ideal()), kinds=["translation"]).numbers
    assert numbers["translation/explained"] > 0.95
    assert numbers["translation/explained_by_shift"] > 0.95
    assert numbers["translation/equivariance_gain"] < 0.05


def test_presence_of_a_network_without_capsules_is_a_probability() -> None:
    """Scores may be logistic functions of the logits already."""

    class Logistic(AbstractNetwork):
        def forward(self, images: Tensor) -> CapsuleOutput:
            logits = 40 * images[:, 0, :, :4].mean(1)
            return CapsuleOutput(logits.sigmoid(), logits=logits)

    class Linear(Logistic):
        def forward(self, images: Tensor) -> CapsuleOutput:
            logits = super().forward(images).logits
            return CapsuleOutput(logits, logits=logits)

    of_kind = []
    for network in (Logistic(), Linear()):
        shown = _Shown.of(asked(network), brighter, no_features, no_features, 0.0)
        of_kind.append(shown.presences)
    torch.testing.assert_close(*of_kind)


def no_features(_: object) -> Tensor:
    return torch.zeros(48, 1)
