"""The day of a lent GPU: its steps, what it leaves, and that it needs no installation."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest

import conftest
from benchmarks import archives, day, options
from capsule_lab.commands import compose, load
from capsule_lab.config.build import time_limit
from capsule_lab.errors import ConfigError
from capsule_lab.tables.arguments import budget_seconds
from tests.helpers.commands import ROOT, environment_of_a_command

WRITE = "open('{folder}/written', 'w').write('{seconds}')"
SLEEP = "__import__('time').sleep(60)"
CHILD_COMMAND = f"['{sys.executable}', '-c', 'import time; time.sleep(60)', '{{folder}}']"
CHILD = f"__import__('subprocess').Popen({CHILD_COMMAND})"
ONCE = "timeit -n 1 -r 1"


def day_of(tmp_path: Path, *overrides: str, **steps: str) -> Any:
    folders = [f"out={tmp_path / 'out'}", f"work={tmp_path / 'work'}"]
    config = options.load(["day"], [*folders, *overrides], ["steps"])
    config.steps = steps
    return config


def results_of(tmp_path: Path) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = json.loads((tmp_path / "out" / "day.json").read_text())["steps"]
    return results


def members(path: Path) -> list[str]:
    with tarfile.open(path) as archive:
        return archive.getnames()


def processes_of(folder: Path) -> list[str]:
    """Command lines of running processes that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended meanwhile
            line = path.read_text()
            if str(folder) in line:
                found.append(line)
    return found


@pytest.fixture
def interrupts_are_ignored() -> Iterator[None]:
    """As in a command that a shell runs in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.whole
@pytest.mark.usefixtures("interrupts_are_ignored")
def test_steps_that_fail_or_take_too_long_do_not_stop_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(day, "PACK_EVERY", 0.1)
    steps = {
        "fails": "no_such_module",
        "sleeps": f'{ONCE} "{WRITE}" "{CHILD}" "{SLEEP}"',
        "writes": ONCE,
        "late": ONCE,
    }
    config = day_of(tmp_path, "limit=20", **steps)
    words = ["fails:9", "sleeps:3", f'writes:50:"{WRITE}"']
    assert not day.main(config, words)
    fails, sleeps, writes = results_of(tmp_path)
    assert fails["status"] == "failed with status 1"
    assert sleeps["status"] == "its time ended"
    assert writes["status"] == "done"
    assert 3 <= sleeps["seconds"] < 3 + day.PATIENCE, "it is interrupted, which timeit obeys"
    written = tmp_path / "work" / "sleeps" / "written"
    assert written.read_text() == "1", "3 seconds, less than what is kept in reserve"
    assert members(tmp_path / "out" / "sleeps.tar.gz") == ["sleeps/log.txt", "sleeps/written"]
    assert processes_of(tmp_path / "work" / "sleeps") == []
    shown = capsys.readouterr().out
    assert "No module named no_such_module\n== " in shown
    assert "sleeps: its time ended\n" in shown


SAVES = """
import signal, sys, time
from pathlib import Path
def save(*_):
    Path(sys.argv[1], "saved").touch()
    sys.exit(0 if sys.argv[2] == "ends" else time.sleep(60))
signal.signal(signal.SIGINT, save)
time.sleep(60)
"""


@pytest.mark.whole
@pytest.mark.parametrize("after", ["ends", "hangs"])
def test_step_whose_time_ends_may_save_before_it_is_killed(
    after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(day, "PATIENCE", 1.0)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "saves.py").write_text(SAVES)
    start_time = time.monotonic()
    assert not day.main(day_of(tmp_path, saves=f"saves {{folder}} {after}"), ["saves:2"])
    assert members(tmp_path / "out" / "saves.tar.gz") == ["saves/log.txt", "saves/saved"]
    assert time.monotonic() - start_time < 50


def test_steps_for_which_no_time_is_left_are_named(tmp_path: Path) -> None:
    assert not day.main(day_of(tmp_path, "limit=0", late=ONCE), ["late:9"])
    (result,) = results_of(tmp_path)
    assert result["status"] == "no time is left"


def test_files_arrive_while_a_step_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(day, "PACK_EVERY", 0.05)
    pack = Mock(wraps=archives.pack)
    monkeypatch.setattr(archives, "pack", pack)
    assert day.main(day_of(tmp_path, naps=ONCE), ["naps:9:\"__import__('time').sleep(0.5)\""])
    assert pack.call_count > 3


def test_steps_share_the_checkout_and_a_cache_of_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "packages")
    found = day.environment_of(tmp_path)
    assert found["PYTHONPATH"].split(os.pathsep) == [str(ROOT), "packages"]
    assert found["TRITON_CACHE_DIR"] == str(tmp_path / "triton")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["test:9"],
            "a step is test:9; expected name:seconds or name:seconds:arguments, with a name of tests, bench",
        ),
        (["tests"], "a step is tests; expected"),
        (["tests:long"], "a step is tests:long; expected"),
        ([], "part is 3; expected one of 1, 2"),
    ],
)
def test_wrong_step_is_refused_before_the_first_begins(
    tmp_path: Path, words: list[str], message: str
) -> None:
    config = options.load(["day"], ["part=3", f"out={tmp_path / 'out'}"], [])
    with pytest.raises(ConfigError, match=message):
        day.main(config, words)
    assert not (tmp_path / "out").exists()


def test_arguments_are_overrides_or_steps() -> None:
    words = ["tests:9", "train:9:model=capsnet data.source=real"]
    assert day.split(["out=a:b", *words, "part=2"]) == (["out=a:b", "part=2"], words)


def test_prepared_list_fits_into_its_limits() -> None:
    config = options.load(["day"], [], [])
    total = 0.0
    for part in config.parts.values():
        assert len(part) + 3 <= 8, "files given back: with day.json and the kernels in two"
        seconds = sum(day.step_of(word, config.steps).seconds + day.PATIENCE for word in part)
        assert seconds <= config.limit
        total += seconds
    assert total <= (15 - 2) * 60, "without the start of the machine"


def test_documented_list_is_the_prepared_one() -> None:
    config = options.load(["day"], [], [])
    text = (ROOT / "docs" / "gpu.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \| (\d+) \|", text, re.MULTILINE)
    words = itertools.chain(*config.parts.values())
    assert [f"{name}:{seconds}" for name, seconds in documented] == [*words]


@pytest.mark.whole
def test_prepared_list_composes_and_ends_in_time() -> None:
    config = options.load(["day"], [], [])
    for name, text in config.steps.items():
        step = day.step_of(f"{name}:100", {name: text})
        _, _, module, *arguments = step.command(100, Path("folder"))
        if module != "capsule_lab" or name in ("train", "table"):
            continue
        command = load(arguments[0])
        composed = compose(command.name, command.for_hydra(arguments[1:]))
        command.check(composed)
        is_sweep = command.name == "sweep"
        seconds = budget_seconds(composed.budget) if is_sweep else time_limit(composed.trainer)
        assert seconds == 100 - day.RESERVE


def test_archive_has_no_checkpoints_and_is_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "LARGEST", 2000)
    folder = tmp_path / "step"
    archive = tmp_path / "out" / "step.tar.gz"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "last.ckpt").write_bytes(b"0")
    (folder / "link").symlink_to(tmp_path)
    (folder / "noise").write_bytes(os.urandom(5000))
    archives.pack(folder, archive)
    parts = [Path(f"{archive}.{number}") for number in range(3)]
    assert {*archive.parent.iterdir()} == {*parts}
    joined = tmp_path / "joined"
    joined.write_bytes(b"".join(path.read_bytes() for path in parts))
    assert members(joined) == ["step/noise"]
    (folder / "noise").write_bytes(b"0")
    archives.pack(folder, archive)
    assert [*archive.parent.iterdir()] == [archive]


def test_kernels_of_an_earlier_day_are_found_at_their_new_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read by Triton's own reader."""
    cache = pytest.importorskip("triton.runtime.cache")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "before" / "triton"))
    writer = cache.FileCacheManager("key")
    files = {
        "fit.json": writer.put("numbers", "fit.json"),
        "fit.cubin": writer.put("code", "fit.cubin"),
    }
    writer.put_group("fit.json", files)
    archives.pack(tmp_path / "before" / "triton", tmp_path / "out" / "triton.tar.gz")
    shutil.rmtree(tmp_path / "before")
    day.main(day_of(tmp_path, f"kernels={tmp_path / 'out'}", once=ONCE), ["once:9"])
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "work" / "triton"))
    found = cache.FileCacheManager("key").get_group("fit.json")
    assert found.keys() == files.keys()
    assert Path(found["fit.json"]).read_text() == "numbers"
    assert Path(found["fit.cubin"]).read_text() == "code"


def test_folder_without_kernels_is_refused(tmp_path: Path) -> None:
    message = r"which has no triton\.tar\.gz; expected the folder of an earlier day$"
    with pytest.raises(ConfigError, match=message):
        archives.unpack_kernels(tmp_path, tmp_path)


class Report(NamedTuple):
    """Stands in for pytest's report of a skipped test."""

    nodeid: str
    longrepr: tuple[str, int, str]


def test_tests_that_did_not_run_are_named() -> None:
    late = Report("a.py::late", ("a.py", 1, f"Skipped: {conftest.TOO_LATE}"))
    other = Report("a.py::other", ("a.py", 2, "Skipped: there is no GPU"))
    reports = {"passed": [1, 2], "failed": [3], "skipped": [late, other], "deselected": [4]}
    assert conftest.tests_that_ran(reports) == "3 of 5 tests ran; too late for a.py::late"
    assert conftest.tests_that_ran({"passed": [1]}) == "1 of 1 tests ran"


class Item:
    """Stands in for a test with a marker ``gpu``."""

    fixturenames = ()

    def __init__(self, file: str, **order: int) -> None:
        self.path = Path(file)
        self.originalname = file
        self.stash = pytest.Stash()
        self.markers = {"gpu": pytest.mark.gpu(**order).mark}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.markers.get(name)


def test_most_telling_tests_of_a_gpu_are_first(pytestconfig: pytest.Config) -> None:
    last = Item("a", order=2)
    first = Item("a")
    second = Item("a", order=1)
    another_first = Item("b", order=0)
    items = [last, first, second, another_first]
    conftest.pytest_collection_modifyitems(pytestconfig, items)
    assert items == [first, another_first, second, last]


def test_no_test_begins_after_its_time(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(request.config.stash._storage, conftest.END_TIME, time.monotonic())
    with pytest.raises(pytest.skip.Exception, match=conftest.TOO_LATE):
        conftest.pytest_runtest_setup(request.node)


BENCH = """bench:200:device=cpu kernels=[agreement] layers=[dynamic] models=[] throughput=[] backends=[fused] steps=1
    'sizes.dynamic={batch_size: 2, children: 6, child_dim: 4, parents: 3, parent_dim: 5, iterations: 2}'"""
TRAIN = """train:200:model=capsnet model.channels=4 model.primary.types=2 model.class_dim=4 model.decoder=[8]
    data.source=standin data.batch_size=8 data.train_images=32 trainer.max_steps=2 trainer.limit_val_batches=1
    trainer.accelerator=cpu train.test=none"""
HIDDEN = ("capsule_lab", "tensorboard", "wandb")


@pytest.mark.slow  # test_checkout.py trains in such a copy, too
@pytest.mark.integration
def test_day_of_a_copy_without_installation(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    packages = tmp_path / "packages"
    copy_files(copy)
    link_packages(packages)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    bare = tmp_path / "venv" / "bin" / "python"
    environment = environment_of_a_command(PYTHONPATH=f"{copy}{os.pathsep}{packages}")
    run = partial(subprocess.run, env=environment, capture_output=True, check=False, text=True)
    script = "import capsule_lab, importlib.metadata as m; print(capsule_lab.__file__); m.version('capsule-lab')"
    found = run([bare, "-c", script], cwd=tmp_path)
    assert found.stdout == f"{copy / 'capsule_lab' / '__init__.py'}\n"
    assert "PackageNotFoundError" in found.stderr
    out = tmp_path / "out"
    work = tmp_path / "work"
    tests = "tests:200:-k 'memory_does_not_grow' -n 0"
    command = [bare, "-m", "benchmarks.day", f"out={out}", f"work={work}", BENCH, TRAIN, tests]
    ended = run(command, cwd=copy)
    shown = ended.stdout + ended.stderr
    assert [result["status"] for result in results_of(tmp_path)] == ["done"] * 3, shown
    assert ended.returncode == 0
    assert "0 of 1 tests ran" in ended.stdout
    rows = json.loads((work / "bench" / "gpu.json").read_text())["rows"]
    kinds = [(row["kind"], row["form"]) for row in rows]
    assert kinds == [("kernel", "fused"), ("layer", "textbook"), ("layer", "fused")]
    assert all(row["seconds_median"] > 0 for row in rows)
    files = " ".join(members(out / "train.tar.gz"))
    assert re.search(r"metrics\.json|metrics\.csv|train\.log", files)
    assert "checkpoints" not in files


def copy_files(copy: Path) -> None:
    """Copy the files of the repository that are neither results nor ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.check_output(command, cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("results/"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)


def link_packages(folder: Path) -> None:
    """Link the installed packages, apart from ``HIDDEN`` ones."""
    folder.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.lstrip("_").startswith(HIDDEN) and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)
