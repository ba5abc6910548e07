"""``python -m tests.campaign minutes=30 only=sweeps``."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.campaign import interruptions, processes, small_runs, sweeps
from tests.campaign.outcomes import Fault, NotHitError

Case = dict[str, Any]
USAGE = """\
python -m tests.campaign [minutes=30] [seed=0] [only=<kind>,<kind>] [case=<number>]
minutes=<number>   to try for; a case that has begun is finished
only=<kind>,…      of: {kinds}
case=<number>      this one alone, with only=<its kind> and its seed=, as a failure names them"""


class Kind(NamedTuple):
    """A kind of fault.

    Attributes:
        title: for the table.
        cases: those of a seed, always the same.
        attempt: tries one; raises ``Fault`` if it is not survived, ``NotHitError`` if it did not take place.
    """

    title: str
    cases: Callable[[int], Iterator[Case]]
    attempt: Callable[[Case], None]


KINDS = {
    "crash_points": Kind(
        "kill -9 before every change of a file, resume", interruptions.crash_points, interruptions.try_crash_point
    ),
    "hooks": Kind("a signal in every hook of training, resume", interruptions.hooks, interruptions.try_hook),
    "chains": Kind("chains of random signals until finished", interruptions.chains, interruptions.try_chain),
    "real_commands": Kind(
        "signals to real commands, imports included", interruptions.real_commands, interruptions.try_real_command
    ),
    "sweeps": Kind("a process of a sweep is signalled", sweeps.interrupted_sweeps, sweeps.try_interrupted_sweep),
    "ranks": Kind("one of two DDP processes is killed, stopped or signalled", sweeps.ranks, sweeps.try_rank),
    "at_once": Kind("runs, reports and locks at once", sweeps.at_once, sweeps.try_at_once),
}


def run(kinds: Mapping[str, Kind], minutes: float, seed: int) -> bool:
    """Try faults of all kinds, the kind next that has had the least time; whether all were survived."""
    spent = dict.fromkeys(kinds, 0.0)
    outcomes = {name: Counter[str]() for name in kinds}
    # when the cases of a seed are used up, those of the next follow
    cases = {
        name: ((each, case) for each in itertools.count(seed) for case in enumerate(kind.cases(each)))
        for name, kind in kinds.items()
    }
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        name = min(kinds, key=lambda name: spent[name])
        start_time = time.monotonic()
        of_seed, (number, case) = next(cases[name])
        failure = attempt(kinds[name], case)
        outcomes[name]["not hit" if failure is None else "failed" if failure else "survived"] += 1
        if failure:
            sys.stdout.write(f"{failure}: only={name} seed={of_seed} case={number} {json.dumps(case)}\n")
        spent[name] += time.monotonic() - start_time
    sys.stdout.write("| campaign | survived | failed | not hit |\n|---|---|---|---|\n")
    for name, kind in kinds.items():
        counts = [str(outcomes[name][key]) for key in ("survived", "failed", "not hit")]
        sys.stdout.write(f"| {kind.title} | {' | '.join(counts)} |\n")
    return not any(outcomes[name]["failed"] for name in kinds)


def attempt(kind: Kind, case: Case) -> str | None:
    """Why a fault was not survived, nothing if it was, ``None`` if it did not take place."""
    try:
        kind.attempt(case)
    except NotHitError:
        return None
    except Fault as fault:
        return str(fault)
    except Exception as error:  # what was left cannot be read: not survived, too
        return f"unreadable: {type(error).__name__}: {error} {traceback.format_exc(limit=-2)}".replace("\n", " ")
    return ""


def main(arguments: Sequence[str], kinds: Mapping[str, Kind] = KINDS) -> int:
    """The command; its exit status."""
    options = dict(argument.partition("=")[::2] for argument in arguments)
    names = options["only"].split(",") if "only" in options else [*kinds]
    if {*options} - {"minutes", "seed", "only", "case"} or not {*names} <= {*kinds}:
        sys.stderr.write(USAGE.format(kinds=", ".join(kinds)) + "\n")
        return 2
    seed = int(options.get("seed", 0))
    small_runs.TEMPORARY[:] = [Path(tempfile.mkdtemp(prefix="campaign-"))]
    try:
        if "case" in options:
            kind = kinds[names[0]]
            failure = attempt(kind, next(itertools.islice(kind.cases(seed), int(options["case"]), None)))
            sys.stdout.write(f"{'not hit' if failure is None else failure or 'survived'}\n")
            return int(bool(failure))
        return int(not run({name: kinds[name] for name in names}, float(options.get("minutes", 30)), seed))
    finally:
        shutil.rmtree(small_runs.TEMPORARY[0], ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what it has started ends with it
    processes.preload()
    sys.exit(main(sys.argv[1:]))
