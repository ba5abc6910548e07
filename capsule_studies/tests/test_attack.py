"""``capsule-lab attack``: its record, its figures, and its messages for wrong input."""

import io
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from rich.console import Console

from capsule_lab.commands import compose
from capsule_studies.attacks.gradient import UNIT, Box
from capsule_studies.attacks.record import epsilon_text
from capsule_studies.commands.attack import AttackOptions, _pixel_strengths, attack, tables
from capsule_studies.study import StudyOutput
from tests.helpers.commands import Cli
from tests.helpers.fakes import captions, row_names
from tests.helpers.tiers import whole_but

SMALL = ["images=10", "epsilons=[0,0.1,0.3]", "trainer.accelerator=cpu"]


@pytest.fixture(autouse=True)
def _short_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsule_studies.attacks.checks.STEPS", (1, 2))
    monkeypatch.setattr("capsule_studies.attacks.checks.QUERIES", 5)


def attacked(run: Path, *overrides: str) -> StudyOutput:
    config = compose("attack", [f"ckpt={run}", "checks=false", *SMALL, *overrides])
    return attack(AttackOptions.read(config))


def printed(record: dict[str, Any], width: int) -> str:
    """What the command prints on a terminal of ``width`` columns."""
    written = io.StringIO()
    Console(width=width, file=written).print(*tables(record))
    return written.getvalue()


def cells_of_lines(text: str) -> list[set[str]]:
    return [{cell.strip() for cell in line.split("┃")} for line in text.splitlines()]


def test_record_and_figures_lie_beside_the_checkpoint(cli: Cli, a_copy: Path) -> None:
    options = [f"baseline={a_copy}", "attack=fgsm", "check_images=4", "logger=tensorboard"]
    ended = cli("attack", f"ckpt={a_copy}", *options, *SMALL)
    assert ended.status == 0, ended.err
    (path,) = (a_copy / "attacks").glob("best-test-fgsm-standin-*.json")
    record = json.loads(path.read_text())
    assert record["images"] == 10
    numbers = record["attack"]
    unattacked = 100 - record["test"]["error"]
    assert numbers["0/accuracy"] == unattacked
    assert numbers["0.3/accuracy"] <= numbers["0.1/accuracy"] <= unattacked
    grey_levels = 255 * numbers["0.1/mean_change"]
    assert numbers["0.1/mean_grey_levels"] == pytest.approx(grey_levels)
    verdicts = [check["passed"] for check in record["checks"]]
    assert len(verdicts) == 11
    assert set(verdicts) <= {True, False}
    assert "checks of the attack" in ended.out
    for figure in ("attack", "attacked", "reliability"):
        assert (a_copy / "figures" / f"{figure}_{path.stem}.png").is_file()
    assert {"detected", "calibration_error", "brier"} <= record["test"].keys()
    assert 0 <= numbers["0.1/undetected_error"] <= numbers["0.1/error"]
    assert numbers["0/detection_area"] == pytest.approx(50), "the same images"
    assert list(a_copy.rglob("events.out.tfevents*")), "figures go to the loggers of the run"
    narrow, wide = printed(record, 80), printed(record, 140)
    headings = ["accuracy %", "95 % interval", "success on right %", "mean change"]
    headings += ["calibration error %", "detected %"]
    for heading in headings:
        assert f"{heading}: " in narrow, "a block for each epsilon"
    assert any(set(headings) <= cells for cells in cells_of_lines(wide)), "in one line"
    for each in (narrow, wide):
        assert "epsilon 0.1" in each
        assert "stand-in" in each
        assert "in grey levels of 255" in each
        assert "verdict" in each
        assert "…" not in each


def test_figures_name_network_and_data_and_leave_no_epsilon_out(a_copy: Path) -> None:
    outcome = attacked(a_copy, "attack=fgsm", "epsilons=[0,0.05,0.1,0.2]")
    accuracy, sheet, reliability = dict(outcome.figures()).values()
    (entry,) = accuracy.legends[0].get_texts()
    assert entry.get_text() == f"{a_copy.name}, best.ckpt"
    assert accuracy.get_suptitle().startswith("10 test images of stand-in for MNIST. ")
    expected = f"{a_copy.name}, best.ckpt: FGSM, 10 test images of stand-in for MNIST"
    for figure in (sheet, reliability):
        heading = figure.get_suptitle().replace("\n", " ")
        assert heading == expected
    rows = ["original"]
    for epsilon in (0.05, 0.1, 0.2):
        rows += [f"change, {epsilon}", f"attacked, {epsilon}"]
    assert row_names(sheet) == rows
    for caption in captions(sheet):
        assert caption.startswith("label ")
    predicted = [text for text in sheet.axes[0].texts if text.get_text().isdigit()]
    assert len(predicted) == 8 * 4
    legend = reliability.axes[0].get_legend().get_texts()
    drawn = [text.get_text().split(",")[0] for text in legend]
    assert drawn == ["calibrated", "original", "epsilon 0.05", "epsilon 0.1"]


@pytest.mark.parametrize(
    "name",
    whole_but(["rotation", "scaling", "shear", "translation", "corruption", "square"], "rotation"),
)
def test_strengths_by_default_and_no_checks_of_what_follows_no_gradient(
    name: str, a_copy: Path
) -> None:
    few = ["attack.queries=5"] if name == "square" else []
    result = attacked(a_copy, f"attack={name}", "epsilons=null", "checks=true", *few).result
    numbers = result["attack"]
    changes = [numbers[key] for key in numbers if key.endswith("mean_change")]
    assert len(changes) >= 5
    assert min(changes) > 0
    assert result["checks"] == [], "they are about gradients"


@pytest.mark.whole
def test_as_many_images_as_the_data_of_training_has_at_most(a_copy: Path) -> None:
    options = ["attack=noise", "epsilons=[0.1]", "+data.eval_images=30"]
    few = attacked(a_copy, *options, "images=20").result
    all_of_them = attacked(a_copy, *options, "images=50").result
    assert few["images"] == 20
    assert all_of_them["images"] == 30
    assert few["images_sha256"] != all_of_them["images_sha256"]
    other = attacked(a_copy, "data=mnist", "data.source=standin", "attack=noise")
    assert other.result["images"] == 10, "other data needs no seed"


@pytest.mark.parametrize(
    ("form", "box", "most"),
    [
        ({"kind": "digit"}, UNIT, 0.3),
        ({"kind": "a composed image"}, UNIT, 0.3),
        ({"kind": "photograph", "channels": 1}, UNIT, 0.3),  # also Fashion-MNIST's
        ({"kind": "photograph", "channels": 3}, UNIT, 16 / 255),
        ({"kind": "photograph", "channels": 3}, Box(), 0.5),  # standardised
    ],
)
def test_strengths_are_smaller_for_photographs_in_colour(
    form: dict[str, Any], box: Box, most: float
) -> None:
    assert max(_pixel_strengths("input", box, form, is_length=False)) == most
    assert max(_pixel_strengths("grey_levels", box, form, is_length=False)) == 64


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize(
    ("epsilon", "text"),
    [(0.2, "0.2"), (0.125, "0.125"), (15.0, "15"), (8 / 255, "8/255"), (0.0313725, "8/255")],
)
def test_epsilon_is_shown_in_grey_levels_where_it_is_no_short_decimal(
    epsilon: float, text: str, sign: str
) -> None:
    assert epsilon_text(float(f"{sign}{epsilon}")) == f"{sign}{text}"


@pytest.mark.parametrize(
    ("overrides", "fingerprint"),
    [
        ([], "fd9a14b6"),
        (["seed=0"], "fd9a14b6"),  # that of training
        (["data=mnist", "data.source=standin"], "fdf22b44"),
        (["data=mnist", "data.source=standin", "seed=1"], "7b90426b"),
    ],
)
def test_fingerprint_of_a_recorded_attack_stays(
    a_copy: Path, overrides: list[str], fingerprint: str
) -> None:
    outcome = attacked(a_copy, "attack=noise", *overrides)
    assert outcome.path.name == f"best-test-noise-standin-{fingerprint}.json"


@pytest.mark.whole
def test_targets_are_all_classes_in_turn(a_copy: Path) -> None:
    outcome = attacked(a_copy, "attack=fgsm", "targeted=true", "checks=true")
    found = outcome.result["attack"]
    by_class = [found[f"0.1/success_of_class_{label}"] for label in range(10)]
    assert found["0.1/success"] == pytest.approx(fmean(by_class))
    assert outcome.result["checks"] == [], "they are of attacks that only avoid the label"
    assert len(tables(outcome.result)) == 1
    assert len(list(outcome.figures())) == 3


@pytest.mark.whole
def test_options_that_change_the_result_have_files_of_their_own(a_copy: Path) -> None:
    options = [
        "seed=0",
        "space=grey_levels",
        "couplings=equal",
        "split=val",
        f"source={a_copy}",
        "objective=margin",
    ]
    paths = []
    for option in options:
        paths.append(attacked(a_copy, "attack=fgsm", "epsilons=[0.1]", option).path)
    assert len({*paths}) == len(options)
    # 0 is the seed of training, and a logger does not change the result
    logged = attacked(a_copy, "attack=fgsm", "epsilons=[0.1]", "logger=tensorboard")
    assert logged.path == paths[0]
