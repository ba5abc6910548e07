"""``atomically``: whole or not at all, with the permissions that the file had or would have had."""

from __future__ import annotations

import errno
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from capsule_lab.system import files as atomic
from capsule_lab.system.files import atomically, set_aside


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("existing", [False, True])
def test_the_file_is_complete_and_nothing_else_is_left(tmp_path: Path, existing: bool) -> None:
    path = tmp_path / "result.json"
    if existing:
        path.write_text("old")
    with atomically(path) as temporary:
        temporary.write_text("new")
        assert temporary.parent == tmp_path
        assert path.exists() == existing
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["result.json"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("written", [False, True])
def test_an_error_leaves_the_old_file(tmp_path: Path, error: type[BaseException], written: bool) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")

    def write() -> None:
        with atomically(path) as temporary:
            if written:
                temporary.write_text("half of the n")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_block_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomically(tmp_path / "result.json"):
        pass
    assert os.listdir(tmp_path) == []


def test_a_new_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomically(tmp_path / "result.json") as temporary:
            temporary.write_text("new")
    finally:
        os.umask(before)
    assert mode(tmp_path / "result.json") == 0o640


def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")
    path.chmod(0o604)
    with atomically(path) as temporary:
        temporary.write_text("new")
    assert mode(path) == 0o604


@pytest.mark.parametrize("name", ["figure.png", "images.mat.gz", "record"])
def test_the_temporary_name_is_hidden_with_the_same_suffix(tmp_path: Path, name: str) -> None:
    with atomically(tmp_path / name) as temporary:
        temporary.touch()
        assert temporary.suffix == Path(name).suffix
        assert temporary.name.startswith(".")
    assert os.listdir(tmp_path) == [name]


def test_two_writers_do_not_share_a_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with atomically(path) as first, atomically(path) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"


def temporary(folder: Path, host: str, pid: int) -> Path:
    path = folder / f".last-{host}-{pid}-0123abcd.ckpt"
    path.touch()
    return path


def test_what_killed_processes_left_is_removed_by_the_next_writer(tmp_path: Path) -> None:
    """Not what a living process writes, nor what one of another machine may be writing, if it is younger than a day."""
    (process := multiprocessing.get_context("fork").Process(target=int)).start()
    process.join()
    dead, alive = process.pid, os.getppid()
    assert dead is not None
    gone = [temporary(tmp_path, atomic._HOST, dead), temporary(tmp_path, "0" * 8, dead)]
    os.utime(gone[1], (0, 0))
    stay = [temporary(tmp_path, atomic._HOST, alive), temporary(tmp_path, "0" * 8, alive), tmp_path / ".hidden-file"]
    stay[-1].touch()
    folder = tmp_path / f"{atomic.temporary_prefix('download').replace(str(os.getpid()), str(dead))}abcd_123"
    (folder / "part").mkdir(parents=True)
    with atomically(tmp_path / "last.ckpt") as path:
        path.touch()
    assert sorted(tmp_path.iterdir()) == sorted([*stay, tmp_path / "last.ckpt"])


def test_an_error_names_the_file_that_was_to_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught, atomically(tmp_path / "result.json"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(tmp_path / "result.json")


def test_damaged_file_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.json"
    path.write_text("{")
    set_aside(path, "it ends early")
    assert os.listdir(tmp_path) == ["metrics.json.damaged"]
    assert f"{path} is damaged (it ends early) and counts as missing" in caplog.text
