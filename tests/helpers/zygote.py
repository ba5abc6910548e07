"""Commands as processes of their own without their imports: forked from one process that has imported the libraries.

An interpreter needs seconds of processor time to import torch, Lightning and Hydra, and a tenth of one to fork. What
is forked has its own working directory, environment, standard streams, arguments and ``sys.path``, imports
``capsule_lab`` itself, and ends as a process of its own does. Tests of the start itself, of imports and of signals
during them take ``commands.start`` or ``commands.interpreter``.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

LIBRARIES = (
    *("torch", "torchvision", "lightning", "lightning.pytorch", "torchmetrics", "hydra", "omegaconf", "pandas"),
    *("scipy.stats", "scipy.ndimage", "sklearn.model_selection", "sklearn.metrics", "sklearn.linear_model"),
    *("matplotlib.figure", "matplotlib.pyplot", "rich", "pydantic", "pooch", "jaxtyping", "filelock", "torch._dynamo"),
    *("numba", "jinja2", "tensorboard", "sklearn.datasets", "torchvision.transforms.v2", "torchvision.models.resnet"),
)


class Zygote:
    """The process that is forked, from the first command on to the end of this process."""

    def __init__(self, root: Path) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="zygote-")) / "socket"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(self.path))
            server.listen()
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"from tests.helpers import zygote; zygote.serve({server.fileno()})"],
                cwd=root,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)},
                pass_fds=[server.fileno()],
                stdin=subprocess.PIPE,  # its end tells the zygote that this process has ended
            )
        atexit.register(shutil.rmtree, self.path.parent, ignore_errors=True)
        atexit.register(self.process.wait)
        atexit.register(self.process.kill)

    def run(self, arguments: list[str], cwd: Path, environment: dict[str, str], limit: float) -> tuple[int, str, str]:
        """Status, standard output and standard error of ``python *arguments``."""
        with (
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
            socket.socket(socket.AF_UNIX) as connection,
        ):
            connection.settimeout(limit)
            connection.connect(str(self.path))
            request = json.dumps({"arguments": arguments, "cwd": str(cwd), "environment": environment}).encode()
            socket.send_fds(connection, [len(request).to_bytes(4, "big")], [out.fileno(), err.fileno()])
            connection.sendall(request)
            pid = int.from_bytes(_receive(connection, 4), "big")
            try:
                status = int.from_bytes(_receive(connection, 4), "big", signed=True)
            except BaseException:
                os.kill(pid, signal.SIGKILL)
                raise
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
        return status, *texts


def _receive(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = connection.recv(count - len(found))
        if not part:
            raise ConnectionError("the other process has ended")
        found += part
    return found


def serve(descriptor: int) -> None:
    """Import the libraries, then run a child for every connection, one after the other, until standard input ends."""
    for name in LIBRARIES:
        importlib.import_module(name)
    with socket.socket(fileno=descriptor) as server:
        while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
            connection, _ = server.accept()
            with connection:
                size, descriptors, *_ = socket.recv_fds(connection, 4, 2)
                request = json.loads(_receive(connection, int.from_bytes(size, "big")))
                child = os.fork()
                if child == 0:
                    _become(request, *descriptors)
                for each in descriptors:
                    os.close(each)
                try:
                    connection.sendall(child.to_bytes(4, "big"))
                    _, status = os.waitpid(child, 0)
                    connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
                except BrokenPipeError:  # the test has reached its limit
                    continue


def _become(request: dict[str, Any], out: int, err: int) -> None:
    """Be ``python *arguments``, and end."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:] = ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep), *_installed()]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "capsule_lab", "hydra_plugins")]:
        del sys.modules[name]
    how, what, *rest = request["arguments"]
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


def _installed() -> list[str]:
    return [path for path in sys.path if "site-packages" in path or path.startswith(sys.base_prefix)]
