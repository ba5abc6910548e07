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
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from unittest import mock

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


def run(
    arguments: list[str], cwd: Path, environment: dict[str, str], limit: float
) -> tuple[int, str, str]:
    """Return status, output and errors of ``python *arguments``, which must end within ``limit`` seconds."""
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        process = _context().Process(
            target=_become, args=(arguments, cwd, environment, out.name, err.name)
        )
        process.start()
        try:
            process.join(limit)
            if process.exitcode is None:
                raise TimeoutError(f"{arguments} has not ended within {limit} s")
        finally:
            process.kill()
        return process.exitcode, out.read().decode(), err.read().decode()


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
