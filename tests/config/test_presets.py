"""Every preset says whether it is as in its paper, and commands show the ones that differ."""

import re
from pathlib import Path

import pytest

from capsule_lab.config import presets
from capsule_lab.config.folders import conf_dir, head, options_of
from capsule_lab.runs import directories
from tests.helpers.commands import NO_PICTURES, TINY, Cli
from tests.helpers.tables import call

GROUPS = ("model", "routing", "loss", "schedule", "experiment")


def files_of_presets() -> dict[str, Path]:
    """The file of each preset, by ``group=option``."""
    files = {}
    for group in GROUPS:
        folder = conf_dir() / group
        for file in sorted(folder.rglob("*.yaml")):
            option = file.relative_to(folder).with_suffix("").as_posix()
            files[f"{group}={option}"] = file
    return files


FILES = files_of_presets()
CHOICE = re.compile(r"(\w+)=([\w/]+)")
FORM = re.compile(
    r"As in the (paper|authors' code)\b.*"
    r"|From no capsule paper: .+"
    r"|Differs from the paper: .+; the paper's own: (.+)"
    r"|Differs from the authors' code: .+; their own: (.+)"
)


@pytest.mark.parametrize("preset", FILES)
def test_preset_says_whether_it_is_as_in_the_paper(preset: str) -> None:
    file = FILES[preset]
    sentence = presets.relation(head(file))
    form = FORM.fullmatch(sentence)
    assert form, f"{file} says {sentence!r}; expected a sentence of capsule_lab.config.presets"
    own = form[2] or form[3]
    if own and own != "not here":
        assert CHOICE.search(own)
        assert preset not in own.split()
    for group, option in CHOICE.findall(sentence):
        assert option in options_of(group)


def test_summary_of_a_preset_remains_its_first_sentence() -> None:
    for name, file in FILES.items():
        comments = head(file)
        first = presets.sentences(comments)[0]
        assert first != presets.relation(comments), name


@pytest.mark.parametrize(
    ("comments", "expected"),
    [
        (
            ["A network.", "Differs from the paper: small; the paper's own: model=a."],
            "differs from the paper: small; the paper's own: model=a",
        ),
        (
            [
                "Of J. Hui. Differs from the paper:",
                "2.5 times as wide; the paper's own: not here. Slow.",
                "  more",
            ],
            "differs from the paper: 2.5 times as wide; the paper's own: not here",
        ),
        (["A network. As in the paper."], ""),
        (["A network of somebody else."], ""),
        ([], ""),
    ],
)
def test_difference_is_one_sentence_of_the_head(comments: list[str], expected: str) -> None:
    assert presets.differs(comments) == expected


def test_run_names_the_differences_of_its_network_routing_and_experiment() -> None:
    chosen = {"model": "em_caps", "routing": "em", "experiment": None, "loss": "exponential"}
    network, routing = presets.differences(chosen)
    assert network.startswith("model=em_caps differs from the paper: three convolutions")
    assert network.endswith("; the paper's own: model=em_caps_paper")
    assert routing.endswith("; the paper's own: routing=em_paper")
    overrides = ["model=em_caps", "routing.iterations=2", "seed=1", "routing=em"]
    assert presets.differences_of_overrides(overrides) == [network, routing]
    of_the_paper = {"model": "em_caps_paper", "routing": "dynamic", "experiment": "mine"}
    assert presets.differences(of_the_paper) == []


def test_run_log_list_help_and_overview_name_the_papers_own(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    (line,) = presets.differences({"model": "capsnet_slim"})
    assert line.endswith("; the paper's own: model=capsnet")
    overrides = [
        *TINY,
        "trainer.max_epochs=1",
        "trainer.limit_train_batches=1",
        *NO_PICTURES,
        "model=capsnet_slim",
    ]
    shown = cli("train", *overrides).out
    assert f"\npaper       {line}\n" in shown
    assert shown.count(line) == 1
    (log,) = directories.root().glob("*/train.log")
    assert f"{line}\n" in log.read_text()
    assert cli("list").out.splitlines()[-1] == line
    assert f"\n  {line}\n" in cli("train", "--help").out
    difference = line.removeprefix("model=capsnet_slim ")
    assert difference in " ".join(call("", "options", "model").out.split())
