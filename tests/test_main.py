"""The list of commands and options: a headline for each, with comments as they are."""

from pathlib import Path

from capsule_lab.__main__ import _headline
from capsule_lab.config.compose import head
from tests.helpers.commands import python


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


def test_commands_by_their_names(tmp_path: Path) -> None:
    """``capsule-lab <command>`` as ``python -m capsule_lab <command>``."""
    for words, status, out, err in (
        ("--version", 0, "capsule-lab ", ""),
        ("--help", 0, "commands", ""),
        ("trian", 2, "", "capsule_lab: trian is not a command; did you mean train? Options: analyse, "),
        ("model=capsnet", 2, "", "capsule_lab: model=capsnet is not a command; put a command before it, such as "),
        ("train --version", 0, "capsule-lab ", ""),
        ("train modle=capsnet", 2, "", "capsule_lab: modle does not exist; did you mean model?"),
    ):
        ended = python("-m", "capsule_lab", *words.split(), cwd=tmp_path, COLUMNS="200")
        assert ended.status == status
        assert ended.out.replace(" \n", "\n").lstrip().startswith(out)
        assert ended.err.startswith(err)
        assert ended.err.count("\n") == bool(err)
        assert words != "--help" or "capsule-lab[mlflow]" in ended.out
