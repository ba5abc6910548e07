"""Checks of a configuration before anything expensive is built: keys, values, and whether the parts fit."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any, cast

from hydra.utils import get_object
from omegaconf import DictConfig, ListConfig, OmegaConf

from capsule_lab.config.folders import conf_dir, groups, option_files, options_of
from capsule_lab.config.hints import UNSUPPORTED, key_meant
from capsule_lab.config.messages import reason_of_import
from capsule_lab.config.signatures import arguments_of, check_value
from capsule_lab.errors import ConfigError, check_number, closest, suggest


def check(config: DictConfig) -> None:
    """Check the arguments of every ``_target_``."""
    for path, node in _targets(config):
        name = node["_target_"]
        try:
            target = get_object(name)
        except Exception as error:  # get_object passes on any error of the import
            raise ConfigError(
                f"{path}._target_ is {name}, which cannot be imported: {reason_of_import(error)}"
            ) from error
        _check_arguments(path, node, arguments_of(target))


def check_run(config: DictConfig) -> None:
    """Check the arguments of every ``_target_``, and whether a training run of this configuration can work."""
    check(config)
    _check_complete(config)
    _check_loss(config)
    _check_routing(config)
    _check_schedules(config)
    _check_trainer(config)


def check_trainer_of_evaluation(trainer: DictConfig, used: Collection[str]) -> None:
    """Raise a ``ConfigError`` if an argument of ``lightning.Trainer`` that is not ``used`` differs from its default."""
    _check_supported(trainer)
    default: Any = OmegaConf.load(conf_dir() / "trainer" / "default.yaml")
    for name in map(str, trainer):
        value = trainer[name]
        if name not in ("_target_", *used) and value != default.get(name, _ABSENT):
            options = ", ".join(f"trainer.{each}" for each in used)
            raise ConfigError(
                f"trainer.{name} is {value}, which has no effect here; leave it out, or set {options}"
            )


_ABSENT = object()


def _targets(node: Any, path: str = "") -> Iterator[tuple[str, DictConfig]]:
    """Yield path and node of each ``_target_``, without interpolations, whose target has a path elsewhere."""
    if isinstance(node, ListConfig):
        for number, item in enumerate(node):
            yield from _targets(item, f"{path}.{number}")
    if isinstance(node, DictConfig):
        if "_target_" in node:
            yield path, node
        for key in cast("list[str | int]", [*node]):  # a number is, for example, that of an epoch
            if not OmegaConf.is_interpolation(node, key) and not OmegaConf.is_missing(node, key):
                yield from _targets(node[key], f"{path}.{key}" if path else str(key))


def _check_arguments(
    path: str, node: DictConfig, arguments: Mapping[str, Parameter] | None
) -> None:
    if arguments is None:
        return
    for name in map(str, node):
        if name.startswith("_"):
            continue
        key = f"{path}.{name}"
        if name in _OF_DATA.get(path, ()):
            value = "null" if node[name] is None else node[name]
            raise ConfigError(f"{key} is {value}, but it is that of the data; leave it out")
        if name not in arguments:
            raise ConfigError(f"{key} does not exist; {_other_arguments(key, node, [*arguments])}")
        is_known_later = OmegaConf.is_missing(node, name) or OmegaConf.is_interpolation(node, name)
        if not is_known_later and key != "trainer.precision":  # where we add "auto"
            _check_argument(key, node[name], arguments[name])


def _other_arguments(key: str, node: DictConfig, arguments: Sequence[str]) -> str:
    """Suggest an argument in place of ``key``, which the target of ``node`` does not take."""
    path, _, name = key.rpartition(".")
    meant = key_meant(name)
    if meant and meant != key:
        return f"did you mean {meant}?"
    known = ", ".join(f"{path}.{argument}" for argument in sorted(arguments))
    if close := closest(name, arguments):
        return f"did you mean {path}.{close}? Options: {known}"
    # a key of the preset whose target was replaced by another class
    return f"{node['_target_']} takes {known or 'no options'}; ~{key} deletes it"


_OF_DATA = {
    "model": ("image_shape", "num_classes"),
    "module": ("network", "num_classes", "labels_per_image"),
}
"""Arguments that are no options, because the run knows them."""


def _check_argument(key: str, value: Any, argument: Parameter) -> None:
    is_default = (
        value is None and argument.default is None
    )  # of signatures such as name: str = None
    is_instantiated = isinstance(value, DictConfig) and "_target_" in value
    group = key.rpartition(".")[2]
    if isinstance(value, str) and group in groups() and value in options_of(group):
        raise ConfigError(f"{key} is {value}, the name of an option; expected {group}={value}")
    if not (is_default or is_instantiated):
        check_value(key, value, argument.annotation, _IN_WORDS.get(key, ""))


_IN_WORDS = {
    "trainer.max_time": "days:hours:minutes:seconds, such as 00:01:30:00, or {minutes: 90}, or null"
}


# --- parts of a training run -----------------------------------------------------------------------------------------


def _check_complete(config: DictConfig) -> None:
    """Check that every group is chosen, and every value without a default is given."""
    whole = ("model", "module", "data", "optimizer", "trainer")
    for group in (*whole, "loss", "schedule"):
        if config.get(group) is None:
            raise ConfigError(
                f"{group} is missing; expected {group}= one of {', '.join(options_of(group))}"
            )
    for path, part in _parts(config, (*whole, "routing"), ("callbacks", "logger")):
        if not _is_null_or_object(part):
            raise ConfigError(f"{path} is {part}; expected null, or options with a _target_")
    for path, node in _targets(config):
        for name in map(str, node):
            if OmegaConf.is_missing(node, name):
                raise ConfigError(
                    f"{path}.{name} is missing and has no default; expected {path}.{name}=<value>"
                )


def _parts(
    config: DictConfig, whole: Sequence[str], divided: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    """Yield key and configuration of each object: of groups that are one, and of each part of the others."""
    for group in whole:
        yield group, config.get(group)
    for group in divided:
        for name, part in (config.get(group) or {}).items():
            yield f"{group}.{name}", part


def _is_null_or_object(part: Any) -> bool:
    return part is None or (isinstance(part, DictConfig) and "_target_" in part)


def _check_loss(config: DictConfig) -> None:
    """Check that the loss has the parts that the module takes, and fits the scores of the network."""
    network, loss = get_object(config.model["_target_"]), config.loss.get("classification")
    draws = hasattr(network, "change_shape")
    if draws != (loss is None):
        what = "draws the second image of a pair" if draws else "classifies"
        expected = (
            "loss=squared_error" if draws else "loss=margin, or another with loss.classification"
        )
        raise ConfigError(f"{network.__name__} {what}; expected {expected}")
    for name in _parts_of_loss(config.module):
        # a preset may have added options to a part, such as its weight, which this loss lacks
        if not _is_null_or_object(config.loss.get(name, _ABSENT)):
            example = "loss=squared_error" if draws else "loss=margin"
            raise ConfigError(
                f"this loss has no loss.{name} with a _target_, which {network.__name__} expects; use {example}, or "
                f"another with loss.{name}"
            )
    gives = getattr(network, "scores_are", None)
    expects = loss and getattr(get_object(loss["_target_"]), "expects", None)
    if gives and expects == "activations" != gives:  # every network has logits
        name = loss["_target_"].rpartition(".")[2]
        raise ConfigError(
            f"{name} expects {expects}, but {network.__name__} gives {gives}; use loss=cross_entropy"
        )


def _parts_of_loss(module: DictConfig) -> Iterator[str]:
    """Yield the names of the parts of the loss to which options of the module refer, such as ``classification``."""
    content: Any = OmegaConf.to_container(module, resolve=False)
    for value in content.values():
        reference = re.fullmatch(r"\$\{loss\.(\w+)\}", str(value))
        if reference is not None:
            yield reference[1]


def _check_routing(config: DictConfig) -> None:
    """Check that a network with routing has a routing configuration, and that any other has none."""
    network = config.model["_target_"].rpartition(".")[2]
    if "routing" not in config.model and config.routing is not None:
        routing = config.routing["_target_"].rpartition(".")[2]
        raise ConfigError(
            f"{network} does not route, so {routing} would have no effect; leave out routing=…"
        )
    if "routing" in config.model and config.model.routing is None:
        options = ", ".join(option for option in options_of("routing") if option != "none")
        raise ConfigError(
            f"{network} routes, but routing is none; expected routing= one of {options}"
        )
    given = config.get("class_routing")
    if (
        given is not None
        and "class_routing" not in config.model
        and _is_never_preset(config.routing)
    ):
        raise ConfigError(
            f"{network} has no options of its class layer apart, so class_routing={given} would have no effect; "
            "expected class_routing=null"
        )


def _is_never_preset(routing: DictConfig | None) -> bool:
    """Return whether no option of the group ``routing`` sets ``class_routing`` beside this routing of ours.

    Those that do are for networks with such options and without.
    """
    target = None if routing is None else routing["_target_"]
    if target is not None and not target.startswith("capsule_lab."):
        return False
    for file in option_files("routing").values():
        content = cast(DictConfig, OmegaConf.load(file))
        of_file = (content.get("routing") or content).get("_target_")
        if of_file == target and content.get("class_routing"):
            return False
    return True


def _check_schedules(config: DictConfig) -> None:
    """Check that something reads every schedule, if the module is ours; any other may read schedules of its own."""
    if not config.module["_target_"].startswith("capsule_lab."):
        return
    loss = config.loss.get("classification")
    arguments = (arguments_of(get_object(loss["_target_"])) or {}) if loss else {}
    known = {*_SCHEDULES, *arguments}
    for name in map(str, config.schedule):
        if name not in known and not name.startswith("routing_"):
            options = [f"schedule.{each}" for each in (*_SCHEDULES, "routing_…")]
            raise ConfigError(
                f"schedule.{name} would have no effect, as neither the loss nor the routing has it; "
                f"{suggest(f'schedule.{name}', options)}, or another argument of the loss"
            )


_SCHEDULES = ("learning_rate", "margin")
"""Schedules in our groups; a loss without a margin leaves out that of its preset."""


# --- values ----------------------------------------------------------------------------------------------------------

_LEAST = {
    "max_epochs": 1,
    "max_steps": 1,
    "min_epochs": 0,
    "min_steps": 0,
    "accumulate_grad_batches": 1,
    "check_val_every_n_epoch": 1,
    "num_nodes": 1,
    "gradient_clip_val": 0,
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 0,
}
"""Least values for ``lightning.Trainer``, which rejects smaller ones late, with a traceback, or not at all."""
_OR_MINUS_ONE = {
    "max_epochs": "for none",
    "max_steps": "for none",
    "num_sanity_val_steps": "for all",
}

_PRECISIONS = ("auto", "32-true", "bf16-mixed", "16-mixed")


def _check_supported(trainer: DictConfig) -> None:
    for name, instead in UNSUPPORTED.items():
        if trainer.get(name):
            raise ConfigError(
                f"trainer.{name} is {trainer[name]}, which cannot be used here; {instead}"
            )


def _check_trainer(config: DictConfig) -> None:
    """Check that the run ends, and that Lightning supports the values of ``trainer``."""
    trainer = config.trainer
    for name, least in _LEAST.items():
        value, other = trainer.get(name), _OR_MINUS_ONE.get(name)
        if value is not None and not (other and value == -1):
            try:
                check_number(f"trainer.{name}", value, least)
            except ValueError as error:
                raise ConfigError(f"{error}{f', or -1 {other}' if other else ''}") from None
    _check_supported(trainer)
    interval, limit = trainer.get("val_check_interval"), trainer.get("limit_train_batches")
    if isinstance(interval, int | float) and not interval > 0:
        raise ConfigError(
            f"trainer.val_check_interval is {interval}; expected 1 or more batches, or a share such as 0.5; "
            "to turn validation off, leave it out and set trainer.limit_val_batches=0"
        )
    if limit is not None and not limit:
        raise ConfigError(
            f"trainer.limit_train_batches is {limit}; expected 1 or more batches, or a share such as 0.1"
        )
    if trainer.precision not in _PRECISIONS:
        expected = ", ".join(_PRECISIONS)
        raise ConfigError(
            f"trainer.precision is {trainer.precision}; expected one of {expected}; routing is float32"
        )
    if any(word in str(trainer.get("strategy")) for word in ("spawn", "fork", "notebook")):
        raise ConfigError(
            f"trainer.strategy is {trainer.strategy}, which copies this process; expected auto or ddp"
        )
    if max(trainer.max_epochs or -1, trainer.max_steps or -1) < 1:
        raise ConfigError(
            "the run has no end; set trainer.max_epochs or trainer.max_steps, to which schedules scale"
        )
    if "lr" in config.optimizer:
        raise ConfigError(
            f"optimizer.lr is {config.optimizer.lr}; expected {key_meant('lr', config)}=…"
        )
