"""Checks that Trainer, module and data fit each other, after they are built and before training."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from capsule_lab.config.build import constructing
from capsule_lab.errors import ConfigError, suggest


def check_together(trainer: Any, module: Any, data: Any) -> None:
    """Check that trainer, module and data (after ``setup``) fit; Lightning would report this later or not at all."""
    from capsule_lab.networks.base import reconstructs  # slow to import; --help does not need it

    module.training_network.check(trainer)
    module.step_graphs.check(trainer)
    check_change(module.network, data.spec)
    if reconstructs(module.network) and not hasattr(module, "reconstruction"):
        raise ConfigError(
            f"this {type(module.network).__name__} has a decoder, but {type(module).__name__} would not train it; "
            "expected module=capsnet, or a model without decoder"
        )
    if data.mixup is not None:
        with constructing("data.mixup"), torch.device("cpu"):
            if getattr(module, "reconstruction", None) is not None and reconstructs(module.network):
                raise ValueError(
                    "a decoder reconstructs one class, but images are mixtures of two; expected model.decoder=null"
                )
            if not hasattr(module, "loss"):
                raise ValueError(
                    f"{type(module.network).__name__} does not classify; expected null"
                )
            shares = torch.full((1, data.spec.num_classes), 1 / data.spec.num_classes)
            module.loss(torch.zeros(1, data.spec.num_classes), shares)
    if getattr(module, "class_weights", None) is not None and data.sampling:
        raise ConfigError(
            f"module.class_weights={module.class_weights} and data.sampling={data.sampling} both correct the "
            "frequencies of the classes; expected one of them"
        )
    batches = -(-len(data.dataset("train")) // (data.batch_size * trainer.world_size))
    interval = trainer.val_check_interval
    if type(interval) is int and trainer.check_val_every_n_epoch is not None and interval > batches:
        raise ConfigError(
            f"trainer.val_check_interval is {interval}, but an epoch has {batches} batches; expected at most that, or "
            "trainer.check_val_every_n_epoch=null, which counts batches across epochs"
        )
    _check_monitors(trainer.callbacks, module, data)


def _check_monitors(callbacks: Sequence[Any], module: Any, data: Any) -> None:
    """Check that each monitored metric exists, if module and callbacks all belong to us or to Lightning."""
    known_packages = ("capsule_lab.", "lightning.")
    for part in (module, *callbacks):
        if not type(part).__module__.startswith(known_packages):
            return
    measured = _measured(module, data)
    for callback in callbacks:
        monitor = getattr(callback, "monitor", None)
        if monitor is None or monitor in measured or monitor.startswith(_STATISTICS):
            continue
        unlikely = ("test/", "train/l2", "val/l2")
        known = [name for name in measured if not name.startswith(unlikely)]
        raise ConfigError(
            f"{type(callback).__name__}: monitor is {monitor}; {suggest(monitor, known)}"
        )


def _measured(module: Any, data: Any) -> set[str]:
    """Return the names of the metrics that a module logs in training on this data."""
    quantities = getattr(module, "quantities", None)  # of pair metrics, each of which has several
    if quantities is None:
        names = {*module.metrics}
    else:
        names = {f"{split}/{name}" for split, name in itertools.product(_SPLITS, quantities)}
    terms = ["loss", "l2", "reconstruction"]
    if hasattr(module, "loss"):
        function = getattr(module.loss, "func", module.loss)
        terms.append(function.__name__.removesuffix("_loss"))
    names |= {f"{split}/{term}" for split, term in itertools.product(("train", "val"), terms)}
    names |= {f"{part}/error" for part in data.further_validations}
    names |= {f"schedule/{name}" for name in module.schedule}
    return names


_SPLITS = ("val", "test")
_STATISTICS = ("val/coupling_entropy", "val/dead_", "val/activation_")
"""Beginnings of names of statistics of routing, which a callback logs by layer."""


def check_change(network: Any, spec: Any) -> None:
    """Check that the data provides the kind of change that the network expects."""
    expected = getattr(network, "change_shape", ())
    if expected and spec.change != expected:
        kinds = {(): "none", (2,): "a shift", (3, 3): "a matrix"}
        one = kinds.get(expected, f"one of shape {expected}")
        other = kinds.get(spec.change, f"one of shape {spec.change}")
        raise ConfigError(
            f"{type(network).__name__} expects {one}, but the data provides {other}; use "
            "data=mnist_pairs with data.change=shift and model.pose=translation, data.change=affine and "
            "model.pose=matrix, or data=smallnorb_pairs and model.pose=matrix"
        )
