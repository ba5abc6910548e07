"""What a command declares besides its code: its options, and what a table needs to have it in a row.

``config``, ``runs`` and ``tables`` are given these objects and know no command by name. The commands themselves, and
how they are found, are in ``capsule_lab.commands``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, NamedTuple, Self, get_args, get_type_hints

from annotated_types import Ge, Lt
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, PrivateAttr

MISSING = "???"
"""OmegaConf's text for a value that has no default."""


@dataclass(frozen=True)
class Expected:
    """Words for error messages: what an option expects, where its type does not say it."""

    words: str


@dataclass(frozen=True)
class _Group:
    """Mark of an option that is a configuration group, whose default is in ``conf/<command>.yaml``."""


@dataclass(frozen=True)
class _Run(Expected):
    """Mark of an option that takes a run, also as ``last``: the latest one that has finished."""


@dataclass(frozen=True)
class _Weights(_Run):
    """Mark of an option that takes the weights of a network, which may belong to no run."""


@dataclass(frozen=True)
class _Paths(Expected):
    """Mark of an option that takes several paths, separated by commas."""


Count = Annotated[int, Ge(1)]
Seed = Annotated[int, Ge(0), Lt(2**32)]  # numpy's limit
TrainedRun = Annotated[str, _Run("a .ckpt file, the directory of a run, or last")]
Weights = Annotated[
    str, _Weights("a run, last for the latest one, a file or the name of ready weights")
]
Trusted = list[str] | str | None
Paths = Annotated[Any, _Paths("files or folders")]
Group = Annotated[DictConfig, _Group()]


class Option(NamedTuple):
    """One key of a command.

    Attributes:
        key: dotted, such as ``train.resume``.
        default: its default; ``MISSING`` if it must be given.
        annotation: its type; ``Any`` if the command checks it when it reads it.
        description: a sentence.
    """

    key: str
    default: Any
    annotation: Any
    description: str


class Options(BaseModel):
    """Options of a command: a field for each key, with its default, and a sentence below it.

    Fields of the type ``Group`` are configuration groups: nodes with a ``_target_``, which Hydra instantiates.
    ``Group | None`` is a group of which no option may be chosen. An option without a default must be given.
    """

    model_config = ConfigDict(
        use_attribute_docstrings=True, arbitrary_types_allowed=True, frozen=True
    )

    _config: DictConfig = PrivateAttr()

    @property
    def config(self) -> DictConfig:
        """The composed configuration from which the options were read.

        It is for what concerns the whole configuration: its hash or fingerprint, its copy in a checkpoint, and
        everything that training builds from it. A single option is read from its field.
        """
        return self._config

    @classmethod
    def read(cls, config: DictConfig) -> Self:
        """Return the options in a composed configuration, whose values ``check_options`` has checked.

        Lists and mappings become plain containers, and nested options become models. No value is converted, so that
        records and messages show what was given: a ``float`` may be a whole number. An option that must be given and
        is not, as in a notebook, is ``None``.
        """
        annotations = get_type_hints(cls, include_extras=True)
        values = {name: _value_of(config, name, annotations[name]) for name in cls.model_fields}
        options = cls.model_construct(**values)
        options._config = config
        return options

    def with_values(self, **values: Any) -> Self:
        """Return a copy with other values, also in groups that refer to them, as ``data.seed`` refers to ``seed``."""
        config = self.config.copy()
        config.update(values)
        return self.read(config)

    @classmethod
    def own(cls) -> Sequence[Option]:
        """Return the options outside configuration groups, those of nested models by dotted key."""
        return _own(cls)


@functools.cache
def _own(model: type[Options]) -> tuple[Option, ...]:
    # a sweep asks for them hundreds of times, and evaluating the annotations takes half a millisecond
    return tuple(_options_of(model, ""))


def _options_of(model: type[Options], prefix: str) -> Iterator[Option]:
    annotations = get_type_hints(model, include_extras=True)
    for name, field in model.model_fields.items():
        annotation = annotations[name]
        if _is_nested(annotation):
            yield from _options_of(annotation, f"{prefix}{name}.")
        elif not has_mark(annotation, _Group):
            default = MISSING if field.is_required() else field.default
            description = " ".join((field.description or "").split())
            yield Option(f"{prefix}{name}", default, annotation, description)


def _is_nested(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Options)


def _value_of(config: DictConfig, name: str, annotation: Any) -> Any:
    """Return a value of a configuration as an option of this type has it."""
    if OmegaConf.is_missing(config, name):
        return None
    if has_mark(annotation, _Group):
        may_be_absent = NoneType in get_args(annotation)
        return config.get(name) if may_be_absent else config[name]
    value = config[name]
    if _is_nested(annotation):
        return annotation.read(value)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def expected_words(annotation: Any) -> str:
    """Return the words of an ``Expected`` in an annotation; an empty string without one."""
    words = [mark.words for mark in marks_of(annotation) if isinstance(mark, Expected)]
    return words[0] if words else ""


def has_mark(annotation: Any, mark: type) -> bool:
    """Return whether an annotation, or a part of it, is ``Annotated`` with an object of this type."""
    return any(isinstance(each, mark) for each in marks_of(annotation))


def marks_of(annotation: Any) -> Iterator[Any]:
    """Yield what annotates a type or a part of it: ``Ge(1)`` of ``Annotated[int, Ge(1)] | None``."""
    yield from getattr(annotation, "__metadata__", ())
    for part in get_args(annotation):
        yield from marks_of(part)


@dataclass(frozen=True)
class Measurement:
    """What a command that measures weights declares, so that a table can have it in a row.

    Attributes:
        result: the schema of its record.
        metrics: first parts of the names of its metrics, ``test`` of ``test/error``, which columns of a table name.
        devices: arguments of ``lightning.Trainer`` that a table takes over from the training of the weights.
        figures: returns figures, by name, of the entries of a table.
    """

    result: type[BaseModel]
    metrics: tuple[str, ...]
    devices: tuple[str, ...]
    figures: Callable[[Sequence[Any]], dict[str, Any]] | None = None


class FinishedRun(NamedTuple):
    """A run that has just finished, for commands that propose what to do with it.

    Attributes:
        result: its record.
        directory: its directory, as a user would type it.
        has_weights: whether it has a checkpoint.
        chosen: the chosen option of each configuration group.
        overrides: the overrides of the training.
        packages: the user's own packages in its configuration, which a command that opens it must trust.
    """

    result: Mapping[str, Any]
    directory: Path
    has_weights: bool
    chosen: Mapping[str, Any]
    overrides: Sequence[str]
    packages: Sequence[str] = ()

    @property
    def routes(self) -> bool:
        """Whether its network has a routing."""
        return self.chosen["routing"] not in (None, "none")


class Place(NamedTuple):
    """The row of a table that a run belongs to.

    Attributes:
        own: overrides of the run besides those of the table.
        table: the name of the table; empty if there is none.
        row: the name of the row, with that of the column if columns are trained apart.
    """

    own: list[str]
    table: str = ""
    row: str = ""


@dataclass(frozen=True)
class Command:
    """A command: ``capsule-lab <name> key=value …``.

    Attributes:
        name: its name, also that of ``conf/<name>.yaml``, which has its help text and its configuration groups.
        options: its options.
        function: is called with the options, and returns the record of a result or ``None``.
        check: raises a ``ConfigError`` if a composed configuration cannot work. It is called before the function,
            by a table before it launches anything, and by ``-m`` for all runs before the first.
        first: the option that a word without a key probably is, as in ``capsule-lab evaluate runs/…``.
        for_hydra: converts the arguments of the command line to arguments for Hydra.
        measures: what it measures, if tables can have it in a row.
        proposes: returns the arguments with which to suggest this command after a run; empty for no suggestion.
    """

    name: str
    options: type[Options]
    function: Callable[[Any], Mapping[str, Any] | None]
    check: Callable[[DictConfig], None]
    first: str = ""
    for_hydra: Callable[[Sequence[str]], list[str]] = list
    measures: Measurement | None = None
    proposes: Callable[[FinishedRun], list[str]] | None = None

    @property
    def own_options(self) -> dict[str, Option]:
        """The options outside configuration groups, by dotted key."""
        return {option.key: option for option in self.options.own()}

    @property
    def required(self) -> list[Option]:
        """The options without a default."""
        return [option for option in self.options.own() if option.default == MISSING]

    @property
    def paths(self) -> list[str]:
        """The options that take several paths, separated by commas."""
        return [option.key for option in self.options.own() if has_mark(option.annotation, _Paths)]

    @property
    def runs(self) -> list[str]:
        """The options that take one run."""
        return [option.key for option in self.options.own() if has_mark(option.annotation, _Run)]

    @property
    def other_weights(self) -> list[str]:
        """The options for weights of other networks, to compare with or to take something from."""
        optional = [option for option in self.options.own() if option.default != MISSING]
        return [option.key for option in optional if has_mark(option.annotation, _Weights)]
