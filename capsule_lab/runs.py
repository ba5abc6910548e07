"""The contract of a run directory: what lies there, and how to come back to it.

::

    runs/<model>-<data>-<hash>/      the hash is of everything that decides the result; a second run of the
        config.yaml                  same configuration gets -2, and so on
        metrics.json                 status, results, provenance, cost: written at the end
        metrics.csv                  every epoch
        train.log
        checkpoints/best.ckpt  last.ckpt
        figures/

Checkpoints carry their own plain configuration: ``load_run(path)`` needs nothing else.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf

from capsule_lab import __version__
from capsule_lab.build import build_module
from capsule_lab.command import InterruptError
from capsule_lab.types import DataSpec

log = logging.getLogger(__name__)

FORMAT = 1
"""Number of the checkpoint's own record; raised when an older one can no longer be read."""

_NOT_THE_RESULT = ("ckpt", "train.resume", "train.directory", "logger", "data.directory")


class RunError(ValueError):
    """A run directory or checkpoint that cannot be used."""


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


def config_hash(config: DictConfig) -> str:
    """Fingerprint of everything in the configuration that decides the result."""
    copy = OmegaConf.create(plain(config))
    for key in _NOT_THE_RESULT:
        parent, _, name = key.rpartition(".")
        node = OmegaConf.select(copy, parent) if parent else copy
        if node is not None:
            node.pop(name, None)
    text = json.dumps(OmegaConf.to_container(copy), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]  # 8: enough to tell runs apart


def choose_directory(config: DictConfig, name: str) -> Path:
    """The directory for this run: that of the checkpoint or of the run to resume, else a new one.

    Nothing is created yet. Processes that Lightning started beside the first get its directory.

    Args:
        config: the whole configuration.
        name: what the directory is called before the hash.

    Raises:
        RunError: if another process started this one without telling it the directory.
    """
    if os.environ.get("LOCAL_RANK", "0") == "0":
        return _choose(config, name)
    fingerprint, _, shared = os.environ.get("CAPSULE_LAB_RUN", "").partition(":")
    if fingerprint == config_hash(config):
        return Path(shared)
    if config.train.directory:
        return Path(str(config.train.directory)).absolute()
    raise RunError(
        "this process does not know the directory of the first one; give train.directory=… when torchrun starts the "
        "processes, and start the jobs of a sweep one by one when each has several processes"
    )


def open_directory(directory: Path, config: DictConfig) -> None:
    """Create the run's directory with its configuration, or go on in it.

    Raises:
        RunError: if it cannot be written to, or holds a run that is not to be continued.
    """
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    goes_on = config.train.resume or (config.ckpt and home_of(find_checkpoint(config.ckpt)) == directory)
    if first and not goes_on and (directory / "config.yaml").exists():
        raise RunError(
            f"{directory} holds a run already; continue it with train.resume=true, or name another train.directory=…"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / "config.yaml", OmegaConf.to_yaml(config, resolve=True))
        (directory / "metrics.json").unlink(missing_ok=True)  # of the shorter run that this one goes on from
    except OSError as error:
        raise RunError(
            f"cannot write to {directory} ({error.strerror}); name a directory you may write to: train.directory=…"
        ) from error
    os.environ["CAPSULE_LAB_RUN"] = f"{config_hash(config)}:{directory}"


def _choose(config: DictConfig, name: str) -> Path:
    if config.train.directory:
        return Path(str(config.train.directory)).absolute()
    root = Path(os.environ.get("CAPSULE_LAB_RUNS") or "runs").absolute()
    base = f"{name}-{config_hash(config)}"
    if config.ckpt and not config.train.resume:
        own = home_of(find_checkpoint(config.ckpt))
        if own.name.startswith(base):
            return own
    attempts = sorted(root.glob(f"{base}*"), key=_attempt)
    if config.train.resume:
        if attempts:
            return attempts[-1]
        log.warning("NOTHING TO RESUME for this configuration in %s (%s…): starting anew", root, base)
    return root / (f"{base}-{_attempt(attempts[-1]) + 1}" if attempts else base)


def _attempt(directory: Path) -> int:
    match = re.search(r"-[0-9a-f]{8}-(\d+)$", directory.name)
    return int(match[1]) if match else 1


def last_checkpoint(directory: Path) -> Path | None:
    """The checkpoint from which a run goes on, if it has come so far."""
    path = directory / "checkpoints" / "last.ckpt"
    return path if path.is_file() else None


def checkpoint_to_resume(config: DictConfig, directory: Path, provenance: dict[str, Any]) -> Path | None:
    """Where training goes on: ``ckpt=``, else the run's last checkpoint when resuming, else nowhere.

    Raises:
        RunError: if it is no checkpoint that this version reads, or was trained on other data than is here now.
    """
    if config.ckpt:
        path: Path | None = find_checkpoint(config.ckpt, "last.ckpt", "best.ckpt")
    else:
        path = last_checkpoint(directory) if config.train.resume else None
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


def check_same_source(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """A network trained on genuine data is not quietly continued or tested on a stand-in, nor the reverse.

    Raises:
        RunError: if it would be.
    """
    if (before["source"], before["name"]) != (now["source"], now["name"]):
        raise RunError(
            f"{path} was trained on {before['name']}, and now there is only {now['name']}; put the data where "
            "CAPSULE_LAB_DATA says, or choose other data on purpose"
        )


def checkpoint_to_test(which: str, directory: Path) -> Path | None:
    """The weights that ``train.test`` names, ``best``, ``last`` or ``none``; the last if there never was a best."""
    if which == "none":
        return None
    path = directory / "checkpoints" / f"{which}.ckpt"
    return path if path.is_file() else last_checkpoint(directory)


def is_finished(directory: Path, config: DictConfig) -> bool:
    """Whether the run in ``directory`` came to the end of this configuration."""
    path = directory / "metrics.json"
    return path.is_file() and json.loads(path.read_text()).get("config_hash") == config_hash(config)


def write_atomically(path: Path, text: str) -> None:
    """Write a file beside its target and rename it: it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def data_in_words(provenance: Mapping[str, Any]) -> str:
    """Which data, and how much of the test set, for the last lines of a command."""
    tested = f", tested on {provenance['test_images']} images" if "test_images" in provenance else ""
    return f"{provenance['name']}{tested}"


def save_figure(figure: Figure, path: Path) -> None:
    """A picture, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        figure.savefig(partial, dpi=120)  # dots per inch
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Whether ``path`` can be written later on.

    Raises:
        RunError: if not.
    """
    probe = path.with_name(f".{path.name}.probe")
    write_json(probe, {})
    probe.unlink()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """``write_atomically`` for JSON that people read.

    Raises:
        RunError: if it cannot be written there.
    """
    try:
        write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise RunError(f"cannot write {path} ({error.strerror}); expected a place you may write to") from error


def embed(
    config: DictConfig, provenance: dict[str, Any], spec: DataSpec, seconds: float, validation: dict[str, float]
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
        "validation": validation,
    }


def home_of(checkpoint: Path) -> Path:
    """The run directory of a checkpoint; of a bare file, the folder it lies in."""
    folder = checkpoint.absolute().parent
    return folder.parent if folder.name == "checkpoints" else folder


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


def numbers(metrics: Mapping[str, Any], split: str) -> dict[str, float]:
    """Logged quantities of one split, without its name, as plain numbers."""
    return {
        name.removeprefix(f"{split}/"): float(value) for name, value in metrics.items() if name.startswith(f"{split}/")
    }


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Everything that is logged also goes to ``path``, with the time."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


@contextmanager
def interruptible(message: str) -> Iterator[None]:
    """Ctrl-C ends with ``message``; Lightning catches it and leaves with ``sys.exit(1)`` and no word."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        raise InterruptError(message, signal.SIGINT) from error
