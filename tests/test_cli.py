"""The command line: documented commands compose, every command has help, and make passes its overrides on."""

import functools
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser
from PIL import Image, ImageDraw

from capsule_lab.commands import compose, load, names, proposals
from capsule_lab.config.declaration import FinishedRun
from capsule_lab.config.folders import conf_dir, default_options, file_of, groups, head, options_of
from capsule_lab.errors import ConfigError
from capsule_lab.launchers.grid import combinations
from tests.helpers.commands import CHOSEN, NO_PICTURES, ROOT, TINY, TINY_CAPSNET, Cli, Trained
from tests.helpers.extensions import needs_studies
from tests.helpers.tables import call

OPTIONS = [(group, option) for group in groups() for option in options_of(group)]


def commands_in(text: str) -> list[str]:
    """The commands of capsule_lab in shell blocks, without comments."""
    found = []
    for block in re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            command = shlex.join(shlex.split(line, comments=True))
            if command.startswith(("make ", "capsule-lab")):
                found.append(command)
    return found


def jobs_of(command: str) -> list[tuple[str, list[str]]]:
    """The configurations that a command composes, as name and overrides."""
    program, *rest = shlex.split(command)
    if program == "make":
        name, *rest = rest
        rest = rest or ["experiment=quickstart"] * (name == "train")
    else:
        name, *rest = rest or [""]
    if name not in names():
        return []
    if name in ("sweep", "report"):
        rest = load(name).for_hydra(rest)
    given = get_args_parser().parse_args(rest)
    jobs = combinations(given.overrides) if given.multirun else [given.overrides]
    return [(name, overrides) for overrides in jobs]


IN_A_HEAD = re.compile(r"^# Command:\s+(make .*?)(?:\s{2,}.*)?$", re.MULTILINE)


def commands_in_heads() -> list[str]:
    """The commands of experiments and tables, and the examples of commands."""
    found = []
    for path in sorted([*conf_dir().rglob("*.yaml"), *(ROOT / "sweeps").glob("*.yaml")]):
        found += IN_A_HEAD.findall(path.read_text())
    for command in names():
        for line in head(file_of(command)):
            if line.startswith("  capsule-lab "):
                found.append(line.strip().partition("    ")[0])
    return found


PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "results").glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def documented_commands() -> list[str]:
    found = {*HEADS}
    for page in PAGES:
        found |= {*commands_in(page.read_text())}
    return sorted(found)


HEADS = commands_in_heads()
DOCUMENTED = documented_commands()


@needs_studies
@pytest.mark.whole  # experiments, tables and commands are composed elsewhere, too
def test_every_documented_command_composes() -> None:
    wrong = []
    composed = set()
    for command in DOCUMENTED:
        values: set[str] = set()
        for name, overrides in jobs_of(command):
            if (name, *overrides) in composed or {*overrides} < values:
                continue  # the combinations of a sweep need each value once
            composed.add((name, *overrides))
            values |= {*overrides}
            try:
                load(name).check(compose(name, overrides))
            except ConfigError as error:
                wrong.append(f"{command}: {error}")
    assert not wrong, "\n".join(wrong)
    of_heads = set()
    for command in HEADS:
        of_heads |= {name for name, _ in jobs_of(command)}
    assert of_heads == {*names()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_command_of_a_page_has_two_comments(page: Path) -> None:
    comments: dict[str, str] = {}
    for line in re.findall(r"^(?:make|capsule-lab) .*", page.read_text(), re.MULTILINE):
        command, _, comment = map(str.strip, line.partition(" #"))
        assert comments.setdefault(command, comment) == comment, command


@needs_studies
def test_documented_targets_and_modules_exist() -> None:
    for command in DOCUMENTED:
        program, *words = command.split()
        if program == "make":
            assert words[0] in targets()
        else:
            assert words == [] or words[0] in [*names(), "options"]


@needs_studies
def test_commands_that_a_finished_run_proposes_compose(trained: Trained) -> None:
    proposed = proposals(FinishedRun(trained.result, trained.directory, True, CHOSEN, TINY))
    composed = [
        load(job[0]).check(compose(*job)) for command in proposed for job in jobs_of(command)
    ]
    assert len(proposed) == len(composed) == 2


PYTHON = [
    code
    for page in PAGES
    for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
]


@pytest.mark.whole
def test_documented_python_runs(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    drawn = Image.new("L", (40, 40))
    ImageDraw.Draw(drawn).line([(20, 5), (20, 35)], fill=255, width=4)
    drawn.save("a.png")
    for code in PYTHON:
        exec(re.sub(r"\"(?:last|runs/[^\"]*)\"", repr(str(trained.directory.resolve())), code), {})


@pytest.mark.whole
def test_first_command_of_the_start_page_works_in_a_clone(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    command = next(line for line in commands_in(page) if " predict " in line)
    _, name, *arguments = shlex.split(command)
    ended = cli(name, *arguments)
    assert ended.status == 0
    *_, last = ended.out.splitlines()
    assert last.split()[:2] == ["docs/seven.png", "7"]


def shown(*arguments: str, width: int = 10_000) -> list[str]:
    """The lines of ``capsule-lab``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        ended = call("", *arguments)
    return ended.out.splitlines()


@pytest.mark.parametrize("width", [80, 140])
def test_overview_has_a_line_for_each_command_and_fits_a_screen(width: int) -> None:
    lines = shown(width=width)
    assert max(map(len, lines)) <= width
    assert len(lines) <= 24
    for name, line in zip(names(), lines[1:], strict=False):
        assert line.startswith(f"  capsule-lab {name}  ")
        first, *_ = head(file_of(name))
        assert first[:30] in line


def test_every_option_is_listed_with_its_headline() -> None:
    _, *lines = shown("options")
    listed = set()
    for line in lines:
        group, names_of_options = line.strip().split(maxsplit=1)
        listed.add(group)
        _, *described = shown("options", group)
        for option, text in zip(names_of_options.split(", "), described, strict=True):
            name, *words = text.split()
            assert name == option
            assert words, "a headline"
            listed.add((group, option))
    assert {*groups(), "table", *OPTIONS} <= listed


@pytest.mark.whole
def test_help_is_the_head_of_the_configuration(cli: Cli) -> None:
    for command in names():
        ended = cli(command, "--help")
        assert (ended.status, ended.err) == (0, "")
        first, *rest = head(file_of(command))
        shown, _, _ = ended.out.partition("\n== Config ==\n")
        text, *sections = re.split(
            r"\n\n== (?:Groups: group=option|Options: key=value) ==\n", shown
        )
        assert text.strip().splitlines() == [first, *rest]
        listed = "\n".join(sections).split("\n")
        keys = {re.split("[:=]", line)[0].strip() for line in listed} - {""}
        assert keys == {*default_options(command), *load(command).own_options}
        assert any(line.startswith("  capsule-lab ") for line in rest)


def test_stand_in_is_announced_without_a_network(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    smoke = ["debug=smoke", *TINY_CAPSNET, "trainer.accelerator=cpu", *NO_PICTURES]
    ended = cli("train", *smoke, "data.source=auto")
    assert (ended.status, ended.err) == (0, "")
    (line,) = [line for line in ended.out.splitlines() if "stand-in data for MNIST" in line]
    assert str(tmp_path) in line


def make(*arguments: str) -> str:
    of_another_make = (
        "MAKEFLAGS",
        "MAKEOVERRIDES",
        "MAKELEVEL",
        "MFLAGS",
        "VENV",
        "PYTHON",
        "PYTEST",
    )
    environment = {name: value for name, value in os.environ.items() if name not in of_another_make}
    result = subprocess.run(
        ["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return result.stdout


def called(venv: Path, command: str, *arguments: str) -> list[str]:
    """The overrides that make passes to the command."""
    line = make("-n", command, *arguments, f"VENV={venv}").splitlines()[-1]
    words = shlex.split(line.removeprefix("set -f; "))
    assert words[:4] == [str(venv / "bin" / "python"), "-m", "capsule_lab", command]
    return sorted(words[4:])


@functools.cache
def targets() -> list[str]:
    return re.findall(r"^  make ([\w-]+) +\S", make("help"), re.MULTILINE)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment that counts as set up."""
    folder = tmp_path / "environment"
    folder.mkdir()
    (folder / ".ready").touch()
    return folder


def test_make_passes_overrides_and_adds_the_quickstart_to_train(venv: Path) -> None:
    overrides = [
        "model=cnn_baseline",
        "model.channels=[4,4]",
        "+trainer.foo=1",
        "train.directory=with space",
    ]
    assert called(venv, "train", *overrides, "PYTHON=python3", "TORCH=cpu") == sorted(overrides)
    assert called(venv, "train", "train.resume=true") == [
        "experiment=quickstart",
        "train.resume=true",
    ]
    assert called(venv, "train", "train.resume=true", "seed=1") == ["seed=1", "train.resume=true"]
    assert called(venv, "evaluate") == []


def test_dry_run_of_make_sweep_is_a_dry_run_of_the_sweep(venv: Path) -> None:
    (venv / "bin").mkdir()
    (venv / "bin" / "python").symlink_to(shutil.which("echo") or "")
    for options in ([], ["-n"]):
        line = make("sweep", "table=nightly", f"VENV={venv}", *options).splitlines()[-1]
        assert line.split() == [
            "-m",
            "capsule_lab",
            "sweep",
            *["dry_run=true"] * bool(options),
            "table=nightly",
        ]


def test_make_creates_a_missing_environment(tmp_path: Path) -> None:
    venv = tmp_path / "environment"
    lines = make("-n", "train", f"VENV={venv}", "PYTHON=python3.12").splitlines()
    assert any(line.endswith(f"python3.12 -m venv {venv}") for line in lines)
    assert any("pip install" in line for line in lines)
    assert lines[-1].rstrip().endswith("-m capsule_lab train experiment=quickstart")
    assert not venv.exists()


def program(name: str) -> str:
    path = shutil.which(name)
    assert path is not None
    return path


@pytest.mark.parametrize("options", [[], ["TORCH=cpu"]])
def test_make_hands_the_choice_of_torch_to_uv_or_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """With and without uv; the programs only print what they were called with."""
    programs = tmp_path / "programs"
    programs.mkdir()
    environment = tmp_path / "environment"
    python = environment / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(program("echo"))
    for name in ("sh", "cat", "sed", "true"):
        (programs / name).symlink_to(program(name))
    command = [program("make"), "setup", f"VENV={environment}", "PYTHON=true", *options]

    def made() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=ROOT,
            env={"PATH": str(programs)},
            capture_output=True,
            text=True,
        )

    without = made()
    (environment / ".ready").unlink(missing_ok=True)
    (programs / "uv").symlink_to(program("echo"))
    with_uv = made()
    assert with_uv.returncode == 0, with_uv.stderr
    assert ("--torch-backend=cpu" in with_uv.stdout) is bool(options)
    assert bool(without.returncode) is bool(options)
    assert ("TORCH=cpu needs uv" in without.stderr) is bool(options)


def test_make_refuses_the_environment_of_another_clone(venv: Path) -> None:
    (venv / ".ready").write_text("/another/clone\n")
    os.utime(venv / ".ready", (0, 0))
    with pytest.raises(subprocess.CalledProcessError) as caught:
        make("setup", f"VENV={venv}", "PYTHON=true")
    assert (
        f"{venv} is the environment of /another/clone; name another with VENV="
        in caught.value.stderr
    )
    assert not (venv / "bin").exists()


@needs_studies
def test_make_help_lists_every_target() -> None:
    others = "help setup plan bench gpu docs claims claim costs test test-all campaign fuzz lint distributions clean"
    assert targets() == [*names(), *others.split()]
