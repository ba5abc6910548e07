"""Helpers for tests of data modules: the state of a Trainer, and downloads without a network."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pooch
import pytest
import torch

Answer = bytes | Exception
"""The content of a file, or the error of its download."""


def trainer(
    *, training: bool = True, testing: bool = False, rank: int = 0, world_size: int = 1
) -> SimpleNamespace:
    """The attributes of a Trainer that a data module reads."""
    known = {
        "training": training,
        "testing": testing,
        "global_rank": rank,
        "world_size": world_size,
    }
    return SimpleNamespace(**known, strategy=SimpleNamespace(root_device=torch.device("cpu")))


def answer_downloads(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], Answer]) -> list[str]:
    """Downloads get or raise the return value of ``answer``; the returned list has the requested addresses."""
    asked: list[str] = []

    def respond(url: str, path: str, cache: pooch.Pooch | None) -> None:
        asked.append(url)
        content = answer(url)
        if isinstance(content, Exception):
            raise content
        Path(path).write_bytes(content)

    monkeypatch.setattr(pooch, "HTTPDownloader", lambda **_: respond)
    return asked


def serve(monkeypatch: pytest.MonkeyPatch, files: Mapping[str, Answer]) -> list[str]:
    """Every server has these files, by their names."""
    missing = OSError("404 Client Error: Not Found")
    return answer_downloads(monkeypatch, lambda url: files.get(url.rpartition("/")[2], missing))


def without_network(
    monkeypatch: pytest.MonkeyPatch, reason: str = "no network in tests"
) -> list[str]:
    """Every download fails."""
    return answer_downloads(monkeypatch, lambda url: OSError(reason))


def forbid_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A download fails the test."""
    answer_downloads(monkeypatch, lambda url: pytest.fail(f"{url} was downloaded"))
