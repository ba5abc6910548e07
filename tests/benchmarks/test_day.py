"""The day of a lent GPU: its steps, what it leaves, and that it needs no installation."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

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
CHILD = f"__import__('subprocess').Popen(['{sys.executable}', '-c', 'import time; time.sleep(60)', '{{folder}}'])"
ONCE = "timeit -n 1 -r 1"


def day_of(tmp_path: Path, *overrides: str, **steps: str) -> Any:
    config = options.load(
        ["day"], [f"out={tmp_path / 'out'}", f"work={tmp_path / 'work'}", *overrides], ["steps"]
    )
    config.steps = steps
    return config


def members(path: Path) -> list[str]:
    with tarfile.open(path) as archive:
        return archive.getnames()


def processes_of(folder: Path) -> list[str]:
    """Command lines of running processes that name a folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended meanwhile
            lines.append(path.read_text())
    return [line for line in lines if str(folder) in line]


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
    results = json.loads((tmp_path / "out" / "day.json").read_text())["steps"]
    assert [result["status"] for result in results] == [
        "failed with status 1",
        "its time ended",
        "done",
    ]
    assert 3 <= results[1]["seconds"] < 3 + day.PATIENCE + 2, "2: to end the killed processes"
    assert (
        tmp_path / "work" / "sleeps" / "written"
    ).read_text() == "1"  # 3 seconds, less than what is kept in reserve
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
    (result,) = json.loads((tmp_path / "out" / "day.json").read_text())["steps"]
    assert result["status"] == "no time is left"


def test_files_arrive_while_a_step_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(day, "PACK_EVERY", 0.05)
    packed: list[int] = []
    pack = archives.pack
    monkeypatch.setattr(archives, "pack", lambda *paths: packed.append(1) or pack(*paths))
    assert day.main(day_of(tmp_path, naps=ONCE), ["naps:9:\"__import__('time').sleep(0.5)\""])
    assert len(packed) > 3


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
    seconds = []
    for part in config.parts.values():
        steps = [day.step_of(word, config.steps) for word in part]
        assert (
            len(steps) + 3 <= 8
        )  # files that a machine gives back: with day.json and the kernels in two
        seconds.append(sum(step.seconds + day.PATIENCE for step in steps))
    assert max(seconds) <= config.limit
    assert sum(seconds) <= (15 - 2) * 60  # without the start of the machine


def test_documented_list_is_the_prepared_one() -> None:
    config = options.load(["day"], [], [])
    text = (ROOT / "docs" / "gpu.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \| (\d+) \|", text, re.MULTILINE)
    assert [":".join(row) for row in documented] == [
        word for part in config.parts.values() for word in part
    ]


@pytest.mark.whole
def test_prepared_list_composes_and_ends_in_time() -> None:
    config = options.load(["day"], [], [])
    for name, text in config.steps.items():
        step = day.step_of(f"{name}:100", {name: text})
        module, *arguments = step.command(100, Path("folder"))[2:]
        if module == "capsule_lab" and name not in ("train", "table"):
            command = load(arguments[0])
            composed = compose(command.name, command.for_hydra(arguments[1:]))
            command.check(composed)
            seconds = (
                budget_seconds(composed.budget)
                if command.name == "sweep"
                else time_limit(composed.trainer)
            )
            assert seconds == 100 - day.RESERVE


def test_archive_has_no_checkpoints_and_is_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "LARGEST", 2000)
    folder, archive = tmp_path / "step", tmp_path / "out" / "step.tar.gz"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "last.ckpt").write_bytes(b"0")
    (folder / "link").symlink_to(tmp_path)
    (folder / "noise").write_bytes(os.urandom(5000))
    archives.pack(folder, archive)
    parts = sorted(archive.parent.iterdir())
    assert [path.name for path in parts] == [f"step.tar.gz.{number}" for number in range(3)]
    joined = tmp_path / "joined"
    joined.write_bytes(b"".join(path.read_bytes() for path in parts))
    assert members(joined) == ["step/noise"]
    (folder / "noise").write_bytes(b"0")
    archives.pack(folder, archive)
    assert [path.name for path in archive.parent.iterdir()] == ["step.tar.gz"]


def test_kernels_of_an_earlier_day_are_found_at_their_new_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read by Triton's own reader."""
    cache = pytest.importorskip("triton.runtime.cache")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "before" / "triton"))
    writer = cache.FileCacheManager("key")
    writer.put_group(
        "fit.json", {name: writer.put(name, name) for name in ("fit.json", "fit.cubin")}
    )
    archives.pack(tmp_path / "before" / "triton", tmp_path / "out" / "triton.tar.gz")
    shutil.rmtree(tmp_path / "before")
    day.main(day_of(tmp_path, f"kernels={tmp_path / 'out'}", once=ONCE), ["once:9"])
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "work" / "triton"))
    found = cache.FileCacheManager("key").get_group("fit.json")
    assert {name: Path(path).read_text() for name, path in found.items()} == {
        "fit.json": "fit.json",
        "fit.cubin": "fit.cubin",
    }
    with pytest.raises(
        ConfigError, match=r"which has no triton\.tar\.gz; expected the folder of an earlier day$"
    ):
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
        self.path, self.originalname, self.stash = Path(file), file, pytest.Stash()
        self.markers = {"gpu": pytest.mark.gpu(**order).mark}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.markers.get(name)


def test_most_telling_tests_of_a_gpu_are_first(pytestconfig: pytest.Config) -> None:
    last, first, second, another_first = items = [
        Item("a", order=2),
        Item("a"),
        Item("a", order=1),
        Item("b", order=0),
    ]
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


@pytest.mark.whole
@pytest.mark.integration
def test_day_of_a_copy_without_installation(tmp_path: Path) -> None:
    """A copy of the files on the path, packages without metadata of ours, wandb and tensorboard, and no others."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    copy, packages = tmp_path / "copy", tmp_path / "packages"
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("results/"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.lstrip("_").startswith(HIDDEN) and path.suffix != ".pth":
            (packages / path.name).symlink_to(path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    bare = tmp_path / "venv" / "bin" / "python"
    environment = environment_of_a_command(PYTHONPATH=os.pathsep.join(map(str, (copy, packages))))
    script = "import capsule_lab, importlib.metadata as m; print(capsule_lab.__file__); m.version('capsule-lab')"
    found = subprocess.run(
        [bare, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        check=False,
        text=True,
    )
    assert found.stdout == f"{copy / 'capsule_lab' / '__init__.py'}\n"
    assert "PackageNotFoundError" in found.stderr
    out = tmp_path / "out"
    tests = "tests:200:-k 'memory_does_not_grow' -n 0"
    command = [
        bare,
        "-m",
        "benchmarks.day",
        f"out={out}",
        f"work={tmp_path / 'work'}",
        BENCH,
        TRAIN,
        tests,
    ]
    ended = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, check=False, text=True
    )
    results = json.loads((out / "day.json").read_text())["steps"]
    assert [result["status"] for result in results] == ["done"] * 3, ended.stdout + ended.stderr
    assert ended.returncode == 0
    assert "0 of 1 tests ran" in ended.stdout
    rows = json.loads((tmp_path / "work" / "bench" / "gpu.json").read_text())["rows"]
    kinds = [(row["kind"], row["form"]) for row in rows]
    assert kinds == [("kernel", "fused"), ("layer", "textbook"), ("layer", "fused")]
    assert all(row["seconds_median"] > 0 for row in rows)
    files = members(out / "train.tar.gz")
    assert [
        name for name in files if name.endswith(("metrics.json", "metrics.csv", "train.log"))
    ] != []
    assert [name for name in files if "checkpoints" in name] == []
