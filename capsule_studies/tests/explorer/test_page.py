"""The page of the explorer, as text and in a browser."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from capsule_lab.data.standins.digits import standin_digits
from capsule_lab.errors import RunError
from capsule_lab.types import DataSpec
from capsule_studies.explorer import Page
from capsule_studies.explorer import page as module
from capsule_studies.explorer.page import Digits, render
from capsule_studies.tests.explorer_networks import NETWORKS, SHAPE, with_statistics
from tests.helpers.commands import Cli, Trained

pytestmark = pytest.mark.usefixtures("unchecked_types")
NAMES = ("</script><b>", 'two "quotes"', *"23456789")


def run_of(network: Any, spec: DataSpec | None = None) -> Any:
    return SimpleNamespace(
        network=with_statistics(network),
        spec=spec or DataSpec(SHAPE, 10, classes=NAMES),
        checkpoint=Path("a.ckpt"),
        directory=Path("none"),
        provenance={"name": "stand-in"},
        check_classifies=lambda name: None,
    )


def painted_digits() -> Digits:
    stored = standin_digits(train=True)
    images = stored.images[:300].float() / 255
    return Digits(images, stored.labels[:300], "painted digits")


@pytest.fixture(autouse=True)
def digits(monkeypatch: pytest.MonkeyPatch) -> Digits:
    digits = painted_digits()
    monkeypatch.setattr(module, "_digits", lambda run: digits)
    return digits


@pytest.fixture(scope="module")
def networks() -> list[Any]:
    torch.manual_seed(0)
    return [run_of(NETWORKS[name]()) for name in ("capsnet", "em", "dense units")]


def test_facts_are_in_the_page(networks: list[Any], digits: Digits) -> None:
    text = render(networks)
    found = re.search(r'id="facts">(.*?)</script>', text)
    assert found is not None
    facts = json.loads(found[1])
    assert facts["names"] == list(NAMES)
    roles = [network["role"] for network in facts["networks"]]
    assert roles == ["first", "em", "cnn"]
    for network in facts["networks"]:
        assert 0 <= network["rounding"] < 0.01
    threes = digits.images[digits.labels == 3]
    with torch.no_grad():
        output = networks[0].network(threes)
    poses = output.capsules.poses[:, 3]
    mean, std = poses.mean(0).tolist(), poses.std(0).tolist()
    assert facts["ranges"]["mean"][3] == pytest.approx(mean, abs=1e-6)
    assert facts["ranges"]["std"][3] == pytest.approx(std, abs=1e-6)


def test_page_names_no_address(networks: list[Any]) -> None:
    text = re.sub(r'<script type="text/plain".*?</script>', "", render(networks))
    assert "http" not in text.replace("http-equiv", "")


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (("dense units",), "has a MatchedCNN; expected a network with capsules as ckpt"),
        (("capsnet", "efficient"), "has a EfficientCapsNet; expected an EMCaps or a CNN beside it"),
        (("capsnet", "em", "em"), "is a second EMCaps beside; expected one"),
    ],
)
def test_networks_that_cannot_be_shown_are_named(chosen: tuple[str, ...], message: str) -> None:
    opened = [run_of(NETWORKS[name]()) for name in chosen]
    with pytest.raises(RunError, match=message):
        render(opened)


def test_other_images_and_large_pages_are_refused(
    networks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    colour = run_of(NETWORKS["capsnet"](), DataSpec((3, 32, 32), 10))
    message = "has 10 classes of images of 3x32x32; expected the ten digits of 1x28x28"
    with pytest.raises(RunError, match=message):
        render([colour])
    monkeypatch.setattr(module, "LARGEST", 100_000)
    message = r"the page would have 0\.\d MB; expected at most 0: explore a smaller network"
    with pytest.raises(RunError, match=message):
        render(networks)


@pytest.mark.integration
def test_command_writes_the_page(cli: Cli, trained: Trained, tmp_path: Path) -> None:
    ended = cli("explorer", f"ckpt={trained.directory}", f"out={tmp_path / 'a.html'}")
    assert ended.status == 0, ended.err
    assert "MB); open it in a browser" in ended.out
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")


def test_notebook_shows_the_page_in_a_frame() -> None:
    page = Page('<p title="a">&</p>', 300)
    assert '<iframe srcdoc="&lt;p title=&quot;a&quot;&gt;&amp;&lt;/p&gt;" ' in page._repr_html_()
    assert "MB" in repr(page)


# --- in a browser ---


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

    def value(self, expression: str, *given: Any) -> Any:
        return self.page.evaluate(expression, *given)


@pytest.fixture(scope="module")
def file(networks: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_digits", lambda run: painted_digits())
        Page(render(networks), 900).save(path)
    return path


PIXELS = (
    "id => [...document.getElementById(id).getContext('2d').getImageData(0, 0, 200, 200).data]"
    ".reduce((a, b) => a + b)"
)


SCORES = "[...explorer.result().scores]"


@pytest.mark.whole
@pytest.mark.integration
def test_scores_in_a_browser_are_those_of_torch(
    browser: Any, file: Path, networks: list[Any], digits: Digits
) -> None:
    opened = Opened(browser, file)
    image = digits.images[5]
    opened.value("values => explorer.show(values)", image.flatten().tolist())
    with torch.no_grad():
        expected = networks[0].network(image[None]).scores[0].tolist()
    found = opened.value(SCORES)
    assert found == pytest.approx(expected, abs=1e-3)  # half precision


@pytest.mark.whole
@pytest.mark.integration
def test_page_works_in_a_browser(browser: Any, file: Path, digits: Digits) -> None:
    opened = Opened(browser, file)
    page = opened.page
    opened.value("values => explorer.show(values)", digits.images[5].flatten().tolist())
    verdict = "document.getElementById('verdict').textContent"
    page.click("#clear")
    page.wait_for_function(f"() => {verdict} === 'Nothing is drawn.'")
    blank = opened.value(SCORES)
    box = page.locator("#pad").bounding_box()
    page.mouse.move(box["x"] + 150, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 140, box["y"] + 220, steps=8)
    page.mouse.up()
    page.wait_for_function(f"() => {verdict} !== 'Nothing is drawn.'")
    assert opened.value(SCORES) != blank
    page.wait_for_function("() => location.hash.startsWith('#image=')")

    before = opened.value(PIXELS, "decoded")
    page.locator("#sliders input").first.evaluate(
        "input => { input.value = input.max; input.oninput(); }"
    )
    assert opened.value(PIXELS, "decoded") != before

    page.check("#equal")
    assert "for this digit in the painted digits" in page.locator("#pose").text_content()
    assert "Evenness of all shares: 1.0000" in page.locator("#range").text_content()
    page.keyboard.press("Tab")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#step").text_content() == "iteration 2 of 3"
    page.locator("#em-temperature").evaluate(
        "input => { input.value = -1; input.oninput({ target: input }); }"
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
    assert page.locator("#bars .bar").first.text_content().startswith("</script><b>")


@pytest.mark.whole
@pytest.mark.integration
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


@pytest.mark.whole
@pytest.mark.integration
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_page_fits_the_screen(browser: Any, file: Path, width: int, scheme: str) -> None:
    size = {"width": width, "height": 844}
    opened = Opened(browser, file, viewport=size, color_scheme=scheme, reduced_motion="reduce")
    assert opened.value("document.documentElement.scrollWidth <= innerWidth")
    missing = opened.value(
        "[...document.querySelectorAll('canvas, input, select, button')].filter((each) => !each.ariaLabel &&"
        " !each.labels?.length && !each.textContent.trim() && !each.hidden).map((each) => each.outerHTML)"
    )
    assert missing == [], "everything has a name for a screen reader"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("which", [0, 1])
def test_network_with_weights_that_are_not_finite_is_refused(value: float, which: int) -> None:
    opened = [run_of(NETWORKS["capsnet"]()), run_of(NETWORKS["em"]())]
    weight = next(opened[which].network.parameters())
    with torch.no_grad():
        weight.view(-1)[0] = value
    message = r"the network of a\.ckpt gives sum of .* (nan|inf).*; expected finite numbers"
    with pytest.raises(RunError, match=message):
        render(opened)


def test_page_has_no_number_that_json_does_not_know() -> None:
    with pytest.raises(RunError, match="the page cannot be written"):
        module.as_json({"a": [float("nan")]})
