"""Commands in processes of their own, forked from a process that has imported the libraries.

Importing torch, Lightning and Hydra takes seconds of processor time; a fork takes a tenth of a second. A forked command
has its own working directory, environment, standard streams, arguments and ``sys.path``, and imports ``capsule_lab``
itself. Tests of imports, and of signals during imports, use ``commands.start`` or ``commands.interpreter``.
"""

import atexit
import functools
import multiprocessing
import os
import runpy
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import IO, Any
from unittest import mock

from capsule_lab.system import protocol

LIBRARIES = [
    "torch",
    "torchvision",
    "lightning",
    "lightning.pytorch",
    "torchmetrics",
    "hydra",
    "omegaconf",
    "pandas",
    "scipy.stats",
    "scipy.ndimage",
    "sklearn.model_selection",
    "sklearn.metrics",
    "sklearn.linear_model",
    "matplotlib.figure",
    "matplotlib.pyplot",
    "rich",
    "pydantic",
    "pooch",
    "jaxtyping",
    "filelock",
    "torch._dynamo",
    "numba",
    "jinja2",
    "tensorboard",
    "sklearn.datasets",
    "torchvision.transforms.v2",
    "torchvision.models.resnet",
]


@functools.cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):
        forkserver.ensure_running()
    return context


@dataclass(frozen=True)
class Forked:
    """A process that is ``python *arguments``, and the files with its output and its errors."""

    arguments: Sequence[str]
    process: ForkServerProcess
    out: IO[bytes]
    err: IO[bytes]

    def end(self, limit: float) -> tuple[int, str, str]:
        """Wait for the end, which must come within ``limit`` seconds; return status, output and errors."""
        try:
            self.process.join(limit)
            status = self.process.exitcode
            if status is None:
                raise TimeoutError(f"{self.arguments} has not ended within {limit} s")
        finally:
            self.process.kill()
        with self.out as out, self.err as err:
            out.seek(0)
            err.seek(0)
            return status, out.read().decode(), err.read().decode()


def start(arguments: Sequence[str], cwd: Path, environment: dict[str, str]) -> Forked:
    out = tempfile.NamedTemporaryFile()  # noqa: SIM115 - `end` closes it
    err = tempfile.NamedTemporaryFile()  # noqa: SIM115
    process = _forked(arguments, cwd, environment, out.name, err.name)
    return Forked(arguments, process, out, err)


class Popen:
    """Replaces ``subprocess.Popen`` in a launcher whose jobs are ``python -m …``."""

    def __init__(
        self, command: Sequence[str], *, stdout: IO[bytes], env: dict[str, str], **_: Any
    ) -> None:
        # the parent of the process is not the launcher
        environment = {name: value for name, value in env.items() if name != protocol.PARENT}
        file = str(Path(stdout.name).absolute())
        self._process = _forked(command[1:], Path.cwd(), environment, file, file)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def send_signal(self, signum: int) -> None:
        os.kill(self._process.pid, signum)


def _forked(
    arguments: Sequence[str], cwd: Path, environment: dict[str, str], out: str, err: str
) -> ForkServerProcess:
    process = _context().Process(target=_become, args=([*arguments], cwd, environment, out, err))
    process.start()
    return process


def _become(
    arguments: list[str], cwd: Path, environment: dict[str, str], out: str, err: str
) -> None:
    """Become ``python *arguments``, and exit."""
    for number, name, mode in (
        (0, os.devnull, os.O_RDONLY),
        (1, out, os.O_WRONLY),
        (2, err, os.O_WRONLY),
    ):
        os.dup2(os.open(name, mode | os.O_APPEND), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    installed = [
        path for path in sys.path if "site-packages" in path or path.startswith(sys.base_prefix)
    ]
    sys.path[:] = ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep), *installed]
    for name in [
        name
        for name in sys.modules
        if name.partition(".")[0] in ("tests", "capsule_lab", "hydra_plugins")
    ]:
        del sys.modules[name]
    how, what, *rest = arguments
    status = 0
    try:
        if how == "-m":
            sys.argv = [what, *rest]
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *rest]
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as ended:
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
