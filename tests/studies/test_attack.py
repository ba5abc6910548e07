"""``python -m capsule_lab.attack``: its record, its figures, and what it says of wrong input."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from capsule_lab import runs
from capsule_lab.config.compose import compose
from capsule_lab.studies.attack import attack, tables
from capsule_lab.studies.attacks.figures import accuracy_figure
from tests.helpers.commands import Ended
from tests.helpers.fakes import captions, row_names
from tests.helpers.messages import one_sentence

Cli = Callable[..., Ended]
SMALL = ["images=20", "epsilons=[0,0.1,0.3]", "trainer.accelerator=cpu"]


@pytest.fixture(autouse=True)
def _short_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsule_lab.studies.attacks.checks.STEPS", (1, 2))
    monkeypatch.setattr("capsule_lab.studies.attacks.checks.QUERIES", 5)


def test_record_and_figures_lie_beside_the_checkpoint(cli: Cli, a_copy: Path) -> None:
    ended = cli("attack", f"ckpt={a_copy}", f"baseline={a_copy}", "attack=fgsm", "check_images=4", *SMALL)
    assert ended.status == 0, ended.err
    (path,) = (a_copy / "attacks").glob("best-test-fgsm-standin-*.json")
    record = json.loads(path.read_text())
    assert record["images"] == 20
    assert record["options"]["_target_"] == "capsule_lab.studies.attacks.fgsm"
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


def test_figures_name_network_and_data_and_leave_no_epsilon_out(a_copy: Path) -> None:
    few = ["images=20", "epsilons=[0,0.05,0.1,0.2]", "trainer.accelerator=cpu"]
    outcome = attack(compose("attack", [f"ckpt={a_copy}", "attack=fgsm", "checks=false", *few]))
    accuracy, attacked, reliability = outcome.figures().values()
    (legend,) = (text.get_text() for text in accuracy.legends[0].get_texts())
    assert legend == f"{a_copy.name}, best.ckpt"
    assert accuracy.get_suptitle().startswith("20 test images of stand-in for MNIST. ")
    for figure in (attacked, reliability):
        heading = figure.get_suptitle().replace("\n", " ")
        assert heading == f"{a_copy.name}, best.ckpt: FGSM, 20 test images of stand-in for MNIST"
    changed = [f"{what}, {epsilon}" for epsilon in (0.05, 0.1, 0.2) for what in ("change", "attacked")]
    assert row_names(attacked) == ["as it is", *changed]
    assert all(caption.startswith("label ") for caption in captions(attacked))
    assert len([text for text in attacked.axes[0].texts if text.get_text().isdigit()]) == 8 * 4
    drawn = [text.get_text().split(",")[0] for text in reliability.axes[0].get_legend().get_texts()]
    assert drawn == ["calibrated", "as it is", "epsilon 0.05", "epsilon 0.1", "epsilon 0.2"]


def test_heads_of_the_table_are_whole_at_80_columns(a_copy: Path) -> None:
    result = attack(compose("attack", [f"ckpt={a_copy}", "attack=fgsm", "checks=false", *SMALL])).result
    console = Console(width=80, file=io.StringIO())
    console.print(*tables(result))
    words = {*console.file.getvalue().split()}
    assert {"epsilon", "accuracy", "interval", "success", "grey", "calibration", "detected"} <= words
    assert not any("…" in word for word in words)
    assert "stand-in" in words


def test_the_same_command_finds_the_same(a_copy: Path) -> None:
    config = compose("attack", [f"ckpt={a_copy}", "attack=pgd", "attack.steps=2", "checks=false", *SMALL])
    one, other = attack(config), attack(config)
    assert one.path == other.path
    assert one.result["attack"] == other.result["attack"]
    assert one.result["images_sha256"] == other.result["images_sha256"]


@pytest.mark.parametrize("name", ["fgsm", "bim", "pgd", "square", "noise"])
def test_every_attack_of_the_group(a_copy: Path, name: str) -> None:
    few = {"pgd": ["attack.steps=2"], "square": ["attack.queries=5"]}.get(name, [])
    config = compose("attack", [f"ckpt={a_copy}", f"attack={name}", "checks=false", *few, *SMALL])
    result = attack(config).result
    assert result["attack"]["0.3/mean_change"] > result["attack"]["0.1/mean_change"] > 0


@pytest.mark.parametrize("name", ["rotation", "scaling", "shear", "translation", "corruption"])
def test_every_shift_of_the_group(a_copy: Path, name: str) -> None:
    config = compose("attack", [f"ckpt={a_copy}", f"attack={name}", "images=20", "trainer.accelerator=cpu"])
    result = attack(config).result
    changes = [value for key, value in result["attack"].items() if key.endswith("mean_change")]
    assert len(changes) >= 5
    assert min(changes) > 0
    assert result["checks"] == [], "they are about gradients"


def test_as_many_images_as_the_data_of_training_has_at_most(a_copy: Path) -> None:
    fewer = [f"ckpt={a_copy}", "attack=fgsm", "checks=false", "epsilons=[0.1]", "trainer.accelerator=cpu"]
    assert attack(compose("attack", [*fewer, "+data.eval_images=30", "images=50"])).result["images"] == 30
    assert attack(compose("attack", [*fewer, "+data.eval_images=30", "images=20"])).result["images"] == 20


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
    paths = set()
    for more in (
        [],
        ["space=grey_levels"],
        ["couplings=equal"],
        ["split=val"],
        [f"source={a_copy}"],
        ["objective=margin"],
    ):
        config = compose("attack", [f"ckpt={a_copy}", "attack=fgsm", "checks=false", *SMALL, *more])
        paths.add(attack(config).path)
    assert len(paths) == 6


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
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
    ],
    ids=str,
)
def test_wrong_input_gets_one_sentence(cli: Cli, a_copy: Path, overrides: list[str], message: str) -> None:
    ended = cli("attack", f"ckpt={a_copy}", "images=4", "checks=false", "trainer.accelerator=cpu", *overrides)
    assert ended.status == 2
    assert message in one_sentence(ended)
    assert not (a_copy / "attacks").exists()


def test_other_data_needs_no_seed(a_copy: Path) -> None:
    other = ["data=mnist", "data.source=standin", "attack=fgsm", "checks=false"]
    assert attack(compose("attack", [f"ckpt={a_copy}", *other, *SMALL])).result["images"] == 20


def test_square_asks_more_than_once(a_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the objective, it ends where the margin says that an image is fooled."""
    few = [f"ckpt={a_copy}", "attack=square", "checks=false", "images=20", "epsilons=[0.1]", "trainer.accelerator=cpu"]
    one, many = (attack(compose("attack", [*few, f"attack.queries={count}"])).result["attack"] for count in (1, 60))
    assert one["0.1/brier"] != many["0.1/brier"]


def test_a_checkpoint_is_needed(cli: Cli) -> None:
    assert one_sentence(cli("attack")).startswith("ckpt is missing; expected ckpt=")


def test_figures_go_to_the_loggers_of_the_run(cli: Cli, a_copy: Path) -> None:
    ended = cli("attack", f"ckpt={a_copy}", "attack=noise", "logger=tensorboard", "checks=false", *SMALL)
    assert ended.status == 0, ended.err
    assert list(a_copy.rglob("events.out.tfevents*"))
    assert runs.open(a_copy).directory == a_copy
