"""Training steps to time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from benchmarks.cases import TEXTBOOK_NETWORKS, Case, training_config
from benchmarks.textbook_capsnet import TextbookCapsNet
from capsule_lab.config.build import build_module
from capsule_lab.types import Batch, DataSpec


@dataclass(frozen=True)
class Step:
    """A training step of one batch.

    Attributes:
        loss: the forward pass.
        optimizer: the optimizer of the parameters.
        network: the network with the parameters.
    """

    loss: Callable[[], Tensor]
    optimizer: torch.optim.Optimizer
    network: nn.Module


def take_step(step: Step) -> None:
    """Run the forward pass, the backward pass and an update of the parameters."""
    step.optimizer.zero_grad()
    step.loss().backward()
    step.optimizer.step()


def build_step(case: Case) -> Step:
    """Build the training step of a case for one batch."""
    device = torch.device(case.device)
    config = training_config(case.overrides)
    batch = random_batch(case, case.sizes["batch_size"])
    if case.form == "textbook":
        network = build_textbook(case, config).to(device)
        return Step(
            lambda: network(batch.images, batch.labels),
            torch.optim.Adam(network.parameters()),
            network,
        )
    module = build_network(case, config).to(device)
    batch = as_pairs(batch, module)
    if case.form == "compiled":
        module.network.compile()
    optimizer = module.optimizer(module.network.parameters(), lr=1e-3)  # 1e-3: Adam's default

    def loss() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=case.precision == "bf16-mixed"):
            return loss_of(module, batch)

    return Step(loss, optimizer, module.network)


def random_batch(case: Case, images: int) -> Batch:
    """Draw random images and labels of a case's sizes."""
    torch.manual_seed(0)
    pixels = torch.rand(images, *case.sizes["image_shape"], device=case.device)
    labels = torch.randint(case.sizes["num_classes"], (images,), device=case.device)
    return Batch(pixels, labels, labels)


def as_pairs(batch: Batch, module: Any) -> Batch:
    """Return a batch with its images as targets and no change, if the module takes a change; else ``batch``."""
    change = getattr(module.network, "change_shape", ())
    if not change:
        return batch
    return batch._replace(
        targets=batch.images, change=batch.images.new_zeros(len(batch.labels), *change)
    )


def loss_of(module: Any, batch: Batch) -> Tensor:
    """Compute the loss that the module minimises."""
    terms = {**module.loss_terms(batch, module(*module.inputs_of(batch)), {}), **module.penalty()}
    return torch.stack(list(terms.values())).sum()


def build_network(case: Case, config: DictConfig) -> Any:
    """Build the module of a case with the backend of the case."""
    if case.form not in ("plain", "textbook"):
        config.routing.backend = case.backend
    return build_module(
        config, DataSpec(tuple(case.sizes["image_shape"]), case.sizes["num_classes"])
    )


def build_textbook(case: Case, config: DictConfig) -> Any:
    """Build the textbook network with the sizes of the configuration."""
    network = TEXTBOOK_NETWORKS[case.name]
    model, same = config.model, {"iterations": config.routing.get("iterations", 1)}
    same |= {"channels": model.channels, "primary_types": model.primary.types}
    if network is TextbookCapsNet:
        same |= {
            "kernel_size": model.kernel_size,
            "primary_dim": model.primary.dim,
            "class_dim": model.class_dim,
        }
        same["hidden"] = model.decoder
    else:
        conv = model.conv
        same |= {
            "conv_types": conv.types,
            "conv_strides": conv.strides,
            "kernel_size": conv.kernel_size,
        }
    return network(tuple(case.sizes["image_shape"]), case.sizes["num_classes"], **same)
