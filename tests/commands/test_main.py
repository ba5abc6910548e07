"""The command line without a command, or with an unknown one: the list of commands and options, and errors."""

from pathlib import Path

import pytest

from capsule_lab import __main__ as overview
from capsule_lab.config.folders import head
from tests.helpers.commands import Cli, interpreter
from tests.helpers.tables import call


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
        "# MLflow, of capsule-lab[mlflow]\n": "MLflow, of capsule-lab[mlflow]",
        "seed: 0\n": "",
    }.items():
        (tmp_path / "option.yaml").write_text(comments)
        assert overview._headline(head(tmp_path / "option.yaml")) == expected


def test_first_argument_names_the_command(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    in_a_process = interpreter("-m", "capsule_lab", "train", "modle=capsnet", cwd=tmp_path)
    for ended, status, out, err in (
        (call("", "--version"), 0, "capsule-lab ", ""),
        (call("", "--help"), 0, "commands", ""),
        (call("", "options"), 0, "options", ""),
        (call("", "options", "logger"), 0, "options: logger=", ""),
        (call("", "options", "--config-dir", str(tmp_path)), 0, "options: capsule-lab", ""),
        (
            call("", "options", "modle"),
            2,
            "",
            "modle is not a configuration group; did you mean model? Options: ",
        ),
        (
            call("", "trian"),
            2,
            "",
            "trian is not a command; did you mean train? Options: ",
        ),
        (
            call("", "model=capsnet"),
            2,
            "",
            "model=capsnet is not a command; put a command before it, such as ",
        ),
        (
            call("", "--model=capsnet"),
            2,
            "",
            "--model=capsnet is not a command; put a command before it, such as capsule-lab train model=capsnet",
        ),
        (cli("train", "--version"), 0, "capsule-lab ", ""),
        (in_a_process, 2, "", "modle does not exist; did you mean model?"),
    ):
        assert ended.status == status
        assert ended.out.replace(" \n", "\n").lstrip().startswith(out)
        assert ended.err.startswith(f"capsule_lab: {err}" if err else "")
        assert ended.err.count("\n") == bool(err)
