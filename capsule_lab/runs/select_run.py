"""Choice of the finished run that counts when ``auto`` options had different values in different runs.

- ``data.source=auto``: a run on stand-in data counts until the real files are there. Its configuration and hash are
  those of a run on real data; if both exist, only the run on real data counts.
- ``trainer.precision=auto``: a run counts on machines that use the same precision. On others its cell of a table is
  missing, and is trained in a separate directory. Reports show the run on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from capsule_lab.errors import RunError, closest
from capsule_lab.runs import ready_weights
from capsule_lab.runs.checkpoints import read
from capsule_lab.runs.directories import attempts, config_hash, root, with_weights
from capsule_lab.runs.results import read_metrics, read_result, source_of
from capsule_lab.runs.trust import plain_value
from capsule_lab.system.files import expanded

FinishedRun = tuple[Path, dict[str, Any]]
"""The directory and the result of a run."""


def finished_run(
    config: DictConfig, fingerprint: str = "", *, any_precision: bool = False
) -> FinishedRun | None:
    """Return directory and result of the run that counts for a configuration: the latest on real data, else the latest.

    With ``any_precision``, for reports, a run with another precision than here also counts if there is no better one.
    """
    finished = []
    for directory, result in _finished(fingerprint or config_hash(config)):
        if not real_data_available(result, config):
            finished.append((directory, result))
    if not finished:
        return None
    precisions = {result.get("precision") for _, result in finished}
    if any_precision and len(precisions) == 1:
        return finished[0]
    for directory, result in finished:
        if not _has_other_precision(result, config):
            return directory, result
    return finished[0] if any_precision else None


def locate(path: str | Path) -> Path:
    """Return the file of ready weights with this name, the latest run for ``last``, else the directory or file there.

    Raises:
        RunError: if there is none, or if the file of ready weights is not that of the index.
    """
    names = [*ready_weights.index()]
    if str(path) in names:
        return ready_weights.file_of(str(path))
    if str(path) == "last":
        return last_finished()
    found = expanded(path)
    if found.exists():
        return found
    known = f"expected a path that exists, or one of {', '.join(names)}"
    close = closest(str(path), [*names, *with_weights()])
    if not names:
        known = "this version has no ready weights"
    if close:
        known = f"did you mean {close}? Options: {', '.join(names)}, or a run"
    raise RunError(
        f"{path} is neither the name of ready weights nor a run directory or file; {known}"
    )


def last_finished() -> Path:
    """Return the directory of the run that finished last and has weights; ``RunError`` if there is none."""
    files = root().glob("*/metrics.json")
    for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True):
        directory = file.parent
        if any(directory.glob("checkpoints/*.ckpt")) and read_metrics(directory):
            return directory
    raise RunError(
        f"last is the latest finished run, but {root()} has none with weights; expected one: train it, or name another "
        "run or file"
    )


def _finished(fingerprint: str) -> list[FinishedRun]:
    """Return all finished runs, those on real data first, the latest first; see ``results.source_of``."""
    on_real_data: list[FinishedRun] = []
    on_other_data: list[FinishedRun] = []
    for directory in attempts(fingerprint):
        result = read_result(directory, fingerprint)
        if not result:
            continue
        if source_of(result) == "real":
            on_real_data.append((directory, result))
        else:
            on_other_data.append((directory, result))
    return on_real_data + on_other_data


def real_data_available(record: Mapping[str, Any], config: DictConfig) -> bool:
    """Whether the real data is here now, for a run of ``data.source=auto`` that was trained on a stand-in.

    A report checks this for tables that others wrote, so nothing that the configuration names is imported, and nothing
    is built but a DataModule of ``capsule_lab.data``, with its directory as the only option; it checks whether files of
    these names exist and reads none. For any other data set, the run counts as it is.
    """
    if config.data.get("source") != "auto" or record["provenance"]["source"] == "real":
        return False
    from capsule_lab import data  # imports torch

    package, _, name = str(plain_value(config, "data._target_")).rpartition(".")
    is_ours = f"{package}.".startswith(f"{data.__name__}.") and name in vars(data)
    if not is_ours or not name.endswith("DataModule"):
        return False
    directory = plain_value(config, "data.directory")
    module = getattr(data, name)(directory=directory and str(directory))
    return hasattr(module, "real_source") and bool(module.real_source.is_here())


def _has_other_precision(record: Mapping[str, Any], config: DictConfig) -> bool:
    """Return whether ``trainer.precision=auto`` gave another precision than here; a run on GPUs counts without GPU."""
    if config.trainer.get("precision") != "auto" or not record.get("precision"):
        return False
    import torch

    from capsule_lab.config.build import fast_precision

    of_older_record = "cuda" if re.match(r"\d+ x ", str(record.get("hardware"))) else "cpu"
    if record.get("device", of_older_record) == "cuda" and not torch.cuda.is_available():
        return False
    return bool(record["precision"] != fast_precision(config.trainer.accelerator))


def is_outdated(directory: Path, config: DictConfig) -> bool:
    """Return whether the run in a directory must be trained again here; ``False`` if nothing is saved."""
    if "auto" not in (config.data.get("source"), config.trainer.get("precision")):
        return False
    result = read_result(directory, config_hash(config))
    last = directory / "checkpoints" / "last.ckpt"
    if result is None and not last.is_file():
        return False
    record = result or read(last)["capsule_lab"]
    return real_data_available(record, config) or _has_other_precision(record, config)
