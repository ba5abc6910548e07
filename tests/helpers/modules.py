"""LightningModules and batches small enough that a fit takes hundredths of a second."""

import functools
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from torch import Tensor

from capsule_lab.lit import CapsNetModule, ClassifierModule
from capsule_lab.losses import margin_loss, spread_loss
from capsule_lab.networks import BaselineCNN
from capsule_lab.schedules import Constant
from capsule_lab.types import Batch
from tests.helpers.networks import small_capsnet

RATE = {"learning_rate": Constant(1e-3)}


def classifier(loss: Callable[..., Tensor] = spread_loss, **options: Any) -> ClassifierModule:
    """A CNN of a hundred weights on 4x4 pixels and three classes."""
    torch.manual_seed(0)
    network = BaselineCNN((1, 4, 4), 3, channels=(2,), kernel_size=3, hidden=(4,), dropout=0.0)
    options = {"optimizer": torch.optim.Adam, "schedule": RATE, **options}
    return ClassifierModule(network, loss=loss, num_classes=3, **options)


def capsnet(**options: Any) -> CapsNetModule:
    """A CapsNet with a decoder on 9x9 pixels and three classes."""
    torch.manual_seed(0)
    network = small_capsnet((1, 9, 9), 3, channels=2, kernel_size=3, class_dim=4, decoder=(5,))

    def reconstruction(decoded: Tensor, images: Tensor) -> Tensor:
        return (decoded - images).square().mean()

    options = {"optimizer": torch.optim.Adam, "schedule": RATE, **options}
    return CapsNetModule(
        network,
        loss=margin_loss,
        reconstruction=functools.partial(reconstruction),
        num_classes=3,
        **options,
    )


def batch(images: int = 6, crops: int | None = None, size: int = 4) -> Batch:
    shape = (images, 1, size, size) if crops is None else (images, crops, 1, size, size)
    pixels = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    return Batch(pixels, torch.arange(images) % 3, torch.arange(images))


def loader(*batches: Batch) -> Any:
    """A loader of these batches, unchanged."""
    return torch.utils.data.DataLoader(list(batches), batch_size=None)


def trainer(**options: Any) -> L.Trainer:
    """A Trainer that prints and writes nothing, for one epoch on the CPU."""
    defaults = {
        "accelerator": "cpu",
        "max_epochs": 1,
        "enable_checkpointing": False,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return L.Trainer(**{**defaults, **options})
