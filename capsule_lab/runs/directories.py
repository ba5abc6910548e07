"""Run directories: their layout and their names, which contain the hash of the configuration.

They are in ``$CAPSULE_LAB_RUNS`` or ``runs``.

::

    runs/<model>-<data>-<hash>/      the hash of all options that affect the result; a second run of the same
        config.yaml                  configuration gets -2, and so on; name=… comes before <model>
        metrics.json                 results, provenance and cost, written at the end
        status.json                  why the run failed or was interrupted, or its progress; removed on continuing
        metrics.csv                  metrics of every epoch and of every few steps
        train.log
        checkpoints/best.ckpt  last.ckpt
        figures/                     drawn during training and by ``capsule-lab figures``
        evaluations/                 by ``capsule-lab evaluate``
    runs/…-<hash>-continued/         continues a run of another configuration, ckpt=…: not used in tables
    runs/cells/<hash>.lock  .json    while a process trains that configuration, and if it failed; see ``runs.lock``
    runs/reports/                    reports of tables
"""

from __future__ import annotations

import logging
import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from capsule_lab.config.identity import config_hash as config_hash
from capsule_lab.errors import RunError, closest, one_line
from capsule_lab.runs import ready_weights
from capsule_lab.system import protocol
from capsule_lab.system.environment import is_first_process as is_first_process
from capsule_lab.system.files import atomically, expanded, leads_out, open_regular
from capsule_lab.system.terminal import as_typed

log = logging.getLogger(__name__)

PUBLISHED_WEIGHTS = "model.safetensors"
"""Weights in a folder of ``export to=hub``."""
_CONTINUED = "-continued"
_ENDING = re.compile(rf"-(?P<hash>[0-9a-f]{{8}})(?P<continued>{_CONTINUED})?(-(?P<number>\d+))?$")
"""End of the name of a run directory."""
_OWN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_OVERRIDES = "# overrides: "
_LONGEST_LINE = 100_000  # ours: bytes of the overrides; those of runs have a hundred
_WRITTEN = ("analyses", "attacks", "checkpoints", "evaluations", "figures", "train.log")


def root() -> Path:
    """Return the folder of all run directories: ``$CAPSULE_LAB_RUNS``, else ``runs``."""
    return expanded(os.environ.get(protocol.RUNS) or "runs").absolute()


def with_weights() -> list[str]:
    """Return the run directories that have weights, as a user would type them, and ``last`` if there are any."""
    names = []
    for folder in root().glob("*/checkpoints"):
        names.append(str(as_typed(folder.parent)))
    return [*names, "last"] if names else []


def find_checkpoint(path: str | Path, *names: str) -> Path:
    """Return ``path`` if it is a file, else the first of ``names`` in that run; by default best, then last.

    A folder of ``export to=hub`` has ``PUBLISHED_WEIGHTS`` instead.
    """
    path = expanded(path)
    choices = [path]
    if path.is_dir():
        of_run = names or ("best.ckpt", "last.ckpt")
        choices = [path / "checkpoints" / name for name in of_run]
        if not names:
            choices.append(path / PUBLISHED_WEIGHTS)
    for choice in choices:
        if choice.is_file():
            return choice
    if str(path) in ready_weights.index():
        raise RunError(
            f"{path} is the name of ready weights, which cannot be trained further as they have no optimizer's state; "
            f"expected a .ckpt file or the directory of a run, runs/…: train.start_from={path} starts a new run from "
            "them"
        )
    others = {*with_weights()} - {str(path)}
    close = closest(str(path), sorted(others))
    meant = f"did you mean {close}? Otherwise, " if close else ""
    raise RunError(
        f"no checkpoint at {path}; {meant}expected a .ckpt file or the directory of a run, runs/…"
    )


def directory_of(checkpoint: Path) -> Path:
    """Return the run directory of a checkpoint, or the folder of a file outside a run directory."""
    folder = checkpoint.absolute().parent
    return folder.parent if folder.name == "checkpoints" else folder


def attempts(fingerprint: str) -> list[Path]:
    """Return the directories of all runs with this ``config_hash``, the latest first."""
    folders = [path for path in root().glob(f"*-{fingerprint}*") if path.is_dir()]
    found = [folder for folder in folders if is_attempt(folder, fingerprint)]
    return sorted(found, key=_number, reverse=True)


def is_attempt(directory: Path, fingerprint: str) -> bool:
    """Return whether ``attempts`` finds ``directory`` for this configuration."""
    return directory.parent == root() and _has_hash(directory, fingerprint)


def continues_another(config: DictConfig) -> bool:
    """Return whether ``ckpt=…`` belongs to another configuration; such a run does not count for its configuration."""
    if not config.ckpt:
        return False
    directory = directory_of(find_checkpoint(config.ckpt))
    return not _has_hash(directory, config_hash(config))


def _has_hash(directory: Path, fingerprint: str) -> bool:
    """Return whether ``directory`` has this hash in its name, and did not start from another run's weights."""
    match = _ENDING.search(directory.name)
    return match is not None and match["hash"] == fingerprint and not match["continued"]


def hash_in(directory: Path) -> str | None:
    """Return the ``config_hash`` in the name of a run directory; ``None`` if the user chose the name."""
    match = _ENDING.search(directory.name)
    return match and match["hash"]


def _number(directory: Path) -> int:
    """Return the number of the attempt, from the end of the name; by default 1."""
    match = _ENDING.search(directory.name)
    return int((match and match["number"]) or 1)


def own_directory(config: DictConfig) -> Path | None:
    """Return ``train.directory``; ``None`` if it is not set."""
    if not config.train.directory:
        return None
    return expanded(str(config.train.directory)).absolute()


def choose_directory(
    config: DictConfig, name: str, skip: Callable[[Path], bool] = lambda _: False
) -> Path:
    """Return the directory for this run: that of the checkpoint or of the run to resume, else a new one.

    Nothing is created. Later processes that Lightning starts read the directory from the environment. ``name`` is the
    part of the directory's name between ``config.name`` and the hash; ``skip`` returns whether the run in a directory
    must not be resumed, so that a new one starts.
    """
    own_name = config.get("name")
    if own_name is not None and not _OWN_NAME.fullmatch(str(own_name)):
        raise RunError(
            f"name is {str(own_name)!r}; expected at most 100 letters, digits, _, - and ., such as name=first_try"
        )
    fingerprint = config_hash(config)
    known, _, shared = os.environ.get(protocol.RUN, "").partition(":")
    if not is_first_process() and known == fingerprint:
        return Path(shared)
    chosen = own_directory(config)
    if chosen:
        return chosen
    if not is_first_process():
        raise RunError(
            "this process cannot find the directory of the first process; set train.directory=… when torchrun or srun "
            "starts the processes, and start the jobs of a sweep one by one when each has several processes"
        )
    if config.ckpt and not config.train.resume:
        before = directory_of(find_checkpoint(config.ckpt))
        if hash_in(before) == fingerprint:
            return before
    ending = _ending_for(config)
    latest = _latest_with(ending)
    if config.train.resume and latest is not None and not skip(latest):
        return latest
    new = name.replace("/", "_") + ending
    if own_name:
        new = f"{own_name}-{new}"
    if latest is not None:
        new += f"-{_number(latest) + 1}"
    return root() / new


def latest_directory(config: DictConfig) -> Path | None:
    """Return the directory that ``choose_directory`` chose for the latest run; ``None`` if there is none."""
    return own_directory(config) or _latest_with(_ending_for(config))


def _ending_for(config: DictConfig) -> str:
    """Return the end of the names of run directories of this configuration, before their number."""
    ending = f"-{config_hash(config)}"
    return ending + _CONTINUED if continues_another(config) else ending


def _latest_with(ending: str) -> Path | None:
    """Return the latest of the directories whose names have this ending before their number."""
    pattern = re.compile(rf"{ending}(-\d+)?$")
    existing = [path for path in root().glob(f"*{ending}*") if pattern.search(path.name)]
    return sorted(existing, key=_number)[-1] if existing else None


def read_overrides(directory: Path) -> list[str]:
    """Return the overrides of a run; empty if they are unknown, with a warning if its configuration is damaged."""
    file = directory / "config.yaml"
    try:
        with open_regular(file, inside=directory) as lines:
            first = lines.readline(_LONGEST_LINE).decode()
        if first.startswith(_OVERRIDES):
            return shlex.split(first.removeprefix(_OVERRIDES))
    # ValueError: of the decoding, or quotes that do not match
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        log.warning("%s cannot be read (%s); its overrides are unknown", file, reason)
    return []


def check_links(directory: Path) -> None:
    """Raise a ``RunError`` if a part of the run that commands write to is a link that leads out of its directory."""
    for name in _WRITTEN:
        if leads_out(directory / name, directory):
            raise RunError(
                f"{directory / name} is a link out of the run directory; expected a directory with files of its own: "
                "remove the link, or put what it points to in its place"
            )


def create_directory(directory: Path, config: DictConfig, overrides: Sequence[str] = ()) -> None:
    """Create the run's directory, or continue in it; the first process writes the configuration and the overrides."""
    continues = config.train.resume
    if config.ckpt and not continues:
        continues = directory_of(find_checkpoint(config.ckpt)) == directory
    if is_first_process() and not continues and (directory / "config.yaml").exists():
        raise RunError(
            f"{directory} already contains a run; continue it with train.resume=true, or set another train.directory=…"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if is_first_process():
            # from a process that was killed while saving
            for leftover in directory.glob("checkpoints/.*.ckpt"):
                leftover.unlink()
            with atomically(directory / "config.yaml") as temporary:
                options = OmegaConf.to_yaml(config, resolve=True)
                text = f"{_OVERRIDES}{shlex.join(overrides)}\n{options}"
                temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
            for name in ("metrics.json", "status.json"):  # from the run that is continued
                (directory / name).unlink(missing_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot write to {directory} ({error.strerror}); choose a writable directory with train.directory=…"
        ) from error
    os.environ[protocol.RUN] = f"{config_hash(config)}:{directory}"
