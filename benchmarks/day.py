"""The day of a GPU that is lent for minutes: ``python -m benchmarks.day part=1 out=<folder>``.

Steps of ``conf/day.yaml`` run one after the other in processes of their own. A step that fails, or whose time ends,
does not stop the next ones. What is worth copying from the machine is written to one folder while a step runs. Nothing
here imports torch, needs an installation, or calls a program other than Python.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from benchmarks import archives, options
from capsule_lab.errors import ConfigError
from capsule_lab.runs import files

ROOT = Path(__file__).parents[1]
RESERVE = (
    30  # ours: seconds of a step for starting Python, 7 to 13 on a lent machine, and for its end
)
PACK_EVERY = 20.0  # ours: seconds between archives of a step that runs
PATIENCE = 10.0  # ours: seconds between an interrupt and a kill
SHOWN, WIDTH = 15, 300  # ours: last lines of a log, and characters of each


@dataclass(frozen=True)
class Step:
    """A step of the day.

    Attributes:
        name: key of ``steps`` in ``conf/day.yaml``.
        seconds: limit of its time.
        arguments: a module and its arguments, with ``{seconds}`` and ``{folder}``.
    """

    name: str
    seconds: float
    arguments: tuple[str, ...]

    def command(self, seconds: float, folder: Path) -> list[str]:
        """Return the command of the step, for a limit that may be shorter than its own."""
        command = [sys.executable, "-m"]
        own_seconds = max(1, int(seconds - RESERVE))
        for argument in self.arguments:
            with_seconds = argument.replace("{seconds}", str(own_seconds))
            command.append(with_seconds.replace("{folder}", str(folder)))
        return command


def main(config: DictConfig, words: Sequence[str] = ()) -> bool:
    """Run steps, and return whether all of them succeeded.

    Args:
        config: options of ``conf/day.yaml``.
        words: steps, ``name:seconds`` or ``name:seconds:more arguments``; by default those of ``config.part``.
    """
    end = time.monotonic() + config.limit
    # a shell ignores it for commands in the background, and steps that inherit this could not be interrupted
    signal.signal(signal.SIGINT, signal.default_int_handler)
    steps = [step_of(word, config.steps) for word in words or words_of(config)]
    out = Path(str(config.out)).absolute()
    work = Path(str(config.work)).absolute()
    environment = environment_of(work)
    if config.kernels is not None:
        archives.unpack_kernels(Path(str(config.kernels)), work / "triton")
    results: list[dict[str, Any]] = []
    for step in steps:
        seconds = min(step.seconds, end - time.monotonic())
        results.append(run(step, seconds, work / step.name, out, environment))
        archives.pack(work / "triton", out / "triton.tar.gz")
        files.write_record(out / "day.json", {"steps": results})
    return all(result["status"] == "done" for result in results)


def words_of(config: DictConfig) -> list[str]:
    """Return the steps of a part of the prepared list."""
    if config.part not in config.parts:
        raise ConfigError(
            f"part is {config.part}; expected one of {', '.join(map(str, config.parts))}"
        )
    return list(config.parts[config.part])


def step_of(word: str, steps: Mapping[str, str]) -> Step:
    """Read ``name:seconds:more arguments``."""
    name, _, rest = word.partition(":")
    seconds, _, more = rest.partition(":")
    if name not in steps or not seconds.isdecimal():
        expected = f"name:seconds or name:seconds:arguments, with a name of {', '.join(steps)}"
        raise ConfigError(f"a step is {word}; expected {expected}")
    return Step(name, int(seconds), (*shlex.split(steps[name]), *shlex.split(more)))


def environment_of(work: Path) -> dict[str, str]:
    """Return the environment of all steps: this checkout first on the path, and one cache of kernels."""
    path = str(ROOT)
    if "PYTHONPATH" in os.environ:
        path += os.pathsep + os.environ["PYTHONPATH"]
    return {
        "OMP_NUM_THREADS": "2",  # ours: several processes run at a time
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "TRITON_CACHE_DIR": str(work / "triton"),
        "TRITON_STORE_BINARY_ONLY": "1",  # less than half of the bytes; the rest is for reading
    }


def run(
    step: Step, seconds: float, folder: Path, out: Path, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Run a step in ``folder`` and pack the folder in ``out``; return the status, the time and the command."""
    command = step.command(seconds, folder)
    text = shlex.join(["python", *command[1:]])
    if seconds < 1:
        say(f"{step.name}: no time is left")
        return {"step": step.name, "command": text, "seconds": 0.0, "status": "no time is left"}
    say(f"{step.name}, at most {seconds:.0f} s: {text}")
    start_time = time.monotonic()
    log = folder / "log.txt"
    archive = out / f"{step.name}.tar.gz"
    folder.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environment, "CAPSULE_LAB_RUNS": str(folder / "runs")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,  # a kill reaches the processes that the step started
        )
    try:
        in_time = wait(process, seconds, folder, archive)
    finally:
        stop(process)
    archives.pack(folder, archive)
    status = "done"
    if process.returncode != 0:
        status = f"failed with status {process.returncode}"
    if not in_time:
        status = "its time ended"
    lines = [line[:WIDTH] for line in files.tail(log, SHOWN)]
    say(*lines, f"{step.name}: {status}")
    return {
        "step": step.name,
        "command": text,
        "seconds": time.monotonic() - start_time,
        "status": status,
    }


def wait(process: subprocess.Popen[bytes], seconds: float, folder: Path, archive: Path) -> bool:
    """Wait for a process, and pack its folder from time to time; return whether it ended in time."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(left, PACK_EVERY))
            return True
        archives.pack(folder, archive)
    return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a process and those that it started, as Ctrl-C does, and kill what does not end."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(PATIENCE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def say(*lines: str) -> None:
    """Print lines at once, the last one with the time."""
    *text, last = lines
    now = time.strftime("%H:%M:%S")
    for line in (*text, f"== {now} {last}"):
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def split(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the overrides ``key=value`` and the steps ``name:seconds`` of a command line."""
    overrides: list[str] = []
    words: list[str] = []
    for argument in arguments:
        key, equals, _ = argument.partition("=")
        if equals and ":" not in key:
            overrides.append(argument)
        else:
            words.append(argument)
    return overrides, words


if __name__ == "__main__":
    try:
        overrides, words = split(sys.argv[1:])
        succeeded = main(options.load(["day"], overrides, free=["parts", "steps"]), words)
    except ConfigError as error:
        sys.exit(f"benchmarks.day: {error}")
    sys.exit(0 if succeeded else 1)
