"""Checkpoints: what each says about itself, where a run's own are, and how to come back to one."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from capsule_lab import __version__
from capsule_lab.build import build_module
from capsule_lab.errors import RunError
from capsule_lab.types import DataSpec

FORMAT = 2
"""Number of the checkpoint's own record; raised when an older one can no longer be read."""


@dataclass(frozen=True)
class Record:
    """What a checkpoint says about itself."""

    config: DictConfig
    provenance: dict[str, Any]
    spec: DataSpec
    seconds: float


def plain(config: DictConfig) -> dict[str, Any]:
    """The configuration with everything resolved, as plain containers."""
    container = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def embed(
    config: DictConfig, provenance: dict[str, Any], spec: DataSpec, seconds: float, val: dict[str, float]
) -> dict[str, Any]:
    """The record that goes into every checkpoint under ``"capsule_lab"``: plain containers only."""
    return {
        "format": FORMAT,
        "version": __version__,
        "config": plain(config),
        "provenance": provenance,
        "spec": {
            "image_shape": list(spec.image_shape),
            "num_classes": spec.num_classes,
            "labels_per_image": spec.labels_per_image,
        },
        "seconds": seconds,
        "val": val,
    }


def find_checkpoint(path: str | Path, *names: str) -> Path:
    """``path`` itself, or the best (else the last) checkpoint of the run in that directory.

    Args:
        path: a file, or the directory of a run.
        names: in a directory, files to look for in this order; by default the best, then the last.

    Raises:
        RunError: if there is none.
    """
    path = Path(path)
    names = names or ("best.ckpt", "last.ckpt")
    choices = [path / "checkpoints" / name for name in names] if path.is_dir() else [path]
    for choice in choices:
        if choice.is_file():
            return choice
    raise RunError(f"no checkpoint at {path}; expected a .ckpt file or the directory of a run, runs/…")


def read_checkpoint(path: str | Path) -> tuple[dict[str, Any], Record]:
    """A checkpoint's content, on the CPU, and its record.

    Raises:
        RunError: if there is no such file, it cannot be read, or another version of capsule_lab wrote it.
    """
    path = find_checkpoint(path)
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever pickle and zip do, by the kind of damage
        raise RunError(
            f"{path} cannot be read as a checkpoint ({type(error).__name__}); it is truncated or another file"
        ) from error
    record = checkpoint.get("capsule_lab") if isinstance(checkpoint, dict) else None
    if record is None:
        raise RunError(f"{path} was not written by capsule_lab; expected a checkpoint of `python -m capsule_lab.train`")
    if record["format"] != FORMAT:
        raise RunError(
            f"{path} was written by capsule_lab {record['version']} in checkpoint format {record['format']}; this is "
            f"{version('capsule-lab')}, which reads format {FORMAT}: install capsule_lab {record['version']} to use it"
        )
    facts = record["spec"]  # those that the network was built from
    spec = DataSpec(
        tuple(facts["image_shape"]), facts["num_classes"], labels_per_image=facts.get("labels_per_image", 1)
    )
    return checkpoint, Record(OmegaConf.create(record["config"]), record["provenance"], spec, record["seconds"])


def load_run(path: str | Path) -> tuple[Any, DictConfig]:
    """The trained LightningModule of a checkpoint (or of a run's best one), in eval mode, and its configuration.

    Raises:
        RunError: see ``read_checkpoint``.
    """
    checkpoint, record = read_checkpoint(path)
    return restore(checkpoint, record), record.config


def restore(checkpoint: dict[str, Any], record: Record) -> Any:
    """The LightningModule of what ``read_checkpoint`` returned, in eval mode; not compiled."""
    record.config.module.compile = False
    module = build_module(record.config, record.spec)
    weights = {name.removeprefix("network."): value for name, value in checkpoint["state_dict"].items()}
    module.network.load_state_dict(weights)
    return module.eval()


def home_of(checkpoint: Path) -> Path:
    """The run directory of a checkpoint; of a bare file, the folder it lies in."""
    folder = checkpoint.absolute().parent
    return folder.parent if folder.name == "checkpoints" else folder


def last_checkpoint(directory: Path) -> Path | None:
    """The checkpoint from which a run goes on, if it has come so far."""
    path = directory / "checkpoints" / "last.ckpt"
    return path if path.is_file() else None


def checkpoint_to_resume(config: DictConfig, directory: Path, provenance: dict[str, Any]) -> Path | None:
    """Where training goes on: the run's last checkpoint when resuming, else ``ckpt=``, else nowhere.

    Raises:
        RunError: if it is no checkpoint that this version reads, or was trained on other data than is here now.
    """
    path = last_checkpoint(directory) if config.train.resume else None
    if path is None and config.ckpt:
        path = find_checkpoint(config.ckpt, "last.ckpt", "best.ckpt")
    if path is None:
        return None
    record = read_checkpoint(path)[1]
    check_same_source(path, record.provenance, provenance)
    if record.provenance != provenance:
        raise RunError(f"{path} was trained on another split or version of the data; restore it, or start anew")
    before, now = (OmegaConf.to_container(c.model, resolve=True) for c in (record.config, config))
    if before != now:
        raise RunError(f"{path} holds another network: {before}; this configuration builds {now}")
    return path


def checkpoint_to_test(which: str, directory: Path) -> Path | None:
    """The weights that ``train.test`` names, ``best``, ``last`` or ``none``; the last if there never was a best."""
    if which == "none":
        return None
    path = directory / "checkpoints" / f"{which}.ckpt"
    return path if path.is_file() else last_checkpoint(directory)


def check_same_source(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """A network trained on real data is not quietly continued or tested on a stand-in, nor the reverse.

    Raises:
        RunError: if it would be.
    """
    if (before["source"], before["name"]) != (now["source"], now["name"]):
        raise RunError(
            f"{path} was trained on {before['name']}, and now there is only {now['name']}; put the data where "
            "CAPSULE_LAB_DATA says, or choose other data on purpose"
        )
