"""Checks of a command's own options: known keys, types, ranges, and options without effect."""

from __future__ import annotations

from collections.abc import Collection
from operator import attrgetter
from typing import Any

from omegaconf import DictConfig, OmegaConf

from capsule_lab.config.declaration import Command, Option, Options, expected_words
from capsule_lab.config.folders import default_options
from capsule_lab.config.hints import key_meant
from capsule_lab.config.signatures import check_value, described, kinds_of, refused
from capsule_lab.errors import ConfigError, suggest

_ABSENT = object()


def check_options(config: DictConfig, command: Command) -> None:
    """Check that all keys are known, and the types and ranges of a command's options, but not of its groups.

    Options that are absent are skipped.
    """
    check_keys(config, command)
    for option in command.own_options.values():
        value = OmegaConf.select(config, option.key, default=_ABSENT)
        if value is not _ABSENT:
            _check_option(option, value)


def _check_option(option: Option, value: Any) -> None:
    kinds = kinds_of(option.annotation)
    if kinds and value == "":
        raise refused(option.key, value, described(kinds))
    check_value(option.key, value, option.annotation)


def check_keys(config: DictConfig, command: Command) -> None:
    """Check that a command knows all keys, because Hydra accepts any ``+key``, and any key in an experiment file."""
    known = {*command.own_options, *command.options.model_fields}
    known |= {*default_options(command.name), "hydra"}
    keys = [str(key) for key in config]
    for parent in _parents(known):
        node = config.get(parent)
        if not isinstance(node, DictConfig):
            children = [key for key in known if key.startswith(f"{parent}.")]
            raise refused(parent, node, f"options such as {min(children)}=…")
        keys += [f"{parent}.{key!s}" for key in node]
        known.add(parent)
    for key in keys:
        if key not in known:
            meant = key_meant(key, config)
            raise ConfigError(
                f"{key} does not exist; {f'did you mean {meant}?' if meant else suggest(key, known)}"
            )


def _parents(keys: Collection[str]) -> list[str]:
    """Return the nodes that contain a command's own options: ``train`` of ``train.resume``."""
    return sorted({key.partition(".")[0] for key in keys if "." in key})


def check_required(config: DictConfig, command: Command) -> None:
    """Raise a ``ConfigError`` for an option without a default that was not given, or one that was deleted."""
    for option in command.required:
        if OmegaConf.select(config, option.key) in (None, ""):
            expected = expected_words(option.annotation) or described(kinds_of(option.annotation))
            raise ConfigError(f"{option.key} is missing; expected {option.key}=<{expected}>")
    for key in command.own_options:
        if OmegaConf.select(config, key, default=_ABSENT) is _ABSENT:
            raise ConfigError(f"~{key} deletes an option of {command.name}; expected {key}=<value>")


def check_effect(options: Options, where: str, without_effect: Collection[str]) -> None:
    """Raise a ``ConfigError`` if an option that has no effect ``where`` differs from its default."""
    defaults = {option.key: option.default for option in options.own()}
    for key in without_effect:
        value = attrgetter(key)(options)
        if value != defaults[key]:
            others = ", ".join(sorted({*defaults} - {*without_effect}))
            raise ConfigError(
                f"{key}={value} has no effect {where}; leave it out: the options there are {others}"
            )
