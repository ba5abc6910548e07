"""The messages of commands for arguments: those that ``tests/config/messages.yaml`` expects, and those that come."""

import functools
from pathlib import Path
from typing import Any

import torch
import yaml

from capsule_lab.commands import compose, load
from capsule_lab.commands.train import check_training as check
from capsule_lab.config import build, check_objects
from capsule_lab.config.arguments import own_folders, prepared
from capsule_lab.config.messages import user_message
from tests.helpers.commands import ROOT, TINY, TINY_DATA, Ended

TABLES: dict[str, dict[str, str | None]] = yaml.safe_load(
    (ROOT / "tests" / "config" / "messages.yaml").read_text()
)


@functools.cache
def default_data() -> Any:
    data = build.build_data(compose("train", TINY))
    data.setup("fit")
    return data


def message_for(words: str, folder: Path) -> str | None:
    """The message of ``train`` for these arguments before it creates a directory; ``None`` if they are valid."""
    base = [] if words.startswith("~") else TINY_DATA if "model=" in words else TINY
    given = [*base, *([words] if "{" in words else words.split())]
    overrides: list[str] = []
    message = None
    try:
        own_folders(given)
        overrides = prepared(given, load("train"))
        config = compose("train", overrides)
        check(config)
        data = default_data()
        if any(key in words for key in ("data.", "seed=")):
            data = build.build_data(config)
            with build.constructing("data"):
                data.setup("fit")
        with torch.device("meta"):
            module = build.build_module(config, data.spec)
        trainer = build.build_trainer(
            config.trainer,
            callbacks=build.build_callbacks(config.get("callbacks")),
            loggers=build.build_loggers(config.get("logger"), folder),
        )
        check_objects.check_together(trainer, module, data)
    except Exception as error:
        message = user_message(error, load("train"), overrides)
        message = message or f"no sentence for {error!r}"
    assert "\n" not in (message or "")
    return message


def one_sentence(ended: Ended, status: int = 2) -> str:
    """The error message of a failed command; checks its status, one line on stderr, and no traceback."""
    assert ended.status == status, ended.err
    program, _, message = ended.err.partition(": ")
    assert program == "capsule_lab"
    assert message.count("\n") == 1
    assert message.endswith("\n")
    assert "Traceback" not in ended.out
    return message.strip()
