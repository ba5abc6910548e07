"""What all commands share: configured by Hydra; a user's mistake ends with a message of one line and a status.

A command is a file ``capsule_lab/<name>.py``, or in ``capsule_lab/studies``, with ``main = command("<name>")(…)``, and
its configuration ``conf/<name>.yaml``. The comments at the head of the latter are its help; from their first line it is
listed by ``python -m capsule_lab`` and ``make help``, and ``make <name>`` runs it.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hydra
from hydra._internal import utils as hydra_utils
from hydra._internal.hydra import Hydra
from omegaconf import DictConfig, OmegaConf

from capsule_lab import __version__
from capsule_lab.config.arguments import own_folders, prepared
from capsule_lab.config.compose import (
    check_options,
    conf_dir,
    default_options,
    head,
    options_of,
    searching,
    user_message,
)
from capsule_lab.config.options import store_options_without_file
from capsule_lab.errors import InterruptError, printable
from capsule_lab.runs import lock, results
from capsule_lab.runs.directories import is_first_process
from capsule_lab.runs.files import write_record
from capsule_lab.runs.results import RESULT_VARIABLE
from capsule_lab.system.signals import interruptible
from capsule_lab.system.slurm import requeue
from capsule_lab.system.terminal import usable_streams

Main = Callable[[DictConfig], Mapping[str, Any] | None]


def command(name: str, for_hydra: Callable[[Sequence[str]], list[str]] = list) -> Callable[[Main], Callable[[], None]]:
    """A Hydra command that prints a user's mistake as one line and exits with status 2.

    ``HYDRA_FULL_ERROR=1`` shows the traceback instead. A signal that stops the command exits with 128 more than its
    number, as shells do.

    Args:
        name: of the command, and of its configuration in ``conf/``.
        for_hydra: makes arguments that Hydra takes of those that were typed.
    """

    def decorate(main: Main) -> Callable[[], None]:
        @functools.wraps(main)
        def job(config: DictConfig) -> None:
            try:
                with interruptible():
                    check_options(config, name)
                    _for_table(main)(config)
            except Exception as error:  # Hydra would print more
                _exit_if_user_error(error, name)
                raise

        @functools.wraps(main)
        def run() -> None:
            OmegaConf.register_new_resolver("command_help", _help, replace=True)  # of conf/_command.yaml
            logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)  # it logs what it raises
            with usable_streams(), ExitStack() as stack:
                try:
                    if "--version" in sys.argv[1:]:
                        sys.stdout.write(f"capsule-lab {__version__}\n")
                        return
                    with interruptible():
                        arguments = for_hydra(sys.argv[1:])
                        stack.enter_context(searching(own_folders(arguments)))
                        sys.argv[1:] = prepared(arguments, name)
                        # private functions, read from hydra-core 1.3.8: Hydra raises errors, which it prints before it
                        # exits, and does not compose twice to look for `hydra.mode`
                        hydra_utils.run_and_report = lambda func: func()
                        Hydra.get_mode = lambda *_, **__: None  # type: ignore[method-assign]
                        store_options_without_file()
                        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=name)(job)()
                except InterruptError as error:
                    requeue(error.signum)
                    _exit(str(error), 128 + error.signum)
                except Exception as error:  # while composing, or of a launcher
                    _exit_if_user_error(error, name)
                    raise

        return run

    return decorate


def _for_table(main: Main) -> Main:
    """``main``, whose result is written where a table wants it, unless it is there already."""
    file = os.environ.pop(RESULT_VARIABLE, None)  # not for processes that this one starts
    if file is None or not is_first_process():
        return main
    path = Path(file)

    def recorded(config: DictConfig) -> None:
        with lock.cell_lock(path.stem):
            if results.read_evaluation(path) is None:
                start_time = time.monotonic()
                result = main(config) or {}
                write_record(path, {**result, "evaluation_seconds": round(time.monotonic() - start_time, 1)})

    return recorded


def _help(name: str) -> str:
    """The comments at the head of a command's configuration, and the groups that it takes."""
    groups = [f"  {group}: {', '.join(options_of(group))}" for group in sorted(default_options(name))]
    lines = [*head(conf_dir() / f"{name}.yaml"), "", *(["== Groups: group=option ==", *groups, ""] if groups else [])]
    return "\n".join(lines).replace("$", "$$")  # Hydra fills in a template


def _exit_if_user_error(error: Exception, name: str) -> None:
    message = None if os.environ.get("HYDRA_FULL_ERROR") else user_message(error, name, sys.argv[1:])
    if message is not None:
        _exit(message, 2)


def _exit(message: str, status: int) -> None:
    sys.stderr.write(f"capsule_lab: {printable(message)}\n")
    sys.exit(status)
