"""Configurations: their folders, their composition, and messages for errors of Hydra.

Only this file and ``capsule_lab/command.py`` use undocumented parts of Hydra 1.3: here ``GlobalHydra.hydra``, and in
``user_message`` the text of two errors.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import sys
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import (
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from capsule_lab.config.hints import hint, key_meant
from capsule_lab.config.options import GROUPS, described_without_file, store_options_without_file
from capsule_lab.config.signatures import allowed, check_value, refused
from capsule_lab.errors import CapsuleLabError, ConfigError, InterruptError, one_line, suggest

_SEARCH_PATH = "CAPSULE_LAB_SEARCH_PATH"
"""Environment variable with the user's configuration folders, for this process and its children."""

_PACKAGE = Path(__file__).parents[1]

_OVERRIDES: dict[int, tuple[str, ...]] = {}
"""Overrides of each composed configuration that is still in use, by its ``id``."""


def conf_dir() -> Path:
    """Return the configuration folder: inside an installed wheel, or beside the package in a source tree."""
    return next(
        folder / "conf" for folder in (_PACKAGE, _PACKAGE.parent) if (folder / "conf").is_dir()
    )


def sweeps_dir() -> Path:
    """Return the folder of tables."""
    return conf_dir().with_name("sweeps")


def commands() -> list[str]:
    """Return the names of the commands; each has a configuration ``conf/<command>.yaml``."""
    return sorted(file.stem for file in conf_dir().glob("[!_]*.yaml"))


def module_of(command: str) -> str:
    """Return the module of a command: ``capsule_lab.<command>``, or the one with this name in a subpackage."""
    places = (_PACKAGE / f"{command}.py", _PACKAGE / command, *_PACKAGE.glob(f"*/{command}.py"))
    place = next(place for place in places if place.exists())
    return ".".join(("capsule_lab", *place.relative_to(_PACKAGE).with_suffix("").parts))


def _file_of(command: str) -> dict[str, Any]:
    content: Any = OmegaConf.to_container(OmegaConf.load(conf_dir() / f"{command}.yaml"))
    return dict(content)


@functools.cache
def evaluators() -> list[str]:
    """Return the names of the commands that measure weights; their configurations require ``ckpt``."""
    others = ("explorer", "export", "predict")  # which have no result for a table
    return [
        name for name in commands() if _file_of(name).get("ckpt") == "???" and name not in others
    ]


def groups() -> list[str]:
    """Return the names of the configuration groups, without Hydra's."""
    return sorted(
        {*GROUPS, *(folder.name for folder in conf_dir().iterdir() if folder.is_dir())} - {"hydra"}
    )


def options_of(group: str) -> list[str]:
    """Return the names of the options of a configuration group, sorted."""
    return sorted({*option_files(group), *described_without_file(group)})


def described_options(group: str) -> dict[str, list[str]]:
    """Return the comments at the head of each option of a configuration group, or its description."""
    without = {name: [text] for name, text in described_without_file(group).items()}
    return dict(
        sorted((without | {name: head(file) for name, file in option_files(group).items()}).items())
    )


def option_files(group: str) -> dict[str, Path]:
    """Return the file of each option of a configuration group; ``_common.yaml`` and the like are parts."""
    own = [
        Path(entry.removeprefix("file://"))
        for entry in search_path()
        if entry.startswith("file://")
    ]
    return {
        file.relative_to(folder / group).with_suffix("").as_posix(): file
        for folder in (conf_dir(), *own)
        for file in (folder / group).rglob("[!_]*.yaml")
    }


def default_options(config_name: str) -> dict[str, str | None]:
    """Return the configuration groups of a command, each with its default option."""
    found: dict[str, str | None] = {}
    for entry in _file_of(config_name).get("defaults", []):
        if isinstance(entry, dict):
            found |= {key: value for key, value in entry.items() if not key.startswith("override ")}
        elif (conf_dir() / f"{entry}.yaml").is_file():
            found |= default_options(entry)
    return found


def search_path() -> list[str]:
    """Return the user's configuration folders as entries of Hydra's search path: ``file:///…`` or ``pkg://…``."""
    return os.environ.get(_SEARCH_PATH, "").splitlines()


@contextmanager
def searching(entries: Sequence[str]) -> Iterator[None]:
    """Add folders to ``search_path`` of this process and its children."""
    before = search_path()
    os.environ[_SEARCH_PATH] = "\n".join([*before, *entries])
    try:
        yield
    finally:
        os.environ[_SEARCH_PATH] = "\n".join(before)


def head(file: Path) -> list[str]:
    """Return the comments at the head of a YAML file; the first line is a summary."""
    lines = takewhile(
        lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines()
    )
    return [
        line.removeprefix("#").removeprefix(" ")
        for line in lines
        if not line.startswith("# @package")
    ]


def search_override() -> list[str]:
    """Return the override that passes ``search_path`` to a command; an empty list if the path is empty."""
    entries = [
        each if re.fullmatch(r"[\w./:@%+-]+", each, re.ASCII) else quoted(each)
        for each in search_path()
    ]
    return [f"hydra.searchpath=[{','.join(entries)}]"] if entries else []


def compose(config_name: str = "train", overrides: Sequence[str] = ()) -> DictConfig:
    """Compose a configuration outside a command, as in a notebook; ``check.check`` checks its groups."""
    if not isinstance(config_name, str):
        raise ConfigError(
            f"compose was given {config_name!r} as the command; expected its name: compose('train', …)"
        )
    given = choices(overrides, config_name)
    if not any(override.startswith("hydra.searchpath=") for override in given):
        given += search_override()
    store_options_without_file()
    current = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            config = hydra.compose(config_name, overrides=given)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(user_message(error, config_name, given)) from error
    finally:
        GlobalHydra.instance().hydra = current
    check_options(config, config_name)
    _OVERRIDES[id(config)] = tuple(overrides)
    weakref.finalize(config, _OVERRIDES.pop, id(config))
    return config


def overrides_of(config: DictConfig) -> tuple[str, ...]:
    """Return the overrides with which ``compose`` made a configuration; a copy of it has none."""
    return _OVERRIDES.get(id(config), ())


_TYPES: dict[str, Any] = {  # if defaults do not show them; by key, or by command and key
    **dict.fromkeys(
        ("name", "contains", "table", "rows", "columns", "seeds"), object
    ),  # checked when they are read
    "predict.images": object,  # checked when it is read
    "predict.to": Literal["table", "json", "csv"],
    "predict.polarity": Literal["auto", "dark_on_light", "light_on_dark"],
    "export.to": Literal["onnx", "torch_export", "safetensors"],
    "train.test": Literal["best", "last", "none"],
    "class_routing": dict | None,
    "split": Literal["test", "val"],
    "couplings": Literal["trained", "equal"],
    "objective": Literal["cross_entropy", "margin", "training"],
    "space": Literal["input", "grey_levels"],
    "epsilons": list[float] | None,
    "difference": float | None,
    "trust": list[str] | str | None,
    "train.trust": Literal["safetensors"] | None,
    "compare.runs": list[str] | None,
    "explorer.beside": list[str] | str | None,
    "explorer.precision": Literal["f16", "f32"],
    **dict.fromkeys(
        ("images", "seed", "workers", "batch_size", "num_classes", "size", "port"), int | None
    ),
    **dict.fromkeys(("image_shape", "sheet_classes"), list[int] | None),
    **dict.fromkeys(("figures.images", "train.seed"), int),
}
_ABSENT = object()


def check_options(config: DictConfig, command: str) -> None:
    """Check that all keys are known, and types and ranges of a command's options, but not of its groups.

    Options that are absent are skipped.
    """
    if command != "train":  # whose keys ``check.check`` checks, because tables add one
        check_keys(config, command)
    for key, default in own_options(command).items():
        value = OmegaConf.select(config, key, default=_ABSENT)
        annotation = _TYPES.get(f"{command}.{key}", _TYPES.get(key, _type_of(default)))
        if annotation is object or value is _ABSENT:
            continue
        bounds, span = (
            ("0 to 4294967295", range(2**32))
            if key == "seed"
            else ("1 or more", range(1, sys.maxsize))
        )
        words = (
            " or ".join(allowed(annotation))
            .replace("a whole number", f"a whole number, {bounds},")
            .rstrip(",")
        )
        words = "a .ckpt file or the directory of a run" if key in ("ckpt", "run") else words
        if value == "" or (
            type(value) is int and annotation is not float and value not in span
        ):  # numpy's limits
            raise refused(key, value, words)
        check_value(key, value, annotation, words)


def check_keys(config: DictConfig, command: str) -> None:
    """Check that a command knows all keys, because Hydra accepts any ``+key``, and any key in an experiment file."""
    keys, known = [*map(str, config)], {*default_options(command), "hydra"}
    known |= {key.partition(".")[0] for key in own_options(command)}
    if command == "train":
        if not isinstance(config.train, DictConfig):
            raise refused("train", config.train, "options such as train.resume=true")
        keys += [f"train.{key}" for key in map(str, config.train)]
        known |= {*own_options("train"), *groups()}
    for key in keys:
        if key not in known:
            meant = key_meant(key, config)
            raise ConfigError(
                f"{key} does not exist; {f'did you mean {meant}?' if meant else suggest(key, known)}"
            )


def check_effect(
    config: DictConfig, command: str, where: str, without_effect: Collection[str]
) -> None:
    """Raise a ``ConfigError`` if an option of a command that has no effect ``where`` differs from its default."""
    defaults = own_options(command)
    for key in without_effect:
        value = OmegaConf.select(config, key)
        if value != defaults[key]:
            others = ", ".join(
                sorted(option for option in defaults if option not in without_effect)
            )
            raise ConfigError(
                f"{key}={value} has no effect {where}; leave it out: the options there are {others}"
            )


def flat(node: dict[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dictionaries with their dotted keys."""
    for name, value in node.items():
        yield from (
            flat(value, f"{parent}{name}.")
            if isinstance(value, dict)
            else [(f"{parent}{name}", value)]
        )


@functools.cache
def own_options(command: str) -> dict[str, Any]:
    """Return the options of a command outside groups, by dotted key, with their defaults."""
    found = {
        key: value
        for key, value in flat(_file_of(command))
        if key not in ("defaults", "hydra.mode")
    }
    return found | (
        {"dry_run": False} if command == "sweep" else {}
    )  # not in its file, which all its runs share


def _type_of(default: Any) -> Any:
    """Return the type of a default; text for a missing default, text or null for null."""
    if default is None or str(default).startswith("${"):
        return str | None
    return list[str] if isinstance(default, list) else type(default)


def choices(overrides: Sequence[str], config_name: str) -> list[str]:
    """Convert overrides for Hydra, for which null is not an option of a group, and which adds keys only with ``+``.

    ``group=null`` and ``group=none`` leave a group out. A command that takes its data from a checkpoint has no key of
    ``data``, so that ``data.size=…`` becomes ``+data.size=…``.
    """
    found = []
    adds_data = _has_no_data(overrides, config_name)
    for override in overrides:
        group, _, option = override.partition("=")
        if not group:
            raise ConfigError(f"{override} has no key; expected key=value")
        if adds_data and group.startswith("data."):
            found.append(f"+{override}")
        elif group not in groups():
            found.append(override)
        elif option in ("null", "none", ""):
            if "none" in options_of(group):
                found.append(f"{group}=none")
            elif (
                config_name not in commands()
                or default_options(config_name).get(group, "") is not None
            ):
                options = ", ".join(options_of(group))
                raise ConfigError(
                    f"{override} leaves out a required part; expected {group}= one of {options}"
                )
        elif option.startswith("[") and group not in (
            "logger",
            "callbacks",
        ):  # which can be combined
            raise ConfigError(
                f"{override} has several options; expected one, or -m {group}={option[1:-1]} to run each"
            )
        elif re.fullmatch(r"[\d.]+|true|false|\{.*", option, re.IGNORECASE):
            raise ConfigError(f"{override} does not exist; {suggest(option, options_of(group))}")
        else:
            found.append(override)
    return found


def _has_no_data(overrides: Sequence[str], command: str) -> bool:
    """Return whether a command takes its data from a checkpoint, and the overrides do not choose other data."""
    chosen = [override.partition("=")[2] for override in overrides if override.startswith("data=")]
    default = default_options(command).get("data", "") if command in commands() else ""
    return default is None and not {*chosen} - {"null", "none", ""}


def quoted(text: str) -> str:
    """Quote ``text`` for Hydra's override grammar, without interpolation."""
    text = re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", text)
    text = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + match[2].replace("'", "\\'"), text)
    return f"'{text}'"


def as_argument(key: str, value: str | Path) -> str:
    """Return ``key=value`` quoted for the shell and for Hydra, for any characters in a path: ``"ckpt='a b=c'"``."""
    if re.fullmatch(r"[\w./:@%+-]+", str(value), re.ASCII):
        return f"{key}={value}"
    text = f"{key}={quoted(str(value))}"
    return shlex.quote(text) if re.search(r'["$`!\\]', text) else f'"{text}"'


def to_container(config: DictConfig) -> dict[str, Any]:
    """Convert a configuration to plain containers, resolved; raise an error if a value is missing (``???``)."""
    container: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    return dict(container)


def user_message(
    error: BaseException, config_name: str = "train", overrides: Sequence[str] = ()
) -> str | None:
    """Return a one-line message if the error is a mistake of the user; ``None`` for any other error."""
    if isinstance(error, CapsuleLabError | InterruptError):
        return str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        parts = str(error.missing_cfg_file).split("/")
        count = 2 if parts[0] == "hydra" else 1
        group, option = "/".join(parts[:count]), "/".join(parts[count:])
        options = {
            *options_of(group),
            *(each for each in error.options or () if not each.startswith("_")),
        }
        return f"{group}={option} does not exist; {suggest(option, options)}"
    if isinstance(error, OverrideParseException):
        key, _, value = str(error.override).partition("=")
        return (
            f"{error.override} cannot be read as key=value; put quotes around text with brackets, commas or the like, "
            f"and another pair for the shell: {as_argument(key, value)}"
        )
    if isinstance(error, InstantiationException) and error.__cause__ is not None:
        node, reason = str(error).rpartition("full_key: ")[2].strip(), one_line(error.__cause__)
        return reason if not node or node in reason else f"{node}: {reason}"
    if isinstance(error, HydraException):
        found = re.match("Could not override '([^'=]+)'", str(error))
        return _unknown_key(found[1], config_name, overrides) if found else one_line(error)
    if isinstance(error, OmegaConfBaseException):
        return one_line(error)
    if (
        isinstance(error, OSError)
        and error.strerror
        and not isinstance(error, FileNotFoundError | BrokenPipeError)
    ):
        return f"{error.filename or 'a file'} cannot be written or read: {error.strerror}"
    if (
        type(error).__name__ == "MisconfigurationException"
    ):  # of Lightning, which --help does not import
        return one_line(error)
    if (
        isinstance(error, ModuleNotFoundError) and error.name is None
    ):  # with a text for the user, not from an import
        return one_line(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return f"not enough memory ({one_line(error)}); try a smaller network or data.batch_size"
    return None


def _unknown_key(key: str, config_name: str, overrides: Sequence[str]) -> str:
    if key.startswith("hydra."):
        return (
            f"{key} is not an option of Hydra; python -m capsule_lab.train --cfg hydra lists them"
        )
    default = default_options(config_name)
    known = {*default} - {key}  # a group of other commands would fail again
    of_groups = {
        group: each for each in overrides if (group := each.partition("=")[0].lstrip("+")) in known
    }
    config = compose(config_name, [*of_groups.values()])
    with open_dict(config):
        for group in default:
            config.setdefault(group, None)
    return f"{key} does not exist; {hint(key, config)}"
