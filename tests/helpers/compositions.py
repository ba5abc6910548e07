"""Hydra's composition with its repeated parts done once: parsing a file, resolving a defaults list, merging its files.

A suite composes thousands of times from the same few hundred files. What follows from the shipped files and the
chosen options alone is kept, as pickles, so that nobody shares a node; overrides of values are applied anew each time.
Compositions that look into other folders are left alone. The private functions are those of Hydra 1.3.
"""

import pickle
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from hydra._internal import config_loader_impl, defaults_list
from omegaconf import OmegaConf

from capsule_lab.config.compose import conf_dir


def _only_shipped(repo: Any) -> bool:
    return all(Path(source.path) == conf_dir() for source in repo.get_sources() if source.scheme() == "file")


load, create = OmegaConf.load, defaults_list._create_defaults_list
merge = config_loader_impl.ConfigLoaderImpl._compose_config_from_defaults_list


@contextmanager
def composed_by(load: Any, create: Any, merge: Any) -> Iterator[None]:
    """Within, Hydra composes by these functions."""
    with (
        mock.patch.object(OmegaConf, "load", staticmethod(load)),
        mock.patch.object(defaults_list, "_create_defaults_list", create),
        mock.patch.object(config_loader_impl.ConfigLoaderImpl, "_compose_config_from_defaults_list", merge),
    ):
        yield


def composed_anew() -> AbstractContextManager[None]:
    """Within, Hydra composes by its own functions."""
    return composed_by(load, create, merge)


def composed_from_parts() -> AbstractContextManager[None]:
    """Within, every part of a composition is computed once."""
    parsed: dict[Path, bytes] = {}
    resolved: dict[str, bytes] = {}
    merged: dict[str, bytes] = {}

    def load_once(file: Any) -> Any:
        name = Path(getattr(file, "name", file))
        if not name.is_relative_to(conf_dir()):
            return load(file)
        if name not in parsed:
            parsed[name] = pickle.dumps(load(file))
        return pickle.loads(parsed[name])  # six times faster than copy.deepcopy

    def create_once(repo: Any, config_name: Any, overrides: Any, **options: Any) -> Any:
        """The list, and what resolving it adds to ``overrides``."""
        if not _only_shipped(repo):
            return create(repo, config_name, overrides, **options)
        choices = (overrides.override_choices, overrides.append_group_defaults, overrides.deletions)
        key = repr((config_name, *choices, options))
        if key not in resolved:
            result = create(repo, config_name, overrides, **options)
            changes = {name: value for name, value in vars(overrides).items() if name != "config_overrides"}
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

    return composed_by(load_once, create_once, merge_once)
