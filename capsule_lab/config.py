"""Configurations: where they are, how one is composed, and the message for an error of Hydra.

Launchers and sweepers apart, only this module uses what Hydra 1.3 does not document: ``GlobalHydra.hydra``, attributes
of its exceptions, and in ``_key_in_text`` and ``_node_in_text`` their texts.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from capsule_lab.errors import CapsuleLabError, one_line, suggest

_OF_THE_MACHINE = {
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENAMETOOLONG),
}
"""Errors of files that are no mistakes of ours: permissions, full disks, limits of the process."""


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


def commands() -> list[str]:
    """Names of the commands: each has a configuration ``conf/<command>.yaml``."""
    return sorted(file.stem for file in conf_dir().glob("[!_]*.yaml"))


def groups() -> list[str]:
    """Names of the configuration groups, Hydra's own left out."""
    return sorted(folder.name for folder in conf_dir().iterdir() if folder.is_dir() and folder.name != "hydra")


def options_of(group: str) -> list[str]:
    """Names of the options of a configuration group, sorted; files such as ``_common.yaml`` are parts of options."""
    folder = conf_dir() / group
    return sorted(file.relative_to(folder).with_suffix("").as_posix() for file in folder.rglob("[!_]*.yaml"))


def head(file: Path) -> list[str]:
    """The comments at the head of a YAML file; the first line is a summary."""
    lines = takewhile(lambda line: line.startswith("#"), file.read_text().splitlines())
    return [line.removeprefix("#").removeprefix(" ") for line in lines if not line.startswith("# @package")]


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
    """The message in one line if the error is a mistake of the user, else ``None``.

    Args:
        error: anything that was raised.
        config_name: of the configuration that was composed, for the options that it has.
    """
    if isinstance(error, CapsuleLabError):
        return str(error)
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, option = str(error.missing_cfg_file).partition("/")
        if group == "hydra":  # its groups lie one level deeper, and plugins add options to them
            group, _, option = str(error.missing_cfg_file).rpartition("/")
            return f"{group}={option} does not exist; {suggest(option, error.options)}"
        return f"{group}={option} does not exist; {suggest(option, {*options_of(group), *error.options})}"
    if isinstance(error, OverrideParseException):
        return f"{error.override} cannot be read as key=value: {one_line(error)}"
    if isinstance(error, InstantiationException) and error.__cause__ is not None:
        node, reason = _node_in_text(error), one_line(error.__cause__)
        return reason if not node or node in reason else f"{node}: {reason}"
    if isinstance(error, HydraException):
        key = _key_in_text(error)
        return _unknown_key(key, config_name) if key else one_line(error)
    if isinstance(error, OmegaConfBaseException):
        return one_line(error)
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        return f"{error.filename or 'a file'} cannot be written or read: {error.strerror}"
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return f"not enough memory ({one_line(error)}); try a smaller data.batch_size"
    return None


def _key_in_text(error: HydraException) -> str | None:
    """The key of an override that does not exist, if that is the error; in the texts of hydra 1.3.8."""
    found = re.search(r"Could not (?:override|delete(?: from config\.)?) '([^'=]+)", str(error))
    return found[1] if found else None


def _node_in_text(error: InstantiationException) -> str:
    """The node of the configuration that could not be instantiated, or nothing; in the texts of hydra 1.3.8."""
    return str(error).rpartition("full_key: ")[2].strip()


def _search_path(arguments: Sequence[str]) -> list[str]:
    """The user's own folders of configurations, which ``compose`` takes as an override only."""
    folders = [value for argument, value in pairwise(arguments) if argument in ("--config-dir", "-cd")]
    folders += [argument.partition("=")[2] for argument in arguments if argument.startswith("--config-dir=")]
    own = [f"hydra.searchpath=[{','.join(f'file://{Path(folder).absolute()}' for folder in folders)}]"]
    return own if folders else [argument for argument in arguments if argument.startswith("hydra.searchpath=")]


def _unknown_key(key: str, config_name: str) -> str:
    """The message for a key that does not exist, with those beside which it was looked for."""
    if key.startswith("hydra."):
        return f"{key} is no option of Hydra; python -m capsule_lab.train --cfg hydra lists them"
    choices = [argument for argument in sys.argv[1:] if argument.partition("=")[0].lstrip("+") in groups()]
    choices += _search_path(sys.argv[1:])
    try:
        config = compose(config_name, choices)
    except HydraException:
        return f"{key} is no option of this configuration"
    parent, _, name = key.rpartition(".")
    while parent and not isinstance(OmegaConf.select(config, parent), DictConfig):
        parent, _, name = parent.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    prefix = f"{parent}." if parent else ""
    options = [f"{prefix}{option!s}" for option in node]
    return f"{key} does not exist; {suggest(prefix + name, options)} (+{key}=… adds a new key)"
