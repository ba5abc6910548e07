"""Keys and values of a configuration are checked against signatures; ``test_messages.py`` has the messages."""

import zlib
from pathlib import Path
from typing import Any, Literal

import pytest
from omegaconf import OmegaConf

from capsule_lab.commands import compose
from capsule_lab.config.check import _targets, check
from capsule_lab.errors import ConfigError


class Base:
    def __init__(self, whole: int = 1, share: float | None = None, name: str | None = None) -> None:
        pass


class Typed(Base):
    def __init__(
        self,
        flag: bool = False,
        sizes: list[int] | int = 3,
        kind: Literal["a", "b"] | None = None,
        pair: tuple[float, float] = (0, 1),
        anything: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)


def message_for(**options: Any) -> str | None:
    """The error message for options of ``Typed``; ``None`` if they are valid."""
    config = OmegaConf.create({"mine": {"_target_": f"{__name__}.Typed", **options}})
    try:
        check(config)
    except ConfigError as error:
        return str(error)
    return None


OPTIONS_OF_TYPED = ["anything", "flag", "kind", "name", "pair", "share", "sizes", "whole"]


@pytest.mark.parametrize(
    "options",
    [
        {"flag": True, "sizes": [1, 2], "kind": "a", "pair": [1, 0.5], "anything": "x"},
        {"sizes": [], "whole": 2, "share": 1, "name": None},
        {"share": None, "name": "3"},
    ],
)
def test_values_that_fit_their_annotations_are_accepted(options: dict[str, Any]) -> None:
    assert message_for(**options) is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("flag", 1, "1; expected true or false"),
        ("flag", [True], "[True]; expected true or false"),
        ("whole", True, "True; expected a whole number"),
        ("whole", 2.0, "2.0; expected a whole number"),
        ("share", "half", "half; expected a number or null"),
        ("share", float("inf"), "inf; expected a finite number"),
        ("name", 3, "3; expected text or null"),
        ("sizes", "many", "many; expected a list of whole numbers or a whole number"),
        ("sizes", [1, "two"], "[1, 'two']; expected a list of whole numbers or a whole number"),
        ("kind", "c", "'c'; expected 'a' or 'b' or null"),
        ("kind", 3, "3; expected 'a' or 'b' or null"),
        ("pair", [1], "[1]; expected a list of 2 numbers"),
        ("pair", 3, "3; expected a list of 2 numbers"),
    ],
)
def test_values_are_checked_against_annotations(name: str, value: Any, message: str) -> None:
    assert message_for(**{name: value}) == f"mine.{name} is {message}"


def test_unknown_option_is_refused_with_those_that_exist() -> None:
    options = ", ".join(f"mine.{name}" for name in OPTIONS_OF_TYPED)
    expected = f"mine.flags does not exist; did you mean mine.flag? Options: {options}"
    assert message_for(flags=True) == expected


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere' (FILE, line 1; "),
        ("x = 1\ny = z", "NameError: name 'z' is not defined (FILE, line 2; "),
        ("def f(:", "invalid syntax (FILE, line 1)"),
        ("x = 1", "Error loading 'NAME.Mine': "),
    ],
)
def test_error_in_a_module_of_the_user_says_where_it_is(
    code: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = f"mine_{zlib.crc32(code.encode())}"  # Python keeps modules that were imported
    (tmp_path / f"{name}.py").write_text(code)
    config = OmegaConf.create({"routing": {"_target_": f"{name}.Mine"}})
    with pytest.raises(ConfigError) as refused:
        check(config)
    expected = reason.replace("FILE", f"{name}.py").replace("NAME", name)
    beginning = f"routing._target_ is {name}.Mine, which cannot be imported: {expected}"
    assert str(refused.value).startswith(beginning)


class WithoutIterations:
    def __init__(self, temperature: float = 1.0) -> None:
        pass


@pytest.mark.parametrize(
    ("target", "takes"),
    [
        ("WithoutIterations", "routing.temperature"),
        ("Base", "routing.name, routing.share, routing.whole"),
    ],
)
def test_key_that_another_class_does_not_take_is_said_to_be_deleted(
    target: str, takes: str
) -> None:
    """Its name is one that other programs use for an option of ours, of the same name."""
    config = OmegaConf.create({"routing": {"_target_": f"{__name__}.{target}", "iterations": 3}})
    with pytest.raises(ConfigError) as refused:
        check(config)
    assert str(refused.value) == (
        f"routing.iterations does not exist; {__name__}.{target} takes {takes}; ~routing.iterations deletes it"
    )


MODELS = ("capsnet", "em_caps", "cnn_baseline", "pair_autoencoder data=mnist_pairs")


def is_plain(key: Any, value: object) -> bool:
    return isinstance(value, bool | int | float | str) and not str(key).startswith("_")


def check_one(target: str, key: str, value: Any) -> None:
    check(OmegaConf.create({"mine": {"_target_": target, key: value}}))


@pytest.mark.parametrize("model", MODELS)
def test_every_option_of_every_part_is_checked(model: str) -> None:
    """A misspelt key is refused, and so is a mapping in place of any number, text or list."""
    config = compose("train", f"model={model}".split())
    parts = {path: node for path, node in _targets(config) if "plugins" not in path}
    assert {"model", "data", "optimizer", "trainer", "callbacks.last"} <= parts.keys()
    for path, node in parts.items():
        target = node["_target_"]
        plain = [key for key in node if is_plain(key, node[key])]
        for key in plain:
            with pytest.raises(ConfigError, match=rf"^mine\.{key}x does not exist; "):
                check_one(target, f"{key}x", 1)
            if f"{path}.{key}" not in WITHOUT_TYPE:
                with pytest.raises(ConfigError, match=rf"^mine\.{key} is \{{'a': 1\}}; expected "):
                    check_one(target, key, {"a": 1})


WITHOUT_TYPE = {"trainer.max_time", "trainer.precision"}
