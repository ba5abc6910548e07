"""What is typed: every documented command composes, every wrong one ends in one sentence and leaves nothing behind."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser

from capsule_lab import __main__ as overview
from capsule_lab import build
from capsule_lab.build import check
from capsule_lab.config import compose, conf_dir
from capsule_lab.tables.arguments import FOR_REPORT, FOR_SWEEP, for_hydra
from capsule_lab.train import summary
from tests.helpers.commands import NO_PICTURES, ROOT, TINY, TINY_CAPSNET, Ended, Trained, python

Cli = Callable[..., Ended]
GROUPS = sorted(folder.name for folder in conf_dir().iterdir() if folder.is_dir() and folder.name != "hydra")
OPTIONS = [
    (group, path.relative_to(conf_dir() / group).with_suffix("").as_posix())
    for group in GROUPS
    for path in sorted((conf_dir() / group).rglob("*.yaml"))
]
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")


# --- what is documented works ----------------------------------------------------------------------------------------


def commands_in(text: str) -> list[str]:
    """Lines of the shell blocks that call us, without their comments."""
    blocks = re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [shlex.join(shlex.split(line, comments=True)) for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith(("make ", "python -m capsule_lab"))]


def jobs_of(command: str) -> list[tuple[str, list[str]]]:
    """The configurations that a command composes, as name and overrides; none if it composes none."""
    program, *words = shlex.split(command)
    if program == "make":
        target, *words = words
        name = target
        words = words or ["experiment=quickstart"] * (target == "train")
    else:
        _, name, *words = words  # -m capsule_lab.train
        name = name.removeprefix("capsule_lab").removeprefix(".")
    if not (conf_dir() / f"{name}.yaml").is_file():
        return []
    if name == "sweep":  # what is added with a plus is for the sweeper, and not in the configuration of a run
        words = [word for word in for_hydra(words, FOR_SWEEP, "+") if not word.startswith("+")]
    if name == "report":
        words = for_hydra(words, FOR_REPORT)
    given = get_args_parser().parse_args(words)
    parsed = OverridesParser.create().parse_overrides(given.overrides)
    if not given.multirun:
        return [(name, given.overrides)]
    choices = [
        [f"{o.key_or_group}={value}" for value in o.sweep_string_iterator()] if o.is_sweep_override() else [word]
        for o, word in zip(parsed, given.overrides, strict=True)
    ]
    return [(name, list(overrides)) for overrides in itertools.product(*choices)]


README = commands_in((ROOT / "README.md").read_text())
HEADS = [
    match[1]
    for path in sorted([*conf_dir().rglob("*.yaml"), *(ROOT / "sweeps").glob("*.yaml")])
    for match in re.finditer(r"^# Command:\s+(make .*?)(?:\s{2,}.*)?$", path.read_text(), re.MULTILINE)
]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "results" / "README.md"]
DOCUMENTED = sorted({*HEADS, *(command for page in PAGES for command in commands_in(page.read_text()))})


def test_commands_are_found() -> None:
    assert len(README) >= 5
    assert len(HEADS) >= 2
    assert {jobs_of(command)[0][0] for command in README if jobs_of(command)} >= {"train", "evaluate", "figures"}


@pytest.mark.parametrize(("command", "jobs"), [("python -m capsule_lab.train -m seed=0,1 data=mnist", 2), ("make", 0)])
def test_commands_are_understood(command: str, jobs: int) -> None:
    assert len(jobs_of(command) if " " in command else commands_in(command)) == jobs


@pytest.mark.parametrize(
    ("name", "overrides"), [pytest.param(*job, id=command) for command in DOCUMENTED for job in jobs_of(command)]
)
def test_documented_command_composes(name: str, overrides: list[str]) -> None:
    check(compose(name, overrides))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("command", [command for command in DOCUMENTED if command.startswith("make ")])
def test_documented_target_exists(command: str) -> None:
    assert command.split()[1] in targets()


@pytest.mark.parametrize("command", [command for command in DOCUMENTED if command.startswith("python ")])
def test_documented_module_exists(command: str) -> None:
    module = command.split()[2].removeprefix("capsule_lab").removeprefix(".")
    assert module == "" or module in overview.COMMANDS


def test_what_a_finished_run_proposes_composes(trained: Trained) -> None:
    text = summary(trained.result, trained.directory)
    proposed = [f"python -m {words}" for words in re.findall(rf"^  {sys.executable} -m (.*)$", text, re.MULTILINE)]
    composed = [check(compose(*job)) for command in proposed for job in jobs_of(command)]
    assert len(proposed) >= 3
    assert len(composed) >= 2


PYTHON = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", PYTHON)
def test_documented_python_runs(trained: Trained, code: str) -> None:
    exec(re.sub(r"\"runs/[^\"]*\"", repr(str(trained.directory)), code), {})


@pytest.fixture(scope="module")
def shown() -> str:
    """What ``python -m capsule_lab`` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        overview.main()
    return out.getvalue()


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_overview_lists_every_option(shown: str, group: str, option: str) -> None:
    lines = shown.splitlines()
    listing = lines[next(i for i, line in enumerate(lines) if line.split()[:1] == [group]) :]
    first = next(line.split() for line in listing if option in line.split()[:2])
    assert len(first) > 2, "nothing is said about it"


@pytest.mark.parametrize("command", overview.COMMANDS)
def test_overview_lists_every_command(shown: str, command: str) -> None:
    assert f"python -m capsule_lab.{command} " in shown
    assert (ROOT / "capsule_lab" / f"{command}.py").is_file()


@pytest.mark.parametrize("command", overview.COMMANDS)
def test_help_of_every_command(cli: Cli, command: str) -> None:
    ended = cli(command, "--help")
    assert (ended.status, ended.err) == (0, "")
    assert "key=value" in ended.out or "Needs" in ended.out or "Time" in ended.out


def test_configuration_is_shown_without_training(cli: Cli, tmp_path: Path) -> None:
    ended = cli("train", "model=capsnet", "routing.iterations=7", "--cfg", "job")
    assert (ended.status, ended.err) == (0, "")
    assert "iterations: 7" in ended.out
    assert list(tmp_path.iterdir()) == []


def test_several_runs_one_after_another(cli: Cli, tmp_path: Path) -> None:
    smoke = ["debug=smoke", *TINY_CAPSNET, "trainer.accelerator=cpu", *NO_PICTURES]
    ended = cli("train", "-m", "seed=0,1", *smoke)
    assert ended.status == 0, ended.err
    found = [json.loads(path.read_text())["seed"] for path in (tmp_path / "runs").glob("capsnet-mnist-*/metrics.json")]
    assert sorted(found) == [0, 1]


def test_a_run_that_cannot_work_does_not_stop_the_others(cli: Cli, tmp_path: Path) -> None:
    smoke = ["debug=smoke", *TINY_CAPSNET[1:], "trainer.accelerator=cpu", *NO_PICTURES]
    ended = cli("train", "-m", "model.channels=0,4", *smoke)
    assert ended.status != 0
    assert "capsule_lab: model: CapsNet has channels 0; expected 1 or more\n" in ended.err
    assert len(list((tmp_path / "runs").glob("capsnet-mnist-*"))) == 1


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, proxy in NO_NETWORK.items():
        monkeypatch.setenv(name, proxy)


@pytest.mark.usefixtures("no_network")
def test_without_network_the_stand_in_is_announced(cli: Cli, tmp_path: Path) -> None:
    smoke = ["debug=smoke", *TINY_CAPSNET, "trainer.accelerator=cpu", *NO_PICTURES]
    ended = cli("train", *smoke, "data.source=auto")
    assert (ended.status, ended.err) == (0, "")
    (line,) = [line for line in ended.out.splitlines() if "STAND-IN DATA" in line]
    assert str(tmp_path) in line


# --- make ------------------------------------------------------------------------------------------------------------


def make(*words: str, cwd: Path = ROOT) -> str:
    of_another_make = ("MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MFLAGS", "VENV", "PYTHON", "PYTEST")
    environment = {name: value for name, value in os.environ.items() if name not in of_another_make}
    result = subprocess.run(["make", *words], cwd=cwd, env=environment, capture_output=True, text=True, check=True)
    return result.stdout


def called(venv: Path, command: str, *words: str) -> list[str]:
    """The words that make would hand to the command, and to no other."""
    (line,) = make("-n", command, *words, f"VENV={venv}").splitlines()
    found = shlex.split(line.removeprefix("set -f; "))
    assert found[:3] == [str(venv / "bin" / "python"), "-m", f"capsule_lab.{command}"]
    return found[3:]


def targets() -> list[str]:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return phony.split()


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment that make takes for ready."""
    folder = tmp_path / "environment"
    folder.mkdir()
    (folder / ".ready").touch()
    return folder


@pytest.mark.parametrize("command", ["train", "evaluate", "figures", "bench"])
@pytest.mark.parametrize(
    "words",
    [
        ["model=cnn_baseline", "model.channels=[4,4]", "+trainer.foo=1"],
        ["seed=3"],
        ["train.directory=with space", "model.decoder=null"],
    ],
    ids=str,
)
def test_make_hands_words_on(venv: Path, command: str, words: list[str]) -> None:
    assert sorted(called(venv, command, *words, "PYTHON=python3")) == sorted(words)


@pytest.mark.parametrize(
    ("command", "words", "expected"),
    [
        ("train", [], ["experiment=quickstart"]),
        ("train", ["train.resume=true"], ["experiment=quickstart", "train.resume=true"]),
        ("train", ["train.resume=true", "seed=1"], ["seed=1", "train.resume=true"]),
        ("evaluate", [], []),
        ("figures", [], []),
        ("bench", [], []),
    ],
)
def test_make_adds_words_to_train_alone(venv: Path, command: str, words: list[str], expected: list[str]) -> None:
    assert sorted(called(venv, command, *words)) == expected


@pytest.mark.parametrize(("option", "dry"), [([], False), (["--dry-run"], True), (["-n"], True)], ids=str)
def test_dry_run_of_make_is_that_of_the_sweep(venv: Path, option: list[str], dry: bool) -> None:
    (venv / "bin").mkdir()
    (venv / "bin" / "python").symlink_to(shutil.which("echo") or "")
    line = make("sweep", "table=nightly", f"VENV={venv}", *option).splitlines()[-1]
    assert line.split() == ["-m", "capsule_lab.sweep", *(["dry_run=true"] if dry else []), "table=nightly"]


def test_make_sets_up_what_is_not_there(tmp_path: Path) -> None:
    venv = tmp_path / "environment"
    lines = make("-n", "train", f"VENV={venv}", "PYTHON=python3.12").splitlines()
    assert any(line.endswith(f"python3.12 -m venv {venv}") for line in lines)
    assert any("pip install" in line for line in lines)
    assert lines[-1].rstrip().endswith("-m capsule_lab.train experiment=quickstart")
    assert not venv.exists()


@pytest.mark.parametrize("words", [[], ["help"]])
def test_make_help_lists_every_target(words: list[str]) -> None:
    assert re.findall(r"^  make (\w+) +\S", make(*words), re.MULTILINE) == targets()


# --- what is wrong is said -------------------------------------------------------------------------------------------


def assert_refused(ended: Ended, sentence: str, *, status: int = 2) -> None:
    """One line, and a status that says so."""
    assert ended.status == status
    assert ended.err.startswith("capsule_lab: ")
    assert sentence in ended.err
    assert ended.err.count("\n") == 1
    assert "Traceback" not in ended.out


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["model=capsnot"], "model=capsnot does not exist; did you mean capsnet? Options: "),
        (["experiment=quikstart"], "experiment=quikstart does not exist; did you mean quickstart?"),
        (["modell=capsnet"], "modell does not exist; did you mean model?"),
        (["trainer.max_epoch=3"], "trainer.max_epoch does not exist; did you mean trainer.max_epochs?"),
        (["+trainer.max_epoch=3"], "trainer.max_epoch does not exist; did you mean trainer.max_epochs?"),
        (["+model.chanels=3"], "model.chanels does not exist; did you mean model.channels?"),
        (["+train.tset=last"], "train.tset does not exist; did you mean train.test?"),
        (["train.test=["], "train.test=["),
        (["seed"], "seed"),
        (["train.test=bset"], "train.test is 'bset'; expected best, last or none"),
        (["data.batch_size=0"], "batch sizes are 0 and 500; expected 1 or more"),
        (["data.source=real"], "data.source is 'real'; expected 'auto', 'real' or 'standin'"),
        (["data.validation_share=2"], "data.validation_share is 2, 2876 of 1438 images"),
        (["data.train_images=100000"], "data.train_images is 100000; expected 1 to 1198"),
        (["model.channels=0"], "CapsNet has channels 0; expected 1 or more"),
        (["model.kernel_size=100"], "images are 28x28; CapsNet needs at least 199x199"),
        (["routing.iterations=0"], "routing iterations is 0; expected 1"),
        (["routing=none"], "CapsNet routes, but routing is none"),
        (["loss.classification.reduction=mean"], "reduction is 'mean'; expected 'paper' or 'official'"),
        (["schedule.learning_rate.every=often"], "duration is 'often'; expected such as '2000 steps'"),
        (["optimizer.betas=[2,2]"], "beta"),
        (["trainer.accelerator=tpuu"], "accelerator"),
        (["trainer.max_epochs=-1"], "the run has no end: set trainer.max_epochs or trainer.max_steps"),
        (["seed=-1"], "seed"),
        (["seed=abc"], "abc"),
        (["train.directory=file/run"], "cannot write to "),
    ],
    ids=str,
)
def test_wrong_words_are_refused(cli: Cli, tmp_path: Path, overrides: list[str], sentence: str) -> None:
    (tmp_path / "file").write_text("in the way")
    assert_refused(cli("train", *TINY, *overrides), sentence)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize("source", ["real", "auto"])
@pytest.mark.parametrize("name", ["train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"])
def test_truncated_data_is_refused(cli: Cli, tmp_path: Path, real: Path, source: str, name: str) -> None:
    path = real / "MNIST" / "raw" / name
    path.write_bytes(path.read_bytes()[:-1])
    ended = cli("train", *TINY, f"data.source={source}", f"data.directory={real}")
    assert_refused(ended, str(path))
    assert list(tmp_path.iterdir()) == [real]


@pytest.mark.usefixtures("no_network")
def test_missing_data_without_network_is_refused(cli: Cli) -> None:
    assert_refused(cli("train", *TINY, "data.source=real"), "MNIST is not in data/MNIST/raw")
    assert not Path("runs").exists()


def of_another_format(real: Path) -> None:
    checkpoint = torch.load(real, weights_only=True)
    checkpoint["capsule_lab"] |= {"format": 99, "version": "9.9"}
    torch.save(checkpoint, real)


CHECKPOINTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda path: path.unlink(), "no checkpoint at "),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "it is truncated or another file"),
    "empty": (lambda path: path.write_bytes(b""), "it is truncated or another file"),
    "no checkpoint": (lambda path: path.write_text("seed: 0"), "it is truncated or another file"),
    "foreign": (lambda path: torch.save({"state_dict": {}}, path), "was not written by capsule_lab"),
    "foreign tensor": (lambda path: torch.save(torch.zeros(1), path), "was not written by capsule_lab"),
    "another format": (of_another_format, "install capsule_lab 9.9 to use it"),
}


@pytest.mark.parametrize("command", ["train", "evaluate"])
@pytest.mark.parametrize("damage", CHECKPOINTS)
def test_checkpoint_that_cannot_be_used_is_refused(cli: Cli, a_copy: Path, command: str, damage: str) -> None:
    path = a_copy / "checkpoints" / "last.ckpt"
    harm, sentence = CHECKPOINTS[damage]
    harm(path)
    ended = cli(command, *(TINY if command == "train" else ["trainer.accelerator=cpu"]), f"ckpt={path}")
    assert_refused(ended, sentence)
    assert str(path) in ended.err
    assert not Path("runs").exists()
    assert not (a_copy / "evaluations").exists()


@pytest.mark.parametrize(
    ("command", "overrides", "sentence"),
    [
        ("evaluate", [], "ckpt is missing; expected ckpt=<"),
        ("evaluate", ["ckpt=nowhere"], "no checkpoint at nowhere; expected a .ckpt file or the directory of a run"),
        ("evaluate", ["ckpt=RUN", "split=train"], "split is 'train'; expected test or validation"),
        ("evaluate", ["ckpt=RUN", "data=mnits"], "data=mnits does not exist; did you mean mnist?"),
        ("evaluate", ["ckpt=RUN", "slpit=test"], "slpit does not exist; did you mean split?"),
        ("evaluate", ["ckpt=RUN", "+trainer.acelerator=cpu"], "acelerator"),
        ("figures", [], "run is missing; expected run=<"),
        ("figures", ["run=nowhere"], "run is nowhere, which is no directory"),
        ("figures", ["run=RUN/checkpoints/best.ckpt"], "best.ckpt, which is no directory"),
        ("figures", ["run=RUN", "image=3"], "image does not exist; did you mean images?"),
        ("figures", ["run=RUN", "images=0"], "images is 0; expected 1 or more"),
        ("bench", ["rounds=0"], "rounds is 0"),
    ],
    ids=str,
)
def test_other_commands_refuse_wrong_words(
    cli: Cli, a_copy: Path, command: str, overrides: list[str], sentence: str
) -> None:
    before = sorted(a_copy.rglob("*"))
    assert_refused(cli(command, *[word.replace("RUN", str(a_copy)) for word in overrides]), sentence)
    assert sorted(a_copy.rglob("*")) == before


def test_process_refuses_wrong_words(tmp_path: Path) -> None:
    ended = python("-m", "capsule_lab.train", "trainer.max_epoch=3", cwd=tmp_path)
    assert_refused(ended, "did you mean trainer.max_epochs?")
    assert ended.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_network")
def test_data_that_cannot_be_had_is_asked_for(cli: Cli, tmp_path: Path) -> None:
    assert_refused(cli("train", "data.source=real"), "MNIST is not in data/MNIST/raw")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_process_shows_the_traceback_to_who_asks(tmp_path: Path) -> None:
    ended = python("-m", "capsule_lab.train", "trainer.max_epoch=3", cwd=tmp_path, HYDRA_FULL_ERROR="1")
    assert ended.status != 0
    assert "Traceback" in ended.err


@pytest.mark.parametrize("error", [ZeroDivisionError("ours"), KeyError("ours")], ids=repr)
def test_our_own_mistakes_are_not_hidden(cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(build, "build_data", fail)
    with pytest.raises(type(error), match="ours"):
        cli("train", *TINY)
