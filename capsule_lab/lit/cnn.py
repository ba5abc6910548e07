"""Training of a convolutional baseline."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from capsule_lab.lit.base import AbstractCapsuleModule
from capsule_lab.types import Batch, CapsuleOutput


class CNNModule(AbstractCapsuleModule):
    """Classification alone (Sabour 2017, section 5)."""

    def loss_terms(self, batch: Batch, output: CapsuleOutput, schedule: Mapping[str, float]) -> dict[str, Tensor]:
        return self.classification_term(batch, output)
