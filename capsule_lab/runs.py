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
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf

from capsule_lab.build import InterruptError, build_module
from capsule_lab.types import DataSpec

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

    Nothing is created yet. Processes that Lightning or ``torchrun`` started get the directory of the first.

    Args:
        config: the whole configuration.
        name: what the directory is called before the hash.
    """
    shared = os.environ.get("CAPSULE_LAB_RUN")
    if shared and os.environ.get("LOCAL_RANK", "0") != "0":
        return Path(shared)
    return _choose(config, name)


def open_directory(directory: Path, config: DictConfig) -> None:
    """Create the run's directory with its configuration.

    Raises:
        RunError: if it cannot be written to.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / "config.yaml", OmegaConf.to_yaml(config, resolve=True))
    except OSError as error:
        raise RunError(
            f"cannot write to {directory} ({error.strerror}); name a directory you may write to: train.directory=…"
        ) from error
    os.environ["CAPSULE_LAB_RUN"] = str(directory)


def _choose(config: DictConfig, name: str) -> Path:
    if config.train.directory:
        return Path(config.train.directory).absolute()
    root = Path(os.environ.get("CAPSULE_LAB_RUNS") or "runs").absolute()
    base = f"{name}-{config_hash(config)}"
    if config.ckpt and not config.train.resume:
        own = Path(config.ckpt).absolute().parent.parent
        if own.name.startswith(base):
            return own
    attempts = sorted(root.glob(f"{base}*"), key=_attempt)
    if config.train.resume and attempts:
        return attempts[-1]
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
    path = Path(config.ckpt) if config.ckpt else None
    if config.train.resume and path is None:
        path = last_checkpoint(directory)
    if path is None:
        return None
    before = read_checkpoint(path)[1].provenance
    if before != provenance:
        raise RunError(
            f"{path} was trained on {before['source']} data ({before['name']}), and now there is "
            f"{provenance['source']} data ({provenance['name']}), or another split of it; restore that data, or start "
            "anew without train.resume and ckpt"
        )
    return path


def checkpoint_to_test(which: str, directory: Path) -> Path | None:
    """The weights that ``train.test`` names, ``best``, ``last`` or ``none``; the last if there never was a best."""
    if which == "none":
        return None
    path = directory / "checkpoints" / f"{which}.ckpt"
    return path if path.is_file() else last_checkpoint(directory)


def is_finished(directory: Path) -> bool:
    """Whether the run in ``directory`` came to its end."""
    path = directory / "metrics.json"
    return path.is_file() and json.loads(path.read_text()).get("status") == "finished"


def write_atomically(path: Path, text: str) -> None:
    """Write a file beside its target and rename it: it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def save_figure(figure: Figure, path: Path) -> None:
    """A picture, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        figure.savefig(partial, dpi=120)  # dots per inch
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """``write_atomically`` for JSON that people read."""
    write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def embed(
    config: DictConfig, provenance: dict[str, Any], spec: DataSpec, seconds: float, validation: dict[str, float]
) -> dict[str, Any]:
    """The record that goes into every checkpoint under ``"capsule_lab"``: plain containers only."""
    return {
        "format": FORMAT,
        "version": version("capsule-lab"),
        "config": plain(config),
        "provenance": provenance,
        "spec": {"image_shape": list(spec.image_shape), "num_classes": spec.num_classes},
        "seconds": seconds,
        "validation": validation,
    }


def find_checkpoint(path: str | Path) -> Path:
    """``path`` itself, or the best (else the last) checkpoint of the run in that directory.

    Raises:
        RunError: if there is none.
    """
    path = Path(path)
    choices = [path / "checkpoints" / name for name in ("best.ckpt", "last.ckpt")] if path.is_dir() else [path]
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
    spec = DataSpec(tuple(record["spec"]["image_shape"]), record["spec"]["num_classes"])
    return checkpoint, Record(OmegaConf.create(record["config"]), record["provenance"], spec, record["seconds"])


def load_run(path: str | Path) -> tuple[Any, DictConfig]:
    """The trained LightningModule of a checkpoint (or of a run's best one), in eval mode, and its configuration.

    Raises:
        RunError: see ``read_checkpoint``.
    """
    checkpoint, record = read_checkpoint(path)
    module = build_module(record.config, record.spec)
    weights = {name.removeprefix("network."): value for name, value in checkpoint["state_dict"].items()}
    module.network.load_state_dict(weights)
    return module.eval(), record.config


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


def tell_loggers(loggers: Iterable[Any], config: DictConfig, provenance: dict[str, Any]) -> None:
    """Configuration and provenance, to every logger that keeps such things."""
    for logger in loggers:
        logger.log_hyperparams({"config": plain(config), "provenance": provenance})


def hardware(device: torch.device) -> str:
    """The device in words, for results."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} x {torch.cuda.device_count()}"
    return f"{_processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.is_file() else []
    return names[0] if names else platform.processor() or platform.machine()


def surroundings() -> dict[str, Any]:
    """What a result needs beside it to be repeated: command, commit, versions."""
    return {
        "command": " ".join(["python -m", _module(), *sys.argv[1:]]),
        "commit": _commit(),
        "versions": {name: version(name) for name in ("capsule-lab", "torch", "lightning")},
        "python": platform.python_version(),
    }


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else Path(sys.argv[0]).name


def _commit() -> str | None:
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except OSError:
        return None  # no git on this machine
    return found.stdout.strip() or None
