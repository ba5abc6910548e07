"""Training on pairs of images with a known change between them, without classification."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from capsule_lab.lit import pair_metrics
from capsule_lab.lit.base import AbstractModule
from capsule_lab.lit.metrics import SplitMetrics
from capsule_lab.networks.base import AbstractPairNetwork, TransformedImages
from capsule_lab.types import Batch


class PairsModule(AbstractModule):
    """Trains a network to reconstruct the second image of each pair (Hinton, Krizhevsky and Wang 2011).

    In addition to ``<split>/loss``, it logs the ``pair_metrics`` of the network in validation and test.

    ``reconstruction`` is a loss ``(output, targets) -> scalar``; the other options are those of ``AbstractModule``.
    """

    network: AbstractPairNetwork

    def __init__(
        self, network: AbstractPairNetwork, *, reconstruction: Callable[..., Tensor], **options: Any
    ) -> None:
        super().__init__(network, metrics=SplitMetrics(), **options)
        self.reconstruction = reconstruction
        for split in ("val", "test"):
            self.add_split(split)

    @property
    def quantities(self) -> list[str]:
        """Names of the quantities in every validation and test, besides the loss; without the optional slopes."""
        names: list[str] = []
        for metric in pair_metrics.pair_metrics(self.network).values():
            names += metric.quantities
        return [name for name in names if not name.startswith("slope_")]

    def inputs_of(self, batch: Batch) -> tuple[Tensor, ...]:
        assert batch.change is not None  # config.check_objects
        return batch.images, batch.change

    def loss_terms(
        self, batch: Batch, output: TransformedImages, schedule: Mapping[str, float]
    ) -> dict[str, Tensor]:
        return {"reconstruction": self.reconstruction(output.images, batch.targets)}

    def measure(self, split: str, batch: Batch, output: TransformedImages) -> None:
        if split == "train":  # training computes poses of the first image only
            return
        assert batch.targets is not None
        assert batch.change is not None
        of_split = self.metrics.of_split(split)
        metrics = {name.removeprefix(f"{split}/"): metric for name, metric in of_split}
        with torch.no_grad():
            pair_metrics.update_pair_metrics(
                metrics, self.network, batch.images, batch.change, batch.targets, output
            )

    def add_split(self, split: str) -> None:
        for name, metric in pair_metrics.pair_metrics(self.network).items():
            self.metrics[f"{split}/{name}"] = metric.to(self.device)
