"""How a command is declared and run: Hydra configures it, and a user's mistake ends with one line and a status.

A command is a file ``<name>.py`` in this folder, or in the package of commands of another distribution, with a class
of its options and ``main = command("<name>", …)(…)``; and ``conf/<name>.yaml``, whose defaults list has its
configuration groups and whose first comments are its help text. ``make <name>`` and ``capsule-lab <name>`` run it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import hydra
from omegaconf import DictConfig, OmegaConf

from capsule_lab.config import folders, presets
from capsule_lab.config.arguments import own_folders, prepared, with_last_run
from capsule_lab.config.check import check
from capsule_lab.config.check_options import check_options, check_required
from capsule_lab.config.composition import store_options
from capsule_lab.config.declaration import MISSING, Command, FinishedRun, Measurement, Options
from capsule_lab.config.messages import user_message
from capsule_lab.errors import InterruptError, printable
from capsule_lab.runs import lock, results
from capsule_lab.runs.directories import is_first_process
from capsule_lab.runs.files import write_record
from capsule_lab.runs.select_run import last_finished
from capsule_lab.system import protocol
from capsule_lab.system.environment import package_version, set_program
from capsule_lab.system.hydra_internals import errors_are_raised
from capsule_lab.system.signals import install, interruptible, restore
from capsule_lab.system.slurm import requeue
from capsule_lab.system.terminal import (
    as_typed,
    exit_after_closed_pipe,
    shows_tracebacks,
    usable_streams,
)

CommandOptions = TypeVar("CommandOptions", bound=Options)
Function = Callable[[CommandOptions], Mapping[str, Any] | None]


def command(
    name: str,
    options: type[CommandOptions],
    *,
    check: Callable[[DictConfig], None] = check,
    first: str = "",
    for_hydra: Callable[[Sequence[str]], list[str]] = list,
    measures: Measurement | None = None,
    proposes: Callable[[FinishedRun], list[str]] | None = None,
) -> Callable[[Function[CommandOptions]], RunnableCommand]:
    """Return a decorator that makes a command of a function of its options; see ``Command``."""

    def decorate(function: Function[CommandOptions]) -> RunnableCommand:
        return RunnableCommand(name, options, function, check, first, for_hydra, measures, proposes)

    return decorate


@dataclass(frozen=True)
class RunnableCommand(Command):
    """A command that runs when it is called."""

    def __call__(self) -> None:
        """Run the command with the arguments of this process; exit with status 2 after a user's mistake.

        ``HYDRA_FULL_ERROR=1`` shows the traceback instead. A command that a signal stops exits with 128 plus the number
        of the signal, as in a shell.
        """
        if "--version" in sys.argv[1:]:
            sys.stdout.write(f"capsule-lab {package_version()}\n")
            return
        set_program("capsule-lab", self.name)
        with usable_streams(), ExitStack() as stack:
            try:
                with interruptible():
                    arguments = self.for_hydra(sys.argv[1:])
                    stack.enter_context(folders.searching(own_folders(arguments)))
                    sys.argv[1:] = with_last_run(prepared(arguments, self), self, _last_run)
                    self._start_hydra()
            except InterruptError as error:
                before = install(
                    signal.SIG_IGN
                )  # SLURM's next signal must not end ``scontrol requeue``
                requeue(error.signum)
                restore(before)
                _exit(str(error), 128 + error.signum)
            except Exception as error:
                self._exit_if_user_error(error)
                raise

    def _start_hydra(self) -> None:
        OmegaConf.register_new_resolver("command_help", self._help, replace=True)
        store_options(self)

        def job(config: DictConfig) -> None:
            try:
                with interruptible():
                    check_options(config, self)
                    check_required(config, self)
                    self._find_last(config)
                    self.check(config)
                    self._run(self.options.read(config))
            except BrokenPipeError:  # Hydra would print the overrides
                exit_after_closed_pipe()
            except Exception as error:  # Hydra would print a traceback
                self._exit_if_user_error(error)
                raise

        job.command = self  # type: ignore[attr-defined] # for the sweeper of ``-m``
        with errors_are_raised():
            hydra.main(
                version_base="1.3", config_path=str(folders.conf_dir()), config_name=self.name
            )(job)()

    def _find_last(self, config: DictConfig) -> None:
        """Replace ``last`` of a configuration file, which ``with_last_run`` does not see."""
        for key in self.runs:
            if OmegaConf.select(config, key) == "last":
                OmegaConf.update(config, key, str(_last_run()))

    def _exit_if_user_error(self, error: Exception) -> None:
        message = user_message(error, self, sys.argv[1:])
        if message is not None and not shows_tracebacks():
            _exit(message, 2)

    def _run(self, options: Options) -> None:
        """Call the function; if a table names a file for the result, write it there, unless the file has one."""
        file = os.environ.pop(protocol.RESULT, None)  # child processes do not inherit it
        if file is None or self.measures is None or not is_first_process():
            self.function(options)
            return
        path = Path(file)
        with lock.cell_lock(path.stem):
            if results.read_evaluation(path, self.measures.result) is not None:
                return
            start_time = time.monotonic()
            result = self.function(options) or {}
            seconds = round(time.monotonic() - start_time, 1)
            write_record(path, {**result, "evaluation_seconds": seconds})

    def _help(self, _: str) -> str:
        """Return the first comments of the command's configuration, its options, and its configuration groups."""
        lines = [*folders.head(folders.file_of(self.name)), ""]
        groups = folders.default_options(self.name)
        if groups:
            lines.append("== Groups: group=option ==")
            lines += [
                f"  {group}: {', '.join(folders.options_of(group))}" for group in sorted(groups)
            ]
            lines.append("")
        if different := _different_presets(groups):
            lines += ["== Not as in the paper ==", *different, ""]
        if self.own_options:
            lines.append("== Options: key=value ==")
            for option in self.own_options.values():
                default = "" if option.default == MISSING else f"={_as_typed(option.default)}"
                lines.append(f"  {option.key}{default}: {option.description}")
            lines.append("")
        return "\n".join(lines).replace("$", "$$")  # Hydra treats it as a template


def _different_presets(groups: Iterable[str]) -> list[str]:
    """Return a line for each network and routing that differs from its paper, if the command has these groups."""
    lines = []
    for group in sorted({"model", "routing"} & {*groups}):
        for option, comments in folders.described_options(group).items():
            if difference := presets.differs(comments):
                lines.append(f"  {group}={option} {difference}")
    return lines


def _as_typed(value: Any) -> str:
    """Return a default as a user would type it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _last_run() -> Path:
    """Return the run that ``last`` names, as a user would type it."""
    return as_typed(last_finished())


def _exit(message: str, status: int) -> None:
    sys.stderr.write(f"capsule_lab: {printable(message)}\n")
    sys.exit(status)
