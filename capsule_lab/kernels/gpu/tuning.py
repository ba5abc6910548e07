"""Block sizes of the kernels: defaults, or those that a search on the same GPU found fastest and stored.

The order in which a kernel adds up, and so the last bit of its results, depends on them. They must not change between
two processes of a run, and no run may wait for a search that it did not ask for. Therefore ``triton.autotune`` is not
used, which searches in the first launch of whichever process comes first and takes whatever was fastest there. Only
``searching`` measures and writes; every other process reads the file once and takes defaults for what it lacks.

The file, ``$CAPSULE_LAB_BLOCKS`` or ``gpu_blocks.json`` in the cache directory of the user, has a section for each
kind of GPU, version of Triton and state of the kernels' source, and in it an entry for each kernel and the sizes that
its machine code depends on. The number of rows, thus the batch, is none of them: a network takes the same blocks for
every batch.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import triton
import triton.testing

from capsule_lab.errors import ConfigError
from capsule_lab.kernels.cache import user_cache
from capsule_lab.system.files import atomically, set_aside

_LOG = logging.getLogger(__name__)
VARIABLE = "CAPSULE_LAB_BLOCKS"
GAIN = 0.97  # ours: of the default's time; what is hardly faster may be slower tomorrow
Result = TypeVar("Result")


class Blocks(NamedTuple):
    """Sizes that change a kernel's speed and the order of its sums.

    Attributes:
        children: at a time, a power of two.
        warps: of a program, a power of two.
        rows: of the batch, for which a program loads a weight once.
        kept: blocks of children whose votes stay in registers.
    """

    children: int
    warps: int
    rows: int = 1
    kept: int = 1


Timer = Callable[[Callable[[], object]], float]
"""Milliseconds of a call."""


def milliseconds(call: Callable[[], object]) -> float:
    """Median of a call on a GPU, whose cache is emptied before each."""
    return float(triton.testing.do_bench(call, warmup=5, rep=20, return_mode="median"))  # ours: milliseconds of calls


def tuned(
    kernel: str,
    shape: Mapping[str, object],
    device: torch.device,
    candidates: Sequence[Blocks],
    run: Callable[[Blocks], Result],
) -> Result:
    """``run`` with the blocks stored for this kernel and shape, else with the first candidate, which is the default.

    Args:
        kernel: its name.
        shape: what its machine code depends on, but for the blocks. Variants that differ little, such as with and
            without distances, have one: the first that is launched is measured for both.
        device: that it runs on.
        candidates: among which a search chooses; the first is the default.
        run: launches the kernel, and can do so again with the same result.
    """
    known = _section(device)
    if not known and _search is None:
        return run(candidates[0])  # in every launch: nothing more than it needs
    name = " ".join([kernel, *(f"{key}={value}" for key, value in shape.items())])
    if _search is not None and name not in known and len(candidates) > 1:
        _search.choose(name, known, candidates, run)
    return run(known.get(name, candidates[0]))


@dataclass
class Search:
    """What a search has measured.

    Attributes:
        timer: of a candidate.
        deadline: of ``time.monotonic``; a kernel that would take longer, were it as slow as the slowest before, keeps
            its default, unless it is searched again.
        rows: for each candidate ``kernel`` (with its shape), its ``Blocks``, ``first_seconds`` of the first launch,
            in which it was compiled, ``microseconds``, or null and ``error``, and whether it was ``chosen``.
        skipped: kernels that found no time.
        longest: seconds that a kernel took.
    """

    timer: Timer
    deadline: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)
    longest: float = 0.0

    def choose(
        self, name: str, known: dict[str, Blocks], candidates: Sequence[Blocks], run: Callable[[Blocks], object]
    ) -> None:
        """Measure the candidates, add the fastest to ``known``, and store it."""
        started = time.monotonic()
        if started + self.longest > self.deadline:
            self.skipped.add(name)
            return
        candidates = list(dict.fromkeys(candidates))
        rows = [self._measured(name, candidate, run) for candidate in candidates]
        times = [math.inf if row["microseconds"] is None else row["microseconds"] for row in rows]
        best = min(range(len(rows)), key=times.__getitem__)
        best = best if times[best] < GAIN * times[0] else 0
        rows[best]["chosen"] = True
        known[name] = candidates[best]
        self.rows += rows
        _write()
        self.longest = max(self.longest, time.monotonic() - started)

    def _measured(self, name: str, blocks: Blocks, run: Callable[[Blocks], object]) -> dict[str, Any]:
        row: dict[str, Any] = {"kernel": name, **blocks._asdict(), "first_seconds": None, "microseconds": None}
        row |= {"chosen": False, "error": None}
        started = time.perf_counter()
        try:
            run(blocks)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            row["first_seconds"] = time.perf_counter() - started
            row["microseconds"] = 1000 * self.timer(lambda: run(blocks))
        except Exception as error:  # of Triton's compiler, ptxas or the driver: too many resources
            row["error"] = " ".join(f"{type(error).__name__}: {error}".split())
        return row


_search: Search | None = None


@contextmanager
def searching(limit: float, timer: Timer = milliseconds) -> Iterator[Search]:
    """Choose and store blocks for every kernel that this block launches and that has none yet.

    Args:
        limit: seconds, after which no other kernel is measured.
        timer: milliseconds of a call.

    Raises:
        OSError: if the file cannot be written.
    """
    global _search
    _search = Search(timer, time.monotonic() + limit)
    try:
        yield _search
    finally:
        _search = None


def path() -> Path | None:
    """The file of stored blocks; ``None`` without a home directory.

    Raises:
        ConfigError: if the environment names a folder or a device.
    """
    named = Path(os.environ.get(VARIABLE, ""))
    if VARIABLE in os.environ and named.exists() and not named.is_file():
        raise ConfigError(f"{VARIABLE} is {named}, which is no file; expected a .json file, that need not be there yet")
    try:
        return Path(os.environ.get(VARIABLE) or user_cache() / "gpu_blocks.json")
    except RuntimeError:
        return None


@functools.cache
def section_name(device: torch.device) -> str:
    """GPU, version of Triton, hash of the kernels' source: blocks found for others are not used."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreter"
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return f"{gpu}, Triton {triton.__version__}, source {digest.hexdigest()[:16]}"


def _section(device: torch.device) -> dict[str, Blocks]:
    return _stored().setdefault(section_name(device), {})


@functools.cache
def _stored() -> dict[str, dict[str, Blocks]]:
    """All sections, read once per process."""
    file = path()
    found = read(file) if file else {}
    if found:
        _LOG.info("block sizes of GPU kernels: from %s", file)
    return found


def read(file: Path) -> dict[str, dict[str, Blocks]]:
    """Sections of a file; a damaged one counts as missing, see ``set_aside``."""
    try:
        content = json.loads(file.read_bytes())
        return {
            section: {name: _checked(Blocks(**blocks)) for name, blocks in entries.items()}
            for section, entries in content.items()
        }
    except OSError:
        return {}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        set_aside(file, f"{type(error).__name__}: {error}")
        return {}


def _checked(blocks: Blocks) -> Blocks:
    for name, number in blocks._asdict().items():
        if type(number) is not int or number < 1 or (name in ("children", "warps") and number & (number - 1)):
            raise ValueError(f"{name} is {number}; expected a positive number, of children and warps a power of two")
    return blocks


def _write() -> None:
    """Merge what is known here into the file, in which another process may have stored more."""
    file = path()
    if file is None:
        return
    merged = {**read(file)}
    for section, entries in _stored().items():
        if entries:
            merged[section] = {**merged.get(section, {}), **entries}
    content = {
        section: {name: blocks._asdict() for name, blocks in entries.items()} for section, entries in merged.items()
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomically(file) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n")
