"""Whole training steps to time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from capsule_lab.bench.cases import TEXTBOOK_NETWORKS, Case, training_config
from capsule_lab.bench.textbook_capsnet import TextbookCapsNet
from capsule_lab.config.build import build_module
from capsule_lab.types import Batch, DataSpec


@dataclass(frozen=True)
class Step:
    """A training step of one batch.

    Attributes:
        loss: forward pass.
        optimizer: of the parameters.
        network: that has them.
    """

    loss: Callable[[], Tensor]
    optimizer: torch.optim.Optimizer
    network: nn.Module


def take_step(step: Step) -> None:
    """Forward, backward, and an update of the parameters."""
    step.optimizer.zero_grad()
    step.loss().backward()
    step.optimizer.step()


def build_step(case: Case) -> Step:
    """What one batch of a case needs for training."""
    device = torch.device(case.device)
    config = training_config(case.overrides)
    batch = random_batch(case, case.sizes["batch_size"])
    if case.form == "textbook":
        network = build_textbook(case, config).to(device)
        return Step(lambda: network(batch.images, batch.labels), torch.optim.Adam(network.parameters()), network)
    module = build_network(case, config).to(device)
    batch = as_pairs(batch, module)
    if case.form == "compiled":
        module.network.compile()
    optimizer = module.optimizer(module.parameters_to_train(), lr=1e-3)  # 1e-3: Adam's default

    def loss() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=case.precision == "bf16-mixed"):
            return loss_of(module, batch)

    return Step(loss, optimizer, module.network)


def random_batch(case: Case, images: int) -> Batch:
    """Random images and labels of a case's sizes."""
    torch.manual_seed(0)
    pixels = torch.rand(images, *case.sizes["image_shape"], device=case.device)
    labels = torch.randint(case.sizes["num_classes"], (images,), device=case.device)
    return Batch(pixels, labels, labels)


def as_pairs(batch: Batch, module: Any) -> Batch:
    """A batch with itself as targets and no change, for a module that is told one; any other batch as it is."""
    change = getattr(module.network, "change_shape", ())
    if not change:
        return batch
    return batch._replace(targets=batch.images, change=batch.images.new_zeros(len(batch.labels), *change))


def loss_of(module: Any, batch: Batch) -> Tensor:
    """What the module minimises."""
    terms = {**module.loss_terms(batch, module(*module.inputs_of(batch)), {}), **module.penalty()}
    return torch.stack(list(terms.values())).sum()


def build_network(case: Case, config: DictConfig) -> Any:
    """The module of a case, which routes as the case says."""
    if case.form not in ("plain", "textbook"):
        config.routing.backend = case.backend
    return build_module(config, DataSpec(tuple(case.sizes["image_shape"]), case.sizes["num_classes"]))


def build_textbook(case: Case, config: DictConfig) -> Any:
    """The textbook network of the same sizes as the configuration's."""
    network = TEXTBOOK_NETWORKS[case.name]
    model, same = config.model, {"iterations": config.routing.get("iterations", 1)}
    if network is TextbookCapsNet:
        options = ("channels", "kernel_size", "primary_types", "primary_dim", "class_dim")
        same["hidden"] = model.decoder
    else:
        options = ("channels", "primary_types", "conv_types", "conv_strides", "kernel_size")
    same |= {option: model[option] for option in options}
    return network(tuple(case.sizes["image_shape"]), case.sizes["num_classes"], **same)
