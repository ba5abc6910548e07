"""Options that are read from a composed configuration: they have the declared types and the configured values."""

from operator import attrgetter
from typing import Any, get_args, get_type_hints

import pydantic
import pytest
from omegaconf import DictConfig, OmegaConf

from capsule_lab.commands import compose, load, names
from capsule_lab.commands.train import TrainOptions
from capsule_lab.config.declaration import MISSING, Command, Group, Options

LISTS = {list[str]: "[a,b]", list[int]: "[0,3]", list[float]: "[0.1,1]", dict[str, Any]: "{a: [1]}"}
GROUPS = {"data": "mnist", "logger": "tensorboard"}
"""Options of groups of which none is chosen by default."""


def all_given(command: Command) -> list[str]:
    """Overrides for the options without a default, for lists and mappings, and for groups."""
    overrides = []
    for option in command.own_options.values():
        kinds = {option.annotation, *get_args(option.annotation)}
        plain = [text for kind, text in LISTS.items() if kind in kinds]
        if option.key in command.paths:
            plain = ["[a.png,b.png]"]
        elif option.default == MISSING and not plain:
            plain = ["a"]
        overrides += [f"{option.key}={text}" for text in plain]
    for group, option in GROUPS.items():
        if group in command.options.model_fields:
            overrides.append(f"{group}={option}")
    return overrides


def check_types(options: Options, config: DictConfig) -> None:
    """Check that each value has the type of its field, and equals that of the configuration."""
    annotations = get_type_hints(type(options), include_extras=True)
    for name in type(options).model_fields:
        annotation, value, configured = annotations[name], getattr(options, name), config.get(name)
        if annotation in (Group, Group | None):
            assert value is configured, name
            assert isinstance(value, DictConfig) or annotation == Group | None, name
        elif isinstance(value, Options):
            assert type(value) is annotation, name
            check_types(value, configured)
        else:
            pydantic.TypeAdapter(annotation).validate_python(value, strict=True)
            assert not OmegaConf.is_config(value), name
            assert type(value) in (type(configured), list, dict), "it is not converted"
            assert value == configured, name


@pytest.mark.parametrize("name", names())
def test_options_have_the_declared_types_and_the_configured_values(name: str) -> None:
    command = load(name)
    overrides = all_given(command)
    config = compose(name, overrides)
    options = command.options.read(config)
    assert type(options) is command.options
    assert options.config is config
    check_types(options, config)
    for override in overrides:
        assert attrgetter(override.partition("=")[0])(options) is not None


def test_options_do_not_change() -> None:
    options = TrainOptions.read(compose("train"))
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        options.seed = 3
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        options.train.resume = True


def test_groups_follow_other_values_and_the_configuration_stays() -> None:
    class Example(Options):
        seed: int | None = None
        data: Group

    config = OmegaConf.create({"seed": None, "data": {"seed": "${seed}"}})
    options = Example.read(config)
    with_seed = options.with_values(seed=3)
    assert (with_seed.seed, with_seed.data.seed, with_seed.config.seed) == (3, 3, 3)
    assert (options.seed, options.data.seed, config.seed) == (None, None, None)
