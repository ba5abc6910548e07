"""Writes docs/drawings/explorer.png: the first part of the explorer's page, with a digit drawn by the mouse.

``python -m docs.explorer_picture`` writes it anew; it needs Chromium and the package playwright.
"""

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from capsule_studies import explorer
from docs.drawings import FOLDER

STROKE = [(80, 80), (120, 60), (170, 75), (175, 120), (130, 170), (80, 225), (130, 225), (200, 222)]
"""Corners of a 2, in pixels of the field of 280 by 280."""
SIZE = {"width": 960, "height": 700}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        file = Path(folder) / "explorer.html"
        explorer.show("capsnet_mnist", "em_caps_mnist", "cnn_mnist").save(file)
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport=SIZE)
        page.goto(file.as_uri())
        page.wait_for_function("() => window.explorer && window.explorer.ready")
        page.click("#clear")
        pad = page.locator("#pad").bounding_box()
        assert pad is not None
        first, *others = [(pad["x"] + x, pad["y"] + y) for x, y in STROKE]
        page.mouse.move(*first)
        page.mouse.down()
        for corner in others:
            page.mouse.move(*corner, steps=8)
        page.mouse.up()
        page.wait_for_function("() => location.hash.startsWith('#image=')")
        time = page.get_by_text("computed in")  # of this computer
        time.evaluate("element => element.style.visibility = 'hidden'")
        page.screenshot(path=FOLDER / "explorer.png")


if __name__ == "__main__":
    main()
