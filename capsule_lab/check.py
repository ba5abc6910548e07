"""Checks of a configuration before anything heavy is built: its keys, its values, and whether its parts fit."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, ListConfig, OmegaConf

from capsule_lab.config import conf_dir, options_of
from capsule_lab.errors import ConfigError, one_line, suggest


def check(config: DictConfig) -> None:
    """Bind every ``_target_`` to its signature, and see that a training run of this configuration can work.

    Raises:
        ConfigError: for a target that does not exist, an argument it does not take, with those it takes, or a value
            that cannot work.
    """
    for path, node in _targets(config):
        try:
            target = get_object(node["_target_"])
        except Exception as error:  # hydra raises whatever the import raises
            raise ConfigError(
                f"{path}._target_ is {node['_target_']}, which cannot be imported: {one_line(error)}"
            ) from error
        _check_arguments(path, node, _arguments(target))
    if "train" in config:
        _check_complete(config)
        _check_loss(config)
        _check_routing(config)
        _check_unknown_keys(config)
        _check_run(config)


# --- arguments and their types ---------------------------------------------------------------------------------------

_EXPECTED: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    types.NoneType: "null",
}


def _targets(node: Any, path: str = "") -> Iterator[tuple[str, DictConfig]]:
    """Every node that is instantiated, with its path; one that is an interpolation has a path of its own elsewhere."""
    if isinstance(node, ListConfig):
        for number, item in enumerate(node):
            yield from _targets(item, f"{path}.{number}")
    if isinstance(node, DictConfig):
        if "_target_" in node:
            yield path, node
        for key in map(str, node):
            if not OmegaConf.is_interpolation(node, key) and not OmegaConf.is_missing(node, key):
                yield from _targets(node[key], f"{path}.{key}" if path else key)


@functools.cache
def _arguments(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """What ``target`` takes by name, following ``**options`` up its base classes; ``None`` if anything."""
    layers = [target]
    if inspect.isclass(target):
        layers = [vars(c)["__init__"] for c in inspect.getmro(target) if "__init__" in vars(c) and c is not object]
    names: dict[str, inspect.Parameter] = {}
    for layer in layers:
        parameters = _signature(layer).parameters.values()
        own = {p.name: p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
        names = own | names  # the most derived class decides
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return {name: parameter for name, parameter in names.items() if name != "self"}
    return None if layers else names


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # names that are imported for type checkers only; such annotations stay text and check nothing
        return inspect.signature(function)


def _check_arguments(path: str, node: DictConfig, arguments: Mapping[str, inspect.Parameter] | None) -> None:
    """Every key is an argument, and every value has one of its types, where those are plain ones."""
    if arguments is None:
        return
    for name in (str(key) for key in node if not str(key).startswith("_")):
        if name not in arguments:
            known = [f"{path}.{option}" for option in arguments]
            raise ConfigError(f"{path}.{name} does not exist; {suggest(f'{path}.{name}', known)}")
        if OmegaConf.is_missing(node, name) or OmegaConf.is_interpolation(node, name):
            continue
        value, expected = node[name], _plain_types(arguments[name].annotation)
        is_default = value is None and arguments[name].default is None  # of name: str = None, as others write
        is_instantiated = isinstance(value, DictConfig) and "_target_" in value
        if expected and not is_default and not is_instantiated and not _is_one_of(value, expected):
            options = " or ".join(_EXPECTED[each] for each in expected)
            raise ConfigError(f"{path}.{name} is {'null' if value is None else value}; expected {options}")


def _plain_types(annotation: Any) -> tuple[type, ...]:
    """The types of an annotation, such as ``int | None``; none if it has others than numbers, text and ``None``."""
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    members = typing.get_args(annotation) if is_union else (annotation,)
    return members if all(isinstance(each, type) and each in _EXPECTED for each in members) else ()


def _is_one_of(value: Any, expected: tuple[type, ...]) -> bool:
    if isinstance(value, bool):  # an int for Python
        return bool in expected
    return isinstance(value, (*expected, int) if float in expected else expected)


# --- parts of a training run -----------------------------------------------------------------------------------------


def _check_complete(config: DictConfig) -> None:
    """Every group is chosen, and every value without a default is given."""
    for group in ("model", "module", "data", "loss", "schedule", "optimizer", "trainer"):
        if config.get(group) is None:
            raise ConfigError(f"{group} is missing; expected {group}= one of {', '.join(options_of(group))}")
    for path, node in _targets(config):
        for name in map(str, node):
            if OmegaConf.is_missing(node, name):
                raise ConfigError(
                    f"{path}.{name} is missing; expected {path}.{name}=<value>, this option has no default"
                )


def _check_loss(config: DictConfig) -> None:
    """The loss is one for what the network's scores are."""
    network, loss = get_object(config.model["_target_"]), config.loss.classification
    gives = getattr(network, "scores_are", None)
    expects = "activations" if loss.get("log_odds") else getattr(get_object(loss["_target_"]), "expects", None)
    if gives and expects and gives != expects:
        name = loss["_target_"].rpartition(".")[2] + (" with log_odds" if loss.get("log_odds") else "")
        instead = "cross_entropy" if gives == "logits" else "margin"
        raise ConfigError(f"{name} expects {expects}; {network.__name__} gives {gives}: loss={instead}")


def _check_routing(config: DictConfig) -> None:
    """A network that routes has a routing, another has none."""
    network = config.model["_target_"].rpartition(".")[2]
    if "routing" not in config.model and config.routing is not None:
        routing = config.routing["_target_"].rpartition(".")[2]
        raise ConfigError(f"{network} does not route, so {routing} would change nothing: leave out routing=…")
    if "routing" in config.model and config.model.routing is None:
        options = ", ".join(option for option in options_of("routing") if option != "none")
        raise ConfigError(f"{network} routes, but routing is none; expected routing= one of {options}")


def _check_unknown_keys(config: DictConfig) -> None:
    """Hydra adds any key of an experiment file; one that no code reads is a mistake."""
    top, of_train = _known_keys()
    for node, options, path in ((config, top, ""), (config.train, of_train, "train.")):
        for name in map(str, node):
            if name not in options:
                listed = [f"{path}{option}" for option in options]
                raise ConfigError(f"{path}{name} does not exist; {suggest(f'{path}{name}', listed)}")


@functools.cache
def _known_keys() -> tuple[set[str], set[str]]:
    """Keys of a training configuration, and of its ``train``."""
    known = OmegaConf.load(conf_dir() / "train.yaml")
    assert isinstance(known, DictConfig)
    groups = {folder.name for folder in conf_dir().iterdir() if folder.is_dir()}
    return {*map(str, known), *groups} - {"defaults"}, set(map(str, known.train))


def _check_run(config: DictConfig) -> None:
    """The run ends, and Lightning does with these values what they say."""
    trainer = config.trainer
    if max(trainer.max_epochs or -1, trainer.max_steps or -1) < 1:
        raise ConfigError("the run has no end: set trainer.max_epochs or trainer.max_steps, schedules scale to it")
    if trainer.limit_train_batches is not None and not trainer.limit_train_batches:
        raise ConfigError(
            "trainer.limit_train_batches is 0, which trains nothing; expected 1 or more batches, or a share such as 0.1"
        )
    if trainer.gradient_clip_val is not None and config.optimizer.get("fused"):
        raise ConfigError(
            f"trainer.gradient_clip_val is {trainer.gradient_clip_val} beside a fused optimizer, whose "
            "gradients Lightning does not clip; set optimizer.fused=false"
        )
    if not isinstance(config.seed, int) or config.seed < 0:
        raise ConfigError(f"seed is {config.seed}; expected a whole number, 0 or more")
    allowed = ("auto", "32-true", "bf16-mixed", "16-mixed")
    if trainer.precision not in allowed:
        raise ConfigError(
            f"trainer.precision is {trainer.precision}; expected one of {', '.join(allowed)}: routing is float32"
        )
    if config.train.test not in ("best", "last", "none"):
        raise ConfigError(f"train.test is {config.train.test!r}; expected best, last or none")
