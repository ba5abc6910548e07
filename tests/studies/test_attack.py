"""``python -m capsule_lab attack``: its record, its figures, and what it says of wrong input."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from capsule_lab.config.compose import compose
from capsule_lab.studies.attack import attack, tables
from capsule_lab.studies.attacks.figures import accuracy_figure
from capsule_lab.studies.study import Outcome
from tests.helpers.commands import Ended
from tests.helpers.fakes import captions, row_names
from tests.helpers.messages import one_sentence

Cli = Callable[..., Ended]
SMALL = ["images=20", "epsilons=[0,0.1,0.3]", "trainer.accelerator=cpu"]


@pytest.fixture(autouse=True)
def _short_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsule_lab.studies.attacks.checks.STEPS", (1, 2))
    monkeypatch.setattr("capsule_lab.studies.attacks.checks.QUERIES", 5)


def attacked(run: Path, *overrides: str) -> Outcome:
    return attack(compose("attack", [f"ckpt={run}", "checks=false", *SMALL, *overrides]))


def test_record_and_figures_lie_beside_the_checkpoint(cli: Cli, a_copy: Path) -> None:
    options = [f"baseline={a_copy}", "attack=fgsm", "check_images=4", "logger=tensorboard"]
    ended = cli("attack", f"ckpt={a_copy}", *options, *SMALL)
    assert ended.status == 0, ended.err
    (path,) = (a_copy / "attacks").glob("best-test-fgsm-standin-*.json")
    record = json.loads(path.read_text())
    assert record["images"] == 20
    assert record["options"]["_target_"] == "capsule_lab.studies.attacks.gradient.fgsm"
    assert record["attack"]["0/accuracy"] == 100 - record["test"]["error"], "nothing is done at epsilon 0"
    assert record["attack"]["0.3/accuracy"] <= record["attack"]["0.1/accuracy"] <= record["attack"]["0/accuracy"]
    assert record["attack"]["0.1/mean_grey_levels"] == pytest.approx(255 * record["attack"]["0.1/mean_change"])
    assert record["provenance"]["source"] == "standin"
    assert len(record["checks"]) == 11
    assert {check["passed"] for check in record["checks"]} <= {True, False}
    assert "can it be believed?" in ended.out
    names = {file.stem for file in (a_copy / "figures").glob(f"*{path.stem}.png")}
    assert names == {f"{figure}_{path.stem}" for figure in ("attack", "attacked", "reliability")}
    assert {"detected", "calibration_error", "brier"} <= record["test"].keys()
    assert 0 <= record["attack"]["0.1/undetected_error"] <= record["attack"]["0.1/error"]
    assert record["attack"]["0/detection_area"] == pytest.approx(50), "the same images"
    assert list(a_copy.rglob("events.out.tfevents*")), "figures go to the loggers of the run"
    console = Console(width=80, file=io.StringIO())
    console.print(tables(record)[0])
    words = {*console.file.getvalue().split()}
    assert {"epsilon", "accuracy", "interval", "success", "grey", "calibration", "detected", "stand-in"} <= words
    assert not any("…" in word for word in words), "heads of the table are whole at 80 columns"


def test_figures_name_network_and_data_and_leave_no_epsilon_out(a_copy: Path) -> None:
    outcome = attacked(a_copy, "attack=fgsm", "epsilons=[0,0.05,0.1,0.2]")
    accuracy, sheet, reliability = (figure for _, figure in outcome.figures())
    (legend,) = (text.get_text() for text in accuracy.legends[0].get_texts())
    assert legend == f"{a_copy.name}, best.ckpt"
    assert accuracy.get_suptitle().startswith("20 test images of stand-in for MNIST. ")
    for figure in (sheet, reliability):
        heading = figure.get_suptitle().replace("\n", " ")
        assert heading == f"{a_copy.name}, best.ckpt: FGSM, 20 test images of stand-in for MNIST"
    changed = [f"{what}, {epsilon}" for epsilon in (0.05, 0.1, 0.2) for what in ("change", "attacked")]
    assert row_names(sheet) == ["as it is", *changed]
    assert all(caption.startswith("label ") for caption in captions(sheet))
    assert len([text for text in sheet.axes[0].texts if text.get_text().isdigit()]) == 8 * 4
    drawn = [text.get_text().split(",")[0] for text in reliability.axes[0].get_legend().get_texts()]
    assert drawn == ["calibrated", "as it is", "epsilon 0.05", "epsilon 0.1", "epsilon 0.2"]


def test_the_same_command_finds_the_same(a_copy: Path) -> None:
    one, other = (attacked(a_copy, "attack=pgd", "attack.steps=2") for _ in range(2))
    assert one.path == other.path
    assert one.result["attack"] == other.result["attack"]
    assert one.result["images_sha256"] == other.result["images_sha256"]


def test_strengths_by_default_and_no_checks_of_what_follows_no_gradient(a_copy: Path) -> None:
    for name in ["rotation", "scaling", "shear", "translation", "corruption", "square"]:
        few = ["attack.queries=5"] if name == "square" else []
        result = attacked(a_copy, f"attack={name}", "epsilons=null", "checks=true", *few).result
        changes = [value for key, value in result["attack"].items() if key.endswith("mean_change")]
        assert len(changes) >= 5
        assert min(changes) > 0
        assert result["checks"] == [], "they are about gradients"


def test_as_many_images_as_the_data_of_training_has_at_most(a_copy: Path) -> None:
    for images in (50, 20):
        options = ["attack=noise", "epsilons=[0.1]", "+data.eval_images=30", f"images={images}"]
        assert attacked(a_copy, *options).result["images"] == min(images, 30)
    other = ["data=mnist", "data.source=standin", "attack=noise"]
    assert attacked(a_copy, *other).result["images"] == 20, "other data needs no seed"


def test_targets_are_all_classes_in_turn(cli: Cli, a_copy: Path) -> None:
    ended = cli("attack", f"ckpt={a_copy}", "attack=fgsm", "targeted=true", *SMALL)
    assert ended.status == 0, ended.err
    (path,) = (a_copy / "attacks").glob("*.json")
    record = json.loads(path.read_text())
    by_class = [record["attack"][f"0.1/success_of_class_{target}"] for target in range(10)]
    assert record["attack"]["0.1/success"] == pytest.approx(sum(by_class) / 10)
    assert record["checks"] == [], "they are of attacks that only avoid the label"
    assert isinstance(accuracy_figure([record]), Figure)


def test_other_options_have_files_of_their_own(a_copy: Path) -> None:
    options = ["seed=0", "space=grey_levels", "couplings=equal", "split=val", f"source={a_copy}", "objective=margin"]
    assert len({attacked(a_copy, "attack=fgsm", "epsilons=[0.1]", each).path for each in options}) == len(options)


def test_wrong_input_gets_one_sentence(cli: Cli, a_copy: Path) -> None:
    for overrides, message in [
        (["epsilons=[-0.1]", "attack=fgsm"], "epsilons has -0.1; expected 0 to 1 for attack=fgsm"),
        (["epsilons=[many]"], "epsilons is ['many']; expected a list of numbers or null"),
        (["epsilons=0.1"], "epsilons is 0.1; expected a list of numbers or null"),
        (["epsilons=[]"], "epsilons is []; expected different numbers"),
        (["epsilons=[0.1,0.1]"], "epsilons is [0.1, 0.1]; expected different numbers"),
        (["images=many"], "images is many; expected a whole number, 1 or more"),
        (["check_images=null"], "check_images is null; expected a whole number, 1 or more"),
        (["objective=training", "couplings=equal"], "objective=training is of the network that is attacked"),
        (["data=multimnist", "data.source=standin"], "labels_per_image"),
        (["attack=corruption", "epsilons=[1.5]"], "1.5"),
        (["space=pixels"], "space is 'pixels'; expected 'input' or 'grey_levels'"),
        (["objective=hinge"], "objective is 'hinge'; expected 'cross_entropy', "),
        (["targeted=maybe"], "targeted is maybe; expected true or false"),
        (["attack=pgd", "epsilons=[0.1,1e30]"], "epsilons has 1e+30; expected 0 to 1 for attack=pgd"),
        (["attack=translation", "epsilons=[1000]"], "epsilons has 1000; expected -28 to 28 for attack=translation"),
        (["trainer.max_epochs=5"], "trainer.max_epochs is 5, which only training reads; leave it out"),
        (["attack=pgd", "attack.norm=l1"], "attack.norm is 'l1'; expected 'linf' or 'l2'"),
        (["attack=deepfool"], "attack=deepfool does not exist; Options: bim, corruption, fgsm"),
        (["images=0"], "images is 0; expected a whole number, 1 or more"),
        (["targeted=true", "objective=training"], "objective=training is of labels only"),
        (["+data.source=real"], "MNIST is not in data/MNIST/raw"),
    ]:
        ended = cli("attack", f"ckpt={a_copy}", "images=4", "checks=false", "trainer.accelerator=cpu", *overrides)
        assert ended.status == 2
        assert message in one_sentence(ended)
        assert not (a_copy / "attacks").exists()
