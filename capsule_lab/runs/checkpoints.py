"""Checkpoints: the record in each, and which one of a run is continued or tested."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from capsule_lab.config.compose import to_container
from capsule_lab.errors import RunError, one_line
from capsule_lab.runs.directories import find_checkpoint
from capsule_lab.runs.trust import check_record

FORMAT = 2
"""Of the record that ``callbacks.EmbedConfig`` puts into checkpoints; raised when an older one cannot be read."""


def read(path: Path) -> dict[str, Any]:
    """A checkpoint on the CPU, with the record of ``EmbedConfig`` under ``"capsule_lab"``; no code in it is run.

    Its tensors are read from the file when they are used.
    """
    import torch  # slow to import

    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # those of pickle and of torch's reader, depending on the damage
        reason = one_line(error).partition(". ")[0] or type(error).__name__
        others = [path.with_name(name) for name in ("best.ckpt", "last.ckpt") if name != path.name]
        instead = next((f"continue from ckpt={each}, or " for each in others if each.is_file()), "")
        raise RunError(
            f"{path} cannot be read as a checkpoint ({reason[:200]}); it is truncated, damaged or another file: "
            f"{instead}remove it and train again"
        ) from error
    record = checkpoint.get("capsule_lab") if type(checkpoint) is dict else None  # exact types: see check_record
    if type(record) is not dict or type(record.get("format")) is not int:
        raise RunError(f"{path} was not written by capsule_lab; expected a checkpoint of `python -m capsule_lab.train`")
    if record["format"] != FORMAT:
        raise RunError(
            f"{path} was written by capsule_lab {record.get('version')} in checkpoint format {record['format']}; this "
            f"is {version('capsule-lab')}, which reads format {FORMAT}: use the capsule_lab that wrote it"
        )
    check_record(record, path)
    return checkpoint


def checkpoint_to_resume(config: DictConfig, directory: Path, provenance: dict[str, Any]) -> Path | None:
    """Where training goes on: the run's last checkpoint when resuming, else ``ckpt=``, else nowhere."""
    path = _last(directory) if config.train.resume else None
    if path is None and config.ckpt:
        path = find_checkpoint(config.ckpt, "last.ckpt", "best.ckpt")
    if path is None:
        return None
    record = read(path)["capsule_lab"]
    check_same_source(path, record["provenance"], provenance)
    if record["provenance"] != provenance:
        raise RunError(f"{path} was trained on another split or version of the data; restore it, or start anew")
    before, now = record["config"]["model"], to_container(config.model)
    differ = [key for key in dict.fromkeys((*before, *now)) if before.get(key) != now.get(key)]
    if differ:
        keys = ["_target_"] if "_target_" in differ else differ  # of another class all options differ
        there, here = (", ".join(f"{key}={of.get(key)}" for key in keys) for of in (before, now))
        raise RunError(f"{path} holds another network, {there}; this configuration builds {here}: set model=… as there")
    return path


def checkpoint_to_test(which: str, directory: Path) -> Path | None:
    """The weights that ``train.test`` names, ``best``, ``last`` or ``none``; the last if there never was a best."""
    if which == "none":
        return None
    path = directory / "checkpoints" / f"{which}.ckpt"
    return path if path.is_file() else _last(directory)


def _last(directory: Path) -> Path | None:
    path = directory / "checkpoints" / "last.ckpt"
    return path if path.is_file() else None


def check_same_source(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """A network trained on real data, ``before``, is neither continued nor tested on a stand-in, nor the reverse."""
    if (before["source"], before["name"]) != (now["source"], now["name"]):
        raise RunError(
            f"{path} was trained on {before['name']}, and now there is only {now['name']}; put the data where "
            "CAPSULE_LAB_DATA says, or choose other data on purpose"
        )
