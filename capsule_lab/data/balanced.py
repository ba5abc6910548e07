"""Balanced sampling: every epoch has as many images as before, and each class equally often."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np
import torch
from torch import Tensor

from capsule_lab.data.loader import EpochBatches, Index, InMemory
from capsule_lab.data.stratified import Indices
from capsule_lab.types import Batch


@dataclass(eq=False)
class BalancedBatches(EpochBatches):
    """Sampler of an epoch in which all classes are equally frequent, up to one image; for ``Repeated`` sets.

    Images of a frequent class are drawn without replacement, others in each epoch. All images of a rare class are
    repeated equally often, up to one.

    Args:
        labels: class of each image, ``(size,)``.
    """

    _: KW_ONLY
    labels: Indices

    def order(self) -> Tensor:
        generator = np.random.default_rng((self.seed, self.epoch))
        classes = np.unique(self.labels)
        number, rest = divmod(self.size, len(classes))
        has_one_more = generator.permutation(len(classes)) < rest
        drawn = []
        for label, one_more in zip(classes, has_one_more, strict=True):
            members = np.flatnonzero(self.labels == label)
            drawn.append(self._draw(members, number + int(one_more), generator))
        return torch.from_numpy(generator.permutation(np.concatenate(drawn)))

    def _draw(self, members: Indices, number: int, generator: np.random.Generator) -> Indices:
        """Draw ``number`` images of one class; the repetitions of an image are ``size`` apart, see ``Repeated``."""
        passes, rest = divmod(number, len(members))
        repetitions = members + self.size * np.arange(passes)[:, None]
        others = generator.permutation(members)[:rest] + self.size * passes
        return np.concatenate([repetitions.ravel(), others])


class Repeated(InMemory):
    """A set in which indices above its size repeat the images, with other random transformations."""

    def __init__(self, images: InMemory) -> None:
        super().__init__(images.data, images.seed, size=len(images))
        self.images = images

    def __getitem__(self, batch: Index) -> Batch:
        index, epoch = batch
        images = self.images[index % len(self.images), epoch]
        return images._replace(key=self.images.key(index, epoch))

    def to(self, device: torch.device) -> Repeated:
        return Repeated(self.images.to(device))
