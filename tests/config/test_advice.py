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
    tree = ast.parse(file.read_text())
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                part.value if isinstance(part, ast.Constant) else "…" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
        ):
            yield node.value


def keys_of(node: Any, prefix: str) -> Iterator[str]:
    """The dotted keys of a configuration, and those that the signatures of its targets would take."""
    if not isinstance(node, dict):
        return
    target = node.get("_target_")
    if isinstance(target, str) and "${" not in target:
        yield from (f"{prefix}.{name}" for name in arguments_of(get_object(target)) or ())
    for name, value in node.items():
        yield f"{prefix}.{name}"
        yield from keys_of(value, f"{prefix}.{name}")


@functools.cache
def known_keys() -> frozenset[str]:
    found = {key for command in names() for key in load(command).own_options}
    for group in groups():
        for option in function_options(group).values():
            found |= {f"{group}.{name}" for name in option.defaults}
        for file in option_files(group).values():
            content = OmegaConf.to_container(OmegaConf.load(file))
            is_global = "@package _global_" in file.read_text()
            found |= {
                key.removeprefix("global.")
                for key in keys_of(content, "global" if is_global else group)
            }
    return frozenset(found)


@pytest.mark.parametrize(
    "file", FILES, ids=lambda file: file.relative_to(ROOT / "capsule_lab").as_posix()
)
def test_options_and_keys_in_texts_exist(file: Path) -> None:
    wrong = []
    for text in texts(file):
        for group, option in OPTION.findall(text):
            wrong += [
                f"{group}={each}"
                for each in option.split(",")
                if each and each not in known_options(group)
            ]
        wrong += [key for key in KEY.findall(text) if key not in known_keys()]
    assert wrong == []


@functools.cache
def known_options(group: str) -> frozenset[str]:
    return frozenset({*options_of(group), *NO_OPTION})


def test_wrong_advice_would_be_found() -> None:
    assert "first" not in known_options("data")
    assert {
        "data.test_share",
        "data.fit",
        "trainer.max_steps",
        "train.directory",
        "module.compile",
    } <= known_keys()
    assert {
        "schedule.learning_rate.peak",
        "callbacks.best.monitor",
        "routing.iterations",
    } <= known_keys()
    assert not {"data.tests_share", "schedule.learning_rate.lr"} & known_keys()
    assert KEY.findall("set data.tests_share=1 or model.x.y=…") == ["data.tests_share", "model.x.y"]


def advised(message: str, words: str) -> Iterator[dict[str, str]]:
    """The values that each alternative of a message recommends, unless the arguments have them."""
    _, _, advice = message.partition("; ")
    for alternative in re.split(r",? or |; |: ", advice):
        found = dict(ADVICE.findall(alternative))
        if found and not any(f"{key}={value}" in words.split() for key, value in found.items()):
            yield found


def followed(words: str, message: str, advice: dict[str, str]) -> str:
    """The arguments with recommended values in place of those that are wrong, or that belong to what is replaced."""
    kept = []
    for word in words.split():
        key, pair, _ = word.partition("=")
        is_wrong = not pair or message.startswith(f"{key} is ")
        if not is_wrong and not any(f"{key}.".startswith(f"{new}.") for new in advice):
            kept.append(word)
    return " ".join([*kept, *(f"{key}={value}" for key, value in advice.items())])


@pytest.mark.whole
@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("table", ["words", "options", "keys", "values", "parts"])
def test_advice_of_a_message_is_accepted(tmp_path: Path, table: str) -> None:
    """With what a message recommends, the same message does not come again, nor one about this key."""
    build.quiet_lightning_logs()
    wrong = []
    for words in TABLES[table]:
        message = None if "{" in words else message_for(words, tmp_path / "run")
        for advice in advised(message or "", words):
            after = message_for(followed(words, message, advice), tmp_path / "run")
            if after is not None and (after == message or after.startswith(tuple(advice))):
                wrong.append(f"{words}: {message} -> {followed(words, message, advice)}: {after}")
    assert not wrong, "\n".join(wrong)
