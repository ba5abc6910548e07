"""``python -m tests.campaign minutes=30 only=sweeps``."""

import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.campaign import faults, processes
from tests.campaign.outcomes import Fault, NotHitError

Try = Callable[[random.Random], None]
KINDS: dict[str, tuple[str, Try]] = {
    "crash_points": ("kill -9 before a change of a file, resume", faults.crash_point),
    "chains": ("chains of random signals until finished, imports included", faults.chain),
    "sweeps": ("a process of a sweep is signalled", faults.sweep),
    "ranks": ("one of two DDP processes is killed, stopped or signalled", faults.rank),
    "at_once": ("runs and locks at once", faults.at_once),
}
USAGE = """\
python -m tests.campaign [minutes=30] [seed=0] [only=<kind>,<kind>] [case=<number>]
minutes=<number>   to try for; a case that has begun is finished
only=<kind>,…      of: {kinds}
case=<number>      this one alone, with only=<its kind> and its seed=, as a failure names them"""


def run(kinds: Mapping[str, tuple[str, Try]], minutes: float, seed: int) -> bool:
    """Try faults of all kinds, always of the kind with the least time so far; return whether all were survived."""
    spent = dict.fromkeys(kinds, 0.0)
    outcomes = {name: Counter[str]() for name in kinds}
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        name = min(kinds, key=lambda name: spent[name])
        start_time = time.monotonic()
        number = outcomes[name].total()
        _, fault = kinds[name]
        outcome = attempt(name, fault, seed, number)
        if ":" in outcome:
            outcomes[name]["failed"] += 1
            sys.stdout.write(f"{outcome}: only={name} seed={seed} case={number}\n")
        else:
            outcomes[name][outcome] += 1
        spent[name] += time.monotonic() - start_time
    sys.stdout.write("| campaign | survived | failed | not hit |\n|---|---|---|---|\n")
    for name, (title, _) in kinds.items():
        counts = outcomes[name]
        survived, failed = counts["survived"], counts["failed"]
        sys.stdout.write(f"| {title} | {survived} | {failed} | {counts['not hit']} |\n")
    return not any(counts["failed"] for counts in outcomes.values())


def attempt(name: str, fault: Try, seed: int, number: int) -> str:
    """Return ``survived``, ``not hit``, or the kind of failure and its details, with a colon between."""
    try:
        fault(random.Random(f"{name} {seed} {number}"))
    except NotHitError:
        return "not hit"
    except Fault as error:
        return str(error)
    except Exception as error:  # unreadable files count as a failure
        where = traceback.format_exc(limit=-2)
        message = f"unreadable: {type(error).__name__}: {error} {where}"
        return message.replace("\n", " ")
    return "survived"


def main(arguments: Sequence[str], kinds: Mapping[str, tuple[str, Try]] = KINDS) -> int:
    """Run the command and return its exit status."""
    options = {}
    for argument in arguments:
        key, _, value = argument.partition("=")
        options[key] = value
    names = options["only"].split(",") if "only" in options else [*kinds]
    if {*options} - {"minutes", "seed", "only", "case"} or not {*names} <= {*kinds}:
        sys.stderr.write(USAGE.format(kinds=", ".join(kinds)) + "\n")
        return 2
    seed = int(options.get("seed", 0))
    faults.TEMPORARY[:] = [Path(tempfile.mkdtemp(prefix="campaign-"))]
    try:
        if "case" in options:
            name = names[0]
            _, fault = kinds[name]
            outcome = attempt(name, fault, seed, int(options["case"]))
            sys.stdout.write(f"{outcome}\n")
            return int(":" in outcome)
        chosen = {name: kinds[name] for name in names}
        all_survived = run(chosen, float(options.get("minutes", 30)), seed)
        return int(not all_survived)
    finally:
        shutil.rmtree(faults.TEMPORARY[0], ignore_errors=True)


if __name__ == "__main__":
    # its processes end with it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    processes.preload()
    sys.exit(main(sys.argv[1:]))
