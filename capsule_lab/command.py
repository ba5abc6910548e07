"""Commands: composed by Hydra, ended by one clear sentence when the user made a mistake."""

from __future__ import annotations

import difflib
import functools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from capsule_lab.slurm import requeue
from hydra_plugins.capsule_lab_plugins.gpus import GPULauncher
from hydra_plugins.capsule_lab_plugins.slurm import SlurmLauncher
from hydra_plugins.capsule_lab_plugins.sweeper import TableSweeper


class ConfigError(ValueError):
    """A configuration that cannot work."""


class InterruptError(Exception):
    """Training was stopped by a signal, after leaving a checkpoint.

    Attributes:
        signum: the signal; the exit status is 128 more.
    """

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.signum = signum


def conf_dir() -> Path:
    """The folder of configurations: inside an installed wheel, or beside the package in a source tree."""
    package = Path(__file__).parent
    return next(folder for folder in (package / "conf", package.parent / "conf") if (folder / "train.yaml").is_file())


def command(config_name: str) -> Callable[[Callable[[DictConfig], None]], Callable[[], None]]:
    """A Hydra command that ends a user's mistake with one sentence and a status other than 0.

    ``HYDRA_FULL_ERROR=1`` shows the traceback instead.
    """

    def decorate(main: Callable[[DictConfig], None]) -> Callable[[], None]:
        @functools.wraps(main)
        def job(config: DictConfig) -> None:
            try:
                main(config)
            except InterruptError as error:
                requeue(error.signum)
                _leave(str(error), 128 + error.signum)  # 128: the shell's convention
            except KeyboardInterrupt:
                _leave("stopped before training went on: checkpoints are as they were", 128 + signal.SIGINT)
            except Exception as error:
                sentence = None if "CAPSULE_LAB_TRACEBACK" in os.environ else in_one_sentence(error, config_name)
                if sentence is None or HydraConfig.get().mode == RunMode.MULTIRUN:
                    raise  # a sweep's launcher decides what becomes of the other jobs
                _leave(sentence, 2)

        @functools.wraps(main)
        def run() -> None:
            # Hydra shall raise instead of printing and exiting; other processes of this run inherit the variable, so
            # the user's own wish for a traceback travels under another name
            show_all = os.environ.get("HYDRA_FULL_ERROR") and "CAPSULE_LAB_RUN" not in os.environ
            if show_all:
                os.environ["CAPSULE_LAB_TRACEBACK"] = "1"
            os.environ["HYDRA_FULL_ERROR"] = "1"
            for plugin in (TableSweeper, GPULauncher, SlurmLauncher):
                Plugins.instance().register(plugin)  # Hydra does not find them in an editable installation
            try:
                hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=config_name)(job)()
            except InterruptError as error:  # of a sweep
                _leave(str(error), 128 + error.signum)  # 128: the shell's convention
            except Exception as error:
                sentence = None if "CAPSULE_LAB_TRACEBACK" in os.environ else in_one_sentence(error, config_name)
                if sentence is None:
                    raise
                _leave(sentence, 2)
            finally:
                os.environ.pop("CAPSULE_LAB_TRACEBACK", None)
                if not show_all:
                    os.environ.pop("HYDRA_FULL_ERROR", None)

        return run

    return decorate


def compose(config_name: str = "train", overrides: Sequence[str] = ()) -> DictConfig:
    """A configuration outside of a command, as in a notebook or a test."""
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return hydra.compose(config_name, overrides=list(overrides))


def _leave(message: str, status: int) -> None:
    sys.stderr.write(f"capsule_lab: {message}\n")
    sys.stderr.flush()
    sys.exit(status)


def in_one_sentence(error: BaseException, config_name: str = "train") -> str | None:
    """What the user did, in one sentence; ``None`` if the error is ours."""
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, option = str(error.missing_cfg_file).partition("/")
        if group == "hydra":  # whose groups lie below it, and which knows what plugins add to them
            group, _, option = str(error.missing_cfg_file).rpartition("/")
            return f"{group}={option} does not exist; {options_in_words(option, error.options)}"
        folder = conf_dir() / group
        options = [file.relative_to(folder).with_suffix("").as_posix() for file in folder.rglob("*.yaml")]
        return f"{group}={option} does not exist; {options_in_words(option, options or error.options)}"
    if isinstance(error, OverrideParseException):
        return f"{error.override} cannot be read as key=value: {' '.join(str(error).split())}"
    if isinstance(error, InstantiationException) and error.__cause__ is not None:
        where = str(error).rpartition("full_key: ")[2].strip()
        reason = " ".join(str(error.__cause__).split())
        return reason if not where or where in reason else f"{where}: {reason}"
    if isinstance(error, HydraException):
        unknown = re.search(
            r"Could not (?:override|append) '([^']+)'|Could not delete.* '([^']+)'|Key '([^']+)' is not in", str(error)
        )
        if unknown:
            return _unknown_key(unknown[1] or unknown[2] or unknown[3], config_name)
        return " ".join(str(error).split())
    if isinstance(error, OmegaConfBaseException):
        return " ".join(str(error).split())
    if type(error).__module__.startswith("capsule_lab."):
        return str(error)
    return None


def _unknown_key(key: str, config_name: str) -> str:
    """An unknown key beside the ones that exist where it was looked for."""
    if key.startswith("hydra."):
        return f"{key} is no option of Hydra; python -m capsule_lab.train --cfg hydra lists them"
    groups = {folder.name for folder in conf_dir().iterdir() if folder.is_dir()}
    choices = [word for word in sys.argv[1:] if word.partition("=")[0].lstrip("+") in groups]
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
    return f"{key} does not exist; {options_in_words(prefix + name, names)} (+{key}=… adds a new key)"


def options_in_words(wrong: str, options: Iterable[str]) -> str:
    """What there is instead of ``wrong``, the nearest first."""
    options = sorted(options)
    close = difflib.get_close_matches(wrong, options, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    return f"{meant}Options: {', '.join(options)}"
