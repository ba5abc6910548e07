"""The command line without a command, or with an unknown one: the list of commands and options, and errors."""

import sys
from pathlib import Path

import pytest

from capsule_lab.__main__ import _headline, main
from capsule_lab.config.compose import head
from tests.helpers.commands import Cli, Ended, interpreter


def test_headline_is_the_first_sentence(tmp_path: Path) -> None:
    for comments, expected in {
        "# A loss.\nweight: 1\n": "A loss",
        "# As default, and stop once the error is\n# below 5 %. For comparing.\n": (
            "As default, and stop once the error is below 5 %"
        ),
        "# The margin of J. Hui's tutorial: 0.1 more\n# per epoch. It grows.\n": (
            "The margin of J. Hui's tutorial: 0.1 more per epoch"
        ),
        "# A first look\n#   make train\n": "A first look",
        "# MLflow, of capsule-lab[mlflow]\n": "MLflow, of capsule-lab\\[mlflow]",
        "seed: 0\n": "",
    }.items():
        (tmp_path / "option.yaml").write_text(comments)
        assert _headline(head(tmp_path / "option.yaml")) == expected


def test_first_argument_names_the_command(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``capsule-lab <command>`` and ``python -m capsule_lab <command>`` are the same."""

    def overview(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["capsule-lab", *words])
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        return Ended(status, *capsys.readouterr())

    monkeypatch.setenv("COLUMNS", "200")
    in_a_process = interpreter("-m", "capsule_lab", "train", "modle=capsnet", cwd=tmp_path)
    for ended, status, out, err in (
        (overview("--version"), 0, "capsule-lab ", ""),
        (overview("--help"), 0, "commands", ""),
        (overview("trian"), 2, "", "trian is not a command; did you mean train? Options: analyse, "),
        (overview("model=capsnet"), 2, "", "model=capsnet is not a command; put a command before it, such as "),
        (cli("train", "--version"), 0, "capsule-lab ", ""),
        (in_a_process, 2, "", "modle does not exist; did you mean model?"),
    ):
        assert ended.status == status
        assert ended.out.replace(" \n", "\n").lstrip().startswith(out)
        assert ended.err.startswith(f"capsule_lab: {err}" if err else "")
        assert ended.err.count("\n") == bool(err)
        assert out != "commands" or "capsule-lab[mlflow]" in ended.out
