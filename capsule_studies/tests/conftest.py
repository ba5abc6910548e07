"""A browser for the pages that are written."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium by playwright; the test is skipped without either."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    options = ["--no-sandbox", "--disable-gpu"]
    with playwright.sync_playwright() as started:
        yield started.chromium.launch(executable_path=chromium, args=options)
