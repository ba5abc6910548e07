"""Compare two runs: ``python -m capsule_lab.compare "runs=[runs/a,runs/b]"``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from rich.console import Console

from capsule_lab import runs
from capsule_lab.command import command
from capsule_lab.config import plain_yaml
from capsule_lab.config.compose import flat
from capsule_lab.errors import ConfigError, RunError, one_line, printable
from capsule_lab.system.files import expanded, read_regular
from capsule_lab.system.terminal import aligned

_DATA = ("provenance.name", "provenance.source", "provenance.test_images")
_LARGEST = 200_000  # ours: bytes of a configuration; those of runs have 10 kB
_FACTS = (*_DATA, "steps", "training_seconds", "parameters", "precision", "hardware", "commit")


@command("compare")
def main(config: DictConfig) -> None:
    """Print the options that differ, the results, and a test of whether both networks get the same images wrong."""
    names = list(config.runs or ())
    if len(names) != 2:
        raise ConfigError(
            f"runs has {len(names)} entries; expected two run directories: runs=[runs/…,runs/…]"
        )
    directories = [_directory(name) for name in names]
    records = [_finished(directory) for directory in directories]
    configs = [dict(flat(_config(directory))) for directory in directories]
    keys = sorted({*configs[0], *configs[1]})
    copies = {key for key in keys if all(_is_copy(key, config) for config in configs)}
    differing = [key for key in keys if key not in copies and _differ(key, configs)]
    options = [[key, *(_text(config.get(key, "")) for config in configs)] for key in differing]
    metrics = [
        dict(flat({split: record.get(split, {}) for split in ("test", "val")}))
        for record in records
    ]
    names_of_metrics = dict.fromkeys([*metrics[0], *metrics[1]])
    results = [
        [name, *(f"{of[name]:.4g}" if name in of else "" for of in metrics)]
        for name in names_of_metrics
    ]
    known = [dict(flat(record)) for record in records]
    facts = [
        [name, *(_text(record.get(name, "")) for record in known)]
        for name in _FACTS
        if _differ(name, known)
    ]
    console = Console(highlight=False)
    head = ["", *(directory.name for directory in directories)]
    for title, rows in (("options", options), ("results", results), ("facts", facts)):
        lines = aligned([[title, *head[1:]], *rows]) if rows else [f"{title}: no difference"]
        console.print("\n".join(map(printable, lines)), soft_wrap=True, markup=False)
        console.print()
    console.print(printable(_test(directories, records)), soft_wrap=True, markup=False)


def _directory(name: object) -> Path:
    path = expanded(str(name))
    if not (path / "config.yaml").is_file():
        raise RunError(
            f"{path} is not a run directory; expected one with a config.yaml: python -m capsule_lab.list"
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


def _is_copy(key: str, config: Mapping[str, Any]) -> bool:
    """Return whether a group of options in the network or the module repeats a group of its own."""
    parent, _, option = key.partition(".")
    return parent in ("model", "module") and config.get(option, "") == config.get(key, "")


def _differ(key: str, values: list[dict[str, Any]]) -> bool:
    return values[0].get(key, "") != values[1].get(key, "")


def _text(value: object) -> str:
    return "null" if value is None else str(value)


def _test(directories: list[Path], records: list[dict[str, Any]]) -> str:
    """Return a test on the predictions for the test images: of McNemar, or a bootstrap if several show one object."""
    from capsule_lab.tables.statistics import mcnemar, resampled_difference

    first, second = (
        runs.predictions.read(*pair) for pair in zip(directories, records, strict=True)
    )
    if first is None or second is None:
        return "no test: a run has no predictions.npz"
    data = [
        [record["provenance"].get(key.partition(".")[2]) for key in _DATA] for record in records
    ]
    if data[0] != data[1] or not np.array_equal(first.label, second.label):
        return "no test: the runs were tested on different images"
    if first.cluster is None:
        answer = mcnemar(first.wrong, second.wrong)
    else:  # several images of one object are no independent images
        answer = resampled_difference(
            first.wrong[None] * 100.0, second.wrong[None] * 100.0, first.cluster, paired=True
        )
    only = [
        int((one.wrong & ~other.wrong).sum()) for one, other in ((first, second), (second, first))
    ]
    return (
        f"{only[0]} images are wrong only in the first run, {only[1]} only in the second: difference of errors "
        f"{answer.estimate:+.2f} points ({answer.low:.2f} to {answer.high:.2f}), {_p_value(answer.p)} ({answer.test}); "
        "a statement about kinds of networks needs several seeds of each: python -m capsule_lab.report"
    )


def _p_value(p: float | None) -> str:
    return "no p value" if p is None else f"p = {p:.3g}"


if __name__ == "__main__":
    main()
