"""The decorator of all commands: Hydra configures them; a user's mistake ends with a one-line message and a status.

A command is a file ``<name>.py`` in ``capsule_lab`` or ``capsule_lab/studies`` with ``main = command("<name>")(…)``,
and its configuration ``conf/<name>.yaml``. The comments at the head of the configuration are its help text;
``python -m capsule_lab`` and ``make help`` show the first line. ``make <name>`` runs the command.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
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
from capsule_lab.config import compose
from capsule_lab.config.arguments import own_folders, prepared
from capsule_lab.config.options import store_options_without_file
from capsule_lab.errors import InterruptError, printable
from capsule_lab.runs import lock, results
from capsule_lab.runs.directories import is_first_process
from capsule_lab.runs.files import write_record
from capsule_lab.runs.results import RESULT_VARIABLE
from capsule_lab.system.signals import install, interruptible, restore
from capsule_lab.system.slurm import requeue
from capsule_lab.system.terminal import usable_streams

Main = Callable[[DictConfig], Mapping[str, Any] | None]


def command(
    name: str, for_hydra: Callable[[Sequence[str]], list[str]] = list
) -> Callable[[Main], Callable[[], None]]:
    """Return a decorator for a Hydra command, which prints a user's mistake in one line and exits with status 2.

    ``HYDRA_FULL_ERROR=1`` shows the traceback instead. A command that a signal stops exits with 128 plus the number
    of the signal, as in a shell. ``for_hydra`` converts the arguments of the command line to arguments for Hydra.
    """

    def decorate(main: Main) -> Callable[[], None]:
        @functools.wraps(main)
        def job(config: DictConfig) -> None:
            try:
                with interruptible():
                    compose.check_options(config, name)
                    _for_table(main)(config)
            except Exception as error:  # Hydra would print a traceback
                _exit_if_user_error(error, name)
                raise

        @functools.wraps(main)
        def run() -> None:
            OmegaConf.register_new_resolver(
                "command_help", _help, replace=True
            )  # used in conf/_command.yaml
            logging.getLogger("hydra.utils").setLevel(
                logging.CRITICAL
            )  # it also logs the errors it raises
            with usable_streams(), ExitStack() as stack:
                try:
                    if "--version" in sys.argv[1:]:
                        sys.stdout.write(f"capsule-lab {__version__}\n")
                        return
                    with interruptible():
                        arguments = for_hydra(sys.argv[1:])
                        stack.enter_context(compose.searching(own_folders(arguments)))
                        sys.argv[1:] = prepared(arguments, name)
                        # private functions of hydra-core 1.3.8: Hydra now raises errors instead of printing them and
                        # exiting, and does not compose a second time to look for `hydra.mode`
                        hydra_utils.run_and_report = lambda func: func()
                        Hydra.get_mode = lambda *_, **__: None  # type: ignore[method-assign]
                        store_options_without_file()
                        hydra.main(
                            version_base="1.3",
                            config_path=str(compose.conf_dir()),
                            config_name=name,
                        )(job)()
                except InterruptError as error:
                    before = install(
                        signal.SIG_IGN
                    )  # SLURM's next signal must not end ``scontrol requeue``
                    requeue(error.signum)
                    restore(before)
                    _exit(str(error), 128 + error.signum)
                except Exception as error:  # from composing or from a launcher
                    _exit_if_user_error(error, name)
                    raise

        return run

    return decorate


def _for_table(main: Main) -> Main:
    """Return ``main``; if a table names a file for the result, write it there, unless the file has one already."""
    file = os.environ.pop(RESULT_VARIABLE, None)  # child processes do not inherit it
    if file is None or not is_first_process():
        return main
    path = Path(file)

    def recorded(config: DictConfig) -> None:
        with lock.cell_lock(path.stem):
            if results.read_evaluation(path) is None:
                start_time = time.monotonic()
                result = main(config) or {}
                write_record(
                    path, {**result, "evaluation_seconds": round(time.monotonic() - start_time, 1)}
                )

    return recorded


def _help(name: str) -> str:
    """Return the comments at the head of a command's configuration, and its configuration groups."""
    groups = [
        f"  {group}: {', '.join(compose.options_of(group))}"
        for group in sorted(compose.default_options(name))
    ]
    comments = compose.head(compose.conf_dir() / f"{name}.yaml")
    lines = [*comments, "", *(["== Groups: group=option ==", *groups, ""] if groups else [])]
    return "\n".join(lines).replace("$", "$$")  # Hydra treats it as a template


def _exit_if_user_error(error: Exception, name: str) -> None:
    message = (
        None
        if os.environ.get("HYDRA_FULL_ERROR")
        else compose.user_message(error, name, sys.argv[1:])
    )
    if message is not None:
        _exit(message, 2)


def _exit(message: str, status: int) -> None:
    sys.stderr.write(f"capsule_lab: {printable(message)}\n")
    sys.exit(status)
