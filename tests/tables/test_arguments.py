"""Which words of a command are about the table, and which about its runs."""

from __future__ import annotations

import json

import pytest

from capsule_lab.tables.arguments import for_hydra, of_runs

OWN = ("table", "rows", "dry_run")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["table=smoke"], ["hydra.sweeper.table=smoke"]),
        (["table=smoke", "--dry-run"], ["hydra.sweeper.table=smoke", "hydra.sweeper.dry_run=true"]),
        (["rows=[a,b]", "launcher=gpus", "hydra.launcher.jobs=2"], None),
        (["--help"], ["--help"]),
        (["tabel"], ["tabel"]),
        (["~callbacks.best"], ['hydra.sweeper.overrides=["~callbacks.best"]']),
        (["model.a=${model.b}"], ['hydra.sweeper.overrides=["model.a=%24{model.b}"]']),
        (["--cfg", "job"], ["--cfg", "job"]),
        (
            ["seed=1", "model.decoder=[8]", "+a.b='c d'"],
            ['hydra.sweeper.overrides=["seed=1", "model.decoder=[8]", "+a.b=\'c d\'"]'],
        ),
    ],
    ids=str,
)
def test_words_go_where_they_belong(words: list[str], expected: list[str] | None) -> None:
    expected = expected or ["hydra.sweeper.rows=[a,b]", "launcher=gpus", "hydra.launcher.jobs=2"]
    assert for_hydra(words, OWN, "hydra.sweeper.") == expected


@pytest.mark.parametrize("word", ["a.b=${c.d}", "a=100%24", "a='%'", "a=${oc.env:B}%", "ä=1"])
def test_words_of_runs_come_back(word: str) -> None:
    (passed,) = for_hydra([word], OWN)
    assert "$" not in passed
    assert of_runs(json.loads(passed.removeprefix("overrides="))) == [word]
