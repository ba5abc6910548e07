"""The list of commands and options: a headline for each, with comments as they are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from capsule_lab.__main__ import _headline, main
from capsule_lab.config.compose import conf_dir, sweeps_dir


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("# A loss.\nweight: 1\n", "A loss"),
        (
            "# As default, and stop once the error is\n# below 5 %. For comparing.\n",
            "As default, and stop once the error is below 5 %",
        ),
        (
            "# The margin of J. Hui's tutorial: 0.1 more\n# per epoch. It grows.\n",
            "The margin of J. Hui's tutorial: 0.1 more per epoch",
        ),
        ("# CapsNet, section 4. 8,215,728 parameters.\n", "CapsNet, section 4. 8,215,728 parameters"),
        ("# A first look\n#\n# Command: make\n", "A first look"),
        ("# A first look\n#   make train\n", "A first look"),
        ("# MLflow, of capsule-lab[mlflow]\n", "MLflow, of capsule-lab\\[mlflow]"),
        ("seed: 0\n", ""),
    ],
)
def test_headline_is_the_first_sentence(tmp_path: Path, head: str, expected: str) -> None:
    (tmp_path / "option.yaml").write_text(head)
    assert _headline(tmp_path / "option.yaml") == expected


def test_every_headline_is_a_whole_sentence() -> None:
    files = [*conf_dir().rglob("[!_]*.yaml"), *sweeps_dir().glob("*.yaml")]
    shown = {file: _headline(file) for file in files if file.parent.name not in ("hydra_logging", "job_logging")}
    assert [str(file) for file, text in shown.items() if not text or text.endswith((",", ";", " of", " the"))] == []


def test_brackets_are_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(sys, "argv", ["capsule-lab"])
    main()
    assert "capsule-lab[mlflow]" in capsys.readouterr().out
