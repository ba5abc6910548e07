"""The page of the explorer as text; in a browser, see ``test_browser.py``."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from capsule_lab import runs
from capsule_lab.data import CIFAR10DataModule, MNISTDataModule, SVHNDataModule
from capsule_lab.errors import RunError
from capsule_lab.types import DataSpec
from capsule_studies.explorer import Page, pictures
from capsule_studies.explorer import page as module
from capsule_studies.explorer.page import render
from capsule_studies.explorer.pictures import Pictures
from capsule_studies.tests.explorer_networks import COLOUR, NETWORKS, SHAPE
from capsule_studies.tests.explorer_pages import IN_COLOUR, NAMES, loaded, run_of
from docs import site_parts
from tests.helpers.commands import ROOT, Cli, Trained
from tests.helpers.make_pictures import make_pictures
from tests.helpers.networks import pictures as random_images

pytestmark = pytest.mark.usefixtures("unchecked_types")


@pytest.fixture(autouse=True)
def digits(monkeypatch: pytest.MonkeyPatch) -> Pictures:
    monkeypatch.setattr(pictures, "load", loaded)
    return loaded(SimpleNamespace(spec=DataSpec(SHAPE, 10)), "drawing")


@pytest.fixture(scope="module")
def networks() -> list[Any]:
    torch.manual_seed(0)
    return [run_of(NETWORKS[name]()) for name in ("capsnet", "em", "dense units")]


@pytest.fixture(scope="module")
def colour() -> Any:
    torch.manual_seed(0)
    return run_of(NETWORKS["colour"](), IN_COLOUR)


def facts_of(text: str) -> dict[str, Any]:
    found = re.search(r'id="facts">(.*?)</script>', text)
    assert found is not None
    facts: dict[str, Any] = json.loads(found[1])
    return facts


def test_facts_are_in_the_page(networks: list[Any], digits: Pictures) -> None:
    facts = facts_of(render(networks))
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


def test_networks_of_other_classes_are_not_shown_together(colour: Any) -> None:
    other_names = replace(colour.spec, classes=("square", "disc", "cross"))
    beside = run_of(NETWORKS["colour"](), other_names)
    message = "has the classes square, disc, cross; expected those of a.ckpt, cross, disc, square: "
    with pytest.raises(RunError, match=message):
        render([colour, beside])


@pytest.mark.whole
@pytest.mark.parametrize(("tested", "images"), [("best", 10_000), ("last", 10_000), ("best", 10)])
def test_error_is_that_of_the_weights_on_all_test_images(
    networks: list[Any], monkeypatch: pytest.MonkeyPatch, tested: str, images: int
) -> None:
    first = networks[0]
    first.step = 5
    metrics = {
        "weights_tested": tested,
        "tested_step": first.step,
        "test": {"error": 1.25},
        "image_counts": {"test": images, "test_set": 10_000},
    }
    monkeypatch.setattr(runs.results, "read_metrics", lambda _: metrics)
    monkeypatch.setattr(first, "checkpoint", Path("checkpoints/best.ckpt"))
    error = facts_of(render([first]))["networks"][0]["error"]
    is_shown = tested == "best" and images == 10_000
    assert error == (1.25 if is_shown else None)


def test_pictures_of_any_classes_are_chosen_and_fitted(colour: Any) -> None:
    facts = facts_of(render([colour]))
    assert facts["names"] == ["cross", "disc", "square"]
    assert facts["entry"] == {"source": "file", "fit": "crop", "background": [255, 255, 255]}
    shown = facts["examples"]
    labels = [example["label"] for example in shown["pictures"]]
    assert labels == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    levels = np.frombuffer(base64.b64decode(shown["pictures"][0]["pixels"]), dtype=np.uint8)
    expected = 255 * random_images(60, COLOUR)[0].flatten()
    assert levels == pytest.approx(expected.round().numpy())


@pytest.mark.parametrize(
    ("data", "source"),
    [(MNISTDataModule, "drawing"), (SVHNDataModule, "file"), (CIFAR10DataModule, "examples")],
)
def test_data_module_decides_how_a_picture_is_entered(
    data: Any, source: str, tmp_path: Path
) -> None:
    run: Any = SimpleNamespace(build_data=lambda: data(directory=tmp_path))
    assert pictures.entry(run)["source"] == source


def test_run_without_its_pictures_has_a_page_without_examples(
    colour: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.undo()

    def absent(run: Any) -> None:
        raise RunError("the data set is not on this machine")

    monkeypatch.setattr(pictures, "check_data_is_here", absent)
    facts = facts_of(render([colour]))
    assert facts["examples"]["pictures"] == []
    assert facts["ranges"] is None
    assert facts["networks"][0]["rounding"] > 0
    assert "the page has no examples and no sliders" in caplog.text


def test_images_and_pages_that_cannot_be_shown_are_refused(
    networks: list[Any], colour: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stereo = SimpleNamespace(**vars(colour) | {"spec": DataSpec((2, 20, 24), 3)})
    with pytest.raises(RunError, match="has images of 2 channels; expected 1 or 3"):
        render([stereo])
    pairs = SimpleNamespace(**vars(colour) | {"spec": DataSpec(COLOUR, 3, labels_per_image=2)})
    with pytest.raises(RunError, match="has 2 labels for an image; expected one"):
        render([pairs])
    message = "has 3 classes of images of 3x20x24; expected those of a.ckpt, 10 classes of"
    with pytest.raises(RunError, match=message):
        render([networks[0], colour])
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


@pytest.mark.whole
@pytest.mark.integration
def test_command_writes_the_page_of_a_folder_of_pictures(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the examples are those of the folder
    folder = make_pictures(tmp_path / "pictures", per_class=10)
    options = ["data=folder", f"data.path={folder}", "data.size=32", "model=capsnet_slim"]
    run = f"train.directory={tmp_path / 'run'}"
    ended = cli("train", *options, "trainer.max_steps=1", run)
    assert ended.status == 0, ended.err
    ended = cli("explorer", f"ckpt={tmp_path / 'run'}", f"out={tmp_path / 'a.html'}")
    assert ended.status == 0, ended.err
    facts = facts_of((tmp_path / "a.html").read_text())
    assert facts["names"] == ["cross", "disc", "square"]
    assert facts["examples"]["what"] == "training images"


def test_notebook_shows_the_page_in_a_frame() -> None:
    page = Page('<p title="a">&</p>', 300)
    assert '<iframe srcdoc="&lt;p title=&quot;a&quot;&gt;&amp;&lt;/p&gt;" ' in page._repr_html_()
    assert "MB" in repr(page)


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


def test_pages_of_the_site_open_the_explorer_as_a_page_of_its_own() -> None:
    folder = ROOT / "docs"
    for name in ("index.md", "capsules.md", "guides/explorer.md"):
        page = folder / name
        text = page.read_text()
        (link,) = re.findall(r'<a href="(.*?)"[^>]*>Open the explorer</a>', text)
        linked = page.parent / link
        assert linked.resolve() == folder / "explorer.html", name
        assert "<iframe" not in text


@pytest.mark.whole
def test_site_has_the_explorer_where_its_pages_link_it(tmp_path: Path) -> None:
    built = SimpleNamespace(outdir=tmp_path, builder=SimpleNamespace(name="html"))
    (tmp_path / "docs").mkdir()
    site_parts.write_files(built, None)
    text = (tmp_path / "docs" / "explorer.html").read_text()
    roles = [network["role"] for network in facts_of(text)["networks"]]
    assert roles == ["first", "em", "cnn"]
