"""Files of data sets are verified by checksums, and downloaded completely or not at all."""

import hashlib
import os
import re
import tarfile
import time
from pathlib import Path

import pytest
import requests

from capsule_lab.data.download import data_directory, download_file, fetch, filling, reading, verify
from capsule_lab.errors import DataError
from tests.helpers.data_modules import answer_downloads
from tests.helpers.mnist_files import md5

CONTENT = {"first": b"one" * 1000, "second": b"two", "third": b""}
CHECKSUMS = {name: md5(content) for name, content in CONTENT.items()}


def write(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(CONTENT[name])
    return folder


def everything_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (ValueError("Unknown file type,\n version 60, 33"), "Unknown file type, version 60, 33"),
        (EOFError(), "EOFError"),
    ],
    ids=repr,
)
def test_reading_error_names_the_file(tmp_path, error, reason):
    with pytest.raises(DataError) as caught, reading(tmp_path / "first", "Toys"):
        raise error
    expected = "expected a file of Toys: remove it and its folder to download them again"
    assert str(caught.value) == f"{tmp_path / 'first'} cannot be read ({reason}); {expected}"
    assert caught.value.__cause__ is error


def test_verify_distinguishes_whole_and_missing_folders(tmp_path):
    whole = write(tmp_path, *CONTENT)
    assert verify(whole, CHECKSUMS, "Toys") is True
    assert verify(tmp_path / "nowhere", CHECKSUMS, "Toys") is False


@pytest.mark.parametrize(
    ("there", "missing"), [(["first"], "second, third"), (["second", "third"], "first")]
)
def test_verify_names_missing_files(tmp_path, there, missing):
    write(tmp_path, *there)
    message = f"{tmp_path} holds {len(there)} of the 3 files of Toys; missing {missing}:"
    with pytest.raises(DataError, match=re.escape(message)):
        verify(tmp_path, CHECKSUMS, "Toys")


@pytest.mark.parametrize("content", [CONTENT["first"][:-1], b"", b"another file"])
def test_verify_names_a_damaged_file(tmp_path, content):
    write(tmp_path, *CONTENT)
    file = tmp_path / "first"
    file.write_bytes(content)
    found = re.escape(f"{file} ({len(content)} bytes, md5 ")
    expected = CHECKSUMS["first"]
    with pytest.raises(DataError, match=rf"^{found}.*{expected}.*remove it"):
        verify(tmp_path, CHECKSUMS, "Toys")


def test_fetch_renames_the_complete_folder_and_keeps_other_files(tmp_path):
    """The folder does not exist until it is complete: it is the scratch folder, renamed."""
    filled = []

    def download(scratch: Path) -> None:
        beside = scratch.parent / "archive.gz"
        beside.write_bytes(b"left behind beside the scratch folder")
        write(scratch, *CONTENT)
        filled.append(scratch.stat().st_ino)

    there = write(tmp_path / "there" / "raw", "second")
    (there / "second").write_bytes(b"of an earlier attempt")
    (there / "first.gz").write_bytes(b"archive that was never unpacked")
    for name in ("raw", "several/levels/raw", "there/raw"):
        folder = tmp_path / name
        assert fetch(folder, download) is None
        assert verify(folder, CHECKSUMS, "Toys")
        assert folder == there or folder.stat().st_ino == filled[-1]
    assert everything_below(tmp_path / "raw") == ["first", "second", "third"]
    assert everything_below(there) == ["first", "first.gz", "second", "third"]
    left_behind = [*tmp_path.rglob(".*"), *tmp_path.rglob("archive.gz")]
    assert left_behind == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(-2, "Name or service not known"), "[Errno -2] Name or service not known"),
        (OSError("Not found or corrupted.\n  line 2"), "Not found or corrupted. line 2"),
        (TimeoutError(), "TimeoutError"),
        (tarfile.ReadError("truncated header"), "truncated header"),
        (EOFError("ended early"), "ended early"),
        (KeyboardInterrupt(), None),
    ],
    ids=repr,
)
def test_failed_fetch_leaves_nothing_and_returns_the_reason(tmp_path, error, reason):
    def download(scratch: Path) -> None:
        write(scratch, "first", "second")
        raise error

    if reason is None:
        with pytest.raises(KeyboardInterrupt):
            fetch(tmp_path / "Toys" / "raw", download)
    else:
        assert fetch(tmp_path / "Toys" / "raw", download) == reason
    assert everything_below(tmp_path) == ["Toys"]
    (tmp_path / "file").write_text("in the way")
    assert "File exists" in fetch(tmp_path / "file" / "raw", download)


SERVERS = ("https://first.example/a/", "https://second.example/")
MD5 = f"md5:{md5(b'content')}"
SHA256 = f"sha256:{hashlib.sha256(b'content').hexdigest()}"


def answer_of(first: bytes | Exception, other: bytes | Exception):
    """A function that answers for the first server, and for all others."""
    return lambda url: first if url.startswith(SERVERS[0]) else other


@pytest.mark.parametrize("known", [MD5, SHA256], ids=["md5", "sha256"])
def test_file_is_downloaded_from_the_first_server(tmp_path, monkeypatch, capfd, known):
    asked = answer_downloads(monkeypatch, lambda url: b"content")
    path = download_file("file", known, SERVERS, tmp_path)
    assert path.read_bytes() == b"content"
    assert asked == ["https://first.example/a/file"]
    assert everything_below(tmp_path) == ["file"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("known", [MD5, SHA256], ids=["md5", "sha256"])
@pytest.mark.parametrize(
    "first",
    [b"another file", b"", requests.exceptions.ConnectTimeout("…"), OSError("reset")],
    ids=repr,
)
def test_file_is_downloaded_from_the_next_server(tmp_path, monkeypatch, capfd, first, known):
    asked = answer_downloads(monkeypatch, answer_of(first, b"content"))
    path = download_file("file", known, SERVERS, tmp_path)
    assert path.read_bytes() == b"content"
    assert asked == ["https://first.example/a/file", "https://second.example/file"]
    assert everything_below(tmp_path) == ["file"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (requests.exceptions.ConnectionError("HTTPSConnectionPool(…): …"), "ConnectionError"),
        (requests.exceptions.ReadTimeout("HTTPSConnectionPool(…)"), "ReadTimeout"),
        (requests.exceptions.HTTPError("404 Error: Not Found"), "404 Error: Not Found"),
        (OSError("no\nspace"), "no space"),
    ],
    ids=repr,
)
def test_error_has_the_reason_of_the_first_server(tmp_path, monkeypatch, error, reason):
    answer_downloads(monkeypatch, answer_of(error, OSError("another")))
    with pytest.raises(OSError, match=f"^https://first.example/a/file: {reason}$"):
        download_file("file", MD5, SERVERS, tmp_path)
    assert everything_below(tmp_path) == []


def test_download_has_a_timeout(tmp_path, monkeypatch):
    timeouts: list[object] = []

    def get(url, **options):
        timeouts.append(options["timeout"])
        pytest.fail("asked")

    monkeypatch.setattr(requests, "get", get)
    with pytest.raises(pytest.fail.Exception):
        download_file("file", MD5, SERVERS, tmp_path)
    assert timeouts == [10.0]


@pytest.mark.parametrize(
    ("argument", "environment", "expected"),
    [
        ("argument", "environment", "argument"),
        (None, "environment", "environment"),
        ("", "environment", "environment"),
        (None, "", "data"),
    ],
)
def test_data_directory_is_the_argument_or_the_environment_or_the_default(
    monkeypatch, argument, environment, expected
):
    monkeypatch.setenv("CAPSULE_LAB_DATA", environment)
    assert data_directory(argument) == Path(expected)


def test_data_directory_has_a_default(monkeypatch):
    monkeypatch.delenv("CAPSULE_LAB_DATA", raising=False)
    assert data_directory(None) == Path("data")


def test_scratch_folders_of_processes_that_were_killed_are_removed(tmp_path):
    hour_ago = time.time() - 3600
    with filling(tmp_path / "other") as scratch:  # of a process that still works
        for name in (".filling-killed", ".filling-new"):
            write(tmp_path / name / "other", "first")
        (tmp_path / ".filling-link").symlink_to(tmp_path / "elsewhere")
        write(tmp_path / "elsewhere", "second")
        for folder in (scratch.parent, tmp_path / ".filling-killed", tmp_path / "elsewhere"):
            os.utime(folder, (hour_ago, hour_ago))
        with filling(tmp_path / "folder"):
            assert scratch.is_dir()
    assert sorted(os.listdir(tmp_path)) == [
        ".filling-link",
        ".filling-new",
        "elsewhere",
        "folder",
        "other",
    ]
    assert os.listdir(tmp_path / "elsewhere") == ["second"]
