"""A report that is served while runs train."""

import re
import shutil
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from capsule_lab.runs import lock
from capsule_lab.tables.expand import expand
from capsule_lab.tables.reader import read
from tests.helpers.commands import start
from tests.helpers.tables import write_run, write_table

pytestmark = pytest.mark.whole


def test_page_updates_in_a_browser_and_answers_no_other_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    monkeypatch.setenv("CAPSULE_LAB_RUNS", str(tmp_path / "runs"))
    file = write_table(tmp_path, seeds=[0])
    (cell,) = expand(read(file))
    with start("-m", "capsule_lab.report", f"table={file}", "serve=true", cwd=tmp_path) as process:
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())[0]
            with playwright.sync_playwright() as started:
                page = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page()
                with lock.cell_lock(cell.fingerprint):
                    page.goto(address)
                    assert page.locator("tr.running td.status").inner_text() == "running"
                write_run(cell, error=12.5)
                page.wait_for_selector("tr.done", timeout=60_000)
                assert "12.50" in page.locator("tr.done").inner_text()
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(urllib.request.Request(address, headers={"Host": "elsewhere.example:80"}))
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()
    assert process.returncode == 130
