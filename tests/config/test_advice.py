"""What messages recommend exists: options and keys in the texts of the code, and the next command accepts them.

The first tests read the text constants of the package. The last one follows the advice of each message in
``messages.yaml`` that names ``key=value``.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf

from capsule_lab.commands import load, names
from capsule_lab.config import build
from capsule_lab.config.folders import groups, option_files, options_of
from capsule_lab.config.options import function_options
from capsule_lab.config.signatures import arguments_of
from tests.helpers.commands import ROOT
from tests.helpers.messages import TABLES, message_for

FILES = sorted((ROOT / "capsule_lab").rglob("*.py"))
GROUPS = "|".join(sorted(groups()))
OPTION = re.compile(rf"(?<![\w.'])({GROUPS})=(\w[\w/,]*)")
KEY = re.compile(rf"(?<![\w.])((?:{GROUPS}|train)(?:\.[a-z]\w*)+)=")
ADVICE = re.compile(rf"(?<![\w.+])((?:{GROUPS}|train)(?:\.\w+)*)=([\w.]+)(?![\w.…<{{])")
NO_OPTION = ("null", "none")


def texts(file: Path) -> Iterator[str]:
    """The text constants of a file; the parts of an f-string are joined, with ``…`` for its values."""
    nodes = [*ast.walk(ast.parse(file.read_text()))]
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    parts_of_joined = set()
    for node in joined:
        parts_of_joined.update(map(id, node.values))
        yield "".join(map(text_of, node.values))
    for node in nodes:
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in parts_of_joined:
            yield node.value


def text_of(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "…"


def keys_of(node: Any, prefix: str) -> Iterator[str]:
    """The dotted keys of a configuration, and those that the signatures of its targets would take."""
    if not isinstance(node, dict):
        return
    target = node.get("_target_")
    if isinstance(target, str) and "${" not in target:
        arguments = arguments_of(get_object(target)) or ()
        yield from (f"{prefix}.{name}" for name in arguments)
    for name, value in node.items():
        key = f"{prefix}.{name}"
        yield key
        yield from keys_of(value, key)


@functools.cache
def known_keys() -> frozenset[str]:
    found = set[str]()
    for command in names():
        found.update(load(command).own_options)
    for group in groups():
        for option in function_options(group).values():
            found.update(f"{group}.{name}" for name in option.defaults)
        for file in option_files(group).values():
            content = OmegaConf.to_container(OmegaConf.load(file))
            is_global = "@package _global_" in file.read_text()
            for key in keys_of(content, "global" if is_global else group):
                found.add(key.removeprefix("global."))
    return frozenset(found)


@pytest.mark.parametrize(
    "file", FILES, ids=lambda file: file.relative_to(ROOT / "capsule_lab").as_posix()
)
def test_options_and_keys_in_texts_exist(file: Path) -> None:
    wrong = []
    for text in texts(file):
        for group, options in OPTION.findall(text):
            for option in options.split(","):
                if option and option not in known_options(group):
                    wrong.append(f"{group}={option}")
        wrong += [key for key in KEY.findall(text) if key not in known_keys()]
    assert wrong == []


@functools.cache
def known_options(group: str) -> frozenset[str]:
    return frozenset({*options_of(group), *NO_OPTION})


def test_wrong_advice_would_be_found() -> None:
    assert "first" not in known_options("data")
    existing = {
        "data.test_share",
        "data.fit",
        "trainer.max_steps",
        "train.directory",
        "module.compile",
        "schedule.learning_rate.peak",
        "callbacks.best.monitor",
        "routing.iterations",
    }
    misspelt = {"data.tests_share", "schedule.learning_rate.lr"}
    assert existing <= known_keys()
    assert misspelt.isdisjoint(known_keys())
    advice = "set data.tests_share=1 or model.x.y=…"
    assert KEY.findall(advice) == ["data.tests_share", "model.x.y"]


def advised(message: str, words: str) -> Iterator[dict[str, str]]:
    """The values that each alternative of a message recommends, unless the arguments have them."""
    given = words.split()
    _, _, advice = message.partition("; ")
    for alternative in re.split(r",? or |; |: ", advice):
        found = dict(ADVICE.findall(alternative))
        arguments = {f"{key}={value}" for key, value in found.items()}
        if arguments and arguments.isdisjoint(given):
            yield found


def followed(words: str, message: str, advice: dict[str, str]) -> str:
    """The arguments with recommended values in place of those that are wrong, or that belong to what is replaced."""
    kept = []
    for word in words.split():
        key, pair, _ = word.partition("=")
        is_wrong = not pair or message.startswith((f"{key} is ", f"{key} does not exist"))
        is_replaced = any(f"{key}.".startswith(f"{new}.") for new in advice)
        if not is_wrong and not is_replaced:
            kept.append(word)
    new_arguments = [f"{key}={value}" for key, value in advice.items()]
    return " ".join([*kept, *new_arguments])


@pytest.mark.whole
@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("table", ["words", "options", "keys", "values", "parts"])
def test_advice_of_a_message_is_accepted(tmp_path: Path, table: str) -> None:
    """With what a message recommends, the same message does not come again, nor one about this key."""
    build.quiet_lightning_logs()
    directory = tmp_path / "run"
    wrong = []
    for words in TABLES[table]:
        message = None if "{" in words else message_for(words, directory)
        for advice in advised(message or "", words):
            new_words = followed(words, message, advice)
            after = message_for(new_words, directory)
            if after is not None and (after == message or after.startswith(tuple(advice))):
                wrong.append(f"{words}: {message} -> {new_words}: {after}")
    assert not wrong, "\n".join(wrong)
