"""Configurations: where they are, how one is composed, and the message for an error of Hydra.

What Hydra 1.3 does not document is used here and in ``capsule_lab/command.py`` only: ``GlobalHydra.hydra``, and in
``user_message`` two of its texts.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from capsule_lab.config.hints import hint
from capsule_lab.config.options import GROUPS, described_without_file, store_options_without_file
from capsule_lab.config.signatures import allowed, check_value, refused
from capsule_lab.errors import CapsuleLabError, ConfigError, InterruptError, one_line, suggest

_SEARCH_PATH = "CAPSULE_LAB_SEARCH_PATH"
"""Environment variable with the user's own folders, for this process and those that it starts."""

_PACKAGE = Path(__file__).parents[1]


def conf_dir() -> Path:
    """The folder of configurations: inside an installed wheel, or beside the package in a source tree."""
    return next(folder / "conf" for folder in (_PACKAGE, _PACKAGE.parent) if (folder / "conf").is_dir())


def sweeps_dir() -> Path:
    """The folder of tables."""
    return conf_dir().with_name("sweeps")


def commands() -> list[str]:
    """Names of the commands: each has a configuration ``conf/<command>.yaml``."""
    return sorted(file.stem for file in conf_dir().glob("[!_]*.yaml"))


def module_of(command: str) -> str:
    """The module that runs a command: ``capsule_lab.<command>``, or the one of this name in a folder of the package."""
    places = (_PACKAGE / f"{command}.py", _PACKAGE / command, *_PACKAGE.glob(f"*/{command}.py"))
    place = next(place for place in places if place.exists())
    return ".".join(("capsule_lab", *place.relative_to(_PACKAGE).with_suffix("").parts))


def _file_of(command: str) -> dict[str, Any]:
    content: Any = OmegaConf.to_container(OmegaConf.load(conf_dir() / f"{command}.yaml"))
    return dict(content)


@functools.cache
def evaluators() -> list[str]:
    """Names of the commands that evaluate weights: their configurations need ``ckpt``."""
    return [name for name in commands() if _file_of(name).get("ckpt") == "???"]


def groups() -> list[str]:
    """Names of the configuration groups, Hydra's own left out."""
    return sorted({*GROUPS, *(folder.name for folder in conf_dir().iterdir() if folder.is_dir())} - {"hydra"})


def options_of(group: str) -> list[str]:
    """Names of the options of a configuration group, sorted."""
    return sorted({*option_files(group), *described_without_file(group)})


def described_options(group: str) -> dict[str, list[str]]:
    """The comments at the head of each option of a configuration group, or its description."""
    without = {name: [text] for name, text in described_without_file(group).items()}
    return dict(sorted((without | {name: head(file) for name, file in option_files(group).items()}).items()))


def option_files(group: str) -> dict[str, Path]:
    """The file of each option of a configuration group; files such as ``_common.yaml`` are parts of options."""
    own = [Path(entry.removeprefix("file://")) for entry in search_path() if entry.startswith("file://")]
    return {
        file.relative_to(folder / group).with_suffix("").as_posix(): file
        for folder in (conf_dir(), *own)
        for file in (folder / group).rglob("[!_]*.yaml")
    }


def default_options(config_name: str) -> dict[str, str | None]:
    """The groups that a command takes, and the option of each that it takes by default."""
    found: dict[str, str | None] = {}
    for entry in _file_of(config_name).get("defaults", []):
        if isinstance(entry, dict):
            found |= {key: value for key, value in entry.items() if not key.startswith("override ")}
        elif (conf_dir() / f"{entry}.yaml").is_file():
            found |= default_options(entry)
    return found


def search_path() -> list[str]:
    """The user's own folders of configurations, as Hydra's search path has them: ``file:///…`` or ``pkg://…``."""
    return os.environ.get(_SEARCH_PATH, "").splitlines()


@contextmanager
def searching(entries: Sequence[str]) -> Iterator[None]:
    """Add folders to ``search_path``, of this process and those that it starts."""
    before = search_path()
    os.environ[_SEARCH_PATH] = "\n".join([*before, *entries])
    try:
        yield
    finally:
        os.environ[_SEARCH_PATH] = "\n".join(before)


def head(file: Path) -> list[str]:
    """The comments at the head of a YAML file; the first line is a summary."""
    lines = takewhile(lambda line: line.startswith("#"), file.read_text().splitlines())
    return [line.removeprefix("#").removeprefix(" ") for line in lines if not line.startswith("# @package")]


def search_override() -> list[str]:
    """The override that gives a command ``search_path``; none if that is empty."""
    entries = [each if re.fullmatch(r"[\w./:@%+-]+", each, re.ASCII) else quoted(each) for each in search_path()]
    return [f"hydra.searchpath=[{','.join(entries)}]"] if entries else []


def compose(config_name: str = "train", overrides: Sequence[str] = ()) -> DictConfig:
    """A configuration outside of a command, as in a notebook; options of its parts are for ``check.check``."""
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
    vars(config)["_overrides"] = tuple(overrides)
    return config


def overrides_of(config: DictConfig) -> tuple[str, ...]:
    """The overrides that ``compose`` was given for a configuration, not for a copy of it."""
    return tuple(vars(config).get("_overrides", ()))


_TYPES: dict[str, Any] = {  # that defaults do not tell, by dotted key, or by command and key
    **dict.fromkeys(("name", "contains", "table", "rows", "columns", "seeds"), object),  # checked where they are read
    "train.test": Literal["best", "last", "none"],
    "class_routing": dict | None,
    "split": Literal["test", "val"],
    "couplings": Literal["trained", "equal"],
    "objective": Literal["cross_entropy", "margin", "dlr", "training"],
    "space": Literal["input", "grey_levels"],
    "epsilons": list[float] | None,
    "trust": list[str] | str | None,
    **dict.fromkeys(("images", "seed", "workers", "batch_size", "num_classes"), int | None),
    **dict.fromkeys(("image_shape", "sheet_classes"), list[int] | None),
    **dict.fromkeys(("figures.images", "train.seed"), int),
}
_ABSENT = object()


def check_options(config: DictConfig, command: str) -> None:
    """Check types and ranges of options of a command itself, not of its groups, as far as ``config`` has them."""
    for key, default in own_options(command).items():
        value = OmegaConf.select(config, key, default=_ABSENT)
        annotation = _TYPES.get(f"{command}.{key}", _TYPES.get(key, _type_of(default)))
        if annotation is object or value is _ABSENT:
            continue
        bounds, span = ("0 to 4294967295", range(2**32)) if key == "seed" else ("1 or more", range(1, sys.maxsize))
        words = " or ".join(allowed(annotation)).replace("a whole number", f"a whole number, {bounds},").rstrip(",")
        words = "a .ckpt file or the directory of a run" if key in ("ckpt", "run") else words
        if value == "" or (type(value) is int and annotation is not float and value not in span):  # numpy's seeds
            raise refused(key, value, words)
        check_value(key, value, annotation, words)


@functools.cache
def own_options(command: str) -> dict[str, Any]:
    """Options of a command that are of no group, by dotted key, with their defaults."""

    def flat(node: dict[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
        for name, value in node.items():
            yield from flat(value, f"{parent}{name}.") if isinstance(value, dict) else [(f"{parent}{name}", value)]

    found = {key: value for key, value in flat(_file_of(command)) if key not in ("defaults", "hydra.mode")}
    return found | ({"dry_run": False} if command == "sweep" else {})  # whose file is that of all its runs


def _type_of(default: Any) -> Any:
    """The type of a default; text for one that is missing, also null where that is the default."""
    if default is None or str(default).startswith("${"):
        return str | None
    return list[str] if isinstance(default, list) else type(default)


def choices(overrides: Sequence[str], config_name: str) -> list[str]:
    """Overrides with ``group=null`` and ``group=none`` as Hydra takes them: its own null is no option of a group."""
    found = []
    for override in overrides:
        group, _, option = override.partition("=")
        if not group:
            raise ConfigError(f"{override} has no key; expected key=value")
        if group not in groups():
            found.append(override)
        elif option in ("null", "none", ""):
            if "none" in options_of(group):
                found.append(f"{group}=none")
            elif config_name not in commands() or default_options(config_name).get(group, "") is not None:
                options = ", ".join(options_of(group))
                raise ConfigError(f"{override} leaves out what is needed; expected {group}= one of {options}")
        elif option.startswith("[") and group not in ("logger", "callbacks"):  # those of others overwrite each other
            raise ConfigError(f"{override} names several; {group}= takes one, -m {group}={option[1:-1]} runs each")
        elif re.fullmatch(r"[\d.]+|true|false|\{.*", option, re.IGNORECASE):
            raise ConfigError(f"{override} does not exist; {suggest(option, options_of(group))}")
        else:
            found.append(override)
    return found


def quoted(text: str) -> str:
    """``text`` as a string in Hydra's grammar of overrides, in which nothing is interpolated."""
    text = re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", text)
    text = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + match[2].replace("'", "\\'"), text)
    return f"'{text}'"


def as_argument(key: str, value: str | Path) -> str:
    """``key=value`` as a shell and Hydra take it, whatever characters a path has: ``"ckpt='a b=c'"``."""
    if re.fullmatch(r"[\w./:@%+-]+", str(value), re.ASCII):
        return f"{key}={value}"
    text = f"{key}={quoted(str(value))}"
    return shlex.quote(text) if re.search(r'["$`!\\]', text) else f'"{text}"'


def to_container(config: DictConfig) -> dict[str, Any]:
    """The configuration with everything resolved, as plain containers; no value may be missing, ``???``."""
    container: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    return dict(container)


def user_message(error: BaseException, config_name: str = "train", overrides: Sequence[str] = ()) -> str | None:
    """The message in one line if the error, while this configuration was composed, is a mistake of the user."""
    if isinstance(error, CapsuleLabError | InterruptError):
        return str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        parts = str(error.missing_cfg_file).split("/")
        count = 2 if parts[0] == "hydra" else 1
        group, option = "/".join(parts[:count]), "/".join(parts[count:])
        options = {*options_of(group), *(each for each in error.options or () if not each.startswith("_"))}
        return f"{group}={option} does not exist; {suggest(option, options)}"
    if isinstance(error, OverrideParseException):
        key, _, value = str(error.override).partition("=")
        return (
            f"{error.override} cannot be read as key=value; expected quotes around a text with brackets, commas or the "
            f"like, and others for the shell: {as_argument(key, value)}"
        )
    if isinstance(error, InstantiationException) and error.__cause__ is not None:
        node, reason = str(error).rpartition("full_key: ")[2].strip(), one_line(error.__cause__)
        return reason if not node or node in reason else f"{node}: {reason}"
    if isinstance(error, HydraException):
        found = re.match("Could not override '([^'=]+)'", str(error))
        return _unknown_key(found[1], config_name, overrides) if found else one_line(error)
    if isinstance(error, OmegaConfBaseException):
        return one_line(error)
    if isinstance(error, OSError) and error.strerror and not isinstance(error, FileNotFoundError | BrokenPipeError):
        return f"{error.filename or 'a file'} cannot be written or read: {error.strerror}"
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return f"not enough memory ({one_line(error)}); try a smaller network or data.batch_size"
    return None


def _unknown_key(key: str, config_name: str, overrides: Sequence[str]) -> str:
    if key.startswith("hydra."):
        return f"{key} is not an option of Hydra; python -m capsule_lab.train --cfg hydra lists them"
    of_groups = {group: each for each in overrides if (group := each.partition("=")[0].lstrip("+")) in groups()}
    default = default_options(config_name)
    if key.startswith("data.") and "data" not in of_groups and default.get("data", "") is None:
        return f"{key} does not exist; did you mean +{key}, which changes the data of training? data=… is other data"
    config = compose(config_name, [*of_groups.values()])
    with open_dict(config):
        for group in default:
            config.setdefault(group, None)
    return f"{key} does not exist; {hint(key, config)}"
