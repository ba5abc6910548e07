"""``atomically`` writes a file completely or not at all."""

import os
from pathlib import Path

import pytest

from capsule_lab.system.files import atomically


def test_file_is_replaced_at_the_end_of_the_block(tmp_path: Path) -> None:
    for number, name in enumerate(("figure.png", "images.mat.gz", "record", "figure.png")):
        path = tmp_path / name
        with atomically(path) as temporary, atomically(path) as other:
            temporary.write_text(f"new {number}")
            other.write_text("of another writer at the same time")
            assert (temporary.parent, temporary.suffix, temporary.name[0]) == (tmp_path, path.suffix, ".")
            assert path.exists() is (number == 3), "the old file stays until the block ends"
        assert path.read_text() == f"new {number}"
    assert sorted(os.listdir(tmp_path)) == ["figure.png", "images.mat.gz", "record"]


def test_error_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")

    def write() -> None:
        with atomically(path) as temporary:
            temporary.write_text("half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["result.json"]


def test_new_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomically(tmp_path / "result.json") as temporary:
            temporary.write_text("new")
    finally:
        os.umask(before)
    assert (tmp_path / "result.json").stat().st_mode & 0o777 == 0o640
