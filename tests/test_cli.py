"""Every documented command composes; every wrong one ends with a message of one line, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
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
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser

from capsule_lab import __main__ as overview
from capsule_lab.config import build
from capsule_lab.config.check import check
from capsule_lab.config.compose import (
    commands,
    compose,
    conf_dir,
    default_options,
    groups,
    head,
    options_of,
    user_message,
)
from capsule_lab.tables.arguments import FOR_REPORT, FOR_SWEEP, for_hydra
from capsule_lab.train import summary
from tests.helpers.commands import CHOSEN, NO_PICTURES, ROOT, TINY, TINY_CAPSNET, Ended, Trained, interpreter
from tests.helpers.messages import one_sentence

Cli = Callable[..., Ended]
OPTIONS = [(group, option) for group in groups() for option in options_of(group)]
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")


# --- what is documented works ----------------------------------------------------------------------------------------


def commands_in(text: str) -> list[str]:
    """Lines of the shell blocks that run a command of capsule_lab, without their comments."""
    blocks = re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [shlex.join(shlex.split(line, comments=True)) for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith(("make ", "python -m capsule_lab"))]


def jobs_of(command: str) -> list[tuple[str, list[str]]]:
    """The configurations that a command composes, as name and overrides; none if it composes none."""
    program, *rest = shlex.split(command)
    if program == "make":
        name, *rest = rest
        rest = rest or ["experiment=quickstart"] * (name == "train")
    else:
        _, name, *rest = rest  # -m capsule_lab.train
        name = name.removeprefix("capsule_lab").removeprefix(".")
    if not (conf_dir() / f"{name}.yaml").is_file():
        return []
    if name in ("sweep", "report"):
        rest = for_hydra(rest, FOR_SWEEP if name == "sweep" else FOR_REPORT)
    given = get_args_parser().parse_args(rest)
    parsed = OverridesParser.create().parse_overrides(given.overrides)
    if not given.multirun:
        return [(name, given.overrides)]
    choices = [
        [f"{o.key_or_group}={value}" for value in o.sweep_string_iterator()] if o.is_sweep_override() else [override]
        for o, override in zip(parsed, given.overrides, strict=True)
    ]
    return [(name, list(overrides)) for overrides in itertools.product(*choices)]


README = commands_in((ROOT / "README.md").read_text())
HEADS = [
    *(
        match[1]
        for path in sorted([*conf_dir().rglob("*.yaml"), *(ROOT / "sweeps").glob("*.yaml")])
        for match in re.finditer(r"^# Command:\s+(make .*?)(?:\s{2,}.*)?$", path.read_text(), re.MULTILINE)
    ),
    *(
        line.strip().partition("    ")[0]
        for command in commands()
        for line in head(conf_dir() / f"{command}.yaml")
        if line.startswith("  python -m capsule_lab.")
    ),
]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "results/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
DOCUMENTED = sorted({*HEADS, *(command for page in PAGES for command in commands_in(page.read_text()))})


def test_commands_are_found() -> None:
    assert {name for command in HEADS for name, _ in jobs_of(command)} == {*commands()}
    assert {jobs_of(command)[0][0] for command in README if jobs_of(command)} >= {"train", "evaluate", "figures"}


@pytest.mark.parametrize(("command", "jobs"), [("python -m capsule_lab.train -m seed=0,1 data=mnist", 2), ("make", 0)])
def test_commands_are_understood(command: str, jobs: int) -> None:
    assert len(jobs_of(command) if " " in command else commands_in(command)) == jobs


@pytest.mark.parametrize(
    ("name", "overrides"), [pytest.param(*job, id=command) for command in DOCUMENTED for job in jobs_of(command)]
)
def test_documented_command_composes(name: str, overrides: list[str]) -> None:
    check(compose(name, overrides))


def test_documented_targets_and_modules_exist() -> None:
    known = {*(f"make {name}" for name in targets()), *(f"python -m capsule_lab.{name}" for name in commands())}
    starts = [re.match(r"make [\w-]+|python -m [\w.]+", command)[0] for command in DOCUMENTED]  # type: ignore[index]
    assert {*starts} - known - {"python -m capsule_lab"} == set()


def test_what_a_finished_run_proposes_composes(trained: Trained) -> None:
    text = summary(trained.result, trained.directory, CHOSEN, TINY)
    proposed = re.findall(r"^  (python -m .*)$", text, re.MULTILINE)
    composed = [check(compose(*job)) for command in proposed for job in jobs_of(command)]
    assert len(proposed) == len(composed) == 2


PYTHON = [
    code for page in PAGES for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize("code", PYTHON)
def test_documented_python_runs(trained: Trained, code: str) -> None:
    exec(re.sub(r"\"runs/[^\"]*\"", repr(str(trained.directory)), code), {})


@pytest.fixture(scope="module")
def shown() -> str:
    """What ``python -m capsule_lab`` prints."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setenv("COLUMNS", "300")  # no line is wrapped
        patch.setattr(sys, "argv", ["capsule-lab"])
        overview.main()
    return out.getvalue()


def test_overview_lists_every_command_and_option(shown: str) -> None:
    """Options with their headlines."""
    assert [command for command in commands() if f"python -m capsule_lab.{command} " not in shown] == []
    lines = [line.split() for line in shown.splitlines()]
    listings = {group: lines[next(i for i, line in enumerate(lines) if line[:1] == [group]) :] for group in groups()}
    found = {(group, word): len(line) > 2 for group in groups() for line in listings[group][::-1] for word in line[:2]}
    assert [option for option in OPTIONS if not found.get(option)] == []


@pytest.mark.parametrize("command", commands())
def test_help_is_the_head_of_the_configuration(cli: Cli, command: str) -> None:
    ended = cli(command, "--help")
    assert (ended.status, ended.err) == (0, "")
    first, *rest = head(conf_dir() / f"{command}.yaml")
    text, _, listed = ended.out.partition("\n== Config ==\n")[0].partition("\n\n== Groups: group=option ==\n")
    assert text.strip().splitlines() == [first, *rest]
    assert {line.split(":")[0].strip() for line in listed.strip().splitlines()} == {*default_options(command)}
    assert any(f"python -m capsule_lab.{command} " in line for line in rest)


def test_configuration_is_shown_without_training(cli: Cli, tmp_path: Path) -> None:
    ended = cli("train", "model=capsnet", "routing.iterations=7", "--cfg", "job")
    assert (ended.status, ended.err) == (0, "")
    assert "iterations: 7" in ended.out
    assert list(tmp_path.iterdir()) == []


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


def make(*arguments: str, cwd: Path = ROOT) -> str:
    of_another_make = ("MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MFLAGS", "VENV", "PYTHON", "PYTEST")
    environment = {name: value for name, value in os.environ.items() if name not in of_another_make}
    result = subprocess.run(["make", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=True)
    return result.stdout


def called(venv: Path, command: str, *arguments: str) -> list[str]:
    """The overrides that make would hand to the command, and to no other."""
    (line,) = make("-n", command, *arguments, f"VENV={venv}").splitlines()
    found = shlex.split(line.removeprefix("set -f; "))
    assert found[:3] == [str(venv / "bin" / "python"), "-m", f"capsule_lab.{command}"]
    return found[3:]


@functools.cache
def targets() -> list[str]:
    """What ``make help`` lists."""
    return re.findall(r"^  make ([\w-]+) +\S", make("help"), re.MULTILINE)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment that make takes for ready."""
    folder = tmp_path / "environment"
    folder.mkdir()
    (folder / ".ready").touch()
    return folder


@pytest.mark.parametrize("command", ["train", "evaluate"])
@pytest.mark.parametrize(
    "overrides",
    [
        ["model=cnn_baseline", "model.channels=[4,4]", "+trainer.foo=1"],
        ["seed=3"],
        ["train.directory=with space", "model.decoder=null"],
    ],
    ids=str,
)
def test_make_hands_overrides_on(venv: Path, command: str, overrides: list[str]) -> None:
    assert sorted(called(venv, command, *overrides, "PYTHON=python3")) == sorted(overrides)


@pytest.mark.parametrize(
    ("command", "overrides", "expected"),
    [
        ("train", [], ["experiment=quickstart"]),
        ("train", ["train.resume=true"], ["experiment=quickstart", "train.resume=true"]),
        ("train", ["train.resume=true", "seed=1"], ["seed=1", "train.resume=true"]),
        *((command, [], []) for command in commands() if command not in ("train", "sweep")),
    ],
)
def test_make_adds_overrides_to_train_alone(
    venv: Path, command: str, overrides: list[str], expected: list[str]
) -> None:
    assert sorted(called(venv, command, *overrides)) == expected


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


def test_make_leaves_the_environment_of_another_clone_alone(venv: Path) -> None:
    (venv / ".ready").write_text("/another/clone\n")
    os.utime(venv / ".ready", (0, 0))
    with pytest.raises(subprocess.CalledProcessError) as caught:
        make("setup", f"VENV={venv}", "PYTHON=true")
    assert f"{venv} is the environment of /another/clone; name another with VENV=" in caught.value.stderr
    assert not (venv / "bin").exists()


def test_make_help_lists_every_target() -> None:
    assert targets() == [*commands(), "help", "setup", "test", "test-all", "campaign", "lint", "clean"]
    assert make() == make("help")


# --- what is wrong is refused ----------------------------------------------------------------------------------------


def refusal(overrides: list[str]) -> str:
    """The message for a training run that cannot start, from the steps of ``train`` before anything is written."""

    def prepare() -> None:
        config = compose("train", [*TINY, *overrides])
        check(config)
        data = build.build_data(config)
        with build.constructing("data"):
            data.setup("fit")
        build.build_module(config, data.spec)
        build.build_trainer(config, None)

    with pytest.raises(Exception, match=r".*") as caught:
        prepare()
    message = user_message(caught.value)
    assert message is not None, repr(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.test=bset"], "train.test is 'bset'; expected 'best', 'last' or 'none'"),
        (["+train.tset=last"], "train.tset does not exist; did you mean train.test?"),
        (["+model.chanels=3"], "model.chanels does not exist; did you mean model.channels?"),
        (["+trainer.max_epoch=3"], "trainer.max_epoch does not exist; did you mean trainer.max_epochs?"),
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
    ],
    ids=str,
)
def test_wrong_overrides_are_refused(tmp_path: Path, overrides: list[str], message: str) -> None:
    assert message in refusal(overrides)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["modell=capsnet"], "modell does not exist; did you mean model? Options: callbacks, ckpt, "),
        (["train.test=["], "train.test=[ cannot be read as key=value; expected quotes around "),
        (["train.test=bset"], "train.test is 'bset'; expected 'best', 'last' or 'none'"),
        (["model.channels=0"], "model: CapsNet has channels 0; expected 1 or more"),
        (["train.directory=file/run"], "cannot write to "),
    ],
    ids=str,
)
def test_command_refuses_in_one_line_and_leaves_nothing(
    cli: Cli, tmp_path: Path, overrides: list[str], message: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert one_sentence(cli("train", *TINY, *overrides)).startswith(message)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize("source", ["real", "auto"])
@pytest.mark.parametrize("name", ["train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"])
def test_truncated_data_is_refused(cli: Cli, tmp_path: Path, real: Path, source: str, name: str) -> None:
    path = real / "MNIST" / "raw" / name
    path.write_bytes(path.read_bytes()[:-1])
    ended = cli("train", *TINY, f"data.source={source}", f"data.directory={real}")
    assert str(path) in one_sentence(ended)
    assert list(tmp_path.iterdir()) == [real]


@pytest.mark.usefixtures("no_network")
def test_missing_data_without_network_is_refused(cli: Cli) -> None:
    assert "MNIST is not in data/MNIST/raw" in one_sentence(cli("train", *TINY, "data.source=real"))
    assert [path for path in Path().rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_checkpoint_that_cannot_be_used_is_refused(cli: Cli, a_copy: Path, command: str) -> None:
    """See ``tests/runs/test_open_run.py`` for all that can be wrong with one."""
    path = a_copy / "checkpoints" / "last.ckpt"
    path.write_bytes(path.read_bytes()[:-100])
    ended = cli(command, *(TINY if command == "train" else ["trainer.accelerator=cpu"]), f"ckpt={path}")
    assert one_sentence(ended).startswith(f"{path} cannot be read as a checkpoint")
    assert not Path("runs").exists()
    assert not (a_copy / "evaluations").exists()


@pytest.mark.parametrize(
    ("command", "overrides", "message"),
    [
        ("evaluate", [], "ckpt is missing; expected ckpt=<"),
        ("evaluate", ["ckpt=nowhere"], "no checkpoint at nowhere; expected a .ckpt file or the directory of a run"),
        ("evaluate", ["ckpt=RUN", "split=train"], "split is 'train'; expected 'test' or 'val'"),
        ("evaluate", ["ckpt=[a,b]"], "ckpt is ['a', 'b']; expected a .ckpt file or the directory of a run"),
        ("evaluate", ["ckpt="], "ckpt is an empty text; expected a .ckpt file or the directory of a run"),
        ("evaluate", ["ckpt=RUN", "seed=-1"], "seed is -1; expected a whole number, 0 or more, or null"),
        ("evaluate", ["ckpt=RUN", "data.batch_size=7"], "data.batch_size does not exist; did you mean +data.batch_"),
        ("sweep", ["table=smoke", "dry_run=maybe"], "dry_run is maybe; expected true or false"),
        ("list", ["last=true"], "last is True; expected a whole number, 1 or more"),
        ("gpu", ["limit=nan", "dry_run=true"], "limit is nan; expected a whole number, 1 or more"),
        ("analyse", ["untrained=maybe"], "untrained is maybe; expected true or false"),
        ("evaluate", ["ckpt=RUN", "data=mnits"], "data=mnits does not exist; did you mean mnist?"),
        ("evaluate", ["ckpt=RUN", "slpit=test"], "slpit does not exist; did you mean split?"),
        ("evaluate", ["ckpt=RUN", "+trainer.acelerator=cpu"], "acelerator"),
        ("figures", [], "run is missing; expected run=<"),
        ("figures", ["run=nowhere"], "no checkpoint at nowhere; expected a .ckpt file or the directory of a run"),
        ("figures", ["run=RUN", "image=3"], "image does not exist; did you mean images?"),
        ("figures", ["run=RUN", "images=0"], "images is 0; expected a whole number, 1 or more"),
        ("bench", ["rounds=0"], "rounds is 0"),
    ],
    ids=str,
)
def test_other_commands_refuse_wrong_overrides(
    cli: Cli, trained: Trained, command: str, overrides: list[str], message: str
) -> None:
    before = sorted(trained.directory.rglob("*"))
    ended = cli(command, *[override.replace("RUN", str(trained.directory)) for override in overrides])
    assert message in one_sentence(ended)
    assert sorted(trained.directory.rglob("*")) == before


def test_process_refuses_wrong_overrides(tmp_path: Path) -> None:
    ended = interpreter("-m", "capsule_lab.train", "trainer.max_epoch=3", cwd=tmp_path)
    assert one_sentence(ended).startswith("trainer.max_epoch does not exist; did you mean trainer.max_epochs?")
    assert ended.out == ""
    assert list(tmp_path.iterdir()) == []


def test_process_shows_the_traceback_if_asked_for(tmp_path: Path) -> None:
    ended = interpreter("-m", "capsule_lab.train", "trainer.max_epoch=3", cwd=tmp_path, HYDRA_FULL_ERROR="1")
    assert ended.status != 0
    assert "Traceback" in ended.err


@pytest.mark.parametrize("error", [ZeroDivisionError("bug"), KeyError("bug")], ids=repr)
def test_other_errors_are_not_hidden(cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(build, "build_data", fail)
    with pytest.raises(type(error), match="bug"):
        cli("train", *TINY)
