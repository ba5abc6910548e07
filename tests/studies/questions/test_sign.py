from __future__ import annotations

import torch
from torch import Tensor, nn

from capsule_lab.networks import AbstractNetwork
from capsule_lab.studies.questions.sign import sign
from capsule_lab.types import CapsuleOutput
from tests.helpers.subjects import small_network, subject


class Even(AbstractNetwork):
    """A network that cannot tell an image from its negative."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24 * 24, 4, bias=False)

    def forward(self, images: Tensor) -> CapsuleOutput:
        return CapsuleOutput(self.linear(images.flatten(1)).square())


def test_a_network_that_cannot_tell() -> None:
    torch.manual_seed(0)
    numbers = sign(subject(Even())).numbers
    assert numbers["negated/same_predictions"] == 100
    assert numbers["negated/mean_change_of_scores"] == 0
    assert numbers["photographic_negative/mean_change_of_scores"] > 0


def test_networks_with_a_relu_can() -> None:
    for kind in ["em_caps", "capsnet", "cnn"]:
        numbers = sign(subject(small_network(kind))).numbers
        assert numbers["negated/mean_change_of_scores"] > 0
        assert 0 <= numbers["negated/error"] <= 100
