"""The command, whose parts are tested in ``tests/bench/gpu``."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from capsule_lab.bench.gpu import report
from capsule_lab.bench.gpu.parts import PARTS
from tests.helpers.commands import Ended, python

Cli = Callable[..., Ended]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What every part finds, without a process."""
    content: dict[str, Any] = {"rows": [{"seconds": 0.5}]}
    monkeypatch.setattr(report, "run_part", lambda *_: content)
    return content


def test_dry_run_lists_the_parts_without_a_gpu(cli: Cli, tmp_path: Path) -> None:
    ended = cli("gpu", "dry_run=true")
    assert (ended.status, ended.err) == (0, "")
    for part in PARTS:
        assert part.name in ended.out
        assert f" {part.seconds} " in ended.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_with_a_sentence(cli: Cli) -> None:
    ended = cli("gpu")
    assert ended.status == 2
    assert ended.err.startswith("capsule_lab: device is auto, and torch ")
    assert "device=cpu" in ended.err
    assert ended.err.count("\n") == 1


def test_results_of_all_parts(cli: Cli, found: dict[str, Any], tmp_path: Path) -> None:
    ended = cli("gpu", "device=cpu")
    assert (ended.status, ended.err) == (0, "")
    folder = tmp_path / "runs" / "gpu" / "cpu"
    assert ended.out.endswith(f"{folder / 'gpu.html'} shows all that was found\n")
    assert set(json.loads((folder / "gpu.json").read_text())["parts"]) == {part.name for part in PARTS}
    assert cli("gpu", "device=cpu", "out=elsewhere", "parts=[device]").status == 0
    assert set(json.loads((tmp_path / "elsewhere" / "gpu.json").read_text())["parts"]) == {"device"}


@pytest.mark.slow
def test_every_part_in_its_process(tmp_path: Path) -> None:
    ended = python("-m", "capsule_lab.gpu", "device=cpu", cwd=tmp_path, limit=900)
    assert ended.status == 0, ended.out


def test_a_failure_is_status_1_and_shown(cli: Cli, found: dict[str, Any]) -> None:
    found["failures"] = ["em differs [bold]", "and more"]
    ended = cli("gpu", "device=cpu", "parts=[correctness]")
    assert ended.status == 1
    assert "wrong" in ended.out
    assert "em differs [bold] (and 1 more)" in ended.out


def test_a_signal_is_a_sentence_and_a_status(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(report, "run_part", lambda *_: signal.raise_signal(signal.SIGTERM))
    ended = cli("gpu", "device=cpu", "out=here")
    assert ended.status == 128 + signal.SIGTERM
    assert ended.err == "capsule_lab: stopped; here/gpu.json has what is done, and the same command goes on\n"


def test_what_is_left_is_status_1(cli: Cli, found: dict[str, Any]) -> None:
    ended = cli("gpu", "device=cpu", "parts=[device]", "limit=1")
    assert ended.status == 1
    assert "the same command goes on" in ended.out


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("parts=[step]", "parts has step; did you mean steps? Options: "),
        ("parts=device", "parts is device; expected a list of texts"),
        ("device=gpu", "device is 'gpu'; expected 'auto', 'cuda' or 'cpu'"),
        ("size=big", "size is 'big'; expected 'auto', 'full' or 'small'"),
        ("limit=0", "limit is 0; expected a whole number, 1 or more"),
    ],
)
def test_mistakes_are_one_line(cli: Cli, found: dict[str, Any], override: str, message: str) -> None:
    ended = cli("gpu", *(() if override.startswith("device=") else ("device=cpu",)), override)
    assert ended.status == 2
    assert ended.err.startswith(f"capsule_lab: {message}")
    assert ended.err.count("\n") == 1
