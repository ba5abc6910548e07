"""Tries faults for so long, then says how many were survived."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from capsule_lab.system.files import atomically
from tests.campaign import small_runs
from tests.campaign.outcomes import Fault, NotHitError

Case = dict[str, Any]
USAGE = """\
python -m tests.campaign [minutes=30] [seed=0] [only=<kind>,<kind>] [record=runs/campaign.json] [case=<number>]
minutes=<number>   to try for; a case that has begun is finished
only=<kind>,…      of: {kinds}
record=<file>      what was tried, continued if it is there already
case=<number>      this one alone, with only=<its kind> and its seed=, as a failure names them"""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        title: for the table.
        cases: those of a seed, always the same.
        attempt: tries one; raises ``Fault`` if it is not survived, ``NotHitError`` if it did not take place.
    """

    title: str
    cases: Callable[[int], Iterator[Case]]
    attempt: Callable[[Case], None]


@dataclasses.dataclass
class Tally:
    """What was tried of a kind; ``seed`` and ``case`` are those that come next."""

    seed: int
    case: int = 0
    tried: int = 0
    survived: int = 0
    not_hit: int = 0
    seconds: float = 0.0
    failures: list[str] = dataclasses.field(default_factory=list)


def run(kinds: Mapping[str, Kind], minutes: float, seed: int, record: Path) -> bool:
    """Try faults of all kinds, the kind next that has had the least time; whether all were survived.

    Args:
        kinds: by name.
        minutes: to try for.
        seed: of the first cases; when those of a seed are used up, the next follows.
        record: a file with everything tried so far, which is continued.
    """
    earlier = json.loads(record.read_text()) if record.is_file() else {}
    tallies = {name: Tally(**earlier.get(name, {"seed": seed})) for name in kinds}
    spent = dict.fromkeys(kinds, 0.0)
    cases = {name: itertools.islice(kinds[name].cases(tallies[name].seed), tallies[name].case, None) for name in kinds}
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        name = min(kinds, key=lambda name: spent[name])
        tally, began = tallies[name], time.monotonic()
        try:
            case = next(cases[name])
        except StopIteration:
            tally.seed, tally.case = tally.seed + 1, 0
            cases[name] = kinds[name].cases(tally.seed)
            spent[name] += 0.01  # a kind without cases does not keep the others from theirs
            continue
        failure = attempt(kinds[name], case)
        if failure is None:
            tally.not_hit += 1
        else:
            tally.tried += 1
            tally.survived += not failure
        if failure:
            tally.failures.append(f"{failure}: only={name} seed={tally.seed} case={tally.case} {json.dumps(case)}")
            sys.stdout.write(tally.failures[-1] + "\n")
        tally.case += 1
        spent[name] += (taken := time.monotonic() - began)
        tally.seconds += taken
        write(record, {name: dataclasses.asdict(tally) for name, tally in tallies.items()})
    sys.stdout.write(table(kinds, tallies))
    return all(tally.tried == tally.survived for tally in tallies.values())


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


def table(kinds: Mapping[str, Kind], tallies: Mapping[str, Tally]) -> str:
    """Markdown, one row for each kind."""
    rows = [(kinds[name].title, tally.tried, tally.survived, tally.not_hit) for name, tally in tallies.items()]
    rows.append(("all", *(sum(row[column] for row in rows) for column in (1, 2, 3))))
    lines = ["| campaign | tried | survived | not hit |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows), ""])


def write(record: Path, content: Mapping[str, Any]) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    with atomically(record) as temporary:
        temporary.write_text(json.dumps(content, indent=1))


def main(arguments: Sequence[str], kinds: Mapping[str, Kind]) -> int:
    """The command; its exit status."""
    options = dict(argument.partition("=")[::2] for argument in arguments)
    unknown = {*options} - {"minutes", "seed", "only", "record", "case"}
    names = options["only"].split(",") if "only" in options else [*kinds]
    if unknown or not {*names} <= {*kinds}:
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
        record = Path(options.get("record", "runs/campaign.json"))
        return int(not run({name: kinds[name] for name in names}, float(options.get("minutes", 30)), seed, record))
    finally:
        shutil.rmtree(small_runs.TEMPORARY[0], ignore_errors=True)
