"""Mixup: every training image and its label are mixed with another image and label (Zhang et al. 2018)."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from capsule_lab.data.loader import Index, InMemory
from capsule_lab.data.transforms import random_bits, random_integers
from capsule_lab.system.extras import require
from capsule_lab.types import Batch

# streams of the random draws, above those of any transformation; see random_bits
_PARTNER = 1000
_SHARE = 1001
_SHARES = 4096  # ours: finer steps would not change gradients noticeably


class WithPartners(InMemory):
    """A set whose batches are twice as long: the requested images, then a partner for each of them.

    The partner is any image of the set, drawn by the key of the image, so that it depends neither on the rest of the
    batch nor on the number of processes. It has its own key of the epoch, and therefore its own transformations.
    """

    def __init__(self, images: InMemory) -> None:
        super().__init__(images.data, images.seed, size=len(images))
        self.images = images

    def __getitem__(self, batch: Index) -> Batch:
        index, epoch = batch
        first = self.images[index, epoch]
        drawn = random_bits(first.key, _PARTNER) % len(self.images)
        partners = self.images[drawn, epoch]
        joined = {}
        for field, value in first._asdict().items():
            if value is not None:
                joined[field] = torch.cat([value, getattr(partners, field)])
        return first._replace(**joined)

    def to(self, device: torch.device) -> WithPartners:
        return WithPartners(self.images.to(device))


def shares_of(alpha: float) -> Float[Tensor, " share"]:
    """Compute equally probable quantiles of Beta(alpha, alpha): shares of the first of two mixed images."""
    require("data.mixup", "data", "scipy")
    import scipy.special

    probabilities = (np.arange(_SHARES) + 0.5) / _SHARES
    quantiles = scipy.special.betaincinv(alpha, alpha, probabilities)
    return torch.from_numpy(quantiles).float()


def mix(batch: Batch, shares: Float[Tensor, " share"], num_classes: int) -> Batch:
    """Mix each image in the first half of a batch with its partner in the second (Zhang et al. 2018, section 2).

    ``batch`` is a transformed batch from ``WithPartners``, ``shares`` the result of ``shares_of`` on the same device;
    the key of each image selects one of them. Return half as many images. Labels are shares of the classes, ``(batch,
    class)``; the rest comes from the first image.
    """
    count = len(batch.key) // 2
    key = batch.key[:count]
    share = shares[random_integers(key, _SHARE, 0, len(shares) - 1)]  # [b]
    image, partner = batch.images.split(count)
    truth = torch.nn.functional.one_hot(batch.labels, num_classes).to(share.dtype)
    label, partner_label = truth.split(count)
    images = torch.lerp(partner, image, share[:, None, None, None])
    labels = torch.lerp(partner_label, label, share[:, None])
    factors = None if batch.factors is None else batch.factors[:count]
    return Batch(images, labels, key, factors)
