"""Hydra's composition with caches: each file is parsed once, each defaults list is resolved and merged once.

The tests compose thousands of times from the same few hundred files. The caches hold what depends only on the shipped
files and the chosen options, as pickles, so that compositions share no nodes. Overrides of values are applied every
time. Compositions with other folders in the search path are not cached. The private functions are those of Hydra 1.3.

Lists and merged configurations also stay in files below ``.pytest_cache``, for the other processes and for the next
session, until any file of the packages changes; ``--cache-clear`` removes them.
"""

import copy
import hashlib
import pickle
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import hydra
import omegaconf
from hydra._internal import config_loader_impl, config_repository, defaults_list
from omegaconf import OmegaConf

from capsule_lab.config.folders import shipped_folders
from capsule_lab.system.files import atomically

ROOT = Path(__file__).parents[2]
SOURCES = ("capsule_lab", "capsule_studies", "conf", "hydra_plugins")
"""Folders that decide what is composed: options without a file come from signatures."""


class Pickles:
    """Pickles by key, in memory and, with a folder, in files."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.known: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        if key not in self.known and self.folder is not None:
            file = self._file(self.folder, key)
            if file.is_file():
                self.known[key] = file.read_bytes()
        return self.known.get(key)

    def keep(self, key: str, value: Any) -> None:
        self.known[key] = pickle.dumps(value)
        if self.folder is not None:
            self.folder.mkdir(exist_ok=True)  # a session with other sources may have removed it
            with atomically(self._file(self.folder, key)) as file:
                file.write_bytes(self.known[key])

    @staticmethod
    def _file(folder: Path, key: str) -> Path:
        return folder / hashlib.sha256(key.encode()).hexdigest()


def folder_of_these_sources(parent: Path) -> Path:
    """The folder for the sources as they are; those for others are removed."""
    digest = hashlib.sha256(f"{sys.version} {hydra.__version__} {omegaconf.__version__}".encode())
    for name in SOURCES:
        for file in sorted((ROOT / name).rglob("*")):
            is_test = "tests" in file.relative_to(ROOT).parts
            if file.suffix in (".py", ".yaml") and not is_test:
                digest.update(str(file).encode() + b"\0" + file.read_bytes())
    folder = parent / digest.hexdigest()
    for other in parent.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)  # another process may remove it, too
    return folder


def _only_shipped(repo: Any) -> bool:
    files = [source.path for source in repo.get_sources() if source.scheme() == "file"]
    return {*map(Path, files)} <= {*shipped_folders()}


load, create = OmegaConf.load, defaults_list._create_defaults_list
merge = config_loader_impl.ConfigLoaderImpl._compose_config_from_defaults_list
open_repository = config_repository.CachingConfigRepository.__init__


@contextmanager
def composed_by(load: Any, create: Any, merge: Any, open_repository: Any) -> Iterator[None]:
    """Within, Hydra composes with these functions."""
    with (
        mock.patch.object(config_repository.CachingConfigRepository, "__init__", open_repository),
        mock.patch.object(OmegaConf, "load", staticmethod(load)),
        mock.patch.object(defaults_list, "_create_defaults_list", create),
        mock.patch.object(
            config_loader_impl.ConfigLoaderImpl, "_compose_config_from_defaults_list", merge
        ),
    ):
        yield


def composed_anew() -> AbstractContextManager[None]:
    """Within, Hydra composes with its own functions."""
    return composed_by(load, create, merge, open_repository)


def composed_from_parts(folder: Path | None = None) -> AbstractContextManager[None]:
    """Within, Hydra composes with the caches, which a folder keeps."""
    parsed: dict[Path, bytes] = {}
    pickles = Pickles(folder)

    def load_once(file: Any) -> Any:
        name = Path(file if isinstance(file, (str, Path)) else file.name)
        if not any(name.is_relative_to(folder) for folder in shipped_folders()):
            return load(file)
        if name not in parsed:
            parsed[name] = pickle.dumps(load(file))
        return pickle.loads(parsed[name])  # six times faster than copy.deepcopy

    def create_once(repo: Any, config_name: Any, overrides: Any, **options: Any) -> Any:
        """Return the list; restore what resolving it adds to ``overrides``."""
        if not _only_shipped(repo):
            return create(repo, config_name, overrides, **options)
        choices = (overrides.override_choices, overrides.append_group_defaults, overrides.deletions)
        key = repr((config_name, *choices, options))
        known = pickles.get(key)
        if known is None:
            result = create(repo, config_name, overrides, **options)
            changes = {
                name: value for name, value in vars(overrides).items() if name != "config_overrides"
            }
            pickles.keep(key, (result, changes))
            return result
        result, changes = pickle.loads(known)
        vars(overrides).update(changes)
        return result

    def merge_once(self: Any, defaults: Any, repo: Any) -> Any:
        if not _only_shipped(repo):
            return merge(self, defaults=defaults, repo=repo)
        key = repr(defaults)
        known = pickles.get(key)
        if known is None:
            result = merge(self, defaults=defaults, repo=repo)
            pickles.keep(key, result)
            return result
        return pickle.loads(known)

    def open_shallow(self: Any, delegate: Any) -> None:
        """Copy only the list of sources, which Hydra changes; it copies every node of every source."""
        self.delegate, self.cache = copy.copy(delegate), {}

    return composed_by(load_once, create_once, merge_once, open_shallow)
