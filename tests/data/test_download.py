"""Files of data sets: recognised when whole, fetched whole or not at all."""

from __future__ import annotations

import hashlib
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
import requests

from capsule_lab.data import download
from capsule_lab.data.download import check_labels, data_directory, download_file, fetch, md5, reading, verify
from capsule_lab.errors import DataError
from tests.helpers.data_modules import answer_downloads

CONTENT = {"first": b"one" * 1000, "second": b"two", "third": b""}
CHECKSUMS = {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in CONTENT.items()}
NO_SERVER = OSError(-2, "Name or service not known")


def write(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(CONTENT[name])
    return folder


def everything_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_verify(tmp_path):
    assert [md5(write(tmp_path, name) / name) for name in CONTENT] == list(CHECKSUMS.values())
    (tmp_path / "first.gz").write_bytes(b"another file that is there")
    assert verify(tmp_path, CHECKSUMS, "Toys") is True
    for folder in ("nowhere", "nowhere/at/all"):
        assert verify(tmp_path / folder, CHECKSUMS, "Toys") is False


def test_an_error_in_reading_names_the_file(tmp_path):
    for error, reason in [
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (ValueError("Unknown mat file type,\n version 60, 33"), "Unknown mat file type, version 60, 33"),
        (EOFError(), "EOFError"),
    ]:
        with pytest.raises(DataError) as caught, reading(tmp_path / "first", "Toys"):
            raise error
        expected = "expected a file of Toys: remove it and its folder to have them downloaded again"
        assert str(caught.value) == f"{tmp_path / 'first'} cannot be read ({reason}); {expected}"
        assert caught.value.__cause__ is error


def test_labels_that_are_none_are_named(tmp_path):
    for label in (0, 11, 255):
        labels = np.array([1, 10, label, 5])
        with pytest.raises(DataError, match=f"first has label {label}; expected 1 to 10: remove it"):
            check_labels(tmp_path / "first", labels, range(1, 11))
    check_labels(tmp_path / "first", np.array([1, 10]), range(1, 11))


def test_verify_names_what_is_missing_or_damaged(tmp_path):
    for number, (there, missing) in enumerate(((["first"], "second, third"), (["second", "third"], "first"))):
        folder = tmp_path / str(number)
        message = f"{folder} holds {len(there)} of the 3 files of Toys; missing {missing}:"
        with pytest.raises(DataError, match=re.escape(message)):
            verify(write(folder, *there), CHECKSUMS, "Toys")
    write(tmp_path, *CONTENT)
    for content in (CONTENT["first"][:-1], b"", b"another file"):
        (tmp_path / "first").write_bytes(content)
        message = f"{tmp_path / 'first'} ({len(content)} bytes, md5 "
        with pytest.raises(DataError, match=rf"^{re.escape(message)}.*{CHECKSUMS['first']}.*remove it"):
            verify(tmp_path, CHECKSUMS, "Toys")


def test_verify_names_the_file_that_cannot_be_read(tmp_path, monkeypatch):
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(download, "md5", refuse)
    with pytest.raises(DataError, match=rf"^{re.escape(str(tmp_path))}/first cannot be read \(Permission denied\)"):
        verify(write(tmp_path, *CONTENT), CHECKSUMS, "Toys")


def succeed(scratch: Path) -> None:
    (scratch.parent / "archive.gz").write_bytes(b"left behind beside the scratch folder")
    write(scratch, *CONTENT)


def test_fetch_puts_the_files_in_place_and_nothing_else(tmp_path):
    for folder in ("raw", "Toys/raw", "several/levels/raw", "there/raw"):
        if folder == "there/raw":
            (tmp_path / folder).mkdir(parents=True)
        assert fetch(tmp_path / folder, succeed) is None
        assert verify(tmp_path / folder, CHECKSUMS, "Toys")
        assert everything_below(tmp_path / folder) == ["first", "second", "third"]
    assert not [*tmp_path.rglob(".*"), *tmp_path.rglob("archive.gz")]


def test_fetch_is_one_step(tmp_path):
    """The folder does not exist until it is whole: it is the very folder that was filled, renamed."""
    filled = []

    def download(scratch: Path) -> None:
        succeed(scratch)
        assert not (tmp_path / "raw").exists()
        filled.append(scratch.stat().st_ino)

    assert fetch(tmp_path / "raw", download) is None
    assert [(tmp_path / "raw").stat().st_ino] == filled


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NO_SERVER, "[Errno -2] Name or service not known"),
        (OSError("File not found or corrupted.\n  second line"), "File not found or corrupted. second line"),
        (OSError("\n  leading white space\n"), "leading white space"),
        (TimeoutError(), "TimeoutError"),
        (ConnectionResetError(104, "Connection reset by peer"), "[Errno 104] Connection reset by peer"),
    ],
    ids=["no server", "corrupt", "white space", "no words", "reset"],
)
def test_fetch_that_fails_leaves_nothing_and_returns_the_reason(tmp_path, error, reason):
    def download(scratch: Path) -> None:
        write(scratch, "first", "second")
        raise error

    assert fetch(tmp_path / "Toys" / "raw", download) == reason
    assert everything_below(tmp_path) == ["Toys"]


@pytest.mark.parametrize("error", [tarfile.ReadError("truncated header"), EOFError("ended early")], ids=repr)
def test_fetch_of_a_damaged_archive_gives_a_reason(tmp_path, error):
    def download(scratch: Path) -> None:
        raise error

    assert fetch(tmp_path / "raw", download)
    assert everything_below(tmp_path) == []


def test_fetch_beside_other_files_puts_the_files_in_place_and_leaves_the_others(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "first.gz").write_bytes(b"archive that was never unpacked")
    (tmp_path / "raw" / "second").write_bytes(b"of an earlier attempt")
    assert fetch(tmp_path / "raw", succeed) is None
    assert verify(tmp_path / "raw", CHECKSUMS, "Toys")
    assert (tmp_path / "raw" / "first.gz").read_bytes() == b"archive that was never unpacked"
    assert everything_below(tmp_path) == ["raw", "raw/first", "raw/first.gz", "raw/second", "raw/third"]


def test_fetch_where_nothing_can_be_written_gives_a_reason(tmp_path):
    (tmp_path / "file").write_text("in the way")
    reason = fetch(tmp_path / "file" / "raw", succeed)
    assert reason is not None
    assert "\n" not in reason


def test_fetch_that_is_interrupted_leaves_nothing(tmp_path):
    def download(scratch: Path) -> None:
        write(scratch, "first")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(tmp_path / "raw", download)
    assert everything_below(tmp_path) == []


# --- one file

SERVERS = ("https://first.example/a/", "https://second.example/")
KNOWN = {name: f"{name}:{hashlib.new(name, b'content').hexdigest()}" for name in ("md5", "sha256")}
TIMEOUT = requests.exceptions.ConnectTimeout("…")


def test_a_file_is_downloaded_from_the_first_server(tmp_path, monkeypatch, capfd):
    for algorithm, known in KNOWN.items():
        asked = answer_downloads(monkeypatch, lambda url: b"content")
        path = download_file("file", known, SERVERS, tmp_path / algorithm)
        assert path == tmp_path / algorithm / "file"
        assert path.read_bytes() == b"content"
        assert asked == ["https://first.example/a/file"]
        assert everything_below(tmp_path / algorithm) == ["file"]
    assert capfd.readouterr() == ("", "")


def test_the_next_server_is_asked_if_one_fails(tmp_path, monkeypatch):
    for number, first in enumerate((b"another file", b"", TIMEOUT, OSError("reset"))):
        asked = answer_downloads(monkeypatch, lambda url, f=first: f if url.startswith(SERVERS[0]) else b"content")
        folder = tmp_path / str(number)
        assert download_file("file", KNOWN["sha256"], SERVERS, folder).read_bytes() == b"content"
        assert asked == [f"{server}file" for server in SERVERS]
        assert everything_below(folder) == ["file"]


def test_the_reason_of_the_first_server_is_given(tmp_path, monkeypatch):
    for error, reason in [
        (requests.exceptions.ConnectionError("HTTPSConnectionPool(…): Max retries exceeded …"), "ConnectionError"),
        (requests.exceptions.SSLError("HTTPSConnectionPool(…)"), "SSLError"),
        (requests.exceptions.ReadTimeout("HTTPSConnectionPool(…)"), "ReadTimeout"),
        (requests.exceptions.HTTPError("404 Client Error: Not Found"), "404 Client Error: Not Found"),
        (OSError("no\nspace"), "no space"),
    ]:
        answer_downloads(monkeypatch, lambda url, e=error: e if url.startswith(SERVERS[0]) else OSError("another"))
        with pytest.raises(OSError, match=f"^https://first.example/a/file: {reason}$"):
            download_file("file", KNOWN["md5"], SERVERS, tmp_path)
        assert everything_below(tmp_path) == []


def test_a_server_that_does_not_answer_is_not_waited_for(tmp_path, monkeypatch):
    used: list[object] = []
    monkeypatch.setattr(requests, "get", lambda url, **options: used.append(options["timeout"]) or pytest.fail("asked"))
    with pytest.raises(pytest.fail.Exception):
        download_file("file", KNOWN["md5"], SERVERS, tmp_path)
    assert used == [10.0]


def test_data_directory(monkeypatch):
    for argument, environment, expected in [
        ("argument", "environment", "argument"),
        ("argument", None, "argument"),
        (None, "environment", "environment"),
        (None, None, "data"),
        (None, "", "data"),
        ("", "environment", "environment"),
    ]:
        monkeypatch.delenv("CAPSULE_LAB_DATA", raising=False)
        if environment is not None:
            monkeypatch.setenv("CAPSULE_LAB_DATA", environment)
        assert data_directory(argument) == Path(expected)


def test_data_error_is_a_value_error():
    assert issubclass(DataError, ValueError)
