"""Which arguments of a command are about the table, and which are overrides of its runs."""

from __future__ import annotations

import pytest

from capsule_lab.config.compose import compose
from capsule_lab.errors import ConfigError
from capsule_lab.tables.arguments import FOR_SWEEP, budget_seconds, for_hydra, quoted


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["table=smoke"], ["table=smoke"]),
        (["table=smoke", "--dry-run"], ["table=smoke", "dry_run=true"]),
        (
            ["rows=[a,b]", "launcher=gpus", "hydra.launcher.jobs=2"],
            ["rows=[a,b]", "launcher=gpus", "hydra.launcher.jobs=2"],
        ),
        (["budget=9m"], ["budget=9m"]),
        (["out=x"], ["overrides=['out=x']"]),
        (["--help"], ["--help"]),
        (["tabel"], ["tabel"]),
        (["~callbacks.best"], ["overrides=['~callbacks.best']"]),
        (["model.a=${model.b}"], [r"overrides=['model.a=\${model.b}']"]),
        (["--cfg", "job"], ["--cfg", "job"]),
        (["seed=1", "+a.b='c d'"], [r"overrides=['seed=1','+a.b=\'c d\'']"]),
    ],
    ids=str,
)
def test_overrides_of_runs_become_one_list(arguments: list[str], expected: list[str]) -> None:
    assert for_hydra(arguments, FOR_SWEEP) == expected


@pytest.mark.parametrize(
    "text",
    ["a.b=${c.d}", "a='%'", "a=${oc.env:B}%", "ä=1", "a=[1,2]", "a='it\\'s'", r"a=c\d", "a=x\\", r"a=\${x}", "~a"],
)
def test_quoted_text_is_not_interpolated(text: str) -> None:
    assert list(compose("report", [f"overrides=[{quoted(text)},{quoted(text)}]"]).overrides) == [text] * 2


@pytest.mark.parametrize(("text", "seconds"), [("9m", 540), ("90s", 90), ("2h", 7200), ("1h30m5s", 5405)])
def test_budget_is_a_time(text: str, seconds: float) -> None:
    assert budget_seconds(text) == seconds


@pytest.mark.parametrize(
    "value", ["", "9", 9, 9.5, "9 m", "-9m", "0s", "m", "9min", "30s9m", True, "9" * 400 + "h", [9]]
)
def test_budget_that_is_no_time_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^budget is .*; expected hours, minutes and seconds, such as 9m, 90s or 1h"):
        budget_seconds(value)
