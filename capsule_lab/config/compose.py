"""Configurations: where they are, how one is composed, and the message for an error of Hydra.

Folders of the user's own, given by ``--config-dir`` or ``hydra.searchpath``, are known to this process and those that
it starts by an environment variable, so that tables, listings and hints know their options too.

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

from capsule_lab.config.functions import function_options, store_function_options
from capsule_lab.config.hints import hint
from capsule_lab.config.signatures import allowed, check_value, refused
from capsule_lab.errors import CapsuleLabError, ConfigError, InterruptError, one_line, suggest

_SEARCH_PATH = "CAPSULE_LAB_SEARCH_PATH"


def conf_dir() -> Path:
    """The folder of configurations."""
    return _installed_or_source("conf")


def sweeps_dir() -> Path:
    """The folder of tables."""
    return _installed_or_source("sweeps")


def _installed_or_source(name: str) -> Path:
    """A folder inside an installed wheel, or beside the package in a source tree."""
    package = Path(__file__).parents[1]
    return next(folder for folder in (package / name, package.parent / name) if folder.is_dir())


def commands() -> list[str]:
    """Names of the commands: each has a configuration ``conf/<command>.yaml``."""
    return sorted(file.stem for file in conf_dir().glob("[!_]*.yaml"))


def module_of(command: str) -> str:
    """The module that runs a command: ``capsule_lab.<command>``, or the one of this name in a folder of the package."""
    package = Path(__file__).parents[1]
    places = (package / f"{command}.py", package / command, *package.glob(f"*/{command}.py"))
    place = next(place for place in places if place.exists())
    return ".".join(("capsule_lab", *place.relative_to(package).with_suffix("").parts))


@functools.cache
def evaluators() -> list[str]:
    """Names of the commands that evaluate weights: their configurations need ``ckpt``."""
    return [name for name in commands() if OmegaConf.is_missing(OmegaConf.load(conf_dir() / f"{name}.yaml"), "ckpt")]


def groups() -> list[str]:
    """Names of the configuration groups, Hydra's own left out."""
    return sorted(folder.name for folder in conf_dir().iterdir() if folder.is_dir() and folder.name != "hydra")


def options_of(group: str) -> list[str]:
    """Names of the options of a configuration group, sorted."""
    return sorted({*option_files(group), *function_options(conf_dir() / group)})


def described_options(group: str) -> dict[str, list[str]]:
    """The comments at the head of each option of a configuration group, or the first line of a function's docstring."""
    functions = {name: [each.description] for name, each in function_options(conf_dir() / group).items()}
    return dict(sorted((functions | {name: head(file) for name, file in option_files(group).items()}).items()))


def option_files(group: str) -> dict[str, Path]:
    """The file of each option of a configuration group; files such as ``_common.yaml`` are parts of options."""
    own = [Path(entry.removeprefix("file://")) for entry in search_path() if "://" not in entry.removeprefix("file://")]
    return {
        file.relative_to(folder / group).with_suffix("").as_posix(): file
        for folder in (conf_dir(), *own)
        for file in (folder / group).rglob("[!_]*.yaml")
    }


def default_options(config_name: str) -> dict[str, str | None]:
    """The groups that a command takes, and the option of each that it takes by default."""
    found: dict[str, str | None] = {}
    file = OmegaConf.load(conf_dir() / f"{config_name}.yaml")
    assert isinstance(file, DictConfig)
    for entry in file.get("defaults", []):
        if isinstance(entry, DictConfig):
            found |= {str(key): entry[key] for key in entry if not str(key).startswith("override ")}
        elif (conf_dir() / f"{entry}.yaml").is_file():
            found |= default_options(entry)
    return found


def search_path() -> list[str]:
    """The user's own folders of configurations, as Hydra's search path has them: ``file:///…`` or ``pkg://…``.

    Raises:
        ConfigError: if the environment names something else.
    """
    entries = [entry for entry in os.environ.get(_SEARCH_PATH, "").split("\n") if entry]
    for entry in entries:
        scheme, is_uri, folder = entry.partition("://")
        if not is_uri or (scheme == "file" and not Path(folder).is_dir()):
            raise ConfigError(f"{_SEARCH_PATH} has {entry}; expected file:// and a folder that is there, or pkg://")
    return entries


@contextmanager
def searching(entries: Sequence[str]) -> Iterator[None]:
    """Add folders to ``search_path``, of this process and those that it starts."""
    before = os.environ.get(_SEARCH_PATH)
    os.environ[_SEARCH_PATH] = "\n".join([*search_path(), *entries])
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_SEARCH_PATH, None)
        else:
            os.environ[_SEARCH_PATH] = before


def head(file: Path) -> list[str]:
    """The comments at the head of a YAML file; the first line is a summary."""
    lines = takewhile(lambda line: line.startswith("#"), file.read_text().splitlines())
    return [line.removeprefix("#").removeprefix(" ") for line in lines if not line.startswith("# @package")]


def search_override() -> list[str]:
    """The override that gives a command ``search_path``; none if that is empty."""
    entries = [each if re.fullmatch(r"[\w./:@%+-]+", each, re.ASCII) else quoted(each) for each in search_path()]
    return [f"hydra.searchpath=[{','.join(entries)}]"] if entries else []


def compose(config_name: str = "train", overrides: Sequence[str] = ()) -> DictConfig:
    """A configuration outside of a command, as in a notebook or a test; inside of one, its own stays as it is.

    Raises:
        ConfigError: for an override that cannot be read or names what does not exist, or an option of the command of
            another type. Options of its parts are for ``check.check``.
    """
    given = choices(overrides, config_name)
    if not any(override.startswith("hydra.searchpath=") for override in given):
        given += search_override()
    store_function_options(conf_dir())
    current = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            config = hydra.compose(config_name, overrides=given)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(user_message(error, config_name, given) or one_line(error)) from error
    finally:
        GlobalHydra.instance().hydra = current
    check_options(config, config_name)
    vars(config)["_overrides"] = tuple(overrides)
    return config


def overrides_of(config: DictConfig) -> tuple[str, ...]:
    """The overrides that ``compose`` was given for a configuration, not for a copy of it."""
    return tuple(vars(config).get("_overrides", ()))


_TYPES: dict[str, Any] = {  # that defaults do not tell
    **dict.fromkeys(("name", "contains", "table", "rows", "columns", "seeds"), object),  # checked where they are read
    "train.test": Literal["best", "last", "none"],
    "class_routing": dict | None,
    "split": Literal["test", "val"],
    "workspace": Literal["write", "upload"] | None,
    "couplings": Literal["trained", "equal"],
    "objective": Literal["cross_entropy", "margin", "dlr", "training"],
    "space": Literal["input", "grey_levels"],
    "epsilons": list[float] | None,
    "trust": list[str] | str | None,
    **dict.fromkeys(("images", "seed", "workers", "batch_size", "num_classes"), int | None),
    **dict.fromkeys(("image_shape", "sheet_classes"), list[int] | None),
    **dict.fromkeys(("figures.images", "train.seed"), int),
}
"""By dotted key, or by command and key."""
_ABSENT = object()


def check_options(config: DictConfig, command: str) -> None:
    """Check that options of a command itself, not of its groups, have the type of their default, or of ``_TYPES``.

    Args:
        config: of the command, or a part of it.
        command: its name.

    Raises:
        ConfigError: if not, for an empty text, a number that is not finite, or a whole one out of its range.
    """
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
    left: list[tuple[str, Any]] = [("", OmegaConf.to_container(OmegaConf.load(conf_dir() / f"{command}.yaml")))]
    found: dict[str, Any] = {}
    while left:
        parent, node = left.pop()
        for name, value in node.items():
            key = f"{parent}{name}"
            if isinstance(value, dict):
                left.append((f"{key}.", value))
            elif key not in ("defaults", "hydra.mode"):
                found[key] = value
    return found | ({"dry_run": False} if command == "sweep" else {})  # whose file is that of all its runs


def _type_of(default: Any) -> Any:
    """The type of a default; text for one that is missing, also null where that is the default."""
    if default is None or str(default).startswith("${"):
        return str | None
    if isinstance(default, list):
        return list[type(default[0]) if default else str]  # type: ignore[misc]  # mypy sees no values
    return type(default)


_OF_SEVERAL = ("logger", "callbacks")
"""Groups of which a list of options can be chosen; those of others would overwrite each other."""


def choices(overrides: Sequence[str], config_name: str) -> list[str]:
    """Overrides with ``group=null`` and ``group=none`` as Hydra takes them: its own null is no option of a group.

    Raises:
        ConfigError: for a group that cannot be left out, and an option that is no name.
    """
    found = []
    for override in overrides:
        group, is_pair, option = override.partition("=")
        if is_pair and not group:
            raise ConfigError(f"{override} has no key; expected key=value")
        if not is_pair or group not in groups():
            found.append(override)
        elif option in ("null", "none", ""):
            if "none" in options_of(group):
                found.append(f"{group}=none")
            elif config_name not in commands() or default_options(config_name).get(group, "") is not None:
                options = ", ".join(options_of(group))
                raise ConfigError(f"{override} leaves out what is needed; expected {group}= one of {options}")
        elif option.startswith("[") and group not in _OF_SEVERAL:
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
    """``key=value`` as a shell and Hydra take it, whatever characters a path has.

    >>> print(as_argument("ckpt", "runs/a-1"), as_argument("ckpt", "a b=c"))
    ckpt=runs/a-1 "ckpt='a b=c'"
    """
    if re.fullmatch(r"[\w./:@%+-]+", str(value), re.ASCII):
        return f"{key}={value}"
    text = f"{key}={quoted(str(value))}"
    return shlex.quote(text) if re.search(r'["$`!\\]', text) else f'"{text}"'


def to_container(config: DictConfig) -> dict[str, Any]:
    """The configuration with everything resolved, as plain containers.

    Raises:
        omegaconf.MissingMandatoryValue: if a value is missing, ``???``.
    """
    container = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def user_message(error: BaseException, config_name: str = "train", overrides: Sequence[str] = ()) -> str | None:
    """The message in one line if the error is a mistake of the user, else ``None``.

    Args:
        error: anything that was raised.
        config_name: of the configuration that was composed, for the options that it has.
        overrides: that it was composed with.
    """
    if isinstance(error, CapsuleLabError | InterruptError):
        return str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = str(error.missing_cfg_file).partition("/")
        if group == "hydra":  # its groups lie one level deeper, and plugins add options to them
            group, _, option = str(error.missing_cfg_file).rpartition("/")
            return f"{group}={option} does not exist; {suggest(option, error.options or ())}"
        options = {*options_of(group), *(each for each in error.options or () if not each.startswith("_"))}
        return f"{group}={option} does not exist; {suggest(option, options)}"
    if isinstance(error, OverrideParseException):
        return _unreadable(str(error.override))
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


def _unreadable(override: str) -> str:
    """The message for an override that Hydra's grammar does not have."""
    key, is_pair, value = override.partition("=")
    if not is_pair:
        return f"{override} is no key=value; expected such as seed=1, or ~{override} to leave it out"
    return (
        f"{override} cannot be read as key=value; expected quotes around a text with brackets, commas or the like, and "
        f"others for the shell: {as_argument(key, value)}"
    )


def _unknown_key(key: str, config_name: str, overrides: Sequence[str]) -> str:
    """The message for a key that does not exist, with those beside which it was looked for."""
    if key.startswith("hydra."):
        return f"{key} is no option of Hydra; python -m capsule_lab.train --cfg hydra lists them"
    of_groups = {each.partition("=")[0].lstrip("+"): each for each in overrides}
    of_groups = {group: each for group, each in of_groups.items() if group in groups()}
    default = default_options(config_name)
    if key.startswith("data.") and "data" not in of_groups and default.get("data", "") is None:
        return f"{key} does not exist; did you mean +{key}, which changes the data of training? data=… is other data"
    try:
        config = compose(config_name, [*of_groups.values()])
    except ConfigError:
        return f"{key} is no option of this configuration"
    with open_dict(config):
        for group in default:
            config.setdefault(group, None)
    return f"{key} does not exist; {hint(key, config)}"
