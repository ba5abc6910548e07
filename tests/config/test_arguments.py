"""What is typed before Hydra reads it, and what was meant by keys that do not exist."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from capsule_lab import __main__ as overview
from capsule_lab.config.arguments import own_folders, prepared
from capsule_lab.config.compose import as_argument, compose, options_of, search_path, searching
from capsule_lab.errors import ConfigError
from capsule_lab.train import train
from tests.helpers.commands import ROOT, Ended, interpreter
from tests.helpers.messages import one_sentence

MINE = ROOT / "tests" / "templates" / "my_routing" / "conf"
ON_DISK_FULL = "capsule_lab: standard output cannot be written to (No space left on device)\n"


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("evaluate", ["runs/x"], "runs/x is no key=value; did you mean ckpt=runs/x?"),
        ("figures", ["runs/x"], "runs/x is no key=value; did you mean run=runs/x?"),
        ("report", ["smoke"], "smoke is no key=value; did you mean table=smoke?"),
        ("train", ["capsnet"], "capsnet is no key=value; did you mean model=capsnet?"),
        ("train", ["train"], "train is no key=value; did you mean python -m capsule_lab.train?"),
        ("train", ["nonsense"], "nonsense is no key=value; expected such as nonsense=…"),
        ("train", ["--epochs", "5"], "--epochs is no option; expected key=value without dashes: trainer.max_epochs=5"),
        (
            "train",
            ["--lr=0.1"],
            "--lr is no option; expected key=value without dashes: schedule.learning_rate.",
        ),
        ("train", ["--multirn", "seed=1"], "--multirn is no option; did you mean --multirun?"),
        ("train", ["--cfg", "jobs"], "argument --cfg/-c: invalid choice: 'jobs'"),
        ("train", ["--model", "capsnet"], "--model is no option; expected key=value without dashes: model=capsnet"),
        ("train", ["hydra.run.dir=x"], "hydra.run.dir=x would only make an empty folder; expected train.directory="),
        ("train", ["debug=[smoke,overfit]"], "debug=[smoke,overfit] names several; debug= takes one, -m debug=smoke,"),
        ("analyse", ["what=[votes,tree]"], "what=[votes,tree] names several; what= takes one, -m what=votes,tree runs"),
        ("train", ["=3"], "=3 has no key; expected key=value"),
        ("train", ["data=null"], "data=null leaves out what is needed; expected data= one of affnist, cifar10, "),
        ("train", ["model=3"], "model=3 does not exist; Options: capsnet, "),
        ("evaluate", ["trainer=none"], "trainer=none leaves out what is needed; expected trainer= one of default"),
        ("train", ["--config-dir", "nowhere"], "there is no folder nowhere; expected one that holds such as "),
    ],
    ids=str,
)
def test_habit_of_other_programs_gets_a_sentence(command: str, arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepared(arguments, command) and own_folders(arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "arguments", "expected"),
    [
        ("train", ["logger=null", "callbacks=none", "routing=null"], ["logger=none", "callbacks=none", "routing=none"]),
        ("train", ["experiment=null", "debug=none", "seed=1"], ["seed=1"]),
        ("evaluate", ["data=null", "ckpt=x"], ["ckpt=x"]),
        ("figures", ["logger=null"], ["logger=none"]),
        ("sweep", ["+table=smoke", "debug=null"], ["+table=smoke"]),
        ("train", ["seed=0,1", "-m", "~logger"], ["-m", "seed=0,1", "~logger"]),
        ("train", ["a=1", "--cfg", "job", "b=2"], ["--cfg", "job", "a=1", "b=2"]),
        ("train", ["--config-dir=x", "model.decoder=null"], ["--config-dir=x", "model.decoder=null"]),
        ("evaluate", ["ckpt=~/r", "+data.directory=$HOME/d"], ["ckpt='HOME/r'", "+data.directory='HOME/d'"]),
        ("train", ["data.directory=a~b"], ["data.directory=a~b"]),
    ],
    ids=str,
)
def test_arguments_become_those_of_hydra(
    monkeypatch: pytest.MonkeyPatch, command: str, arguments: list[str], expected: list[str]
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert prepared(arguments, command) == [each.replace("HOME", "/home/me") for each in expected]


@pytest.mark.parametrize("path", ["runs/a-1", "a b", "späces 日本/läuf 1", "it's", "a=b,c", "$x[1]", 'q"q', "~"])
def test_a_path_can_be_pasted(path: str) -> None:
    (word,) = shlex.split(as_argument("ckpt", path))
    assert OverridesParser.create().parse_override(word).value() == path


# --- hints -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("lr=1", "lr does not exist; did you mean schedule.learning_rate.initial? "),
        ("optimizer.lr=1", "optimizer.lr does not exist; did you mean schedule.learning_rate.initial? "),
        ("epochs=5", "epochs does not exist; did you mean trainer.max_epochs? "),
        ("batch_size=5", "batch_size does not exist; did you mean data.batch_size? "),
        ("model.routing.iterations=1", "model.routing.iterations does not exist; did you mean routing.iterations? "),
        ("iterations=1", "iterations does not exist; did you mean routing.iterations? "),
        ("modle=capsnet", "modle does not exist; did you mean model? "),
        ("dataset=mnist", "dataset does not exist; did you mean data? "),
        ("data=CIFAR10", "data=CIFAR10 does not exist; did you mean cifar10? "),
        ("experiment=svhn", "experiment=svhn does not exist; did you mean hahn2019/svhn? "),
        ("+batch_size=5", "batch_size does not exist; did you mean data.batch_size?"),
        ("+optimizer.lr=1", "optimizer.lr is 1; the learning rate is that of the schedule: schedule.learning_rate."),
        ("module._target_=lightning.LightningModule", "module.loss does not exist; lightning.LightningModule takes no"),
        ("logger=[csv,foo]", "logger=foo does not exist; Options: csv, "),
        ("logger=csv,wandb", "logger=csv,wandb are several values; -m trains one run for each, logger=[csv,wandb] is "),
    ],
    ids=str,
)
def test_hint(cli: Any, word: str, message: str) -> None:
    assert one_sentence(cli("train", word)).startswith(message)


def test_a_new_key_is_proposed_where_it_can_be_added(cli: Any) -> None:
    assert one_sentence(cli("train", "trainer.fast_dev_run=1")).endswith("(+trainer.fast_dev_run=… adds it)")
    assert "adds it" not in one_sentence(cli("train", "foo=1"))
    assert "(+" not in one_sentence(cli("train", "+foo=1"))


# --- folders of the user's own ---------------------------------------------------------------------------------------


def test_own_folder_reaches_tables_hints_and_the_list(
    cli: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = ["--config-dir", str(MINE)]
    monkeypatch.syspath_prepend(MINE.parent)
    row = "{name: mine, overrides: [routing=mine, data.source=standin]}"
    (tmp_path / "own.yaml").write_text(f"paper: mine\nseeds: [0]\nrows: [{row}]\n")
    planned = cli("sweep", *given, "table=own.yaml", "dry_run=true")
    assert planned.status == 0, planned.err
    assert f" seed=0 'hydra.searchpath=[{MINE.as_uri()}]'\n" in planned.out, "the command works as it is printed"
    assert cli("report", *given, "table=own.yaml").status == 0
    assert "did you mean mine?" in one_sentence(cli("train", *given, "routing=mien"))
    assert "did you mean routing.sharpness?" in one_sentence(cli("train", *given, "routing=mine", "routing.sharpnes=2"))
    assert search_path() == []
    assert "mine" not in options_of("routing")
    monkeypatch.setattr("sys.argv", ["capsule-lab", *given])
    capsys.readouterr()
    overview.main()
    assert "Routing by the cosines of votes and poses" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ([f"--config-dir={MINE}"], [MINE.as_uri()]),
        (["seed=1", "-cd", str(MINE)], [MINE.as_uri()]),
        ([f"hydra.searchpath=[file://{MINE},'pkg://torch']"], [f"file://{MINE}", "pkg://torch"]),
        (["--cfg", "job"], []),
    ],
    ids=len,
)
def test_own_folders_of_a_command_line(arguments: list[str], found: list[str]) -> None:
    assert own_folders(arguments) == found


def test_own_folder_reaches_what_is_composed(tmp_path: Path) -> None:
    named = Path(shutil.copytree(MINE, tmp_path / "my own ünd"))
    with searching(own_folders([f"--config-dir={named}"])):
        assert compose("train", ["routing=mine"]).routing.sharpness == 1.0
    with pytest.raises(ConfigError, match="mine"):
        compose("train", ["routing=mine"])


@pytest.mark.parametrize("entry", ["nonsense", "file:///nowhere/at/all", "/tmp"])
def test_search_path_of_the_environment_is_checked(cli: Callable[..., Ended], entry: str, monkeypatch) -> None:
    monkeypatch.setenv("CAPSULE_LAB_SEARCH_PATH", entry)
    for command, options in (("list", []), ("train", ["model=capsnet"]), ("sweep", ["table=smoke", "dry_run=true"])):
        message = one_sentence(cli(command, *options))
        assert message == f"CAPSULE_LAB_SEARCH_PATH has {entry}; expected file:// and a folder that is there, or pkg://"


def test_what_is_proposed_fits_the_row(cli: Any) -> None:
    message = one_sentence(cli("sweep", "table=smoke", "model=em_caps", "dry_run=true"))
    assert message.startswith("row dynamic: model.class_dim does not exist; ")
    assert "model.class_dim" not in message.partition("; ")[2]
    assert one_sentence(cli("report", "tabel=smoke")) == "tabel does not exist; did you mean table=smoke?"
    assert one_sentence(cli("report", "table=smoke", "columns=[x]")).startswith("columns is ['x'], and smoke has one ")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("modle=capsnet", "modle does not exist; did you mean model?"),
        ("train.resume=maybe", "train.resume is maybe; expected true or false"),
        ("seed=-1", "seed is -1; expected a whole number, 0 or more"),
    ],
)
def test_notebook_gets_the_same_sentences(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose("train", [override])
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("override", ["data.batch_size=abc", "trainer.max_steps=ten"])
def test_notebook_trains_nothing_with_a_wrong_value(override: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a whole number"):
        train(compose("train", [override]), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


# --- capsule-lab <command> -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status", "out", "err"),
    [
        (["--version"], 0, "capsule-lab ", ""),
        (["--help"], 0, "commands\n", ""),
        (["trian"], 2, "", "capsule_lab: trian is no command; did you mean train? Options: analyse, "),
        (
            ["model=capsnet"],
            2,
            "",
            "capsule_lab: model=capsnet is no command; expected one before it, such as ",
        ),
        (["train", "--version"], 0, "capsule-lab ", ""),
        (["train", "modle=capsnet"], 2, "", "capsule_lab: modle does not exist; did you mean model?"),
        (["bench", "rounds=0"], 2, "", "capsule_lab: rounds is 0"),
    ],
    ids=str,
)
def test_command_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    out: str,
    err: str,
) -> None:
    monkeypatch.setattr("sys.argv", ["capsule-lab", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    ended = 0
    try:
        overview.main()
    except SystemExit as exit_:
        ended = int(exit_.code or 0)
    shown = Ended(ended, *capsys.readouterr())
    assert shown.status == status
    assert shown.out.replace(" \n", "\n").lstrip().startswith(out.strip()[:8])
    assert shown.err.startswith(err)
    assert shown.err.count("\n") == (1 if err else 0)


@pytest.mark.integration
def test_streams_that_cannot_be_written_to(tmp_path: Path) -> None:
    """One process: the list of options into a full disk, with the characters of another encoding."""
    code = "import sys; sys.stdout = open('/dev/full', 'w'); from capsule_lab.__main__ import main; main()"
    full = interpreter("-c", code, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (full.status, full.err) == (2, ON_DISK_FULL)
