"""The page of the explorer in a browser."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from capsule_lab import runs
from capsule_lab.data.formats.pictures import fitted
from capsule_lab.networks import EfficientCapsNet
from capsule_lab.types import DataSpec
from capsule_studies.explorer import Page, pictures
from capsule_studies.explorer.page import render
from capsule_studies.tests.explorer_networks import COLOUR, NETWORKS
from capsule_studies.tests.explorer_pages import IN_COLOUR, loaded, run_of

PROBE = Path(__file__).with_name("probe.js")
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


class Opened:
    """The page in a browser, with its requests and errors."""

    def __init__(self, browser: Any, file: Path, address: str = "", **options: Any) -> None:
        options.setdefault("viewport", {"width": 1280, "height": 900})
        self.page = browser.new_context(**options).new_page()
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self.keep_error)
        self.page.add_init_script(path=PROBE)
        self.page.goto(file.as_uri() + address)
        self.page.wait_for_function("() => window.explorer && window.explorer.ready")

    def keep_error(self, message: Any) -> None:
        if message.type == "error":
            self.problems.append(message.text)

    def shows(self, selector: str, text: str) -> None:
        """Check the text of an element."""
        assert text in self.text(selector)

    def point(self, selector: str, x: float, y: float) -> None:
        """Move the mouse to a place of an element, in shares of its width and height."""
        element = self.page.locator(selector)
        element.scroll_into_view_if_needed()
        box = element.bounding_box()
        across = box["x"] + x * box["width"]
        down = box["y"] + y * box["height"]
        self.page.mouse.move(across, down, steps=8)

    def drag(
        self,
        selector: str,
        start: tuple[float, float],
        end: tuple[float, float],
    ) -> None:
        self.point(selector, *start)
        self.page.mouse.down()
        self.point(selector, *end)
        self.page.mouse.up()

    def wait(self, expression: str) -> None:
        self.page.wait_for_function(f"() => {expression}")

    def probe(self, name: str, *given: Any) -> Any:
        """Return what a function of ``probe.js`` finds."""
        return self.page.evaluate(f"given => probe.{name}(given)", *given)

    def text(self, selector: str) -> str:
        found: str = self.page.locator(selector).first.text_content()
        return found

    def show(self, image: torch.Tensor) -> None:
        values = image.flatten().tolist()
        self.page.evaluate("values => explorer.show(values)", values)


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


def scores_of(run: Any, image: torch.Tensor) -> list[float]:
    with torch.no_grad():
        output = run.network(image[None])
    scores: list[float] = output.scores[0].tolist()
    return scores


def test_scores_in_a_browser_are_those_of_torch(
    browser: Any, file: Path, networks: list[Any], digit: torch.Tensor
) -> None:
    opened = Opened(browser, file)
    opened.show(digit)
    expected = scores_of(networks[0], digit)
    found = opened.probe("scores")
    assert found == pytest.approx(expected, abs=1e-3)  # half precision


def test_page_works_in_a_browser(browser: Any, file: Path, digit: torch.Tensor) -> None:
    opened = Opened(browser, file)
    page = opened.page
    opened.show(digit)
    page.click("#clear")
    opened.wait("probe.verdict() === 'Nothing is drawn.'")
    assert opened.probe("widths") == ["0px"] * 10, "empty bars"
    assert not page.locator("#couplings p").first.is_visible()
    opened.drag("#pad", (0.53, 0.21), (0.5, 0.79))
    opened.wait("probe.verdict() !== 'Nothing is drawn.'")
    assert opened.probe("widths") != ["0px"] * 10
    opened.wait("location.hash.startsWith('#image=')")

    before = opened.probe("pixels", "decoded")
    opened.probe("move", ["#sliders input[type=range]", None])
    assert opened.probe("pixels", "decoded") != before

    page.evaluate("probe.keepTexts()")
    for name in page.locator("#sliders input[type=text]").all():
        name.fill("slant & <width>")
        name.blur()
    opened.wait("location.hash.includes('=slant%20%26%20%3Cwidth%3E')")
    opened.wait("probe.texts.includes('slant & <width>')")

    page.check("#equal")
    opened.shows("#pose", "for this class in the painted digits")
    opened.shows("#range", "Evenness of all shares: 1.0000")
    page.keyboard.press("Tab")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowLeft")
    assert opened.text("#step") == "iteration 2 of 3"
    opened.probe("move", ["#em-temperature", -0.5])
    page.check("input[value=shear]")
    opened.wait("location.hash.includes('change=shear')")
    note = "document.getElementById('changes-note').textContent"
    opened.wait(f"{note}.includes('the CNN')")
    state = opened.probe("state")
    scores = opened.probe("scores")
    _, _, address = page.url.partition("#")

    again = Opened(browser, file, f"#{address}")
    # sixteen grey values in an address
    assert again.probe("scores") == pytest.approx(scores, abs=0.1)
    assert again.probe("state") == state
    for name in again.page.locator("#sliders input[type=text]").all():
        assert name.input_value() == "slant & <width>"
        name.fill("")
    again.wait("!location.hash.includes('label')")
    for each in (opened, again):
        (request,) = each.requests
        address, _, _ = request.partition("#")  # some browsers leave out what follows
        assert address == file.as_uri()
    assert opened.problems == again.problems == []
    opened.shows("#bars .bar", "</script><b>")


def test_chosen_picture_is_fitted_and_classified(
    browser: Any, folder: Path, colour: Any, tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    levels = generator.integers(0, 256, (50, 70, 3), dtype=np.uint8)
    picture = Image.fromarray(levels)
    picture.save(tmp_path / "a.png")
    opened = Opened(browser, folder / "colour.html")
    opened.page.set_input_files("#file", tmp_path / "a.png")
    opened.wait("location.hash.startsWith('#image=')")
    pixels = np.array(fitted(picture, (24, 20), "crop", "white"))
    expected = torch.from_numpy(pixels).movedim(2, 0) / 255
    values = expected.flatten().tolist()
    found = opened.probe("image")
    assert found == pytest.approx(values, abs=1.5 / 255)
    scores = scores_of(colour, expected)
    assert opened.probe("scores") == pytest.approx(scores, abs=2e-3)
    (tmp_path / "b.png").write_text("no picture")
    opened.page.set_input_files("#file", tmp_path / "b.png")
    message = "b.png cannot be read as a picture; expected PNG"
    opened.wait(f"probe.verdict().startsWith('{message}')")
    assert opened.problems == []
    assert not opened.page.locator("#clear").is_visible()


def test_couplings_are_on_the_picture(browser: Any, folder: Path) -> None:
    opened = Opened(browser, folder / "colour.html")
    page = opened.page
    look = page.locator("#look")
    opened.shows("#look-note", "Shares of all small capsules together.")
    opened.point("#look", 0.9, 0.9)
    # kernels of 9 and, with stride 2, of 9: 17 pixels, on a grid of 2x4 places, 2 pixels apart
    expected = "at row 2, column 4 of the grid: the frame has rows 3 to 19 and columns 7 to 23"
    opened.shows("#look-note", expected)
    before = opened.probe("pixels", "look")
    page.locator("#look-bars .bar").nth(1).hover()
    assert opened.text("#chosen") == "disc"
    assert opened.probe("pixels", "look") != before
    look.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    opened.shows("#look-note", "at row 2, column 1 of the grid")
    assert opened.text("#step") == "iteration 3 of 3", "arrows stay here"
    page.keyboard.press("Escape")
    opened.shows("#look-note", "Shares of all small capsules together.")
    page.locator("#maps").hover(position={"x": 13, "y": 13})
    opened.shows("#look-note", "Capsule 1 of 2 at row 1, column 1")
    assert opened.problems == []


def test_text_is_that_of_the_network(browser: Any, folder: Path) -> None:
    vectors = Opened(browser, folder / "page.html")
    matrices = Opened(browser, folder / "em.html")
    vectors.shows("#lead", "A capsule is a vector: its length")
    matrices.shows("#lead", "a pose, which is a 4x4 matrix")
    matrices.shows("#score-note", "not compared like lengths")
    assert re.search(r"\. Lead: \d+\.\d\.$", matrices.text("#verdict"))
    shown = ["draw", "sandbox", "couplings", "em", "changes"]
    assert matrices.probe("sections") == shown, "no decoder, no sliders"
    assert matrices.probe("counter") == 'counter(section) ". "'


OTHERS = (
    "capsnet of two layers",
    "em, windows",
    "self-routing network",
)


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_have_a_page_without_errors(
    browser: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "load", loaded)
    network = NETWORKS[name]()
    data = IN_COLOUR if network.image_shape == COLOUR else None
    run = run_of(network, data)
    file = tmp_path / "page.html"
    Page(render([run]), 900).save(file)
    opened = Opened(browser, file)
    opened.wait("document.getElementById('changes-note').textContent")
    assert sum(opened.probe("scores")) > 0
    assert opened.problems == []


# in shares of the canvas
TIP_OF_A_VOTE = (
    (420 / 2 / 2 + 75 * 0.8) / 420,
    (95 - 75 * 0.5) / 230,
)


def test_sandbox_routes(browser: Any, file: Path) -> None:
    opened = Opened(browser, file)
    page = opened.page
    start = page.evaluate("Sandbox.state()")
    for _ in range(8):
        page.click("#agree-next")
        page.click("#mixture-next")
    routed = page.evaluate("Sandbox.state()")
    for before, _ in start["couplings"]:
        assert before == 0.5
    for after, _ in routed["couplings"]:
        assert after > 0.5
    for gaussian in page.evaluate("Mixture.state()")["gaussians"]:
        assert gaussian["mass"] == pytest.approx(10, abs=0.01), "each has found its group"
    opened.drag("#agree", TIP_OF_A_VOTE, (0.1, 0.6))
    moved = page.evaluate("Sandbox.state()")
    assert moved["iteration"] == 0, "a moved vote starts again"


def test_names_of_classes_and_the_table_of_networks_fit_a_narrow_screen(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "load", loaded)
    spec = DataSpec(COLOUR, 3, classes=("atypical", "malignant", "benign"))
    run = run_of(EfficientCapsNet(COLOUR, 3), spec)
    run.provenance = {"name": "pictures of lesions"}
    metrics = {"test": {"error": 12.34}}
    monkeypatch.setattr(runs.results, "read_metrics", lambda _: metrics)
    file = tmp_path / "page.html"
    Page(render([run]), 900).save(file)
    opened = Opened(browser, file, viewport={"width": 390, "height": 844})
    assert opened.probe("cut", ".bar span:first-child") == []
    assert opened.probe("cut", ".wide") == []
    assert opened.text("#records").startswith("networkEfficientCapsNetparameters")


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_page_fits_the_screen(browser: Any, file: Path, width: int, scheme: str) -> None:
    size = {"width": width, "height": 844}
    opened = Opened(browser, file, viewport=size, color_scheme=scheme, reduced_motion="reduce")
    assert opened.probe("fits")
    heights = opened.probe("heights")
    assert min(heights) >= 32, "pixels for a finger"
    bars = opened.page.locator("#bars").bounding_box()
    assert bars["y"] + bars["height"] < 844, "pad and bars are on one screen"
    missing = opened.probe("unnamed")
    assert missing == [], "everything has a name for a screen reader"
