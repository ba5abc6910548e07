"""Compare two runs: ``python -m capsule_lab.compare "runs=[runs/a,runs/b]"``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from capsule_lab import runs
from capsule_lab.command import command
from capsule_lab.errors import ConfigError, RunError, printable
from capsule_lab.system.files import expanded
from capsule_lab.system.terminal import aligned

_FACTS = ("steps", "training_seconds", "parameters", "precision", "hardware", "commit")


@command("compare")
def main(config: DictConfig) -> None:
    """Print the options that differ, the results, and a test of whether both networks get the same images wrong."""
    names = list(config.runs or ())
    if len(names) != 2:
        raise ConfigError(f"runs has {len(names)} entries; expected two run directories: runs=[runs/…,runs/…]")
    directories = [_directory(name) for name in names]
    records = [_finished(directory) for directory in directories]
    configs = [dict(_flat(_config(directory))) for directory in directories]
    keys = sorted({*configs[0], *configs[1]})
    options = [[key, *(_text(config.get(key, "")) for config in configs)] for key in keys if _differ(key, configs)]
    metrics = [dict(_flat({split: record.get(split, {}) for split in ("test", "val")})) for record in records]
    shared = [name for name in metrics[0] if name in metrics[1]]
    results = [[name, *(f"{values[name]:.4g}" for values in metrics)] for name in shared]
    facts = [[name, *(_text(record.get(name, "")) for record in records)] for name in _FACTS if _differ(name, records)]
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
        raise RunError(f"{path} is not a run directory; expected one with a config.yaml: python -m capsule_lab.list")
    return path


def _finished(directory: Path) -> dict[str, Any]:
    record = runs.results.read_metrics(directory)
    if record is None:
        raise RunError(f"{directory} has no metrics.json; expected a run that is finished: continue it first")
    return record


def _config(directory: Path) -> dict[str, Any]:
    config: Any = OmegaConf.to_container(OmegaConf.load(directory / "config.yaml"), resolve=False)  # runs no resolver
    return dict(config)


def _flat(values: Mapping[str, Any], *parents: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, *parents, str(key))
        else:
            yield ".".join([*parents, str(key)]), value


def _differ(key: str, values: list[dict[str, Any]]) -> bool:
    return values[0].get(key, "") != values[1].get(key, "")


def _text(value: object) -> str:
    return "null" if value is None else str(value)


def _test(directories: list[Path], records: list[dict[str, Any]]) -> str:
    """Return the exact test of McNemar on the predictions for the test images."""
    from capsule_lab.tables.statistics import mcnemar

    first, second = (runs.predictions.read(*pair) for pair in zip(directories, records, strict=True))
    if first is None or second is None:
        return "no test: a run has no predictions.npz"
    if not np.array_equal(first.label, second.label):
        return "no test: the runs were tested on different images"
    answer = mcnemar(first.wrong, second.wrong)
    only = [int((one.wrong & ~other.wrong).sum()) for one, other in ((first, second), (second, first))]
    return (
        f"{only[0]} images are wrong only in the first run, {only[1]} only in the second: difference of errors "
        f"{answer.estimate:+.2f} points ({answer.low:.2f} to {answer.high:.2f}), p = {answer.p:.3g} ({answer.test}); "
        "a statement about kinds of networks needs several seeds of each: python -m capsule_lab.report"
    )


if __name__ == "__main__":
    main()
