"""Files of data sets: recognised when whole, fetched whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import os
import re
import stat
import tarfile
import threading
from collections.abc import Iterator
from contextlib import suppress
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


@pytest.mark.parametrize("name", CONTENT)
def test_md5(tmp_path, name):
    assert md5(write(tmp_path, name) / name) == CHECKSUMS[name]


def test_verify_all_files(tmp_path):
    assert verify(write(tmp_path, *CONTENT), CHECKSUMS, "Toys") is True


def test_verify_ignores_other_files(tmp_path):
    (tmp_path / "first.gz").write_bytes(b"archive")
    assert verify(write(tmp_path, *CONTENT), CHECKSUMS, "Toys") is True


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (ValueError("Unknown mat file type,\n version 60, 33"), "Unknown mat file type, version 60, 33"),
        (EOFError(), "EOFError"),
    ],
    ids=repr,
)
def test_an_error_in_reading_names_the_file(tmp_path, error, reason):
    with pytest.raises(DataError) as caught, reading(tmp_path / "first", "Toys"):
        raise error
    assert str(caught.value) == (
        f"{tmp_path / 'first'} cannot be read ({reason}); expected a file of Toys: remove it and its folder to have "
        "them downloaded again"
    )
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("label", [0, 11, 255])
def test_labels_that_are_none_are_named(tmp_path, label):
    labels = np.array([1, 10, label, 5])
    with pytest.raises(DataError, match=f"first has label {label}; expected 1 to 10: remove it"):
        check_labels(tmp_path / "first", labels, range(1, 11))
    check_labels(tmp_path / "first", labels[:2], range(1, 11))


@pytest.mark.parametrize("folder", [".", "nowhere", "nowhere/at/all"])
def test_verify_no_files(tmp_path, folder):
    assert verify(tmp_path / folder, CHECKSUMS, "Toys") is False


@pytest.mark.parametrize(
    ("there", "missing"),
    [(["first"], "second, third"), (["first", "third"], "second"), (["second", "third"], "first")],
    ids=str,
)
def test_verify_some_files_names_the_missing_ones(tmp_path, there, missing):
    with pytest.raises(DataError) as caught:
        verify(write(tmp_path, *there), CHECKSUMS, "Toys")
    assert str(tmp_path) in str(caught.value)
    assert f"{len(there)} of the 3 files of Toys; missing {missing}:" in str(caught.value)


@pytest.mark.parametrize("content", [CONTENT["first"][:-1], b"", b"another file"], ids=["truncated", "empty", "other"])
def test_verify_names_the_damaged_file(tmp_path, content):
    write(tmp_path, *CONTENT)
    (tmp_path / "first").write_bytes(content)
    with pytest.raises(DataError) as caught:
        verify(tmp_path, CHECKSUMS, "Toys")
    assert str(caught.value).startswith(f"{tmp_path / 'first'} ({len(content)} bytes, md5 ")
    assert CHECKSUMS["first"] in str(caught.value)
    assert "remove it" in str(caught.value)


def test_verify_names_the_file_that_cannot_be_read(tmp_path, monkeypatch):
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(download, "md5", refuse)
    with pytest.raises(DataError, match=rf"^{re.escape(str(tmp_path))}/first cannot be read \(Permission denied\)"):
        verify(write(tmp_path, *CONTENT), CHECKSUMS, "Toys")


def succeed(scratch: Path) -> Path:
    (scratch / "archive.gz").write_bytes(b"left behind in the scratch folder")
    return write(scratch / "deep" / "raw", *CONTENT)


@pytest.mark.parametrize("folder", ["raw", "Toys/raw", "several/levels/raw"])
def test_fetch_puts_the_files_in_place_and_nothing_else(tmp_path, folder):
    target = tmp_path / folder
    assert fetch(target, succeed) is None
    assert verify(target, CHECKSUMS, "Toys")
    assert everything_below(target.parent) == ["raw", "raw/first", "raw/second", "raw/third"]


def test_fetch_fills_an_empty_folder(tmp_path):
    (tmp_path / "raw").mkdir()
    assert fetch(tmp_path / "raw", succeed) is None
    assert everything_below(tmp_path) == ["raw", "raw/first", "raw/second", "raw/third"]


def test_fetch_is_one_step(tmp_path):
    """The folder does not exist until it is whole: it is the very folder that was filled, renamed."""
    filled = []

    def download(scratch: Path) -> Path:
        folder = succeed(scratch)
        assert not (tmp_path / "raw").exists()
        filled.append(folder.stat().st_ino)
        return folder

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
    def download(scratch: Path) -> Path:
        write(scratch / "raw", "first", "second")
        raise error

    assert fetch(tmp_path / "Toys" / "raw", download) == reason
    assert everything_below(tmp_path) == ["Toys"]


@pytest.mark.parametrize("error", [tarfile.ReadError("truncated header"), EOFError("ended early")], ids=repr)
def test_fetch_of_a_damaged_archive_gives_a_reason(tmp_path, error):
    def download(scratch: Path) -> Path:
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
    def download(scratch: Path) -> Path:
        write(scratch / "raw", "first")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(tmp_path / "raw", download)
    assert everything_below(tmp_path) == []


# --- one file

SERVERS = ("https://first.example/a/", "https://second.example/")
KNOWN = {name: f"{name}:{hashlib.new(name, b'content').hexdigest()}" for name in ("md5", "sha256")}
TIMEOUT = requests.exceptions.ConnectTimeout("…")


@pytest.mark.parametrize("algorithm", KNOWN)
def test_a_file_is_downloaded_from_the_first_server(tmp_path, monkeypatch, capfd, algorithm):
    asked = answer_downloads(monkeypatch, lambda url: b"content")
    path = download_file("file", KNOWN[algorithm], SERVERS, tmp_path / "new")
    assert path == tmp_path / "new" / "file"
    assert path.read_bytes() == b"content"
    assert asked == ["https://first.example/a/file"]
    assert everything_below(tmp_path) == ["new", "new/file"]
    assert capfd.readouterr() == ("", "")


def test_a_downloaded_file_has_the_permissions_of_the_umask(tmp_path, monkeypatch):
    answer_downloads(monkeypatch, lambda url: b"content")
    before = os.umask(0o027)
    try:
        path = download_file("file", KNOWN["md5"], SERVERS, tmp_path)
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("first", [b"another file", b"", TIMEOUT, OSError("reset")], ids=repr)
def test_the_next_server_is_asked_if_one_fails(tmp_path, monkeypatch, first):
    asked = answer_downloads(monkeypatch, lambda url: first if url.startswith(SERVERS[0]) else b"content")
    assert download_file("file", KNOWN["sha256"], SERVERS, tmp_path).read_bytes() == b"content"
    assert asked == [f"{server}file" for server in SERVERS]
    assert everything_below(tmp_path) == ["file"]


def test_a_server_is_asked_again(tmp_path, monkeypatch):
    answers: list[bytes | Exception] = [requests.exceptions.ChunkedEncodingError("ended early"), b"content"]
    asked = answer_downloads(monkeypatch, lambda url: answers[len(asked) - 1])
    monkeypatch.setattr(download, "_RETRIES", 1)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert download_file("file", KNOWN["md5"], SERVERS, tmp_path).read_bytes() == b"content"
    assert asked == [f"{SERVERS[0]}file"] * 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (requests.exceptions.ConnectionError("HTTPSConnectionPool(…): Max retries exceeded …"), "ConnectionError"),
        (requests.exceptions.SSLError("HTTPSConnectionPool(…)"), "SSLError"),
        (requests.exceptions.ReadTimeout("HTTPSConnectionPool(…)"), "ReadTimeout"),
        (requests.exceptions.HTTPError("404 Client Error: Not Found"), "404 Client Error: Not Found"),
        (OSError("no\nspace"), "no space"),
    ],
    ids=repr,
)
def test_the_reason_of_the_first_server_is_given(tmp_path, monkeypatch, error, reason):
    answer_downloads(monkeypatch, lambda url: error if url.startswith(SERVERS[0]) else OSError("another"))
    with pytest.raises(OSError, match=f"^https://first.example/a/file: {reason}$"):
        download_file("file", KNOWN["md5"], SERVERS, tmp_path)
    assert everything_below(tmp_path) == []


def test_a_server_that_does_not_answer_is_not_waited_for(tmp_path, monkeypatch):
    used: list[object] = []
    monkeypatch.setattr(requests, "get", lambda url, **options: used.append(options["timeout"]) or pytest.fail("asked"))
    with pytest.raises(pytest.fail.Exception):
        download_file("file", KNOWN["md5"], SERVERS, tmp_path)
    assert used == [10.0]


class Answers(http.server.BaseHTTPRequestHandler):
    """A server that answers by the name of the file."""

    protocol_version = "HTTP/1.1"
    stopped = threading.Event()

    def log_message(self, *_) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        content, kind = b"content" * 1000, self.path.strip("/")
        if kind == "missing":
            self.send_error(404)
            return
        self.send_response(200)
        if kind == "packed":
            content = gzip.compress(content)
            self.send_header("Content-Encoding", "gzip")
        if kind == "chunks":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in (content[:3], content[3:]):
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if kind == "short":
            self.wfile.write(content[:100])
            self.close_connection = True
        elif kind == "drips":
            with suppress(OSError):  # the other side has given up
                while not self.stopped.wait(0.02):
                    self.wfile.write(b"c")
        else:
            self.wfile.write(content)


@pytest.fixture
def server(monkeypatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "*")
    Answers.stopped.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/"
        Answers.stopped.set()
        running.shutdown()


def test_content_arrives_however_it_is_sent(tmp_path, server):
    for kind in ("whole", "packed", "chunks"):
        download.download_url(f"{server}{kind}", tmp_path / kind)
        assert (tmp_path / kind).read_bytes() == b"content" * 1000, kind


def test_servers_that_send_less_than_the_file_are_given_up(tmp_path, server, monkeypatch):
    monkeypatch.setattr(download, "_PATIENCE", 0.1)
    monkeypatch.setattr(download, "_RETRIES", 0)
    expected = {
        "missing": "404 Client Error",
        "short": "(ConnectionError|hash of downloaded file)",
        "drips": r"it sends \d+ bytes a second; given up",
    }
    for kind, reason in expected.items():
        with pytest.raises(OSError, match=f"{server}{kind}: .*{reason}"):
            download_file(kind, KNOWN["md5"], [server], tmp_path)
    assert everything_below(tmp_path) == []


@pytest.mark.parametrize(
    ("argument", "environment", "expected"),
    [
        ("argument", "environment", "argument"),
        ("argument", None, "argument"),
        (None, "environment", "environment"),
        (None, None, "data"),
        (None, "", "data"),
        ("", "environment", "environment"),
    ],
)
def test_data_directory(monkeypatch, argument, environment, expected):
    monkeypatch.delenv("CAPSULE_LAB_DATA", raising=False)
    if environment is not None:
        monkeypatch.setenv("CAPSULE_LAB_DATA", environment)
    assert data_directory(argument) == Path(expected)


def test_data_error_is_a_value_error():
    assert issubclass(DataError, ValueError)
