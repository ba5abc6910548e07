"""Compare two runs: ``capsule-lab compare "runs=[runs/a,runs/b]"``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from capsule_lab import runs
from capsule_lab.commands.declare import command
from capsule_lab.config import plain_yaml
from capsule_lab.config.declaration import Options
from capsule_lab.config.identity import ABSENT, differences, flat
from capsule_lab.errors import ConfigError, MissingPackageError, RunError, one_line, printable
from capsule_lab.statistics import crossed_difference, mcnemar
from capsule_lab.system.extras import require
from capsule_lab.system.files import expanded, read_regular
from capsule_lab.system.terminal import aligned

_DATA = ("provenance.name", "provenance.source", "provenance.test_images")
_LARGEST = 200_000  # ours: bytes of a configuration; those of runs have 10 kB
_FOLD = ("provenance.split.folds", "provenance.split.fold")
_FILES = ("pictures", "labels_sha256", "groups_sha256")
"""Number of pictures in a folder and hashes of files of labels and groups, which affect which images are tested."""
_START = ("start_from.name", "start_from.data.source")
_FACTS = (
    *_DATA,
    *_FOLD,
    *_START,
    "steps",
    "training_seconds",
    "parameters",
    "precision",
    "hardware",
    "commit",
)


class CompareOptions(Options):
    """Options of ``compare``."""

    runs: list[str] | None = None
    """Two run directories."""


class _Compared(NamedTuple):
    """One of the two runs: its directory, its record, its configuration, and its record by dotted key."""

    directory: Path
    record: dict[str, Any]
    config: dict[str, Any]
    facts: dict[str, Any]


@command("compare", CompareOptions)
def main(options: CompareOptions) -> None:
    """Print the options that differ, the results, and a test of whether both networks get the same images wrong."""
    names = options.runs or []
    if len(names) != 2:
        raise ConfigError(
            f"runs has {len(names)} entries; expected two run directories: runs=[runs/…,runs/…]"
        )
    first, second = (_read(name) for name in names)
    directories = [first.directory.name, second.directory.name]
    console = Console(highlight=False)
    for title, rows in (
        ("options", _options_that_differ(first, second)),
        ("results", _metrics(first, second)),
        ("facts", _facts_that_differ(first, second)),
    ):
        lines = [f"{title}: no difference"]
        if rows:
            lines = aligned([[title, *directories], *rows], numbers=title == "results")
        console.print("\n".join(map(printable, lines)), soft_wrap=True, markup=False)
        console.print()
    console.print(printable(_test(first, second)), soft_wrap=True, markup=False)


def _read(name: str) -> _Compared:
    directory = _directory(name)
    record = _finished(directory)
    return _Compared(directory, record, _config(directory), dict(flat(record)))


def _options_that_differ(first: _Compared, second: _Compared) -> list[list[str]]:
    """Return key and values of each option that differs, without copies of other options."""
    found = differences(first.config, second.config)
    return [[key, *map(_text, values)] for key, values in found.items()]


def _metrics(first: _Compared, second: _Compared) -> list[list[str]]:
    """Return name and values of each metric of the test and of the validation."""
    known = dict.fromkeys([*first.facts, *second.facts])
    rows = []
    for name in known:
        if name.startswith(("test.", "val.")):
            values = [run.facts.get(name) for run in (first, second)]
            rows.append([name, *("" if value is None else f"{value:.4g}" for value in values)])
    return sorted(rows, key=lambda row: not row[0].startswith("test."))


def _facts_that_differ(first: _Compared, second: _Compared) -> list[list[str]]:
    """Return name and values of the data, the costs and the code, where they differ."""
    rows = []
    for name in _FACTS:
        values = [run.facts.get(name, "") for run in (first, second)]
        if values[0] != values[1]:
            rows.append([name, *map(_text, values)])
    return rows


def _directory(name: object) -> Path:
    path = expanded(str(name))
    if not (path / "config.yaml").is_file():
        raise RunError(
            f"{path} is not a run directory; expected one with a config.yaml: capsule-lab list"
        )
    return path


def _finished(directory: Path) -> dict[str, Any]:
    record = runs.results.read_metrics(directory)
    if record is None:
        raise RunError(
            f"{directory} has no metrics.json; expected a run that is finished: continue it first"
        )
    return record


def _config(directory: Path) -> dict[str, Any]:
    """Read a configuration, which may come from elsewhere."""
    file = directory / "config.yaml"
    try:
        text = read_regular(file, inside=directory, most=_LARGEST).decode()
        return dict(plain_yaml.parse(text))
    except (ValueError, TypeError, OSError) as error:
        raise RunError(
            f"{file} cannot be read ({one_line(error)[:200]}); expected the one that train wrote"
        ) from error


def _text(value: object) -> str:
    if value is ABSENT:
        return ""
    return "null" if value is None else str(value)


def _tested(run: _Compared) -> list[Any]:
    """Return what determines the test images, besides their labels, which may be equal for others."""
    provenance = run.record["provenance"]
    found = [run.facts.get(key) for key in (*_DATA, *_FOLD)]
    found += [provenance.get(key) for key in _FILES]
    hashes = provenance.get("sha256")
    # that of pictures in a folder is of their pixels, which depend on data.size
    found.append(hashes if isinstance(hashes, Mapping) else None)
    if runs.results.partial_test(run.record):
        found.append(dict(flat(run.config)).get("data.seed"))  # it draws the part
    return found


def _test(first: _Compared, second: _Compared) -> str:
    """Return McNemar's test on the predictions for the test images, or one over objects if several images show one."""
    one = runs.predictions.read(first.directory, first.record)
    other = runs.predictions.read(second.directory, second.record)
    if one is None or other is None:
        return "no test: a run has no predictions.npz"
    if _tested(first) != _tested(second) or not np.array_equal(one.label, other.label):
        return (
            "no test: the runs were tested on different images, because their data, hashes of files, folds, labels or, "
            "with data.eval_images, data.seed differ"
        )
    try:
        require("a test of two runs", "report", "scipy")
    except MissingPackageError as error:
        return f"no test: {error}"
    if one.cluster is None:
        answer = mcnemar(one.wrong, other.wrong)
    else:  # several images of one object are no independent images
        errors = one.wrong[None] * 100.0, other.wrong[None] * 100.0
        answer = crossed_difference(*errors, one.cluster, paired=True)
    only_first = int((one.wrong & ~other.wrong).sum())
    only_second = int((other.wrong & ~one.wrong).sum())
    interval = "" if answer.low is None else f" ({answer.low:.2f} to {answer.high:.2f})"
    return (
        f"{only_first} images are wrong only in the first run, {only_second} only in the second: difference of errors "
        f"{answer.estimate:+.2f} points{interval}, {_p_value(answer.p)} ({answer.test}); "
        "a statement about kinds of networks needs several seeds of each: capsule-lab report"
    )


def _p_value(p: float | None) -> str:
    return "no p value" if p is None else f"p = {p:.3g}"


if __name__ == "__main__":
    main()
