"""Run directories: their layout, and their names, from the hash of their configuration.

They lie in ``$CAPSULE_LAB_RUNS`` or ``runs``.

::

    runs/<model>-<data>-<hash>/      the hash is of everything that decides the result; a second run of the same
        config.yaml                  configuration gets -2, and so on; name=… comes before <model>
        metrics.json                 results, provenance, cost: written at the end
        status.json                  why the run failed or was interrupted, or how far it is, until it is continued
        metrics.csv                  every epoch, and every few steps
        train.log
        checkpoints/best.ckpt  last.ckpt
        figures/                     drawn while training, and by ``python -m capsule_lab.figures``
        evaluations/                 by ``python -m capsule_lab.evaluate``
    runs/…-<hash>-continued/         began with another configuration's weights, ckpt=…: never a cell of a table
    runs/cells/<hash>.lock  .json    while a process trains that configuration, and if it failed: see ``runs.lock``
    runs/reports/                    of tables
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from capsule_lab.config.identity import config_hash as config_hash
from capsule_lab.errors import RunError
from capsule_lab.system.environment import is_first_process as is_first_process
from capsule_lab.system.files import atomically, expanded

_CONTINUED = "-continued"
_ENDING = re.compile(rf"-(?P<hash>[0-9a-f]{{8}})(?P<continued>{_CONTINUED})?(-(?P<number>\d+))?$")
"""Of the name of a run directory."""
_OVERRIDES = "# overrides: "


def root() -> Path:
    """The folder of all run directories: ``$CAPSULE_LAB_RUNS``, else ``runs``."""
    return expanded(os.environ.get("CAPSULE_LAB_RUNS") or "runs").absolute()


def find_checkpoint(path: str | Path, *names: str) -> Path:
    """``path`` itself, or the first of these checkpoints of the run in that directory; by default best, then last."""
    path = expanded(path)
    names = names or ("best.ckpt", "last.ckpt")
    choices = [path / "checkpoints" / name for name in names] if path.is_dir() else [path]
    for choice in choices:
        if choice.is_file():
            return choice
    raise RunError(f"no checkpoint at {path}; expected a .ckpt file or the directory of a run, runs/…")


def directory_of(checkpoint: Path) -> Path:
    """The run directory of a checkpoint; of a file that lies anywhere else, its folder."""
    folder = checkpoint.absolute().parent
    return folder.parent if folder.name == "checkpoints" else folder


def attempts(fingerprint: str) -> list[Path]:
    """The directories of all runs of the configuration with that ``config_hash``, the latest first."""
    found = (path for path in root().glob(f"*-{fingerprint}*") if path.is_dir() and is_attempt(path, fingerprint))
    return sorted(found, key=_number, reverse=True)


def is_attempt(directory: Path, fingerprint: str) -> bool:
    """Whether ``attempts`` finds a run of that configuration in ``directory``."""
    return directory.parent == root() and _has_hash(directory, fingerprint)


def continues_another(config: DictConfig) -> bool:
    """Whether ``ckpt=…`` is the checkpoint of another configuration, so that the run is no attempt at its own."""
    return bool(config.ckpt) and not _has_hash(directory_of(find_checkpoint(config.ckpt)), config_hash(config))


def _has_hash(directory: Path, fingerprint: str) -> bool:
    """Whether ``directory`` is named after that configuration, and began with its own weights."""
    match = _ENDING.search(directory.name)
    return match is not None and match["hash"] == fingerprint and not match["continued"]


def hash_in(directory: Path) -> str | None:
    """The ``config_hash`` in the name of a run directory; ``None`` if its name is the user's own."""
    match = _ENDING.search(directory.name)
    return match and match["hash"]


def _number(directory: Path) -> int:
    """Number of the attempt: 1, or that at the end of the name."""
    match = _ENDING.search(directory.name)
    return int((match and match["number"]) or 1)


def own_directory(config: DictConfig) -> Path | None:
    """``train.directory``, if the user names one."""
    return expanded(str(config.train.directory)).absolute() if config.train.directory else None


def choose_directory(config: DictConfig, name: str, skip: Callable[[Path], bool] = lambda _: False) -> Path:
    """The directory for this run: that of the checkpoint or of the run to resume, else a new one.

    Nothing is created yet. Processes that Lightning started beside the first find its directory in the environment.

    Args:
        config: the whole configuration.
        name: of the directory, between ``config.name`` and the hash.
        skip: whether the run in a directory is not to be resumed, so that there is a new one.
    """
    own_name = config.get("name")
    if own_name is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", str(own_name)):
        raise RunError(
            f"name is {str(own_name)!r}; expected at most 100 letters, digits, _, - and ., such as name=first_try"
        )
    fingerprint, own = config_hash(config), own_directory(config)
    known, _, shared = os.environ.get("CAPSULE_LAB_RUN", "").partition(":")
    if not is_first_process() and known == fingerprint:
        return Path(shared)
    if own:
        return own
    if not is_first_process():
        raise RunError(
            "the directory of the first process is unknown to this one; give train.directory=… when torchrun or srun "
            "starts the processes, and start the jobs of a sweep one by one when each has several processes"
        )
    if config.ckpt and not config.train.resume:
        before = directory_of(find_checkpoint(config.ckpt))
        if hash_in(before) == fingerprint:
            return before
    ending = f"-{fingerprint}{_CONTINUED if continues_another(config) else ''}"
    existing = sorted(  # whatever their names begin with
        (path for path in root().glob(f"*{ending}*") if re.search(rf"{ending}(-\d+)?$", path.name)), key=_number
    )
    if config.train.resume and existing and not skip(existing[-1]):
        return existing[-1]
    base = "-".join(str(part) for part in (own_name, name.replace("/", "_")) if part) + ending
    return root() / (f"{base}-{_number(existing[-1]) + 1}" if existing else base)


def read_overrides(directory: Path) -> str:
    """The overrides with which a run was started, as one would type them; nothing if that is not known."""
    with (directory / "config.yaml").open() as lines:
        first = lines.readline()
    return first.removeprefix(_OVERRIDES).strip() if first.startswith(_OVERRIDES) else ""


def create_directory(directory: Path, config: DictConfig, overrides: Sequence[str] = ()) -> None:
    """Create the run's directory, or continue in it; the first process writes the configuration and overrides there."""
    continues = config.train.resume or (config.ckpt and directory_of(find_checkpoint(config.ckpt)) == directory)
    if is_first_process() and not continues and (directory / "config.yaml").exists():
        raise RunError(
            f"{directory} holds a run already; continue it with train.resume=true, or name another train.directory=…"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if is_first_process():
            for leftover in directory.glob("checkpoints/.*.ckpt"):  # of a process that was killed while it saved
                leftover.unlink()
            with atomically(directory / "config.yaml") as temporary:
                temporary.write_text(f"{_OVERRIDES}{shlex.join(overrides)}\n{OmegaConf.to_yaml(config, resolve=True)}")
            for name in ("metrics.json", "status.json"):  # of the run that this one continues
                (directory / name).unlink(missing_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot write to {directory} ({error.strerror}); name a directory you may write to: train.directory=…"
        ) from error
    os.environ["CAPSULE_LAB_RUN"] = f"{config_hash(config)}:{directory}"
