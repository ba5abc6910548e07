"""``capsule-lab analyse``: its record, its figures, and its messages for wrong input."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from capsule_lab import runs
from capsule_lab.commands import compose
from capsule_lab.commands.train import train
from capsule_studies.commands.analyse import AnalyseOptions, analyse, table
from capsule_studies.meanings import meanings_of
from capsule_studies.study import StudyOutput
from tests.helpers.commands import NO_PICTURES, Cli
from tests.helpers.messages import one_sentence

SMALL = ["images=20", "trainer.accelerator=cpu"]


def asked(run: Path, *overrides: str) -> StudyOutput:
    config = compose("analyse", [f"ckpt={run}", *SMALL, *overrides])
    return analyse(AnalyseOptions.read(config))


def test_record_rows_and_figures_lie_beside_the_checkpoint(cli: Cli, a_copy: Path) -> None:
    options = ["what=transforms", "what.kinds=[shear]", "logger=tensorboard"]
    ended = cli("analyse", f"ckpt={a_copy}", *options, *SMALL)
    assert ended.status == 0, ended.err
    (path,) = (a_copy / "analyses").glob("best-val-transforms-standin-*.json")
    record = json.loads(path.read_text())
    assert record["images"] == 20
    assert record["options"]["_target_"] == "capsule_studies.questions.transforms.transforms"
    assert record["provenance"]["source"] == "standin"
    assert "untrained" in ended.out
    assert "What the numbers say" in ended.out
    figures = sorted(file.name for file in (a_copy / "figures").glob(f"{path.stem}_*"))
    assert figures == [
        f"{path.stem}_curves.pdf",
        f"{path.stem}_curves.png",
        f"{path.stem}_curves_untrained.pdf",
        f"{path.stem}_curves_untrained.png",
    ]
    rows = pd.read_csv(path.with_suffix(".csv"))
    assert {*rows.weights} == {"trained", "untrained"}
    assert {*rows.change} == {"shear"}
    assert list(a_copy.rglob("events.out.tfevents*")), "figures go to the loggers of the run"
    own, untrained = {}, {}
    for key, value in record["analyse"].items():
        numbers = untrained if key.startswith("untrained/") else own
        numbers[key.removeprefix("untrained/")] = value
    assert own.keys() == untrained.keys(), "each with its control"
    assert own != untrained


@pytest.mark.whole
@pytest.mark.parametrize("value", [float("nan"), 1e38])
def test_scores_that_are_not_finite_are_refused_and_nothing_is_written(
    cli: Cli, a_copy: Path, value: float
) -> None:
    path = a_copy / "checkpoints" / "best.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    for weight in checkpoint["state_dict"].values():
        weight.fill_(value)
    torch.save(checkpoint, path)
    before = sorted(a_copy.rglob("*"))
    for command, *options in (
        ("analyse", "what=votes", "images=20"),
        ("attack", "attack=fgsm", "images=20"),
        ("evaluate", "split=val"),
    ):
        ended = cli(command, f"ckpt={a_copy}", *options, "trainer.accelerator=cpu")
        expected = "expected finite numbers: these weights are useless; use an earlier checkpoint"
        assert expected in one_sentence(ended)
    assert sorted(a_copy.rglob("*")) == before


def test_heading_names_the_images_and_a_note_explains_empty_cells(a_copy: Path) -> None:
    """A figure may be shown alone, so that each has a heading."""
    outcome = asked(a_copy, "what=couplings")
    figures = dict(outcome.figures())
    assert figures
    for figure in figures.values():
        heading = " ".join(figure.get_suptitle().split())
        assert ", 20 validation images of stand-in for MNIST" in heading
    assert outcome.result["analyse"]["digits/1/static_share"] is None
    assert str(table(outcome.result).caption).startswith("empty: not defined")


def test_a_sentence_says_once_what_a_number_of_several_layers_and_iterations_means() -> None:
    names = ["digits/1/auc", "digits/2/auc", "digits/3/auc", "untrained/digits/3/auc"]
    (sentence,) = meanings_of("votes", names).values()
    assert sentence.startswith("0.5: votes agree about the class")


def test_error_is_that_of_the_network_on_the_images_of_the_split(a_copy: Path) -> None:
    run = runs.open(a_copy)
    images, wrong = 0, 0
    for batch in run.batches("val"):
        predicted = run.network(batch.images).ranking.argmax(1)
        wrong += int((predicted != batch.labels).sum())
        images += len(batch.labels)
    options = ("what=sign", "images=null", "untrained=false")
    outcome = asked(a_copy, *options)
    again = asked(a_copy, *options)
    assert again.path == outcome.path
    numbers = outcome.result["analyse"]
    assert again.result["analyse"] == numbers
    for key in numbers:
        assert not key.startswith("untrained")
    assert outcome.result["images"] == images
    assert numbers["error"] == pytest.approx(100 * wrong / images)


@pytest.mark.parametrize(
    ("overrides", "fingerprint"),
    [
        ([], "629a465f"),
        (["seed=0"], "629a465f"),  # that of training
        (["seed=1"], "0fd79570"),  # of the untrained network
    ],
)
def test_fingerprint_of_a_recorded_analysis_stays(
    a_copy: Path, overrides: list[str], fingerprint: str
) -> None:
    outcome = asked(a_copy, "what=sign", *overrides)
    assert outcome.path.name == f"best-val-sign-standin-{fingerprint}.json"


@pytest.mark.whole
def test_a_probe_knows_how_images_were_taken_and_what_classes_are_called(
    toynorb: Path, tmp_path: Path
) -> None:
    """Names of factors and classes come from the data and from the checkpoint, where earlier versions had none."""
    overrides = [
        "model=em_caps",
        "model.primary.types=2",
        "data=smallnorb",
        "data.source=standin",
        f"data.directory={toynorb}",
        "data.batch_size=16",
        "trainer.accelerator=cpu",
        "trainer.max_epochs=1",
        "train.test=last",
        *NO_PICTURES,
    ]
    run = tmp_path / "run"
    train(compose("train", overrides), run)
    spec = runs.open(run).spec
    assert spec.classes == ("animal", "human", "airplane", "truck", "car")
    assert spec.factors[:2] == ("instance", "elevation")
    few = ["what.training_images=100", "images=50", "split=test", "untrained=false"]
    found = asked(run, "what=probe", *few).result["analyse"]
    assert {"linear/azimuth_degrees", "network/elevation_r2", "pixels/lighting_r2"} <= found.keys()
    rows = asked(run, "what=decoder", "what.epochs=1", "what.hidden=[8]", *few).rows
    assert {row["class"] for row in rows} <= {*spec.classes}
