"""Checkpoints: the record in each, and which one of a run is continued or tested."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from capsule_lab import __version__
from capsule_lab.config import to_container
from capsule_lab.errors import RunError
from capsule_lab.runs.directories import find_checkpoint

if TYPE_CHECKING:
    from capsule_lab.types import DataSpec

FORMAT = 2
"""Of what ``embed`` returns; raised when an older one can no longer be read."""


def embed(
    config: DictConfig, provenance: dict[str, Any], spec: DataSpec, seconds: float, val: dict[str, float]
) -> dict[str, Any]:
    """What every checkpoint has under ``"capsule_lab"``, in plain containers.

    Args:
        config: the whole configuration.
        provenance: of the data.
        spec: the ``DataSpec`` that the network was built from.
        seconds: of training so far.
        val: quantities of the last validation.
    """
    return {
        "format": FORMAT,
        "version": __version__,
        "config": to_container(config),
        "provenance": provenance,
        "spec": {
            "image_shape": list(spec.image_shape),
            "num_classes": spec.num_classes,
            "labels_per_image": spec.labels_per_image,
        },
        "seconds": seconds,
        "val": val,
    }


def read(path: Path) -> dict[str, Any]:
    """A checkpoint on the CPU, whose ``"capsule_lab"`` is what ``embed`` returned; no code in it is run.

    Raises:
        RunError: if it cannot be read, or another version of capsule_lab wrote it.
    """
    import torch  # slow to import

    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # those of pickle and zipfile, depending on the damage
        raise RunError(
            f"{path} cannot be read as a checkpoint ({type(error).__name__}); it is truncated or another file"
        ) from error
    record = checkpoint.get("capsule_lab") if isinstance(checkpoint, dict) else None
    if record is None:
        raise RunError(f"{path} was not written by capsule_lab; expected a checkpoint of `python -m capsule_lab.train`")
    if record["format"] != FORMAT:
        raise RunError(
            f"{path} was written by capsule_lab {record['version']} in checkpoint format {record['format']}; this is "
            f"{__version__}, which reads format {FORMAT}: use the capsule_lab that wrote it"
        )
    return dict(checkpoint)


def checkpoint_to_resume(config: DictConfig, directory: Path, provenance: dict[str, Any]) -> Path | None:
    """Where training goes on: the run's last checkpoint when resuming, else ``ckpt=``, else nowhere.

    Raises:
        RunError: if it cannot be read, or was trained on other data than is here now.
    """
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
    if before != now:
        differ = [key for key in dict.fromkeys((*before, *now)) if before.get(key) != now.get(key)]
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
    """A network trained on real data is neither continued nor tested on a stand-in by accident, nor the reverse.

    Args:
        path: of the checkpoint.
        before: provenance of the data of training.
        now: provenance of the data that is here.

    Raises:
        RunError: if they differ in source or name.
    """
    if (before["source"], before["name"]) != (now["source"], now["name"]):
        raise RunError(
            f"{path} was trained on {before['name']}, and now there is only {now['name']}; put the data where "
            "CAPSULE_LAB_DATA says, or choose other data on purpose"
        )
