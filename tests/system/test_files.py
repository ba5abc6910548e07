"""Only regular files inside of a folder are opened; ``atomically`` writes a file completely or not at all."""

import os
import socket
from pathlib import Path

import pytest

from capsule_lab.system.files import atomically, open_regular, read_regular


def test_file_is_replaced_at_the_end_of_the_block(tmp_path: Path) -> None:
    for number, name in enumerate(("figure.png", "images.mat.gz", "record", "figure.png")):
        path = tmp_path / name
        with atomically(path) as temporary, atomically(path) as other:
            temporary.write_text(f"new {number}")
            other.write_text("of another writer at the same time")
            assert temporary.parent == tmp_path
            assert temporary.suffix == path.suffix
            assert temporary.name.startswith(".")
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


def to_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as created:
        created.bind(path.name)


OTHER_KINDS = {
    "folder": os.mkdir,
    "FIFO": os.mkfifo,
    "socket": to_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
    "nothing": lambda _: None,
}


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "anywhere"])
@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_only_regular_files_are_opened(tmp_path: Path, kind: str, inside: bool) -> None:
    path = tmp_path / "file"
    OTHER_KINDS[kind](path)
    with pytest.raises(OSError, match="file") as caught:
        open_regular(path, inside=tmp_path if inside else None)
    assert caught.value.strerror


@pytest.mark.parametrize("target", ["../secret", "/etc/passwd", "folder_out/secret"])
def test_links_that_lead_out_are_refused(tmp_path: Path, target: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "secret").write_text("secret")
    (run / "folder_out").symlink_to(tmp_path)
    (run / "file").symlink_to(target)
    for path in (run / "file", run / "folder_out" / "secret"):
        with pytest.raises(OSError, match="a link to a file outside of"):
            read_regular(path, inside=run)


def test_links_inside_and_a_linked_folder_are_followed(tmp_path: Path) -> None:
    run, latest = tmp_path / "run", tmp_path / "latest"
    (run / "below").mkdir(parents=True)
    (run / "below" / "file").write_text("content")
    (run / "linked").symlink_to("below/file")
    (run / "folder").symlink_to("below")
    latest.symlink_to("run")
    for name in ("linked", "folder/file", "below/../linked"):
        assert read_regular(latest / name, inside=latest) == b"content", name
    with pytest.raises(OSError, match="7 bytes, more than 6"):
        read_regular(run / "linked", most=6)


def test_link_that_changes_after_the_check_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, run = tmp_path / "secret", tmp_path / "run"
    secret.write_text("secret")
    run.mkdir()
    (run / "file").touch()
    resolve = os.path.realpath

    def exchanged(path: Path, **options: bool) -> str:
        resolved = resolve(path, **options)
        if path == run / "file":
            path.unlink()
            path.symlink_to(secret)
        return resolved

    monkeypatch.setattr(os.path, "realpath", exchanged)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        read_regular(run / "file", inside=run)
