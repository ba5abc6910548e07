"""Command-line arguments are converted to those of Hydra, and configuration folders of the user are found."""

import shlex
import shutil
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from capsule_lab import __main__ as overview
from capsule_lab.commands import compose, load
from capsule_lab.config.arguments import own_folders, prepared, with_last_run
from capsule_lab.config.folders import options_of, search_path, searching
from capsule_lab.config.overrides import as_argument
from tests.helpers.commands import ROOT, Cli
from tests.helpers.messages import one_sentence

MINE = ROOT / "tests" / "templates" / "my_routing" / "conf"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (
            "train logger=null callbacks=none routing=null",
            "logger=none callbacks=none routing=none",
        ),
        ("train experiment=null debug=none seed=1", "seed=1"),
        ("evaluate data=null ckpt=x", "ckpt=x"),
        ("train seed=0,1 -m ~logger", "-m seed=0,1 ~logger"),
        ("train a=1 --cfg job b=2", "--cfg job a=1 b=2"),
        ("train --config-dir=x model.decoder=null", "--config-dir=x model.decoder=null"),
        ("evaluate ckpt=~/r", "ckpt='/home/me/r'"),
        ("evaluate +data.directory=$HOME/d", "+data.directory='/home/me/d'"),
        ("train data.directory=a~b", "data.directory=a~b"),
        ("evaluate data.path=x data.size=8 seed=1", "+data.path=x +data.size=8 seed=1"),
        ("evaluate data.path=x data=folder", "data.path=x data=folder"),
        ("evaluate data=null data.path=x +data.size=8", "+data.path=x +data.size=8"),
        ("evaluate data.path=~/x -m", "-m +data.path='/home/me/x'"),
    ],
)
def test_arguments_are_converted_to_those_of_hydra(
    monkeypatch: pytest.MonkeyPatch, typed: str, expected: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    command, *arguments = typed.split()
    assert prepared(arguments, load(command)) == expected.split()


@pytest.mark.parametrize(
    ("typed", "path", "expected"),
    [
        ("ckpt=last", "runs/a-1", "ckpt=runs/a-1"),
        ("+train.start_from=last", "runs/a-1", "+train.start_from=runs/a-1"),
        ("train.start_from=a,last", "runs/a-1", "train.start_from=a,runs/a-1"),
        ("train.start_from=choice(last,b)", "runs/a-1", "train.start_from=choice(runs/a-1,b)"),
        ("train.start_from=last", "my runs/a,b", "train.start_from='my runs/a,b'"),
        ("train.start_from=runs/last", "runs/a-1", "train.start_from=runs/last"),
        ("train.test=last", "runs/a-1", "train.test=last"),
        ("--multirun", "runs/a-1", "--multirun"),
    ],
)
def test_last_is_the_path_of_a_run(typed: str, path: str, expected: str) -> None:
    assert with_last_run([typed], load("train"), lambda: Path(path)) == [expected]


def test_last_run_is_looked_for_once() -> None:
    """Another run may finish meanwhile."""
    finished = iter([Path("first"), Path("second")])
    typed = ["ckpt=last", "train.start_from=last"]
    found = with_last_run(typed, load("train"), lambda: next(finished))
    assert found == ["ckpt=first", "train.start_from=first"]
    with_last_run(["ckpt=first"], load("train"), lambda: pytest.fail("it is not needed"))


@pytest.mark.parametrize(
    "path",
    [
        "runs/a-1",
        "a b",
        "späces 日本/läuf 1",
        "it's",
        "a=b,c",
        "$x[1]",
        'q"q',
        "~",
    ],
)
def test_as_argument_quotes_any_path(path: str) -> None:
    (word,) = shlex.split(as_argument("ckpt", path))
    override = OverridesParser.create().parse_override(word)
    assert override.value() == path


def test_own_folder_is_searched_by_compose(tmp_path: Path) -> None:
    named = tmp_path / "my own ünd"
    shutil.copytree(MINE, named)
    for arguments in (
        [f"--config-dir={named}"],
        ["-cd", str(named)],
        [f"hydra.searchpath=[file://{named},'pkg://torch']"],
    ):
        with searching(own_folders(arguments)):
            config = compose("train", ["routing=mine"])
        assert config.routing.sharpness == 1.0


TABLE = """\
paper: mine
seeds: [0]
rows: [{name: mine, overrides: [routing=mine, data.source=standin]}]
"""


def test_own_folder_is_searched_by_tables_and_hints(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = ["--config-dir", str(MINE)]
    monkeypatch.syspath_prepend(MINE.parent)
    (tmp_path / "own.yaml").write_text(TABLE)
    planned = cli("sweep", *given, "table=own.yaml", "dry_run=true")
    assert planned.status == 0, planned.err
    search = f" seed=0 'hydra.searchpath=[{MINE.as_uri()}]'\n"
    assert search in planned.out, "the command works as it is printed"
    assert cli("report", *given, "table=own.yaml").status == 0
    refused = one_sentence(cli("train", *given, "routing=mien"))
    assert "did you mean mine?" in refused
    refused = one_sentence(cli("train", *given, "routing=mine", "routing.sharpnes=2"))
    assert "did you mean routing.sharpness?" in refused
    assert search_path() == []
    assert "mine" not in options_of("routing")


def test_own_folder_is_searched_by_the_overview(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(MINE.parent)
    monkeypatch.setattr(
        "sys.argv", ["capsule-lab", "options", "routing", "--config-dir", str(MINE)]
    )
    overview.main()
    printed = " ".join(capsys.readouterr().out.split())
    assert "Routing by the cosines of votes and poses" in printed
    assert search_path() == []
