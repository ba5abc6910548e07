"""Checks of the callbacks of a training run, before anything is built."""

from __future__ import annotations

from hydra.utils import get_object
from omegaconf import DictConfig

from capsule_lab.config.hints import key_meant
from capsule_lab.errors import ConfigError

_UNSUPPORTED = {
    "BackboneFinetuning": "it needs a part named backbone, which no network here has: freeze parts in a callback of "
    "your own, a subclass of BaseFinetuning",
    "BatchSizeFinder": "it trains before the run, whose steps it uses up: compare -m data.batch_size=64,128",
    "LearningRateFinder": "it changes a learning rate that the schedule sets: compare -m {rate}=0.0003,0.001,0.003",
    "ModelPruning": "it needs weights in another order of memory: prune the network of a finished run, "
    "runs.open(…).network",
    "SpikeDetection": "Lightning cannot read its state again: callbacks.guard ends a run whose loss is not finite",
}
"""Callbacks of Lightning 2.6 that do not work here, by name, and the alternative."""


def check_callbacks(config: DictConfig) -> None:
    """Raise a ``ConfigError`` for a callback that cannot work in a training run.

    Lightning would report some with a traceback, and others not at all.
    """
    network = get_object(config.model["_target_"])
    draws = hasattr(network, "change_shape")
    for name, node in (config.get("callbacks") or {}).items():
        if node is None:
            continue
        callback = get_object(node["_target_"])
        if getattr(callback, "needs_pairs", False) and not draws:
            raise ConfigError(
                f"callbacks=pairs is for pairs, but {network.__name__} classifies; use callbacks=default"
            )
        bases = [base.__name__ for base in getattr(callback, "__mro__", ())]
        unsupported = next((base for base in bases if base in _UNSUPPORTED), None)
        if unsupported is not None:
            reason = _UNSUPPORTED[unsupported].format(rate=key_meant("lr", config))
            raise ConfigError(
                f"callbacks.{name} is Lightning's {unsupported}, which cannot be used here; {reason}"
            )
