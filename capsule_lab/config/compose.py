"""Composition of a checked configuration, with messages for mistakes."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from capsule_lab.config.check_options import check_options
from capsule_lab.config.composition import composed
from capsule_lab.config.declaration import Command
from capsule_lab.config.messages import user_message
from capsule_lab.errors import ConfigError

_OVERRIDES: dict[int, tuple[str, ...]] = {}
"""Overrides of each composed configuration that is still in use, by its ``id``."""


def compose(command: Command, overrides: Sequence[str] = ()) -> DictConfig:
    """Compose a configuration outside a command, as in a notebook; ``check.check`` checks its groups."""
    check_words(overrides)
    try:
        config = composed(command, overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(user_message(error, command, overrides)) from error
    check_options(config, command)
    _OVERRIDES[id(config)] = tuple(overrides)
    weakref.finalize(config, _OVERRIDES.pop, id(config))
    return config


def check_words(overrides: Any) -> None:
    """Raise a ``ConfigError`` unless these are texts in a sequence; one text would be read character by character."""
    if isinstance(overrides, str) or not isinstance(overrides, Sequence):
        raise ConfigError(
            f"overrides are {overrides!r}; expected a list of texts key=value, such as ['seed=1']"
        )
    for word in overrides:
        if not isinstance(word, str):
            raise ConfigError(
                f"an override is {word!r}; expected a text key=value, such as 'seed=1'"
            )


def chosen_options(command: Command, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the chosen option of each configuration group, such as ``model``, for overrides that can be composed."""
    hydra = composed(command, overrides, with_hydra=True).hydra
    return dict(hydra.runtime.choices)


def overrides_of(config: DictConfig) -> tuple[str, ...]:
    """Return the overrides with which ``compose`` made a configuration; a copy of it has none."""
    return _OVERRIDES.get(id(config), ())
