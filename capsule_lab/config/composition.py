"""Composition of a configuration by Hydra, whose errors are passed on.

Only this file uses the undocumented ``GlobalHydra.hydra`` of Hydra 1.3.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Sequence
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from capsule_lab.config.declaration import Command
from capsule_lab.config.folders import conf_dir
from capsule_lab.config.options import store_options_without_file
from capsule_lab.config.overrides import choices, search_override


def composed(
    command: Command, overrides: Sequence[str] = (), *, with_hydra: bool = False
) -> DictConfig:
    """Compose the configuration of a command, unchecked; ``with_hydra`` keeps Hydra's own configuration in it."""
    given = choices(overrides, command)
    if not any(override.startswith("hydra.searchpath=") for override in given):
        given += search_override()
    store_options(command)
    current = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            return hydra.compose(command.name, given, return_hydra_config=with_hydra)
    finally:
        GlobalHydra.instance().hydra = current


@functools.cache
def store_options(command: Command) -> None:
    """Register in Hydra, once per process, the options of a command and those of groups that have no file."""
    store_options_without_file()
    node = OmegaConf.create()
    for key, option in command.own_options.items():
        OmegaConf.update(node, key, option.default)
    ConfigStore.instance().store(name=f"{command.name}_options", node=node)


def copied(config: DictConfig) -> DictConfig:
    """Return a copy; ``config.copy()`` takes four times as long, and a table copies hundreds of configurations."""
    copy: DictConfig = pickle.loads(pickle.dumps(config))  # noqa: S301 - of this process
    return copy


def to_container(config: DictConfig) -> dict[str, Any]:
    """Convert a configuration to plain containers, resolved; raise an error if a value is missing (``???``)."""
    container: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    return dict(container)
