"""Which arguments of a command are about the table, and which are overrides of its runs."""

from __future__ import annotations

import pytest

from capsule_lab.config import compose
from capsule_lab.tables.arguments import FOR_SWEEP, for_hydra, quoted


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["table=smoke"], ["+table=smoke"]),
        (["table=smoke", "--dry-run"], ["+table=smoke", "+dry_run=true"]),
        (
            ["rows=[a,b]", "launcher=gpus", "hydra.launcher.jobs=2"],
            ["+rows=[a,b]", "launcher=gpus", "hydra.launcher.jobs=2"],
        ),
        (["out=x"], ["+overrides=['out=x']"]),
        (["--help"], ["--help"]),
        (["tabel"], ["tabel"]),
        (["~callbacks.best"], ["+overrides=['~callbacks.best']"]),
        (["model.a=${model.b}"], [r"+overrides=['model.a=\${model.b}']"]),
        (["--cfg", "job"], ["--cfg", "job"]),
        (["seed=1", "+a.b='c d'"], [r"+overrides=['seed=1','+a.b=\'c d\'']"]),
    ],
    ids=str,
)
def test_overrides_of_runs_become_one_list(arguments: list[str], expected: list[str]) -> None:
    assert for_hydra(arguments, FOR_SWEEP, prefix="+") == expected


@pytest.mark.parametrize(
    "text",
    ["a.b=${c.d}", "a='%'", "a=${oc.env:B}%", "ä=1", "a=[1,2]", "a='it\\'s'", r"a=c\d", "a=x\\", r"a=\${x}", "~a"],
)
def test_quoted_text_is_not_interpolated(text: str) -> None:
    assert list(compose("report", [f"overrides=[{quoted(text)},{quoted(text)}]"]).overrides) == [text] * 2
