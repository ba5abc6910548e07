"""Training of a CapsNet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import Tensor

from capsule_lab.lit.base import AbstractCapsuleModule
from capsule_lab.networks import CapsNet
from capsule_lab.types import Batch, CapsuleOutput


class CapsNetModule(AbstractCapsuleModule):
    """Classification plus reconstruction from the true class's capsule (Sabour 2017, sections 3 and 4.1).

    Args:
        network: a ``CapsNet``, with or without decoder.
        reconstruction: ``(reconstruction, images) -> scalar``; ``None`` trains without.
        decode_at_test: the capsule that is decoded outside of training: that of the ``"prediction"`` (paper)
            or of the ``"label"`` (released code).
        **options: see ``AbstractCapsuleModule``.

    Raises:
        ValueError: for another ``decode_at_test``.
    """

    network: CapsNet

    def __init__(
        self,
        network: CapsNet,
        *,
        reconstruction: Callable[..., Tensor] | None = None,
        decode_at_test: Literal["prediction", "label"] = "prediction",
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        if decode_at_test not in ("prediction", "label"):
            raise ValueError(f"decode_at_test is {decode_at_test!r}; expected 'prediction' or 'label'")
        self.reconstruction = reconstruction
        self.decode_at_test = decode_at_test

    def loss_terms(self, batch: Batch, output: CapsuleOutput, schedule: Mapping[str, float]) -> dict[str, Tensor]:
        terms = self.classification_term(batch, output, schedule)
        if self.reconstruction is not None and self.network.decoder is not None:
            by_label = self.training or self.decode_at_test == "label"
            classes = batch.labels if by_label else output.scores.argmax(1)
            terms["reconstruction"] = self.reconstruction(self.network.reconstruct(output, classes), batch.images)
        return terms
