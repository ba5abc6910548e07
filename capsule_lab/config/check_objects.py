"""Checks that Trainer, module and data fit each other, after they are built and before training."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from capsule_lab.config.build import constructing
from capsule_lab.errors import ConfigError, one_line, suggest

_TRIED = 2  # ours: images; with one, a wrong order of axes can have the same shape


def try_own_parts(trainer: Any, module: Any, data: Any, packages: Collection[str]) -> None:
    """Compute the loss of two training images, in eval mode, if a run has parts from ``packages`` of the user.

    A wrong output is then found before a directory is created. An error within these packages is passed on, because its
    traceback says where it is. The CPU computes it: if training is on another device, other errors are ignored.

    Raises:
        ConfigError: if an output has another type or shape than the other parts expect.
    """
    if not packages:
        return
    with _evaluating(module), _checking_routings(module, packages):
        try:
            _try_loss(module, data, packages)
        except ConfigError:
            raise
        except Exception as error:
            if trainer.strategy.root_device.type != "cpu":  # the part may need the device
                return
            if _is_within(error, packages):
                raise
            raise ConfigError(
                f"{', '.join(sorted(packages))}: the loss of {_TRIED} images cannot be computed with parts of this "
                f"package; {type(error).__name__}: {one_line(error)}"
            ) from error


def _try_loss(module: Any, data: Any, packages: Collection[str]) -> None:
    """Compute the loss of the first training images; check the output and the terms if the module is ours."""
    dataset = data.dataset("train")
    index = torch.arange(min(_TRIED, len(dataset)))
    batch = data.transform_batch(dataset[index, 0], "val")
    output = module.network(*module.inputs_of(batch))
    if _package(type(module).__module__) in packages:  # its loss may need its Trainer
        return
    if hasattr(module, "loss"):
        _check_output(module.network, output, (len(index), data.spec.num_classes))
    schedule = {name: of_run.for_run(1, 1)(0) for name, of_run in module.schedule.items()}
    _check_terms(module.loss_terms(batch, output, schedule))


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Turn off training and gradients; restore modes and buffers of all modules and the states of random numbers."""
    from lightning.pytorch.utilities.seed import isolate_rng

    modes = {each: each.training for each in module.modules()}
    buffers = {buffer: buffer.clone() for buffer in module.buffers()}
    module.eval()
    try:
        with isolate_rng(include_cuda=False), torch.no_grad():
            yield
    finally:
        for each, mode in modes.items():
            each.training = mode
        for buffer, before in buffers.items():
            if not buffer.equal(before):
                buffer.copy_(before)


@contextmanager
def _checking_routings(module: nn.Module, packages: Collection[str]) -> Iterator[None]:
    """Check what the routings of ``packages`` return."""
    from capsule_lab.routing import AbstractRouting

    hooks = []
    for each in module.modules():
        if isinstance(each, AbstractRouting) and _package(type(each).__module__) in packages:
            hooks.append(each.register_forward_hook(_check_parents, with_kwargs=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _check_parents(routing: Any, inputs: Any, options: dict[str, Any], parents: Any) -> None:
    from capsule_lab.types import Capsules

    votes = routing.counted_votes(inputs[0] if inputs else options["votes"])
    batch, _, number, dim = votes.shape
    found = f"a {type(parents).__name__}"
    if isinstance(parents, Capsules):
        shapes = [tuple(each.shape) if isinstance(each, Tensor) else each for each in parents[:2]]
        if shapes == [(batch, number, dim), (batch, number)]:
            return
        found = f"poses {shapes[0]} and activations {shapes[1]}"
    raise ConfigError(
        f"{type(routing).__name__} returned {found}; expected Capsules of poses (batch, parent, dim), here "
        f"{(batch, number, dim)}, and activations (batch, parent), here {(batch, number)}"
    )


def _check_output(network: Any, output: Any, expected: tuple[int, int]) -> None:
    """Check that the output of a classifier has scores of this shape."""
    from capsule_lab.types import CapsuleOutput

    found = f"a {type(output).__name__}"
    if isinstance(output, CapsuleOutput):
        scores = output.scores
        found = f"scores {tuple(scores.shape) if isinstance(scores, Tensor) else scores!r}"
        if isinstance(scores, Tensor) and scores.shape == expected:
            return
    raise ConfigError(
        f"{type(network).__name__} returned {found}; expected a CapsuleOutput with scores (batch, class), here "
        f"{expected}"
    )


def _check_terms(terms: Any) -> None:
    """Check that the terms of a loss are scalars."""
    for name, term in terms.items():
        if not isinstance(term, Tensor) or term.ndim:
            found = f"of shape {tuple(term.shape)}" if isinstance(term, Tensor) else repr(term)
            raise ConfigError(f"the term {name} of the loss is {found}; expected a scalar tensor")


def _is_within(error: BaseException, packages: Collection[str]) -> bool:
    """Return whether a function of ``packages`` was running when an error was raised."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if _package(frame.f_globals.get("__name__", "")) in packages:
            return True
    return False


def _package(module: str) -> str:
    return module.partition(".")[0]


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
        unlikely = ("train/l2", "val/l2")
        known = [name for name in measured if not name.startswith(unlikely)]
        raise ConfigError(
            f"{type(callback).__name__}: monitor is {monitor}; {suggest(monitor, known)}"
        )


def _measured(module: Any, data: Any) -> set[str]:
    """Return the names of the metrics that a module logs in training on this data."""
    quantities = getattr(module, "quantities", None)  # of pair metrics, each of which has several
    names = {*(module.metrics if quantities is None else ())}
    names |= {f"val/{name}" for name in quantities or ()}
    terms = ["loss", "l2", "reconstruction"]
    if hasattr(module, "loss"):
        function = getattr(module.loss, "func", module.loss)
        terms.append(function.__name__.removesuffix("_loss"))
    names |= {f"{split}/{term}" for split, term in itertools.product(("train", "val"), terms)}
    names |= {f"{part}/error" for part in data.further_validations}
    names |= {f"schedule/{name}" for name in module.schedule}
    return {name for name in names if not name.startswith("test/")}


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
