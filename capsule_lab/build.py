"""From a configuration to objects, every part of it checked before anything heavy is built."""

from __future__ import annotations

import inspect
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf

from capsule_lab.config import conf_dir
from capsule_lab.errors import ConfigError, suggest


def check(config: DictConfig) -> None:
    """Bind every ``_target_`` to its signature, before anything heavy is built.

    Raises:
        ConfigError: for a target that does not exist or an argument it does not take, with those it takes.
    """
    for path, node in _targets(config):
        try:
            target = get_object(node["_target_"])
        except Exception as error:  # hydra raises whatever the import raises
            reason = " ".join(str(error).split())
            raise ConfigError(f"{path}._target_ is {node['_target_']}, which cannot be imported: {reason}") from error
        options = _arguments(target)
        for name in map(str, node):
            if not name.startswith("_") and options is not None and name not in options:
                known = [f"{path}.{option}" for option in options]
                raise ConfigError(f"{path}.{name} does not exist; {suggest(f'{path}.{name}', known)}")
        if options and target.__module__.startswith("capsule_lab."):
            _check_kinds(path, node, options)
    if "train" in config:
        _check_complete(config)
        _check_routing(config)
        _check_unread(config)
        _check_run(config)
        if config.train.test not in ("best", "last", "none"):
            raise ConfigError(f"train.test is {config.train.test!r}; expected best, last or none")


_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "bool": ("true or false", (bool,)),
    "int": ("a whole number", (int,)),
    "float": ("a number", (int, float)),
    "str": ("text", (str,)),
    "None": ("null", (type(None),)),
}


def _check_kinds(path: str, node: DictConfig, options: dict[str, Any]) -> None:
    """A value is what its argument's annotation says, where that is made of the plain types alone."""
    for name in map(str, node):
        kinds = str(options.get(name, "?")).split(" | ")
        if OmegaConf.is_missing(node, name) or OmegaConf.is_interpolation(node, name) or not _KINDS.keys() >= {*kinds}:
            continue
        value, types = node[name], {kind for name in kinds for kind in _KINDS[name][1]}
        if not isinstance(value, tuple(types)) or (isinstance(value, bool) and bool not in types):
            words = " or ".join(_KINDS[kind][0] for kind in kinds)
            raise ConfigError(f"{path}.{name} is {'null' if value is None else value}; expected {words}")


def _check_complete(config: DictConfig) -> None:
    """Every group is chosen, and every value that an option asks for is given."""
    for group in ("model", "module", "data", "loss", "schedule", "optimizer", "trainer"):
        if config.get(group) is None:
            options = sorted(file.stem for file in (conf_dir() / group).glob("[!_]*.yaml"))
            words = f"{group}= one of {', '.join(options)}" if options else f"a model, which has a {group}"
            raise ConfigError(f"{group} is missing; expected {words}")
    for path, node in _targets(config):
        for name in map(str, node):
            if OmegaConf.is_missing(node, name):
                raise ConfigError(
                    f"{path}.{name} is missing; expected {path}.{name}=<value>, this option has no default"
                )


def _check_run(config: DictConfig) -> None:
    for name in ("max_epochs", "max_steps"):
        value = config.trainer[name]
        if value is not None and not isinstance(value, int):
            raise ConfigError(f"trainer.{name} is {value}; expected a whole number, or -1 for no bound")
    if max(config.trainer.max_epochs or -1, config.trainer.max_steps or -1) < 1:
        raise ConfigError("the run has no end: set trainer.max_epochs or trainer.max_steps, schedules scale to it")
    if config.trainer.limit_train_batches is not None and not config.trainer.limit_train_batches:
        raise ConfigError(
            "trainer.limit_train_batches is 0, which trains nothing; expected 1 or more batches, or a share such as 0.1"
        )
    if config.trainer.gradient_clip_val is not None and config.optimizer.get("fused"):
        raise ConfigError(
            f"trainer.gradient_clip_val is {config.trainer.gradient_clip_val} beside a fused optimizer, whose "
            "gradients Lightning does not clip; set optimizer.fused=false"
        )
    if not isinstance(config.seed, int) or config.seed < 0:
        raise ConfigError(f"seed is {config.seed}; expected a whole number, 0 or more")
    allowed = ("auto", "32-true", "bf16-mixed", "16-mixed")
    if config.trainer.precision not in allowed:
        raise ConfigError(
            f"trainer.precision is {config.trainer.precision}; expected one of {', '.join(allowed)}: routing is float32"
        )


_FOR_CAPSULES = {
    "margin_loss": "the margin loss is for lengths of capsules",
    "spread_loss": "the spread loss is for activations of capsules",
}


def _check_routing(config: DictConfig) -> None:
    network = config.model["_target_"].rpartition(".")[2]
    loss = config.loss.classification
    wants = _FOR_CAPSULES.get(loss["_target_"].rpartition(".")[2])
    if loss.get("log_odds"):
        wants = "cross-entropy on log-odds is for activations of capsules"
    scores_are = getattr(get_object(config.model["_target_"]), "scores_are", None)
    if wants and scores_are == "logits":
        raise ConfigError(f"{wants}; {network} gives logits: loss=cross_entropy")
    if loss["_target_"].endswith(".sigmoid_cross_entropy_loss") and scores_are == "activations":
        raise ConfigError(f"sigmoid cross-entropy is for logits; {network} gives activations: loss=margin")
    if "routing" not in config.model and config.routing is not None:
        routing = config.routing["_target_"].rpartition(".")[2]
        raise ConfigError(f"{network} does not route, so {routing} would change nothing: leave out routing=…")
    if "routing" in config.model and config.model.routing is None:
        options = sorted(file.stem for file in (conf_dir() / "routing").glob("*.yaml") if file.stem != "none")
        raise ConfigError(f"{network} routes, but routing is none; expected routing= one of {', '.join(options)}")


def _check_unread(config: DictConfig) -> None:
    """Hydra takes any key from an experiment file; one that nobody reads is a typo."""
    known = OmegaConf.load(conf_dir() / "train.yaml")
    assert isinstance(known, DictConfig)
    groups = {folder.name for folder in conf_dir().iterdir() if folder.is_dir()}
    for node, options, path in (
        (config, {*known, *groups, "module"} - {"defaults"}, ""),
        (config.train, set(known.train), "train."),
    ):
        for name in map(str, node):
            if name not in options:
                listed = [f"{path}{option}" for option in options]
                raise ConfigError(f"{path}{name} does not exist; {suggest(f'{path}{name}', listed)}")


def _targets(node: Any, path: str = "") -> Iterator[tuple[str, DictConfig]]:
    if isinstance(node, ListConfig) and not node._is_none():
        for number, item in enumerate(node):
            yield from _targets(item, f"{path}.{number}")
    if isinstance(node, DictConfig) and not node._is_none():
        if "_target_" in node:
            yield path, node
        for key in map(str, node):
            if not OmegaConf.is_interpolation(node, key) and not OmegaConf.is_missing(node, key):
                yield from _targets(node[key], f"{path}.{key}" if path else key)


def _arguments(target: Callable[..., Any]) -> dict[str, Any] | None:
    """What ``target`` takes, and its annotations, following ``**options`` up the classes; ``None`` if anything."""
    names: dict[str, Any] = {}
    layers = [target]
    if inspect.isclass(target):
        layers = [vars(c)["__init__"] for c in inspect.getmro(target) if "__init__" in vars(c) and c is not object]
    for layer in layers:
        parameters = inspect.signature(layer).parameters.values()
        own = {p.name: p.annotation for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
        names = own | names  # the nearest class decides
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return {name: annotation for name, annotation in names.items() if name != "self"}
    return None if layers else names


@contextmanager
def constructing(what: str) -> Iterator[None]:
    """What a constructor refuses becomes a sentence."""
    try:
        yield
    except InstantiationException:
        raise
    except Exception as error:
        if isinstance(error, (ValueError, TypeError)) or type(error).__name__ == "MisconfigurationException":
            raise ConfigError(f"{what}: {error}") from error
        raise


def build_data(config: DictConfig) -> Any:
    """The DataModule of ``config.data``."""
    return instantiate(config.data, _convert_="all")


def build_module(config: DictConfig, spec: Any) -> Any:
    """The LightningModule of ``config.module`` around the network of ``config.model``.

    Args:
        config: the whole configuration.
        spec: the ``DataSpec``: image size and classes are facts of the data, not options.

    Raises:
        ConfigError: if one of them refuses its arguments.
    """
    network = instantiate(config.model, _partial_=True, _convert_="all")
    module = instantiate(config.module, _partial_=True, _convert_="all")
    with constructing("model"):
        built = network(image_shape=spec.image_shape, num_classes=spec.num_classes)
    with constructing("module"):
        lit = module(network=built, num_classes=spec.num_classes, labels_per_image=spec.labels_per_image)
    with constructing("optimizer"):
        lit.optimizer(lit.parameters_to_train(), lr=1.0)
    with constructing("loss"), torch.device("cpu"):
        labels = torch.arange(spec.labels_per_image).reshape(1, -1)
        lit.loss(torch.zeros(1, spec.num_classes), labels if spec.labels_per_image > 1 else labels[0])
    return lit


def build_without_weights(config: DictConfig) -> Any:
    """``build_module`` on torch's meta device: every size is worked out, nothing is computed or stored."""
    spec = build_data(config).spec
    with torch.device("meta"):
        return build_module(config, spec)


def build_trainer(config: DictConfig, directory: Path | None, *extra_callbacks: Any) -> Any:
    """The Trainer with its callbacks and loggers, all writing below ``directory``.

    Raises:
        ConfigError: if Lightning refuses an argument.
    """
    loggers = []
    for logger in (config.get("logger") or {}).values():
        named = {key: directory.name for key in ("name", "id") if directory and logger.get(key, "") is None}
        loggers.append(instantiate(logger, save_dir=str(directory), _convert_="all", **named))
    callbacks = [
        instantiate(callback, _convert_="all") for callback in (config.get("callbacks") or {}).values() if callback
    ]
    arguments: dict[str, Any] = {"default_root_dir": directory, "logger": loggers}
    arguments["max_steps"] = -1  # the module counts them, see AbstractCapsuleModule
    if (config.trainer.get("max_steps") or -1) > 0:
        arguments["max_epochs"] = -1
    if "enable_progress_bar" not in config.trainer:
        arguments["enable_progress_bar"] = sys.stdout.isatty()  # else Lightning adds a bar beside our lines
    if config.trainer.get("precision") == "auto":
        arguments["precision"] = fast_precision(config.trainer.accelerator)
    trainer = instantiate(config.trainer, _partial_=True, _convert_="all")
    with constructing("trainer"):
        return trainer(callbacks=[*callbacks, *extra_callbacks], **arguments)


_HARMLESS = (
    ".*exists and is not empty.*",  # a run that goes on finds its own files
    ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*",  # Lightning 2.6 with torch 2.13 and later
    ".*smaller than the logging interval.*",  # we log once per epoch
    ".*does not have many workers.*",  # batches come out of memory
    ".*srun` command is available.*",
    ".*It is recommended to use `self.log\\(.*sync_dist=True.*",  # torchmetrics has synchronised them
    ".*across ranks is zero. Please make sure this was your intention.*",
)


def be_quiet() -> None:
    """Keep Lightning to what a user can act on, and all processes but the first to their warnings."""
    if os.environ.get("LOCAL_RANK", "0") != "0":
        logging.getLogger().setLevel(logging.WARNING)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger(name).propagate = False  # it has a handler of its own
    for message in _HARMLESS:
        warnings.filterwarnings("ignore", message)


def fast_precision(accelerator: str) -> str:
    """bfloat16 for convolutions where the processor computes in it, else float32; routing is float32 anyway."""
    if accelerator != "cpu" and torch.cuda.is_available():
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = (getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile"))
        fast = torch.backends.mkldnn.is_available() and any(supported() for supported in native if supported)
    return "bf16-mixed" if fast else "32-true"
