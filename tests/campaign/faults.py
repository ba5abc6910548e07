"""Random faults: runs and sweeps that are killed or signalled, and commands that run at the same time."""

import functools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.campaign.outcomes import (
    Fault,
    NotHitError,
    ended,
    expect_equal,
    expect_sentence,
    expect_success,
    stopped_by,
)
from tests.campaign.processes import STOPPING, Process, executed, forked, status_of
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, TINY_CNN, TINY_DATA
from tests.helpers.tables import write_table

ANY_SIGNAL = (*STOPPING, signal.SIGKILL)
GRACE = 10.0  # ours: seconds after which nothing lives on
IMPORT_SECONDS = 5.0  # ours: what the shell's command takes longer
# ours: seconds in which a run of two processes ends when one of them stands still
RANK_LIMIT = 120.0
EPOCHS = [*TINY_CAPSNET, "trainer.max_epochs=3", *NO_PICTURES]
BY_STEPS = ["trainer.max_epochs=-1", "trainer.max_steps=7", "trainer.check_val_every_n_epoch=null"]
EMCAPS = [
    "model=em_caps_small",
    "model.channels=4",
    "model.primary.types=2",
    "model.conv.types=[2,2]",
]
CONFIGURATIONS = (
    EPOCHS,
    [*TINY_CAPSNET, "trainer.max_epochs=2"],  # with pictures
    [*TINY_CNN, *BY_STEPS, "trainer.val_check_interval=3", *NO_PICTURES],  # an epoch has four steps
    [*TINY_CNN, "trainer.max_epochs=3", "trainer.accumulate_grad_batches=2", *NO_PICTURES],
    [*EMCAPS, "trainer.max_epochs=2", *NO_PICTURES],
    [*TINY_CAPSNET, "data=multimnist", "trainer.max_epochs=2", *NO_PICTURES],
)
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate")
"""Audit events of changes, besides ``open`` for writing."""
SAVES_OFTEN = "callbacks.last.every_minutes=0.0001"
RESUME = "train.resume=true"
TEMPORARY: list[Path] = []
"""The folder of all files of the campaign; the runner makes and removes it."""


class Place(NamedTuple):
    """A folder for one case, and its processes."""

    folder: Path
    started: list[Process]


@contextmanager
def fresh_folder() -> Iterator[Place]:
    """A place whose processes are killed at the end, when its folder is removed."""
    place = Place(Path(tempfile.mkdtemp(dir=TEMPORARY[0])), [])
    try:
        yield place
    finally:
        for process in place.started:
            process.end()
        shutil.rmtree(place.folder, ignore_errors=True)


class Case:
    """A folder in which one command runs once or several times, compared with an undisturbed run of the command."""

    def __init__(self, place: Place, command: str, *arguments: str) -> None:
        self.folder, self.started = place
        self.command = command
        self.arguments = arguments

    def start(self, *more: str, **options: Any) -> Process:
        return self.do(run(self.command, *self.arguments, *more, **options))

    def do(self, function: Callable[[], Any]) -> Process:
        process = Process(function, self.folder)
        self.started.append(process)
        return process

    def finish(self) -> None:
        """Check that the same command without a fault gives the same results and leaves no other files."""
        again = self.start(RESUME) if self.command == "train" else self.start()
        expect_success(ended(again))
        self.compare()

    def compare(self) -> None:
        expect_equal(self.folder, reference(self.command, *self.arguments).folder)


def run(
    command: str, *arguments: str, prepare: Callable[[], Any] | None = None, imports: bool = False
) -> Callable[[], Any]:
    module = f"capsule_lab.{command}"
    if imports:
        return executed(module, *arguments)
    return forked(module, *arguments, prepare=prepare)


class Reference(NamedTuple):
    """An undisturbed command: its folder, its duration, and its number of changes of files."""

    folder: Path
    seconds: float
    changes: int


@functools.cache
def reference(command: str, *arguments: str) -> Reference:
    folder = Path(tempfile.mkdtemp(dir=TEMPORARY[0]))
    function = run(command, *arguments, prepare=counted(folder, 0))
    start_time = time.monotonic()
    expect_success(ended(Process(function, folder)))
    seconds = time.monotonic() - start_time
    return Reference(folder, seconds, (folder / "changes").stat().st_size)


def counted(folder: Path, kill_at: int) -> Callable[[], Any]:
    """Make a process kill itself before its change number ``kill_at`` of a file or folder below ``folder/runs``."""

    def prepare() -> None:
        file = (folder / "changes").open("ab", buffering=0)
        runs = str(folder / "runs")

        def audit(name: str, arguments: tuple[Any, ...]) -> None:
            if _changed_path(name, arguments).startswith(runs):
                file.write(b".")
                if file.tell() == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(audit)

    return prepare


def _changed_path(event: str, arguments: tuple[Any, ...]) -> str:
    """The file or folder that an audit event changes, absolute; empty for other events and open files."""
    if event == "open":
        path, _, flags = arguments
        writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
        if not isinstance(flags, int) or not flags & writing:
            return ""
    elif event in CHANGES:
        path = arguments[1] if event == "os.rename" else arguments[0]
    else:
        return ""
    if not isinstance(path, str | bytes | os.PathLike):
        return ""
    return os.path.abspath(os.fsdecode(path))


# --- a run -----------------------------------------------------------------------------------------------------------


def crash_point(draw: random.Random) -> None:
    overrides = [*TINY_DATA, *draw.choice(CONFIGURATIONS), SAVES_OFTEN]
    at = draw.randint(1, reference("train", *overrides).changes)
    with fresh_folder() as place:
        case = Case(place, "train", *overrides)
        result = ended(case.start(prepare=counted(case.folder, at)))
        if result.status != -signal.SIGKILL:
            raise NotHitError
        case.finish()


def chain(draw: random.Random) -> None:
    overrides = [*TINY_DATA, *draw.choice(CONFIGURATIONS), SAVES_OFTEN]
    seconds = reference("train", *overrides).seconds
    hit = False
    with fresh_folder() as place:
        case = Case(place, "train", *overrides)
        for _ in range(draw.randint(1, 6)):
            imports = draw.random() < 0.25
            signum = draw.choice(ANY_SIGNAL)
            longest = seconds + IMPORT_SECONDS if imports else seconds
            moment = draw.random() * longest
            process = case.start(RESUME, imports=imports)
            if process.wait(moment) is None:
                hit |= process.send(process.pid, signum)
            stopped_by(ended(process), signum)
        if not hit:
            raise NotHitError
        case.finish()


def rank(draw: random.Random) -> None:
    overrides = [*TINY_DATA, *EPOCHS, "trainer.devices=2", "trainer.strategy=ddp"]
    signum = draw.choice([*ANY_SIGNAL, signal.SIGKILL, signal.SIGSTOP])
    number = draw.randrange(2)
    at = draw.uniform(0, 0.9) * reference("train", *overrides).seconds
    with fresh_folder() as place:
        case = Case(place, "train", *overrides)
        process = case.start()
        if process.wait(at) is not None:
            raise NotHitError
        while number and len(process.members()) < 2 and process.wait(0.05) is None:
            pass  # the second is not there yet
        targets = [process.pid]
        if number:
            targets = [pid for pid in process.members() if pid != process.pid]
        if not targets or not process.send(targets[0], signum):
            raise NotHitError
        target = targets[0]
        left = process.remain(RANK_LIMIT, but=target if signum == signal.SIGSTOP else 0)
        if left:
            after = f"{RANK_LIMIT} s after {signum.name} to rank {number}"
            raise Fault("alive", f"{len(left)} processes {after}")
        process.send(target, signal.SIGCONT)
        result = ended(process, GRACE)
        if result.status != -signum:
            expect_sentence(result, 2, 128 + signum, most=2)
        case.finish()


# --- several commands ------------------------------------------------------------------------------------------------


@functools.cache
def table() -> str:
    """A table of four runs, of a second each, and two evaluations."""
    rows = [
        {"name": "one", "overrides": []},
        {"name": "uniform", "overrides": ["routing=uniform"]},
        {"name": "fewer", "of": "one", "evaluate": ["data.eval_images=100"]},
    ]
    file = write_table(TEMPORARY[0], base=[*TINY_DATA, *EPOCHS], rows=rows)
    return f"table={file}"


def sweep(draw: random.Random) -> None:
    command = ("sweep", table(), "launcher=gpus", "hydra.launcher.jobs=2")
    target = draw.choice(["sweep", "job", "all"])
    signum = draw.choice(ANY_SIGNAL)
    at = draw.uniform(0, 0.9) * reference(*command).seconds
    times = 2 if draw.random() < 0.2 else 1
    with fresh_folder() as place:
        case = Case(place, *command)
        process = case.start()
        for pid in _targets(process, target, at) * times:
            process.send(pid, signum)
        if target == "sweep" and signum == signal.SIGKILL:
            _nothing_alive(process)
        result = ended(process)
        _nothing_alive(process)
        if result.status != -signum:
            expect_sentence(result, 2, 128 + signum)
        case.finish()


def _targets(process: Process, target: str, seconds: float) -> list[int]:
    """Wait for ``seconds`` and until there is a process of this kind; return those processes of the sweep."""
    process.wait(seconds)
    while process.wait(0.01) is None:
        members = process.members()
        jobs = [pid for pid in members if status_of(pid)[1] == process.pid]
        chosen = {"sweep": [process.pid], "job": jobs[:1], "all": members}[target]
        if chosen:
            return chosen
    raise NotHitError


def _nothing_alive(process: Process) -> None:
    left = process.remain(GRACE)
    if left:
        raise Fault("alive", f"{len(left)} processes after {GRACE} s")


def at_once(draw: random.Random) -> None:
    """The same run in several processes, or many processes that take one lock."""
    kind = draw.choice([_runs, _locks])
    delays = [draw.random() for _ in range(draw.randint(2, 5))]
    with fresh_folder() as place:
        kind(place, delays)


def _runs(place: Place, delays: list[float]) -> None:
    case = Case(place, "train", *TINY_DATA, *EPOCHS)
    for delay in delays:
        case.start()
        time.sleep(delay)
    results = [ended(process) for process in case.started]
    for result in results:
        expect_sentence(result)
    expect_success(min(results, key=lambda result: result.status))
    case.compare()


def _locks(place: Place, delays: list[float]) -> None:
    case = Case(place, "train")
    for delay in delays:
        holders = [case.do(partial(_take_lock, case.folder, times=1000)) for _ in range(4)]
        time.sleep(1 + delay)
        for holder in holders:
            holder.send(holder.pid, signal.SIGKILL)
        for result in map(ended, holders):
            if result.status != -signal.SIGKILL:
                raise Fault("lock", result.err)
    result = ended(case.do(partial(_take_lock, case.folder, times=1)), 30)
    if result.status:
        raise Fault("lock", f"cannot be had after its holders were killed: {result.err}")


def _take_lock(folder: Path, times: int) -> None:
    """Take the lock of one configuration so many times, and read its state in between."""
    from capsule_lab.commands import compose
    from capsule_lab.errors import RunError
    from capsule_lab.runs import directories, lock

    config = compose("train", TINY_DATA)
    fingerprint = directories.config_hash(config)
    holder = folder / "holder"
    while times:
        lock.is_locked(fingerprint)
        lock.read_record(fingerprint)
        try:
            with lock.train_lock(config):
                _check_alone(holder)
                holder.write_text(str(os.getpid()))
                time.sleep(0.002 * random.random())
                holder.write_text("0")
                times -= 1
        except RunError:
            pass  # another process has it


def _check_alone(holder: Path) -> None:
    """Check that no living process is named in the file of the lock's holder."""
    other = int(holder.read_text() or 0) if holder.is_file() else 0
    if other not in (0, os.getpid()):
        state, _, _ = status_of(other)
        assert state in "XZ", f"{other} holds it as well"
