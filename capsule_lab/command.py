"""What all commands share: composed by Hydra, ended by one clear sentence when the user made a mistake."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from capsule_lab.config import conf_dir, user_message
from capsule_lab.errors import InterruptError
from capsule_lab.slurm import requeue

_SHOW_TRACEBACK = "CAPSULE_LAB_TRACEBACK"


def command(config_name: str) -> Callable[[Callable[[DictConfig], None]], Callable[[], None]]:
    """A Hydra command that ends a user's mistake with one sentence and a status other than 0.

    ``HYDRA_FULL_ERROR=1`` shows the traceback instead.

    Args:
        config_name: the configuration of the command, a file of ``conf/``.
    """

    def decorate(main: Callable[[DictConfig], None]) -> Callable[[], None]:
        @functools.wraps(main)
        def job(config: DictConfig) -> None:
            try:
                main(config)
            except InterruptError as error:
                requeue(error.signum)
                _leave(str(error), 128 + error.signum)  # the shell's convention, as below
            except KeyboardInterrupt:
                _leave("stopped before training went on: checkpoints are as they were", 128 + signal.SIGINT)
            except Exception as error:
                if HydraConfig.get().mode == RunMode.MULTIRUN:
                    raise  # a sweep's launcher decides what becomes of the other jobs
                _leave_if_explained(error, config_name)
                raise

        @functools.wraps(main)
        def run() -> None:
            with _errors_raised():
                try:
                    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=config_name)(job)()
                except InterruptError as error:  # of a sweep
                    _leave(str(error), 128 + error.signum)
                except Exception as error:
                    _leave_if_explained(error, config_name)
                    raise

        return run

    return decorate


@contextmanager
def _errors_raised() -> Iterator[None]:
    """Make Hydra raise errors, which by itself it would print before it exits.

    Its variable for that is the one that users set for a traceback. Other processes of this run inherit it, so the
    user's own request is passed on under another name.
    """
    requested = os.environ.get("HYDRA_FULL_ERROR") and "CAPSULE_LAB_RUN" not in os.environ
    if requested:
        os.environ[_SHOW_TRACEBACK] = "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        os.environ.pop(_SHOW_TRACEBACK, None)
        if not requested:
            os.environ.pop("HYDRA_FULL_ERROR", None)


def _leave_if_explained(error: Exception, config_name: str) -> None:
    message = None if _SHOW_TRACEBACK in os.environ else user_message(error, config_name)
    if message is not None:
        _leave(message, 2)


def _leave(message: str, status: int) -> None:
    sys.stderr.write(f"capsule_lab: {message}\n")
    sys.stderr.flush()
    sys.exit(status)
