"""Recomputes one claim from its records: ``make claim id=C-001``; with ``train=true``, trains it with new seeds."""

from __future__ import annotations

import logging
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from capsule_lab.errors import CapsuleLabError, ConfigError, closest, printable
from capsule_studies.claims.effects import Effect, effect_of
from capsule_studies.claims.measured import (
    COUNT,
    ratios_of,
    record_of,
    records_of,
    recounted,
    shown,
)
from capsule_studies.claims.read import ROOT, measured, read
from capsule_studies.claims.recompute import archives_of, recomputed, runs_of
from capsule_studies.claims.texts import interval, p_value, signed, title
from capsule_studies.claims.verdicts import Judged, judged

_TOLERANCE = 1e-4  # relative: values in results/ are rounded to six digits


@dataclass(frozen=True)
class Request:
    """Arguments of the command; ``overrides`` are all that it does not know."""

    claim: dict[str, Any]
    train: bool = False
    seeds: tuple[int, ...] = ()
    overrides: tuple[str, ...] = ()


def main(arguments: Sequence[str]) -> int:
    """Recompute a claim, or train it; return the status of the process: 1 if a number is not the recorded one."""
    try:
        request = requested(arguments)
        if request.train:
            return _train(request)
        claim = request.claim
        return _measure(claim) if "ratios" in claim else _recompute(claim)
    except CapsuleLabError as error:
        sys.stderr.write(f"claim: {printable(str(error))}\n")
        return 2


def requested(arguments: Sequence[str]) -> Request:
    """Read ``id=``, ``train=`` and ``seeds=``.

    Raises:
        ConfigError: if the id does not exist, or a value is not of its kind.
    """
    own: dict[str, Any] = {}
    overrides = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key in ("id", "train", "seeds"):
            own[key] = yaml.safe_load(value)
        else:
            overrides.append(argument)
    claims = {claim["id"]: claim for claim in [*read(), *measured()]}
    name = str(own.get("id", ""))
    if name not in claims:
        nearest = closest(re.sub(r"\d+", lambda digits: digits[0].zfill(3), name), claims)
        meant = f"; did you mean {nearest}?" if nearest else ";"
        first, *_, last = sorted(claims)
        raise ConfigError(f"id={name} does not exist{meant} docs/claims.md has {first} to {last}")
    train = own.get("train", False)
    if not isinstance(train, bool):
        raise ConfigError(f"train is {train}; expected true or false")
    if not train and (overrides or "seeds" in own):
        given = [*overrides, *(["seeds"] if "seeds" in own else [])]
        raise ConfigError(f"{', '.join(given)} needs train=true; without it, records are read only")
    return Request(claims[name], train, _seeds(own.get("seeds")), tuple(overrides))


def _seeds(given: Any) -> tuple[int, ...]:
    if given is None:
        return ()
    seeds = given if isinstance(given, list) else []
    if len({*map(str, seeds)}) < 2 or not all(type(seed) is int for seed in seeds):
        raise ConfigError(f"seeds is {given}; expected two or more numbers, such as [200,201]")
    return tuple(seeds)


def _recompute(claim: dict[str, Any]) -> int:
    found = recomputed(claim)
    before, now = _judged(claim, found.effect)
    recorded = before.effect
    agrees = _agree(before, now)
    agreement = "yes" if agrees else "NO"
    if not found.from_archive and "comparison" not in claim:
        agreement = "nothing to compare: these runs are the record"
    _print(
        {
            claim["id"]: title(now),
            "data": _badge(now),
            "from": found.source,
            "n": _count(found.effect),
            "test": found.effect.found.test,
            "difference": f"{interval(found.effect)} {claim['unit']}; {claim['smallest']:g} would matter",
            "Hedges' g": _g(found.effect),
            "p": f"no difference: {p_value(now.p)}; a difference that matters, as claimed: "
            f"{p_value(now.p_of_smaller)}; in the other direction: {p_value(now.p_of_larger)} (Holm, "
            f"{now.tests} tests)",
            "verdict": now.verdict,
            "recorded": f"{interval(recorded)} {claim['unit']}, {before.verdict} ({_record(claim)})",
            "agreement": agreement,
            "files": ", ".join(_files(claim)),
        }
    )
    return 0 if agrees else 1


def _measure(row: dict[str, Any]) -> int:
    """Compute the ratios of a row again from its record, and count what is counted."""
    lines = {row["id"]: row["claim"], "paper": f"{row['by']}: {row['published']}"}
    agreements = []
    for number, ratio in enumerate(ratios_of(row), start=1):
        text = f"{ratio.name}: {shown(ratio)}"
        if ratio.recorded is not None:
            text += f"; recorded: {ratio.recorded:.3g} times"
            agreements.append(math.isclose(ratio.value, ratio.recorded, rel_tol=_TOLERANCE))
        lines[f"ratio {number}"] = text
    if row["kind"] == COUNT:
        for number, (network, counts) in enumerate(recounted(row).items(), start=1):
            recorded, now = counts
            lines[f"count {number}"] = f"{network}: {now:,} parameters; recorded: {recorded:,}"
            agreements.append(now == recorded)
    agrees = all(agreements)
    lines["hardware"] = record_of(row).hardware or "any"
    lines["agreement"] = ("yes" if agrees else "NO") if agreements else "the record has no ratios"
    lines["files"] = ", ".join(["docs/claims.yaml", *records_of(row)])
    _print(lines)
    return 0 if agrees else 1


def _train(request: Request) -> int:
    from capsule_studies.claims.retrain import new_seeds, parts_of, trained

    claim = request.claim
    if "ratios" in claim:
        raise ConfigError(
            f"{claim['id']} has no runs to train; without train=true, its numbers are computed again from "
            f"{' and '.join(records_of(claim))}"
        )
    parts = parts_of(claim)
    seeds = request.seeds or tuple(new_seeds(parts))
    new = trained(claim, parts, seeds, request.overrides)
    old = effect_of(claim)
    _print(
        {
            claim["id"]: claim["claim"],
            "new": f"{_outcome(new, claim)}, seeds {', '.join(map(str, seeds))}",
            "recorded": _outcome(old, claim),
        }
    )
    return 0


def _judged(claim: dict[str, Any], effect: Effect) -> tuple[Judged, Judged]:
    """Judge a claim as recorded, and with a new effect: among all claims, because the correction is over several."""
    claims = read()
    effects = [effect_of(each) for each in claims]
    place = claims.index(claim)
    before = judged(claims, effects)[place]
    effects[place] = effect
    return before, judged(claims, effects)[place]


def _agree(before: Judged, now: Judged) -> bool:
    """Whether difference, interval and verdict are those of the record."""
    if before.verdict != now.verdict or before.effect.found.counts != now.effect.found.counts:
        return False
    size = max(abs(before.effect.low), abs(before.effect.high))
    old, new = before.effect.found, now.effect.found
    numbers = [old.estimate, before.effect.low, before.effect.high]
    new_numbers = [new.estimate, now.effect.low, now.effect.high]
    return np.allclose(numbers, new_numbers, rtol=0, atol=_TOLERANCE * size)


def _badge(each: Judged) -> str:
    kind = "real" if each.effect.real else "stand-in"
    return f"{each.claim['data']} ({kind})"


def _count(effect: Effect) -> str:
    planned = f" of {effect.plan.seeds} planned" if effect.plan.seeds else ""
    return f"{effect.count}{planned}"


def _outcome(effect: Effect, claim: dict[str, Any]) -> str:
    """Describe a difference alone: without a correction, there is no verdict."""
    data = "real data" if effect.real else "a stand-in"
    shown = f"{interval(effect)} {claim['unit']}"
    return f"{shown}, {p_value(effect.p)} uncorrected, n = {effect.count}, {data}"


def _g(effect: Effect) -> str:
    g, limits = effect.hedges_g, effect.hedges_g_interval
    if g is None or limits is None:
        return "unknown"
    low, high = limits
    return f"{signed(g)} ({signed(low)} to {signed(high)})"


def _record(claim: dict[str, Any]) -> str:
    """Return the file of the recorded difference, or of the runs that give it."""
    if "comparison" in claim:
        return f"results/{claim['comparison']['file']}_comparisons.csv"
    return runs_of(claim)


def _files(claim: dict[str, Any]) -> list[str]:
    """Return the files behind a claim."""
    files = ["docs/claims.yaml"]
    for name, archive in archives_of(claim).items():
        files += [f"sweeps/{name}.yaml", f"results/{name}_runs.csv"]
        if "comparison" in claim:
            files.append(f"results/{name}_comparisons.csv")
        files.append(f"results/{archive.name}")
    return [file for file in files if (ROOT / file).is_file()]


def _print(lines: dict[str, str]) -> None:
    for name, text in lines.items():
        sys.stdout.write(f"{name:<12}{text}\n")


if __name__ == "__main__":
    logging.getLogger("capsule_lab").setLevel(logging.ERROR)  # other columns may lack a metric
    sys.exit(main(sys.argv[1:]))
