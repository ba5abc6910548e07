"""Arguments of ``sweep`` and ``report``: options of the command stay, all others become overrides of the runs."""

import pytest

from capsule_lab.commands import compose
from capsule_lab.commands.sweep import SweepOptions
from capsule_lab.config.overrides import quoted
from capsule_lab.errors import ConfigError
from capsule_lab.tables.arguments import budget_seconds, for_hydra


@pytest.mark.parametrize(
    "arguments",
    [
        ["table=smoke"],
        ["rows=[a,b]", "launcher=gpus", "hydra.launcher.jobs=2"],
        ["budget=9m"],
        ["--help"],
        ["--cfg", "job"],
        ["tabel"],
    ],
    ids=str,
)
def test_options_of_the_command_stay(arguments: list[str]) -> None:
    assert for_hydra(arguments, SweepOptions) == arguments


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["table=smoke", "--dry-run"], ["table=smoke", "dry_run=true"]),
        (["out=x"], ["overrides=['out=x']"]),
        (["~callbacks.best"], ["overrides=['~callbacks.best']"]),
        (["model.a=${model.b}"], [r"overrides=['model.a=\${model.b}']"]),
        (["seed=1", "+a.b='c d'"], [r"overrides=['seed=1','+a.b=\'c d\'']"]),
    ],
)
def test_other_arguments_are_collected_in_one_list(
    arguments: list[str], expected: list[str]
) -> None:
    assert for_hydra(arguments, SweepOptions) == expected


def test_quoted_text_is_not_interpolated() -> None:
    texts = ["a.b=${c.d}", "a='%'", "a=${oc.env:B}%", "ä=1", "a=[1,2]"]
    texts += ["a='it\\'s'", r"a=c\d", "a=x\\", r"a=\${x}", "~a"]
    listed = ",".join(map(quoted, texts * 2))
    assert list(compose("report", [f"overrides=[{listed}]"]).overrides) == texts * 2


@pytest.mark.parametrize(
    ("text", "seconds"), [("9m", 540), ("90s", 90), ("2h", 7200), ("1h30m5s", 5405)]
)
def test_budget_is_parsed_to_seconds(text: str, seconds: float) -> None:
    assert budget_seconds(text) == seconds


LONG = pytest.param("9" * 400 + "h", id="400 digits")


@pytest.mark.parametrize(
    "value", ["", "9", 9, 9.5, "9 m", "-9m", "0s", "m", "9min", "30s9m", True, LONG, [9]]
)
def test_budget_that_is_no_time_is_refused(value: object) -> None:
    message = r"^budget is .*; expected hours, minutes and seconds, such as 9m, 90s or"
    with pytest.raises(ConfigError, match=message):
        budget_seconds(value)
