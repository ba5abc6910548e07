"""Parts in processes: what they return, and what becomes of those that fail, hang or die."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from capsule_lab.bench.gpu import part_process
from capsule_lab.bench.gpu.part_process import finite, run_part, started
from capsule_lab.bench.gpu.parts import Part
from capsule_lab.errors import RunError


@pytest.mark.integration
def test_a_part_in_a_process(tmp_path: Path) -> None:
    part = Part("device", "", 60, "capsule_lab.bench.gpu.device:describe_device")
    found = run_part(part, "cpu", "small", 120.0, tmp_path / "device.log")
    assert found["failures"] == []
    assert found["versions"]["torch"]


def run_as(monkeypatch: pytest.MonkeyPatch, script: str, log: Path, kill_after: float = 30.0) -> dict[str, Any]:
    """``run_part`` with a shell's script in place of Python; the file for the result is its first argument."""
    monkeypatch.setattr(part_process, "python", lambda _, *arguments: ["sh", "-c", script, "sh", arguments[-1]])
    return run_part(Part("timings", "", 60, "module:function"), "cuda", "full", kill_after, log)


def test_result_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run_as(monkeypatch, """echo '{"rows": []}' > "$1" """, tmp_path / "log") == {"rows": []}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "echo first; echo 'RuntimeError: misaligned address'; echo; exit 1",
            "failed: RuntimeError: misaligned address",
        ),
        ("kill -SEGV $$", "was ended by SIGSEGV: it printed nothing"),
        ("printf '\\033[31mred'; exit 3", "failed:  [31mred"),
    ],
)
def test_failure_is_a_sentence_with_the_last_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, message: str
) -> None:
    with pytest.raises(RunError) as raised:
        run_as(monkeypatch, script, tmp_path / "log")
    assert str(raised.value) == f"{message}; its log is {tmp_path / 'log'}"


def test_one_that_hangs_is_killed_with_what_it_has_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log, began = tmp_path / "log", time.monotonic()
    with pytest.raises(RunError, match=r"^took longer than 0 seconds and was killed; its log is "):
        run_as(monkeypatch, "sleep 60 & echo $!; wait", log, kill_after=0.3)
    assert time.monotonic() - began < 10
    child = log.read_text().strip()
    assert not is_running(int(child))


def is_running(pid: int) -> bool:
    """A zombie, whose parent is gone and has not been replaced yet, runs no longer."""
    status = Path(f"/proc/{pid}/stat")
    return status.is_file() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_packages_are_found_from_any_folder(tmp_path: Path) -> None:
    script = "import os; print(os.environ['PYTHONPATH'].split(os.pathsep)[0])"
    log = tmp_path / "log"
    with log.open("w") as file, started([sys.executable, "-S", "-c", script], file) as process:
        assert process.wait(60) == 0
    assert Path(log.read_text().strip()) == Path(part_process.__file__).parents[3]


def test_stopped_command_kills_the_part() -> None:
    with pytest.raises(KeyboardInterrupt), started(["sleep", "60"], subprocess.DEVNULL) as process:
        raise KeyboardInterrupt
    assert process.poll() is not None


def test_numbers_without_a_notation_become_null() -> None:
    assert finite({"a": [1.5, float("nan")], 2: (float("inf"), True)}) == {"a": [1.5, None], "2": [None, True]}
