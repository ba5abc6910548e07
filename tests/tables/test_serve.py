"""A report that is served while runs train."""

import re
import shutil
import signal
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capsule_lab.commands.tables import read_table as read
from capsule_lab.runs import lock
from capsule_lab.tables import serve
from capsule_lab.tables.expand import expand
from tests.helpers.commands import start, wait_for
from tests.helpers.tables import write_run, write_table


@pytest.mark.whole
def test_page_updates_in_a_browser_and_answers_no_other_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    monkeypatch.setenv("CAPSULE_LAB_RUNS", str(tmp_path / "runs"))
    file = write_table(tmp_path, seeds=[0])
    (cell,) = expand(read(file))
    with start(
        "-m", "capsule_lab", "report", f"table={file}", "serve=true", cwd=tmp_path
    ) as process:
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())[0]
            with playwright.sync_playwright() as started:
                page = started.chromium.launch(
                    executable_path=chromium, args=["--no-sandbox"]
                ).new_page()
                with lock.cell_lock(cell.fingerprint):
                    page.goto(address)
                    assert page.locator("tr.running td.status").inner_text() == "running"
                write_run(cell, error=12.5)
                page.wait_for_selector("tr.done", timeout=60_000)
                assert "12.50" in page.locator("tr.done").inner_text()
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(
                    urllib.request.Request(address, headers={"Host": "elsewhere.example:80"})
                )
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()
    assert process.returncode == 130


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    """The address of a server of a page with text that cannot be encoded."""
    servers: list[Any] = []

    class Server(serve._Server):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            servers.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serve, "_Server", Server)
        thread = threading.Thread(
            target=serve.serve, args=(lambda: "<body>caf\xe9 \udcff</body>", lambda: "a hash", None)
        )
        thread.start()
        wait_for(lambda: servers)
    yield servers[0].server_address
    servers[0].shutdown()
    thread.join()


def answer(address: tuple[str, int], request: bytes) -> bytes:
    with socket.create_connection(address, timeout=20) as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(4096), b""))


def hosts(*names: str) -> bytes:
    lines = ["GET / HTTP/1.1", *(f"Host: {name}" for name in names), "", ""]
    return "\r\n".join(lines).encode("latin-1")


@pytest.mark.parametrize(
    "names",
    [
        (), ("",), ("[",), ("[::1",), ("evil.com\\@127.0.0.1",), ("127.0.0.1\\@evil.com",), ("a@127.0.0.1",),
        ("127.0.0.1.evil.com",), ("127.0.0.1:80:80",), ("127.0.0.1:port",), ("localhost, evil.com",), ("\xff",),
        ("127.0.0.1:80/",), ("127.0.0.1#evil.com",), ("evil.com", "127.0.0.1"), ("127.0.0.1", "localhost"),
        ("0.0.0.0",), ("127.0.0.1:123456",), ("127.0.0.1:\xb2",),
    ],
)  # fmt: skip
def test_other_hosts_are_refused(
    address: tuple[str, int], capfd: pytest.CaptureFixture[str], names: tuple[str, ...]
) -> None:
    assert answer(address, hosts(*names)).startswith(b"HTTP/1.0 403 ")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8080", "127.0.0.1:1"])
def test_page_is_shown_to_this_machine_with_text_that_cannot_be_encoded(
    address: tuple[str, int], host: str
) -> None:
    head, _, body = answer(address, hosts(host)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 ")
    assert body.startswith("<body>caf\xe9 ?".encode())
    assert b"a hash" in body


@pytest.mark.parametrize(
    "sent", [b"", b"GET", b"\xff\xfe\r\n\r\n", hosts("localhost") * 2, b"GET / HTTP/1.1\r\n"]
)
def test_client_that_resets_its_connection_leaves_no_traceback(
    address: tuple[str, int],
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    sent: bytes,
) -> None:
    with socket.socket() as client:
        client.connect(address)
        client.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )  # a reset in place of an end
        client.sendall(sent)
    assert answer(address, hosts("localhost")).startswith(b"HTTP/1.0 200 "), (
        "others are still answered"
    )
    assert capfd.readouterr().err == ""
    assert caplog.messages == []
