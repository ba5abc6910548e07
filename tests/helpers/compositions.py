"""Hydra's composition with caches: each file is parsed once, each defaults list is resolved and merged once.

The tests compose thousands of times from the same few hundred files. The caches hold what depends only on the shipped
files and the chosen options, as pickles, so that compositions share no nodes. Overrides of values are applied every
time. Compositions with other folders in the search path are not cached. The private functions are those of Hydra 1.3.
"""

import copy
import pickle
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from hydra._internal import config_loader_impl, config_repository, defaults_list
from omegaconf import OmegaConf

from capsule_lab.config.folders import shipped_folders


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


def composed_from_parts() -> AbstractContextManager[None]:
    """Within, Hydra composes with the caches."""
    parsed: dict[Path, bytes] = {}
    resolved: dict[str, bytes] = {}
    merged: dict[str, bytes] = {}

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
        if key not in resolved:
            result = create(repo, config_name, overrides, **options)
            changes = {
                name: value for name, value in vars(overrides).items() if name != "config_overrides"
            }
            resolved[key] = pickle.dumps((result, changes))
            return result
        result, changes = pickle.loads(resolved[key])
        vars(overrides).update(changes)
        return result

    def merge_once(self: Any, defaults: Any, repo: Any) -> Any:
        if not _only_shipped(repo):
            return merge(self, defaults=defaults, repo=repo)
        key = repr(defaults)
        if key not in merged:
            merged[key] = pickle.dumps(merge(self, defaults=defaults, repo=repo))
        return pickle.loads(merged[key])

    def open_shallow(self: Any, delegate: Any) -> None:
        """Copy only the list of sources, which Hydra changes; it copies every node of every source."""
        self.delegate, self.cache = copy.copy(delegate), {}

    return composed_by(load_once, create_once, merge_once, open_shallow)
