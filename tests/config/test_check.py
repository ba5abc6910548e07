"""Keys and values of a configuration are checked against signatures; ``test_messages.py`` has the messages."""

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
    try:
        check(OmegaConf.create({"mine": {"_target_": f"{__name__}.Typed", **options}}))
    except ConfigError as error:
        return str(error)
    return None


def test_values_are_checked_against_annotations() -> None:
    assert message_for(flag=True, sizes=[1, 2], kind="a", pair=[1, 0.5], anything="x") is None
    assert message_for(sizes=[], whole=2, share=1, name=None) is None
    assert message_for(share=None, name="3") is None
    wrong: dict[str, list[tuple[Any, str]]] = {
        "flag": [(1, "1; expected true or false"), ([True], "[True]; expected true or false")],
        "whole": [(True, "True; expected a whole number"), (2.0, "2.0; expected a whole number")],
        "share": [
            ("half", "half; expected a number or null"),
            (float("inf"), "inf; expected a finite number"),
        ],
        "name": [(3, "3; expected text or null")],
        "sizes": [
            ("many", "many; expected a list of whole numbers or a whole number"),
            ([1, "two"], "[1, 'two']; expected a list of whole numbers or a whole number"),
        ],
        "kind": [("c", "'c'; expected 'a' or 'b' or null"), (3, "3; expected 'a' or 'b' or null")],
        "pair": [
            ([1], "[1]; expected a list of 2 numbers"),
            (3, "3; expected a list of 2 numbers"),
        ],
    }
    for name, cases in wrong.items():
        assert [message_for(**{name: value}) for value, _ in cases] == [
            f"mine.{name} is {text}" for _, text in cases
        ]
    assert message_for(flags=True) == (
        "mine.flags does not exist; did you mean mine.flag? Options: "
        "mine.anything, mine.flag, mine.kind, mine.name, mine.pair, mine.share, mine.sizes, mine.whole"
    )


MODELS = ("capsnet", "em_caps", "cnn_baseline", "pair_autoencoder data=mnist_pairs")


@pytest.mark.parametrize("model", MODELS)
def test_every_option_of_every_part_is_checked(model: str) -> None:
    """A misspelt key is refused, and so is a mapping in place of any number, text or list."""
    config = compose("train", [f"model={model.split()[0]}", *model.split()[1:]])
    parts = {path: node for path, node in _targets(config) if "plugins" not in path}
    assert {"model", "data", "optimizer", "trainer", "callbacks.last"} <= parts.keys()
    for path, node in parts.items():
        plain = [
            key
            for key in node
            if isinstance(node[key], bool | int | float | str) and str(key)[0] != "_"
        ]
        for key in plain:
            with pytest.raises(ConfigError, match=rf"^mine\.{key}x does not exist; "):
                check(OmegaConf.create({"mine": {"_target_": node["_target_"], f"{key}x": 1}}))
            if f"{path}.{key}" not in WITHOUT_TYPE:
                with pytest.raises(ConfigError, match=rf"^mine\.{key} is \{{'a': 1\}}; expected "):
                    check(OmegaConf.create({"mine": {"_target_": node["_target_"], key: {"a": 1}}}))


WITHOUT_TYPE = {"trainer.max_time", "trainer.precision"}
