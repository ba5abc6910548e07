"""Pictures drawn while training."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from capsule_lab.callbacks import ConfusionMatrix, Reconstructions
from capsule_lab.callbacks.figures import first_reconstructions, show_figure
from capsule_lab.types import Batch, CapsuleOutput, DataSpec
from tests.helpers.fakes import FakeCapsNet, capsule_output, captions, decoded_picture, picture_at, texts

ONE = capsule_output([[3], [1], [4]])
TWO = capsule_output([[3, 1], [1, 0], [4, 2]])


def batch_of(*, two: bool) -> Batch:
    labels = torch.tensor([[1, 3], [0, 1], [2, 4]]) if two else torch.tensor([3, 1, 0])
    parts = torch.zeros(3, 2, 1, 5, 3) if two else None
    return Batch(torch.zeros(3, 1, 5, 3), labels, torch.arange(3), parts=parts)


def trainer(tmp_path: Path, **changes: Any) -> Any:
    facts = {
        "default_root_dir": str(tmp_path),
        "loggers": [],
        "global_step": 0,
        "state": SimpleNamespace(fn="fit"),
        "is_global_zero": True,
        "sanity_checking": False,
        "datamodule": SimpleNamespace(
            spec=DataSpec((1, 5, 3), 5), provenance={"name": "stand-in for MNIST: small digits"}
        ),
    }
    return SimpleNamespace(**{**facts, **changes})


def lit(output: CapsuleOutput) -> Any:
    return SimpleNamespace(network=FakeCapsNet(output), device=torch.device("cpu"))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Figure]]:
    """Name and figure of all that is drawn."""
    found: list[tuple[str, Figure]] = []
    module = "capsule_lab.callbacks.figures"
    monkeypatch.setattr(f"{module}.show_figure", lambda _, name, figure: found.append((name, figure)))
    return found


@pytest.mark.parametrize(
    ("output", "two", "expected"),
    [(ONE, False, ["3 → 3", "1 → 1"]), (TWO, True, ["L:(1,3)\nR:(1,3)", "L:(0,1)\nR:(0,1)"])],
    ids=["one label", "two labels"],
)
def test_reconstructions_of_as_many_labels_as_there_are(
    output: CapsuleOutput, two: bool, expected: list[str], tmp_path: Path, figures: list[tuple[str, Figure]]
) -> None:
    network = lit(CapsuleOutput(output.scores[:2], output.capsules._replace(poses=output.capsules.poses[:2])))
    found, batch = {"output": output}, batch_of(two=two)
    Reconstructions(images=2).on_validation_batch_end(trainer(tmp_path), network, found, batch, 0)
    assert [name for name, _ in figures] == ["val/reconstructions", *(["val/predictions"] if two else [])]
    assert captions(figures[0][1]) == expected


@pytest.mark.parametrize(("output", "two", "first"), [(ONE, False, "true 3"), (TWO, True, "true 1, 3")])
def test_networks_without_a_decoder_leave_their_predictions(
    output: CapsuleOutput, two: bool, first: str, tmp_path: Path, figures: list[tuple[str, Figure]]
) -> None:
    network = SimpleNamespace(network=torch.nn.Identity())
    Reconstructions().on_validation_batch_end(trainer(tmp_path), network, {"output": output}, batch_of(two=two), 0)
    ((name, figure),) = figures
    assert name == "val/predictions"
    assert texts(figure)[0].startswith(first)


def test_two_labels_are_decoded_in_red_and_green() -> None:
    figure = first_reconstructions(FakeCapsNet(TWO), TWO, batch_of(two=True), 3)
    decoded = picture_at(figure, 1, 2)
    np.testing.assert_allclose(decoded[..., 0], decoded_picture(TWO, 2, 2), atol=1e-6)
    np.testing.assert_allclose(decoded[..., 1], decoded_picture(TWO, 2, 4), atol=1e-6)


@pytest.mark.parametrize(
    ("batch", "loader", "changes"),
    [(1, 0, {}), (0, 1, {}), (0, 0, {"sanity_checking": True}), (0, 0, {"is_global_zero": False})],
    ids=["second batch", "second set", "sanity check", "second process"],
)
def test_reconstructions_are_drawn_once(
    batch: int, loader: int, changes: dict[str, Any], tmp_path: Path, figures: list[tuple[str, Figure]]
) -> None:
    callback = Reconstructions(images=3)
    callback.on_validation_batch_end(trainer(tmp_path, **changes), lit(ONE), {}, batch_of(two=False), batch, loader)
    assert figures == []


def confusion(tmp_path: Path, output: CapsuleOutput, *, two: bool, loaders: list[int]) -> None:
    callback, network = ConfusionMatrix(), lit(output)
    for loader in loaders:
        callback.on_validation_batch_end(trainer(tmp_path), network, {"output": output}, batch_of(two=two), 0, loader)
    callback.on_validation_epoch_end(trainer(tmp_path), network)


@pytest.mark.parametrize("loaders", [[0], [0, 1, 2]], ids=str)
def test_confusion_is_of_the_first_set(loaders: list[int], tmp_path: Path, figures: list[tuple[str, Figure]]) -> None:
    confusion(tmp_path, ONE, two=False, loaders=loaders)
    ((name, figure),) = figures
    assert name == "val/confusion"
    assert sum(int(text.get_text()) for text in figure.axes[0].texts) == 3
    assert figure.axes[0].get_xlabel() == "Predicted label"


def test_two_labels_have_no_confusion(tmp_path: Path, figures: list[tuple[str, Figure]]) -> None:
    confusion(tmp_path, TWO, two=True, loaders=[0, 0])
    assert figures == []


def test_figures_lie_in_the_run(tmp_path: Path) -> None:
    figure = Figure()
    show_figure(trainer(tmp_path, global_step=7), "val/confusion", figure)
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["val_confusion.png"]
    expected = f"{tmp_path.name}: validation images of stand-in for MNIST, drawn while training, at step 7"
    assert " ".join(figure.get_suptitle().split("\n")) == expected


def test_classes_are_called_by_their_names(tmp_path: Path, figures: list[tuple[str, Figure]]) -> None:
    named = SimpleNamespace(spec=DataSpec((1, 5, 3), 5, classes=("animal", "human", "plane", "truck", "car")))
    network = lit(CapsuleOutput(ONE.scores[:2], ONE.capsules._replace(poses=ONE.capsules.poses[:2])))
    batch = batch_of(two=False)._replace(labels=torch.tensor([3, 0, 0]))
    Reconstructions(images=2).on_validation_batch_end(
        trainer(tmp_path, datamodule=named), network, {"output": ONE}, batch, 0
    )  # fmt: skip
    assert captions(figures[0][1]) == ["truck\n→ truck", "animal\n→ human"]
