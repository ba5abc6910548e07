"""Checks of a configuration before anything heavy is built: its keys, its values, and whether its parts fit."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from inspect import Parameter
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, ListConfig, OmegaConf

from capsule_lab.config.compose import check_options, conf_dir, groups, options_of
from capsule_lab.config.hints import meant
from capsule_lab.config.signatures import accepts, arguments_of, expected, refused
from capsule_lab.errors import ConfigError, check_number, one_line, suggest


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
        _check_arguments(path, node, arguments_of(target))
    if "train" in config:
        _check_complete(config)
        _check_loss(config)
        _check_routing(config)
        _check_unknown_keys(config)
        _check_run(config)


def check_evaluation(config: DictConfig) -> None:
    """Check options of ``capsule_lab.evaluate``, ``attack`` and ``analyse`` that their types do not tell.

    Args:
        config: of one of them.

    Raises:
        ConfigError: for budgets that are no different, finite numbers, options that do not go together, or those of
            the trainer that only training reads.
    """
    epsilons = config.get("epsilons")
    if epsilons is not None and (
        not epsilons or len({*epsilons}) < len(epsilons) or not all(map(math.isfinite, epsilons))
    ):
        raise ConfigError(f"epsilons is {epsilons}; expected different numbers, such as [0.1,0.2]")
    of_others = [name for name in ("source", "couplings") if config.get(name) not in (None, "trained")]
    if config.get("objective") == "training" and of_others:
        raise ConfigError(
            f"objective=training is of the network that is attacked, {of_others[0]}={config[of_others[0]]} of another; "
            "expected objective=cross_entropy or margin"
        )
    if config.get("targeted") and config.objective == "training":
        raise ConfigError(
            "objective=training is of labels only; expected objective=cross_entropy or margin with targeted=true"
        )
    default = OmegaConf.load(conf_dir() / "trainer" / "default.yaml")
    assert isinstance(default, DictConfig)
    for name in _ONLY_OF_TRAINING:
        if config.trainer.get(name) != default[name]:
            raise ConfigError(f"trainer.{name} is {config.trainer[name]}, which only training reads; leave it out")


_ONLY_OF_TRAINING = (
    "max_epochs", "max_steps", "max_time", "limit_train_batches", "check_val_every_n_epoch", "val_check_interval",
    "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm",
)  # fmt: skip


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


def _check_arguments(path: str, node: DictConfig, arguments: Mapping[str, Parameter] | None) -> None:
    """Every key is an argument, and every value has one of its types, where the annotation is of plain ones."""
    if arguments is None:
        return
    for name in (str(key) for key in node if not str(key).startswith("_")):
        if name not in arguments:
            known = [f"{path}.{option}" for option in arguments]
            options = suggest(f"{path}.{name}", known) if known else f"{node['_target_']} takes no options"
            raise ConfigError(f"{path}.{name} does not exist; {options}")
        if OmegaConf.is_missing(node, name) or OmegaConf.is_interpolation(node, name):
            continue
        value, annotation = node[name], arguments[name].annotation
        is_default = value is None and arguments[name].default is None  # of name: str = None, as others write
        is_instantiated = isinstance(value, DictConfig) and "_target_" in value
        if is_default or is_instantiated or f"{path}.{name}" == "trainer.precision":  # whose "auto" is ours
            continue
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{path}.{name} is {value}; expected a finite number")
        words = _IN_WORDS.get(f"{path}.{name}") or expected(annotation)
        if words and not accepts(annotation, value):
            raise ConfigError(refused(f"{path}.{name}", value, words))


_IN_WORDS = {"trainer.max_time": "days:hours:minutes:seconds, such as 00:01:30:00, or {minutes: 90}, or null"}


# --- parts of a training run -----------------------------------------------------------------------------------------


def _check_complete(config: DictConfig) -> None:
    """Every group is chosen, and every value without a default is given."""
    for group in ("model", "module", "data", "loss", "schedule", "optimizer", "trainer"):
        if config.get(group) is None:
            raise ConfigError(f"{group} is missing; expected {group}= one of {', '.join(options_of(group))}")
    parts = {group: config.get(group) for group in ("model", "module", "data", "optimizer", "trainer", "routing")}
    for group in ("callbacks", "logger", "loss"):
        parts |= {f"{group}.{name}": part for name, part in (config.get(group) or {}).items()}
    for path, part in parts.items():
        if part is not None and not (isinstance(part, DictConfig) and "_target_" in part):
            raise ConfigError(f"{path} is {part}; expected null, or options that have a _target_")
    for path, node in _targets(config):
        for name in map(str, node):
            if OmegaConf.is_missing(node, name):
                raise ConfigError(
                    f"{path}.{name} is missing; expected {path}.{name}=<value>, this option has no default"
                )


def _check_loss(config: DictConfig) -> None:
    """The loss is one for what the network's scores are."""
    network, loss = get_object(config.model["_target_"]), config.loss.get("classification")
    draws = hasattr(network, "change_shape")
    if draws != (loss is None):
        what = "draws the second image of a pair" if draws else "classifies"
        expected = "loss=squared_error" if draws else "loss=margin, or another with loss.classification"
        raise ConfigError(f"{network.__name__} {what}; expected {expected}")
    callbacks = filter(None, (config.get("callbacks") or {}).values())
    if not draws and any(callback["_target_"].endswith(".DrawnPairs") for callback in callbacks):
        raise ConfigError(f"callbacks=pairs is of pairs, and {network.__name__} classifies; expected callbacks=default")
    if loss is None:
        return
    gives = getattr(network, "scores_are", None)
    expects = "activations" if loss.get("log_odds") else getattr(get_object(loss["_target_"]), "expects", None)
    if gives and expects == "activations" != gives:  # logits every network has
        name = loss["_target_"].rpartition(".")[2] + (" with log_odds" if loss.get("log_odds") else "")
        raise ConfigError(f"{name} expects {expects}; {network.__name__} gives {gives}: loss=cross_entropy")


def _check_routing(config: DictConfig) -> None:
    """A network that routes has a routing, another has none."""
    network = config.model["_target_"].rpartition(".")[2]
    if "routing" not in config.model and config.routing is not None:
        routing = config.routing["_target_"].rpartition(".")[2]
        raise ConfigError(f"{network} does not route, so {routing} would change nothing: leave out routing=…")
    if "routing" in config.model and config.model.routing is None:
        options = ", ".join(option for option in options_of("routing") if option != "none")
        raise ConfigError(f"{network} routes, but routing is none; expected routing= one of {options}")
    iterations = (config.routing or {}).get("iterations") or 0
    if iterations > _MOST_ITERATIONS:
        raise ConfigError(f"routing.iterations is {iterations}; expected 1 to {_MOST_ITERATIONS}, papers have 1 to 10")


_MOST_ITERATIONS = 999  # ours: numba compiles no longer tuples, and nobody waits for them


def _check_unknown_keys(config: DictConfig) -> None:
    """Hydra adds any key of an experiment file; one that no code reads is a mistake."""
    if not isinstance(config.train, DictConfig):
        shown = "null" if config.train is None else config.train
        raise ConfigError(f"train is {shown}; expected options such as train.resume=true")
    top, of_train = _known_keys()
    for node, options, path in ((config, top, ""), (config.train, of_train, "train.")):
        for name in map(str, node):
            if name not in options:
                key, listed = f"{path}{name}", [f"{path}{option}" for option in options]
                elsewhere = " or ".join(each for each in meant(key, config) if each != key)
                guess = f"did you mean {elsewhere}?" if elsewhere else suggest(key, listed)
                raise ConfigError(f"{key} does not exist; {guess}")


@functools.cache
def _known_keys() -> tuple[set[str], set[str]]:
    """Keys of a training configuration, and of its ``train``."""
    known = OmegaConf.load(conf_dir() / "train.yaml")
    assert isinstance(known, DictConfig)
    return ({*map(str, known), *groups()} | {"module"}) - {"defaults"}, set(map(str, known.train))


# --- values ----------------------------------------------------------------------------------------------------------

_LARGEST = 2**31 - 1  # of numbers of steps and epochs: ours; torch and datetime cannot compute with any number

_LEAST = {  # of lightning.Trainer; it refuses other values late, with a traceback, or not at all
    "max_epochs": 1, "max_steps": 1, "min_epochs": 0, "min_steps": 0, "accumulate_grad_batches": 1,
    "check_val_every_n_epoch": 1, "num_nodes": 1, "gradient_clip_val": 0, "num_sanity_val_steps": 0,
    "log_every_n_steps": 0,
}  # fmt: skip
_OR_MINUS_ONE = {"max_epochs": "for none", "max_steps": "for none", "num_sanity_val_steps": "for all"}

_NOT_OURS = {
    "overfit_batches": "debug=overfit trains on one batch, data.train_images=… on few images",
    "fast_dev_run": "debug=smoke runs two batches of everything",
    **dict.fromkeys(("logger", "callbacks"), "these are groups of their own"),
    **dict.fromkeys(("default_root_dir", "enable_checkpointing"), "runs are written into train.directory"),
}
"""Arguments of ``lightning.Trainer`` that do not work here, and what does."""


_UNITS = {"weeks", "days", "hours", "minutes", "seconds", "milliseconds", "microseconds"}
"""Of ``datetime.timedelta``, which Lightning hands ``max_time`` to."""


def _check_run(config: DictConfig) -> None:
    """The run ends, and Lightning does with these values what they say."""
    check_options(config, "train")
    trainer = config.trainer
    _check_trainer(trainer)
    if max(trainer.max_epochs or -1, trainer.max_steps or -1) < 1:
        raise ConfigError("the run has no end: set trainer.max_epochs or trainer.max_steps, schedules scale to it")
    if "lr" in config.optimizer:
        rate = " or ".join(f"{key}=…" for key in meant("optimizer.lr", config) if key != "optimizer.lr")
        raise ConfigError(f"optimizer.lr is {config.optimizer.lr}; the learning rate is that of the schedule: {rate}")


def _check_trainer(trainer: DictConfig) -> None:
    time, strategy = trainer.get("max_time"), str(trainer.get("strategy"))
    if (isinstance(time, DictConfig) and not _UNITS.issuperset(time)) or (
        isinstance(time, str) and not re.fullmatch(r"\d+:([01]\d|2[0-3]):[0-5]\d:[0-5]\d", time)
    ):
        raise ConfigError(f"trainer.max_time is {time}; expected {_IN_WORDS['trainer.max_time']}")
    if any(word in strategy for word in ("spawn", "fork", "notebook")):
        raise ConfigError(
            f"trainer.strategy is {strategy}, which copies this process; expected auto or ddp, which starts each by "
            "the command"
        )
    for name, least in _LEAST.items():
        value, other = trainer.get(name), _OR_MINUS_ONE.get(name)
        if value is not None and not (other and value == -1):
            try:
                check_number(f"trainer.{name}", value, least)
            except ValueError as error:
                raise ConfigError(f"{error}{f', or -1 {other}' if other else ''}") from None
            if value > _LARGEST:
                raise ConfigError(f"trainer.{name} is {value}; expected at most {_LARGEST}")
    for name, instead in _NOT_OURS.items():
        if trainer.get(name):
            raise ConfigError(f"trainer.{name} is {trainer[name]}, which cannot be used here; {instead}")
    interval, limit = (trainer.get(name) for name in ("val_check_interval", "limit_train_batches"))
    if isinstance(interval, int | float) and not interval > 0:
        raise ConfigError(
            f"trainer.val_check_interval is {interval}; expected 1 or more batches, or a share such as 0.5; "
            "trainer.limit_val_batches=0 leaves validation out"
        )
    if limit is not None and not limit:
        raise ConfigError(
            "trainer.limit_train_batches is 0, which trains nothing; expected 1 or more batches, or a share such as 0.1"
        )
    allowed = ("auto", "32-true", "bf16-mixed", "16-mixed")
    if trainer.precision not in allowed:
        raise ConfigError(
            f"trainer.precision is {trainer.precision}; expected one of {', '.join(allowed)}: routing is float32"
        )
