"""Folders with configurations: those of this package, of packages that extend it, and of the user.

A package that extends ``capsule_lab`` has an entry point in the group ``capsule_lab.commands``, whose value is its
package of commands, such as ``capsule_studies.commands``. Its folder ``conf`` belongs to the configurations.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from capsule_lab.config.options import described_without_file, groups_without_file
from capsule_lab.system import protocol
from capsule_lab.system.discovery import entries_of

EXTENSIONS = "capsule_lab.commands"
"""Group of entry points of packages with more commands."""

_PACKAGE = Path(__file__).parents[1]


def conf_dir() -> Path:
    """Return the configuration folder: inside an installed wheel, or beside the package in a source tree."""
    places = (_PACKAGE / "conf", _PACKAGE.parent / "conf")
    return next(folder for folder in places if folder.is_dir())


def sweeps_dir() -> Path:
    """Return the folder of tables."""
    return conf_dir().with_name("sweeps")


@functools.cache
def extensions() -> dict[str, Path]:
    """Return the packages of commands of other distributions, each with its configuration folder."""
    found = {}
    for entry in entries_of(EXTENSIONS):
        spec = find_spec(entry.module.partition(".")[0])
        if spec is not None and spec.submodule_search_locations:  # a package, not a module
            found[entry.module] = Path(spec.submodule_search_locations[0]) / "conf"
    return found


def shipped_folders() -> list[Path]:
    """Return the configuration folders of this package and of those that extend it."""
    return [conf_dir(), *extensions().values()]


def file_of(command: str) -> Path:
    """Return the configuration file of a command."""
    files = [folder / f"{command}.yaml" for folder in shipped_folders()]
    return next((file for file in files if file.is_file()), files[0])


@functools.cache
def groups() -> tuple[str, ...]:
    """Return the names of the shipped configuration groups, without Hydra's."""
    # the check of a table asks for them thousands of times
    names = {*groups_without_file()}
    for shipped in shipped_folders():
        names |= {folder.name for folder in shipped.iterdir() if folder.is_dir()}
    return tuple(sorted(names - {"hydra"}))


def options_of(group: str) -> list[str]:
    """Return the names of the options of a configuration group, sorted."""
    return sorted({*option_files(group), *described_without_file(group)})


def described_options(group: str) -> dict[str, list[str]]:
    """Return the comments at the head of each option of a configuration group, or its description."""
    described = {}
    for name, text in described_without_file(group).items():
        described[name] = [text]
    for name, file in option_files(group).items():
        described[name] = head(file)
    return dict(sorted(described.items()))


def option_files(group: str) -> dict[str, Path]:
    """Return the file of each option of a configuration group; ``_common.yaml`` and the like are parts."""
    folders = shipped_folders()
    for entry in search_path():
        if entry.startswith("file://"):
            folders.append(Path(entry.removeprefix("file://")))
    files = {}
    for folder in folders:
        for file in (folder / group).rglob("[!_]*.yaml"):
            name = file.relative_to(folder / group).with_suffix("")
            files[name.as_posix()] = file
    return files


def default_options(command: str) -> dict[str, str | None]:
    """Return the configuration groups of a command, each with its default option."""
    content: Any = OmegaConf.to_container(OmegaConf.load(file_of(command)))
    found: dict[str, str | None] = {}
    for entry in content.get("defaults", []):
        if isinstance(entry, str):
            found |= default_options(entry) if file_of(entry).is_file() else {}
            continue
        for group, option in entry.items():
            if not group.startswith("override "):
                found[group] = option
    return found


def head(file: Path) -> list[str]:
    """Return the comments at the head of a YAML file; the first line is a summary."""
    comments = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            comments.append(line.removeprefix("#").removeprefix(" "))
    return comments


def search_path() -> list[str]:
    """Return the user's configuration folders as entries of Hydra's search path: ``file:///…`` or ``pkg://…``."""
    return os.environ.get(protocol.SEARCH_PATH, "").splitlines()


@contextmanager
def searching(entries: Sequence[str]) -> Iterator[None]:
    """Add folders to ``search_path`` of this process and its children."""
    before = search_path()
    os.environ[protocol.SEARCH_PATH] = "\n".join([*before, *entries])
    try:
        yield
    finally:
        os.environ[protocol.SEARCH_PATH] = "\n".join(before)
