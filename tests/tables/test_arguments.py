"""Arguments of ``sweep`` and ``report``: options of the command stay, all others become overrides of the runs."""

import pytest

from capsule_lab.commands import compose
from capsule_lab.commands.sweep import SweepOptions
from capsule_lab.config.overrides import quoted
from capsule_lab.errors import ConfigError
from capsule_lab.tables.arguments import budget_seconds, for_hydra


def test_for_hydra_collects_overrides_of_runs_in_one_list() -> None:
    for arguments, expected in (
        (["table=smoke"], ["table=smoke"]),
        (["table=smoke", "--dry-run"], ["table=smoke", "dry_run=true"]),
        (["rows=[a,b]", "launcher=gpus", "hydra.launcher.jobs=2"],) * 2,
        (["budget=9m"], ["budget=9m"]),
        (["out=x"], ["overrides=['out=x']"]),
        (["--help"], ["--help"]),
        (["tabel"], ["tabel"]),
        (["~callbacks.best"], ["overrides=['~callbacks.best']"]),
        (["model.a=${model.b}"], [r"overrides=['model.a=\${model.b}']"]),
        (["--cfg", "job"], ["--cfg", "job"]),
        (["seed=1", "+a.b='c d'"], [r"overrides=['seed=1','+a.b=\'c d\'']"]),
    ):
        assert for_hydra(arguments, SweepOptions) == expected


def test_quoted_text_is_not_interpolated() -> None:
    texts = ["a.b=${c.d}", "a='%'", "a=${oc.env:B}%", "ä=1", "a=[1,2]"]
    texts += ["a='it\\'s'", r"a=c\d", "a=x\\", r"a=\${x}", "~a"]
    overrides = f"overrides=[{','.join(map(quoted, [*texts, *texts]))}]"
    assert list(compose("report", [overrides]).overrides) == texts * 2


def test_budget_is_parsed_to_seconds() -> None:
    for text, seconds in (("9m", 540), ("90s", 90), ("2h", 7200), ("1h30m5s", 5405)):
        assert budget_seconds(text) == seconds
    for value in (
        "",
        "9",
        9,
        9.5,
        "9 m",
        "-9m",
        "0s",
        "m",
        "9min",
        "30s9m",
        True,
        "9" * 400 + "h",
        [9],
    ):
        with pytest.raises(
            ConfigError,
            match=r"^budget is .*; expected hours, minutes and seconds, such as 9m, 90s or",
        ):
            budget_seconds(value)
