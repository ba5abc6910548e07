"""The page of the explorer in a browser."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from capsule_lab.data.formats.pictures import fitted
from capsule_studies.explorer import Page, pictures
from capsule_studies.explorer.page import render
from capsule_studies.tests.explorer_networks import NETWORKS
from capsule_studies.tests.explorer_pages import IN_COLOUR, loaded, run_of

pytestmark = [
    pytest.mark.usefixtures("unchecked_types"),
    pytest.mark.whole,
    pytest.mark.integration,
]


@pytest.fixture(scope="module")
def networks() -> list[Any]:
    torch.manual_seed(0)
    return [run_of(NETWORKS[name]()) for name in ("capsnet", "em", "dense units")]


@pytest.fixture(scope="module")
def colour() -> Any:
    torch.manual_seed(0)
    return run_of(NETWORKS["colour"](), IN_COLOUR)


@pytest.fixture(scope="module")
def digit(networks: list[Any]) -> torch.Tensor:
    return loaded(networks[0], "drawing").images[5]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    options = ["--no-sandbox", "--disable-gpu"]
    with playwright.sync_playwright() as started:
        yield started.chromium.launch(executable_path=chromium, args=options)


class Opened:
    """The page in a browser, with its requests and errors."""

    def __init__(self, browser: Any, file: Path, address: str = "", **options: Any) -> None:
        size = {"width": 1280, "height": 900}
        self.page = browser.new_context(**{"viewport": size, **options}).new_page()
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self.keep_error)
        self.page.goto(file.as_uri() + address)
        self.page.wait_for_function("() => window.explorer && window.explorer.ready")

    def keep_error(self, message: Any) -> None:
        if message.type == "error":
            self.problems.append(message.text)

    def text(self, selector: str) -> str:
        found: str = self.page.locator(selector).first.text_content()
        return found

    def value(self, expression: str, *given: Any) -> Any:
        return self.page.evaluate(expression, *given)


@pytest.fixture(scope="module")
def folder(networks: list[Any], colour: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "load", loaded)
        Page(render(networks), 900).save(folder / "page.html")
        Page(render([colour]), 900).save(folder / "colour.html")
        Page(render([networks[1]]), 900).save(folder / "em.html")
    return folder


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    return folder / "page.html"


PIXELS = (
    "id => [...document.getElementById(id).getContext('2d').getImageData(0, 0, 200, 200).data]"
    ".reduce((a, b) => a + b)"
)


SCORES = "[...explorer.result().scores]"
WIDTHS = "[...document.querySelectorAll('#bars b')].map((bar) => bar.style.width)"


def test_scores_in_a_browser_are_those_of_torch(
    browser: Any, file: Path, networks: list[Any], digit: torch.Tensor
) -> None:
    opened = Opened(browser, file)
    opened.value("values => explorer.show(values)", digit.flatten().tolist())
    with torch.no_grad():
        expected = networks[0].network(digit[None]).scores[0].tolist()
    found = opened.value(SCORES)
    assert found == pytest.approx(expected, abs=1e-3)  # half precision


def test_page_works_in_a_browser(browser: Any, file: Path, digit: torch.Tensor) -> None:
    opened = Opened(browser, file)
    page = opened.page
    opened.value("values => explorer.show(values)", digit.flatten().tolist())
    verdict = "document.getElementById('verdict').textContent"
    page.click("#clear")
    page.wait_for_function(f"() => {verdict} === 'Nothing is drawn.'")
    assert opened.value(WIDTHS) == ["0px"] * 10, "empty bars"
    assert not page.locator("#couplings p").first.is_visible()
    box = page.locator("#pad").bounding_box()
    page.mouse.move(box["x"] + 150, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 140, box["y"] + 220, steps=8)
    page.mouse.up()
    page.wait_for_function(f"() => {verdict} !== 'Nothing is drawn.'")
    assert opened.value(WIDTHS) != ["0px"] * 10
    page.wait_for_function("() => location.hash.startsWith('#image=')")

    before = opened.value(PIXELS, "decoded")
    page.locator("#sliders input").first.evaluate(
        "input => { input.value = input.max; input.oninput(); }"
    )
    assert opened.value(PIXELS, "decoded") != before

    page.check("#equal")
    assert "for this class in the painted digits" in opened.text("#pose")
    assert "Evenness of all shares: 1.0000" in opened.text("#range")
    page.keyboard.press("Tab")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowLeft")
    assert opened.text("#step") == "iteration 2 of 3"
    page.locator("#em-temperature").evaluate(
        "input => { input.value = -0.5; input.oninput({ target: input }); }"
    )
    page.check("input[value=shear]")
    page.wait_for_function("() => location.hash.includes('change=shear')")
    page.wait_for_function(
        "() => document.getElementById('changes-note').textContent.includes('the CNN')"
    )
    kept = f"({{ ...explorer.state, image: null, scores: {SCORES} }})"
    state = opened.value(kept)
    _, _, address = page.url.partition("#")

    again = Opened(browser, file, f"#{address}")
    restored = again.value(kept)
    scores = state.pop("scores")
    # sixteen grey values in an address
    assert restored.pop("scores") == pytest.approx(scores, abs=0.1)
    assert restored == state
    for each in (opened, again):  # some browsers leave out what follows the #
        assert [request.partition("#")[0] for request in each.requests] == [file.as_uri()]
    assert opened.problems == again.problems == []
    assert opened.text("#bars .bar").startswith("</script><b>")


def test_chosen_picture_is_fitted_and_classified(
    browser: Any, folder: Path, colour: Any, tmp_path: Path
) -> None:
    levels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    picture = Image.fromarray(levels)
    picture.save(tmp_path / "a.png")
    opened = Opened(browser, folder / "colour.html")
    opened.page.set_input_files("#file", tmp_path / "a.png")
    opened.page.wait_for_function("() => location.hash.startsWith('#image=')")
    pixels = np.array(fitted(picture, (24, 20), "crop", "white"))
    expected = torch.from_numpy(np.moveaxis(pixels, 2, 0).copy()).float() / 255
    found = opened.value("[...explorer.image()]")
    assert found == pytest.approx(expected.flatten().tolist(), abs=1.5 / 255)
    with torch.no_grad():
        scores = colour.network(expected[None]).scores[0].tolist()
    assert opened.value(SCORES) == pytest.approx(scores, abs=2e-3)
    (tmp_path / "b.png").write_text("no picture")
    opened.page.set_input_files("#file", tmp_path / "b.png")
    message = "b.png cannot be read as a picture; expected PNG"
    opened.page.wait_for_function(
        f"() => document.getElementById('verdict').textContent.startsWith('{message}')"
    )
    assert opened.problems == []
    assert not opened.page.locator("#clear").is_visible()


def test_couplings_are_on_the_picture(browser: Any, folder: Path) -> None:
    opened = Opened(browser, folder / "colour.html")
    page, look = opened.page, opened.page.locator("#look")
    assert opened.text("#look-note").startswith("Shares of all small capsules together.")
    look.scroll_into_view_if_needed()
    box = look.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.9)
    # kernels of 9 and, with stride 2, of 9: 17 pixels, on a grid of 2x4 places, 2 pixels apart
    expected = "at row 2, column 4 of the grid: the frame has rows 3 to 19 and columns 7 to 23"
    assert expected in opened.text("#look-note")
    before = opened.value(PIXELS, "look")
    page.locator("#look-bars .bar").nth(1).hover()
    assert opened.text("#chosen") == "disc"
    assert opened.value(PIXELS, "look") != before
    look.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "at row 2, column 1 of the grid" in opened.text("#look-note")
    assert opened.text("#step") == "iteration 3 of 3", "arrows stay here"
    page.keyboard.press("Escape")
    assert opened.text("#look-note").startswith("Shares of all small capsules together.")
    page.locator("#maps").hover(position={"x": 13, "y": 13})
    assert "Capsule 1 of 2 at row 1, column 1" in opened.text("#look-note")
    assert opened.problems == []


def test_text_is_that_of_the_network(browser: Any, folder: Path) -> None:
    vectors = Opened(browser, folder / "page.html")
    matrices = Opened(browser, folder / "em.html")
    assert "A capsule is a vector: its length" in vectors.text("#lead")
    assert "a pose, which is a 4x4 matrix" in matrices.text("#lead")
    assert "not compared like lengths" in matrices.text("#score-note")
    assert re.search(r"\. Lead: \d+\.\d\.$", matrices.text("#verdict"))
    numbers = [
        "[...document.querySelectorAll('section:not(#about):not([hidden])')].map(({ id }) => id)",
        "getComputedStyle(document.querySelector('#em h2'), '::before').content",
    ]
    sections, counter = (matrices.value(each) for each in numbers)
    assert sections == ["draw", "sandbox", "couplings", "em", "changes"], "no decoder, no sliders"
    assert counter == 'counter(section) ". "'


def test_sandbox_routes(browser: Any, file: Path) -> None:
    page = Opened(browser, file).page
    start = page.evaluate("Sandbox.state()")
    for _ in range(8):
        page.click("#agree-next")
        page.click("#mixture-next")
    routed = page.evaluate("Sandbox.state()")
    for first_before, _ in start["couplings"]:
        assert first_before == 0.5
    for first_after, _ in routed["couplings"]:
        assert first_after > 0.5
    for gaussian in page.evaluate("Mixture.state()")["gaussians"]:
        assert gaussian["mass"] == pytest.approx(10, abs=0.01), "each has found its group"
    box = page.locator("#agree").bounding_box()
    x, y = box["x"] + box["width"] * 0.25, box["y"] + 95
    page.mouse.move(x + 75 * 0.8, y - 75 * 0.5)
    page.mouse.down()
    page.mouse.move(x - 60, y + 40, steps=4)
    page.mouse.up()
    assert page.evaluate("Sandbox.state()")["iteration"] == 0, "a moved vote starts again"


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_page_fits_the_screen(browser: Any, file: Path, width: int, scheme: str) -> None:
    size = {"width": width, "height": 844}
    opened = Opened(browser, file, viewport=size, color_scheme=scheme, reduced_motion="reduce")
    assert opened.value("document.documentElement.scrollWidth <= innerWidth")
    heights = opened.value(
        "[...document.querySelectorAll('button, select, summary, input[type=range], .check')].map((each) => "
        "each.getBoundingClientRect().height).filter((height) => height > 0)"
    )
    assert min(heights) >= 32, "pixels for a finger"
    bars = opened.page.locator("#bars").bounding_box()
    assert bars["y"] + bars["height"] < 844, "pad and bars are on one screen"
    missing = opened.value(
        "[...document.querySelectorAll('canvas, input, select, button')].filter((each) => !each.ariaLabel &&"
        " !each.labels?.length && !each.textContent.trim() && !each.hidden).map((each) => each.outerHTML)"
    )
    assert missing == [], "everything has a name for a screen reader"
