"""Configurations: where they are, how one is composed, and what an error of Hydra means in one sentence."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from capsule_lab.errors import CapsuleLabError, one_line, suggest


def conf_dir() -> Path:
    """The folder of configurations."""
    return _installed_or_source("conf")


def sweeps_dir() -> Path:
    """The folder of tables."""
    return _installed_or_source("sweeps")


def _installed_or_source(name: str) -> Path:
    """A folder inside an installed wheel, or beside the package in a source tree."""
    package = Path(__file__).parent
    return next(folder for folder in (package / name, package.parent / name) if folder.is_dir())


def options_of(group: str) -> list[str]:
    """Names of the options of a configuration group, sorted."""
    folder = conf_dir() / group
    return sorted(file.relative_to(folder).with_suffix("").as_posix() for file in folder.rglob("*.yaml"))


def compose(config_name: str = "train", overrides: Sequence[str] = ()) -> DictConfig:
    """A configuration outside of a command, as in a notebook or a test; inside of one, its own stays as it is."""
    current = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            return hydra.compose(config_name, overrides=list(overrides))
    finally:
        GlobalHydra.instance().hydra = current


def to_container(config: DictConfig) -> dict[str, Any]:
    """The configuration with everything resolved, as plain containers.

    Raises:
        omegaconf.MissingMandatoryValue: if a value is missing, ``???``.
    """
    container = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def user_message(error: BaseException, config_name: str = "train") -> str | None:
    """What the user did wrong, in one sentence; ``None`` for an error that is not the user's."""
    if isinstance(error, CapsuleLabError):
        return str(error)
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, option = str(error.missing_cfg_file).partition("/")
        if group == "hydra":  # its groups lie one level deeper, and plugins add options to them
            group, _, option = str(error.missing_cfg_file).rpartition("/")
            return f"{group}={option} does not exist; {suggest(option, error.options)}"
        return f"{group}={option} does not exist; {suggest(option, options_of(group) or error.options)}"
    if isinstance(error, OverrideParseException):
        return f"{error.override} cannot be read as key=value: {one_line(error)}"
    if isinstance(error, InstantiationException) and error.__cause__ is not None:
        where = str(error).rpartition("full_key: ")[2].strip()
        reason = one_line(error.__cause__)
        return reason if not where or where in reason else f"{where}: {reason}"
    if isinstance(error, HydraException):
        unknown = _unknown_key(error)
        return _unknown_key_message(unknown, config_name) if unknown else one_line(error)
    if isinstance(error, OmegaConfBaseException):
        return one_line(error)
    return None


def _unknown_key(error: HydraException) -> str | None:
    """The key that does not exist, if that is the error. Hydra (read from 1.3.8) says so in its text only."""
    found = re.search(
        r"Could not (?:override|append) '([^']+)'|Could not delete.* '([^']+)'|Key '([^']+)' is not in", str(error)
    )
    return next(filter(None, found.groups())) if found else None


def _unknown_key_message(key: str, config_name: str) -> str:
    """An unknown key beside those that exist where it was looked for."""
    if key.startswith("hydra."):
        return f"{key} is no option of Hydra; python -m capsule_lab.train --cfg hydra lists them"
    groups = {folder.name for folder in conf_dir().iterdir() if folder.is_dir()}
    choices = [argument for argument in sys.argv[1:] if argument.partition("=")[0].lstrip("+") in groups]
    try:
        config = compose(config_name, choices)
    except HydraException:
        return f"{key} is no option of this configuration"
    parent, _, name = key.rpartition(".")
    while parent and not isinstance(OmegaConf.select(config, parent), DictConfig):
        parent, _, name = parent.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    prefix = f"{parent}." if parent else ""
    names = [f"{prefix}{option!s}" for option in node]
    return f"{key} does not exist; {suggest(prefix + name, names)} (+{key}=… adds a new key)"
