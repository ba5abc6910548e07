import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from capsule_lab.analysis.axes import show_dollar_signs
from capsule_lab.callbacks import ConfusionMatrix, Reconstructions
from capsule_lab.callbacks import figures as figures_module
from capsule_lab.callbacks.figures import confusion_figure, show_figure
from capsule_lab.errors import InterruptError, PauseError
from capsule_lab.runs.files import save_figure
from capsule_lab.types import Batch, CapsuleOutput, DataSpec
from tests.helpers.fakes import FakeCapsNet, captions, fake_output

ONE = fake_output([[3], [1], [4]])
TWO = fake_output([[3, 1], [1, 0], [4, 2]])


def batch_of(*, two: bool) -> Batch:
    images = torch.zeros(3, 1, 5, 3)
    index = torch.arange(3)
    if two:
        labels = torch.tensor([[1, 3], [0, 1], [2, 4]])
        return Batch(images, labels, index, parts=torch.zeros(3, 2, 1, 5, 3))
    return Batch(images, torch.tensor([3, 1, 0]), index)


def trainer(tmp_path: Path, classes: tuple[str, ...] = (), **changes: Any) -> Any:
    data = SimpleNamespace(
        spec=DataSpec((1, 5, 3), 5, classes=classes),
        provenance={"name": "stand-in for MNIST: small digits"},
    )
    facts = {
        "default_root_dir": str(tmp_path),
        "loggers": [],
        "global_step": 0,
        "state": SimpleNamespace(fn="fit"),
        "is_global_zero": True,
        "sanity_checking": False,
        "datamodule": data,
    }
    return SimpleNamespace(**{**facts, **changes})


def lit(output: CapsuleOutput, images: int = 3) -> Any:
    capsules = output.capsules._replace(poses=output.capsules.poses[:images])
    network = FakeCapsNet(CapsuleOutput(output.scores[:images], capsules))
    return SimpleNamespace(network=network, device=torch.device("cpu"))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Figure]]:
    found: list[tuple[str, Figure]] = []

    def keep(trainer: Any, name: str, figure: Figure, step: int) -> None:
        found.append((name, figure))

    monkeypatch.setattr("capsule_lab.callbacks.figures.show_figure", keep)
    return found


NAMES = ("animal", "human", "plane", "truck", "car")


@pytest.mark.parametrize(
    ("output", "two", "classes", "expected"),
    [
        (ONE, False, (), ["3 → 3", "1 → 1"]),
        (ONE, False, NAMES, ["truck\n→ truck", "human\n→ human"]),
        (TWO, True, (), ["L:(1,3)\nR:(1,3)", "L:(0,1)\nR:(0,1)"]),
    ],
)
def test_reconstructions_of_the_first_images(
    tmp_path: Path,
    figures: list[tuple[str, Figure]],
    output: CapsuleOutput,
    two: bool,
    classes: tuple[str, ...],
    expected: list[str],
) -> None:
    run, batch = trainer(tmp_path, classes), batch_of(two=two)
    callback = Reconstructions(images=2)
    callback.on_validation_batch_end(run, lit(output, 2), {"output": output}, batch, 0)
    drawn = ["val/reconstructions", "val/predictions"] if two else ["val/reconstructions"]
    assert [name for name, _ in figures] == drawn
    assert captions(figures[0][1]) == expected


@pytest.mark.parametrize(
    ("output", "two", "classes", "first"),
    [
        (ONE, False, (), "true 3"),
        (ONE, False, NAMES, "true truck"),
        (TWO, True, (), "true 1, 3"),
    ],
)
def test_predictions_of_a_network_without_a_decoder(
    tmp_path: Path,
    figures: list[tuple[str, Figure]],
    output: CapsuleOutput,
    two: bool,
    classes: tuple[str, ...],
    first: str,
) -> None:
    run, batch = trainer(tmp_path, classes), batch_of(two=two)
    module: Any = SimpleNamespace(network=torch.nn.Identity())
    Reconstructions().on_validation_batch_end(run, module, {"output": output}, batch, 0)
    ((name, figure),) = figures
    assert name == "val/predictions"
    assert figure.axes[0].texts[0].get_text().startswith(first)


def test_reconstructions_are_drawn_once(tmp_path: Path, figures: list[tuple[str, Figure]]) -> None:
    batch, callback = batch_of(two=False), Reconstructions(images=3)
    for number, loader, changes in ((1, 0, {}), (0, 1, {}), (0, 0, {"is_global_zero": False})):
        run = trainer(tmp_path, **changes)
        callback.on_validation_batch_end(run, lit(ONE), {}, batch, number, loader)
        assert figures == []


def test_confusion_is_of_the_first_set_and_of_single_labels(
    tmp_path: Path, figures: list[tuple[str, Figure]]
) -> None:
    for output, two, loaders in (
        (ONE, False, [0]),
        (ONE, False, [0, 1, 2]),
        (TWO, True, [0, 0]),
    ):
        figures.clear()
        callback = ConfusionMatrix()
        network = lit(output)
        run = trainer(tmp_path)
        batch = batch_of(two=two)
        for loader in loaders:
            callback.on_validation_batch_end(run, network, {"output": output}, batch, 0, loader)
        callback.on_validation_epoch_end(run, network)
        assert len(figures) == (not two)
        for name, figure in figures:
            axis = figure.axes[0]
            assert name == "val/confusion"
            numbers = [int(text.get_text()) for text in axis.texts]
            assert sum(numbers) == 3
            assert 0 not in numbers, "a cell without images is empty"
            assert axis.get_xlabel() == "Predicted label"


class Clock:
    """Seconds of a run in which a figure takes half a second, and the steps at which figures are drawn."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.drawn: list[int] = []
        self.times: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def show(self, trainer: Any, name: str, figure: Figure, step: int) -> None:
        self.now += 0.5
        self.drawn.append(step)
        self.times.append(self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(figures_module, "time", clock)
    monkeypatch.setattr(figures_module, "show_figure", clock.show)
    return clock


def validate(callback: ConfusionMatrix, module: Any, run: Any, clock: Clock) -> None:
    """A validation after a tenth of a second."""
    clock.now += 0.1
    callback.on_validation_batch_end(run, module, {"output": ONE}, batch_of(two=False), 0)
    callback.on_validation_epoch_end(run, module)


def test_a_figure_is_drawn_first_last_and_in_a_twentieth_of_the_time(
    tmp_path: Path, clock: Clock
) -> None:
    callback, module = ConfusionMatrix(), lit(ONE)
    for step in range(1, 301):
        validate(callback, module, trainer(tmp_path, global_step=step), clock)
    run = trainer(tmp_path, global_step=300)
    callback.on_train_end(run, module)
    assert clock.drawn[0] == 1
    assert clock.drawn[-1] == 300
    between = np.diff(clock.times[:-1])
    assert min(between) >= 0.5 / 0.05
    assert len(clock.drawn) == 5
    callback.on_train_end(run, module)
    assert len(clock.drawn) == 5, "what does not wait is not drawn again"


def test_figures_that_wait_show_the_network_of_their_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures_module, "time", Clock())
    callback, module = Reconstructions(images=3), lit(ONE)
    for step in (1, 2):
        run = trainer(tmp_path, global_step=step)
        callback.next_time["val/reconstructions"] = 2000.0
        callback.on_validation_batch_end(run, module, {"output": ONE}, batch_of(two=False), 0)
    assert not (tmp_path / "figures").exists()
    monkeypatch.setattr(module.network, "reconstruct", None)  # it has been trained further
    shown: list[int] = []
    keep = figures_module.keep_figure

    def keep_with_step(run: Path, loggers: Any, name: str, figure: Figure, step: int) -> Path:
        shown.append(step)
        assert "at step 2" in figure.texts[0].get_text() + figure.get_suptitle()
        return keep(run, loggers, name, figure, step)

    monkeypatch.setattr(figures_module, "keep_figure", keep_with_step)
    callback.on_train_end(trainer(tmp_path, global_step=9), module)
    assert shown == [1]  # steps in loggers count from 0
    assert (tmp_path / "figures" / "val_reconstructions.png").is_file()


@pytest.mark.parametrize(
    ("error", "expected"),
    [(PauseError(), [1, 3]), (InterruptError("stopped", 15), [1, 3]), (RuntimeError(), [1])],
    ids=["pause", "signal", "failure"],
)
def test_the_last_figure_is_drawn_when_a_run_pauses_or_is_interrupted(
    tmp_path: Path, clock: Clock, error: BaseException, expected: list[int]
) -> None:
    callback, module = ConfusionMatrix(), lit(ONE)
    for step in (1, 2, 3):
        run = trainer(tmp_path, global_step=step)
        validate(callback, module, run, clock)
    callback.on_exception(run, module, error)
    assert clock.drawn == expected


def test_a_test_and_a_validation_outside_of_training_are_drawn_at_once(tmp_path: Path) -> None:
    callback, module = ConfusionMatrix(), lit(ONE)
    run = trainer(tmp_path, state=SimpleNamespace(fn="test"))
    for _ in range(2):
        callback.next_time["test/confusion"] = float("inf")
        callback.on_test_batch_end(run, module, {"output": ONE}, batch_of(two=False))
        callback.on_test_epoch_end(run, module)
        file = tmp_path / "figures" / "test_confusion.png"
        assert file.is_file()
        file.unlink()


def test_a_png_is_drawn_once_as_savefig_draws_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = confusion_figure(np.diag([3, 1]), ("cost in $", "plane"))
    expected = io.BytesIO()
    show_dollar_signs(figure)
    figure.savefig(expected, format="png", dpi=120)
    drawn = []
    draw = Figure.draw

    def count(self: Figure, renderer: Any) -> None:
        drawn.append(self)
        draw(self, renderer)

    monkeypatch.setattr(Figure, "draw", count)
    figure = confusion_figure(np.diag([3, 1]), ("cost in $", "plane"))
    save_figure(figure, tmp_path / "a.png")
    assert drawn == [figure]
    assert figure.dpi == 100, "of the caller"
    found = Image.open(tmp_path / "a.png")
    np.testing.assert_array_equal(np.asarray(found), np.asarray(Image.open(expected)))
    assert found.info["dpi"] == pytest.approx((120, 120), abs=0.1)


def test_figures_lie_in_the_run(tmp_path: Path) -> None:
    figure = Figure()
    show_figure(trainer(tmp_path, global_step=7), "val/confusion", figure, step=7)
    folder = tmp_path / "figures"
    assert [*folder.iterdir()] == [folder / "val_confusion.png"]
    heading = " ".join(figure.get_suptitle().split("\n"))
    images = "validation images of stand-in for MNIST, drawn while training, at step 7"
    assert heading == f"{tmp_path.name}: {images}"
