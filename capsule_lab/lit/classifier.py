"""Training of classifiers without a decoder: the convolutional baselines and EMCaps."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from capsule_lab.lit.classification import AbstractClassifierModule
from capsule_lab.types import Batch, CapsuleOutput


class ClassifierModule(AbstractClassifierModule):
    """Classification alone (baselines of Sabour 2017, section 5; Hinton 2018, section 4)."""

    def loss_terms(self, batch: Batch, output: CapsuleOutput, schedule: Mapping[str, float]) -> dict[str, Tensor]:
        return self.classification_term(batch, output, schedule)
