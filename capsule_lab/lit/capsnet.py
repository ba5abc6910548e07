"""Training of capsule networks with a decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from capsule_lab.errors import check_choice
from capsule_lab.functional import in_unit_range, predictions_by_label
from capsule_lab.lit.classification import AbstractClassifierModule
from capsule_lab.networks import AbstractReconstructingNetwork
from capsule_lab.types import Batch, CapsuleOutput


class CapsNetModule(AbstractClassifierModule):
    """Classification plus reconstruction from the true class's capsule (Sabour 2017, sections 3 and 4.1).

    An image of several digits is decoded once per digit and compared with that digit; the terms are added (section 6).

    Args:
        reconstruction: ``(reconstruction, images) -> scalar``; ``None`` trains without reconstruction.
        decode_at_test: class whose capsule is decoded outside of training: the ``"prediction"`` (paper) or the
            ``"label"`` (official code). With several labels, a predicted class that is a label is compared with its
            digit; the other predictions, ordered by score, are compared with the remaining digits.
        **options: see ``AbstractClassifierModule``.
    """

    network: AbstractReconstructingNetwork

    def __init__(
        self,
        network: AbstractReconstructingNetwork,
        *,
        reconstruction: Callable[..., Tensor] | None = None,
        decode_at_test: Literal["prediction", "label"] = "prediction",
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        check_choice("decode_at_test", decode_at_test, ("prediction", "label"))
        labels_per_image = options.get("labels_per_image", 1)
        if labels_per_image == 0 and network.decoder is not None:
            raise ValueError(
                "the decoder reconstructs an image from one class, but images have any number of labels; expected "
                "model.decoder=null"
            )
        several = labels_per_image > 1
        if several and network.decoder is not None and not network.masked_decoder:
            raise ValueError(
                "masked_decoder is false, but images have several digits, which only a masked decoder can separate; "
                "expected model.masked_decoder=true, or model.decoder=null"
            )
        self.reconstruction = reconstruction
        self.decode_at_test = decode_at_test

    def loss_terms(
        self, batch: Batch, output: CapsuleOutput, schedule: Mapping[str, float]
    ) -> dict[str, Tensor]:
        terms = self.classification_term(batch, output, schedule)
        if self.reconstruction is None or self.network.decoder is None:
            return terms
        classes = batch.labels.reshape(len(batch.images), -1)  # [b label]
        if not self.training and self.decode_at_test == "prediction":
            classes = predictions_by_label(output.ranking, classes)
        targets = batch.parts  # [b label c h w]
        if targets is None:
            targets = in_unit_range(batch.images).unsqueeze(1)
        losses = []
        for of_label, target in zip(classes.unbind(1), targets.unbind(1), strict=True):
            decoded = self.network.reconstruct(output, of_label)
            losses.append(self.reconstruction(decoded, target))
        terms["reconstruction"] = torch.stack(losses).sum()
        return terms
