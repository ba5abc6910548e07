"""The command ``figures``: figures of a run, drawn from its directory."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib.image
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from omegaconf import OmegaConf

from capsule_lab import runs
from capsule_lab.analysis import curves
from capsule_lab.commands import compose
from capsule_lab.commands.figures import FiguresOptions, draw, figure, open_loggers
from capsule_lab.config import build
from capsule_lab.data import MNISTDataModule
from capsule_lab.errors import RunError
from tests.helpers.commands import NO_PICTURES, TINY, TINY_CNN, Cli, Trained
from tests.helpers.fakes import captions, row_names, texts
from tests.helpers.messages import one_sentence

OF_ONE_DIGIT = [
    "curves",
    "layers",
    "reconstructions",
    "right_and_wrong",
    "perturbation",
    "perturbation_sheet",
]
OF_TWO_DIGITS = [
    "curves",
    "layers",
    "predictions",
    "reconstructions",
    "segmentation",
    "perturbation",
    "perturbation_sheet",
]


def drawn(run: Path, *overrides: str) -> dict[str, Figure]:
    config = compose("figures", [f"run={run}", *overrides])
    return dict(draw(runs.open(run), FiguresOptions.read(config)))


def labels_of(lines: Iterable[Line2D]) -> list[str]:
    return [line.get_label() for line in lines]


def marker_styles(lines: Iterable[Line2D]) -> list[Any]:
    return [line.get_marker() for line in lines]


def points_of(line: Line2D) -> tuple[list[float], list[float]]:
    return line.get_xdata().tolist(), line.get_ydata().tolist()


def heading_of(figure: Figure) -> str:
    return figure.get_suptitle().replace("\n", " ")


@pytest.fixture(scope="module")
def two_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a tiny run on MultiMNIST, with the pictures drawn during training."""
    from capsule_lab.commands.train import train

    directory = tmp_path_factory.mktemp("two_digits") / "run"
    overrides = [
        *TINY,
        "data=multimnist",
        "data.val_pairs=64",
        "data.test_pairs=64",
        "trainer.max_epochs=1",
        "trainer.limit_train_batches=1",
        "train.test=none",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAPSULE_LAB_RUN", "")
        train(compose("train", overrides), directory)
    return directory


@pytest.mark.whole
def test_figures_of_a_capsnet_of_two_digits(two_digits: Path) -> None:
    during_training = sorted(path.name for path in (two_digits / "figures").iterdir())
    assert during_training == ["val_predictions.png", "val_reconstructions.png"]
    figures = drawn(two_digits)
    assert list(figures) == OF_TWO_DIGITS
    first_caption = captions(figures["reconstructions"])[0]
    assert first_caption.startswith("L:(")
    note = texts(figures["segmentation"])[-1]
    assert note.endswith("of the 64 images looked at")


@pytest.mark.whole
@pytest.mark.parametrize(
    ("images", "held_out", "looked_at", "classes"),
    [
        (1, 7, 7, [3]),
        (5, 10_000, 240, [0, 7]),
    ],
)
def test_options_choose_images_and_classes(
    trained: Trained, images: int, held_out: int, looked_at: int, classes: list[int]
) -> None:
    sheet_classes = ",".join(map(str, classes))
    figures = drawn(
        trained.directory,
        f"images={images}",
        f"held_out={held_out}",
        f"sheet_classes=[{sheet_classes}]",
    )
    below_images = captions(figures["reconstructions"])
    assert len(below_images) == images
    for caption in below_images:
        assert "→" in caption
    note = texts(figures["right_and_wrong"])[-1]
    assert note.endswith(f"of the {looked_at} images looked at")
    sheets = [name for name in figures if name.startswith("perturbation_sheet")]
    assert sheets == [f"perturbation_sheet_{label}" for label in classes]
    for label in classes:
        sheet = figures[f"perturbation_sheet_{label}"]
        _, title = sheet.get_suptitle().split("\nclass ")
        assert title.startswith(f"{label}:")
        assert row_names(sheet) == [f"dimension {n}" for n in range(4)]


@pytest.mark.whole
def test_class_without_held_out_images_is_refused(cli: Cli, a_copy: Path) -> None:
    ended = cli("figures", f"run={a_copy}", "sheet_classes=[11]")
    expected = "sheet_classes contains 11; expected classes of the held-out images: 0, 1, 2"
    assert one_sentence(ended).startswith(expected)


WITH_AFFINE = """\
step,train/loss,train/error,val/error,affine/error
4,1,50,20,60
4,1,40,,
8,1,30,5,40
8,1,20,,
"""


WITHOUT_AFFINE = """\
step,train/loss,train/error,val/error
1,1,5,5
"""


def test_transfer_figure_shows_affine_against_validation_accuracy(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text(WITH_AFFINE)
    figures = dict(curves.figures(file))
    axis, colours = figures["transfer"].axes
    accuracies = [[80, 40], [95, 60]]
    (points,) = axis.collections
    assert points.get_offsets().tolist() == accuracies
    assert points.get_array().tolist() == [5, 9]
    (line,) = axis.lines
    assert line.get_xydata().tolist() == accuracies
    assert colours.get_ylabel() == "step"
    file.write_text(WITHOUT_AFFINE)
    assert [*dict(curves.figures(file))] == ["curves"]


@pytest.mark.whole
def test_transfer_figure_is_drawn_for_runs_with_affine_validation(a_copy: Path) -> None:
    table = pd.read_csv(a_copy / "metrics.csv")
    table["affine/error"] = table["val/error"] / 2 + 50
    table.to_csv(a_copy / "metrics.csv")
    expected = ["curves", "layers", "transfer", *OF_ONE_DIGIT[2:]]
    assert list(drawn(a_copy)) == expected


def test_curves_show_training_and_validation(trained: Trained) -> None:
    figure = curves.training_curves(trained.directory / "metrics.csv")
    loss, error = figure.axes
    assert loss.get_ylabel() == "loss"
    assert error.get_ylabel() == "error in %"
    for axis in (loss, error):
        assert labels_of(axis.lines) == ["train, a few steps", "train, epoch", "val"]
        assert [points_of(line)[0] for line in axis.lines] == [[3, 6], [4, 8], [4, 8]]


@pytest.mark.parametrize("error", [0.0, 12.5])
def test_curves_of_training_alone(tmp_path: Path, error: float) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text(f"step,train/loss,train/error\n3,0.5,50\n7,0.25,{error}\n")
    figure = curves.training_curves(file)
    figure.savefig(tmp_path / "curves.png")
    for axis in figure.axes:
        assert labels_of(axis.lines) == ["train"]


def test_curves_of_a_run_in_its_first_epoch_show_the_error(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("step,train/loss_step,train/error_step\n3,0.5,50\n7,0.25,12.5\n")
    for axis in curves.training_curves(file).axes:
        assert axis.get_visible()
        assert labels_of(axis.lines) == ["train, a few steps"]


def test_layer_curves_are_ordered_from_the_image_upwards(trained: Trained) -> None:
    file = trained.directory / "metrics.csv"
    assert curves.layers_in(file) == ["primary", "digits"]
    activation, dead = curves.layer_curves(file).axes
    table = pd.read_csv(file)
    for axis, column in (
        (activation, "val/activation_digits"),
        (dead, "val/dead_digits"),
    ):
        assert labels_of(axis.lines) == ["primary", "digits"]
        steps, values = points_of(axis.lines[1])
        assert steps == [4, 8]
        assert values == table[column].dropna().tolist()


def test_command_writes_figures_into_the_run(cli: Cli, a_copy: Path) -> None:
    metrics = a_copy / "metrics.csv"
    folder = a_copy / "figures"
    before = metrics.read_bytes()
    ended = cli("figures", f"run={a_copy}", "images=2")
    assert (ended.status, ended.err) == (0, "")
    written = [line for line in ended.out.splitlines() if line.endswith(".png")]
    assert written == [str(folder / f"{name}.png") for name in OF_ONE_DIGIT]
    assert metrics.read_bytes() == before
    picture = matplotlib.image.imread(folder / "curves.png")
    assert picture[..., :3].std() > 0


@pytest.mark.whole
def test_command_logs_figures_to_tensorboard(cli: Cli, a_copy: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = a_copy / "metrics.csv"
    before = metrics.read_bytes()
    ended = cli("figures", f"run={a_copy}", "logger=tensorboard")
    assert (ended.status, ended.err) == (0, "")
    events = EventAccumulator(str(a_copy / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["images"]) == sorted(OF_ONE_DIGIT)
    step = runs.open(a_copy).step - 1  # counted from 0, as quantities are
    (image,) = events.Images("perturbation")
    assert image.step == step
    assert (a_copy / "figures" / "perturbation.png").is_file()
    assert metrics.read_bytes() == before


@pytest.mark.whole
def test_command_draws_only_curves_and_predictions_of_a_cnn(cli: Cli, tmp_path: Path) -> None:
    overrides = [
        *TINY_CNN,
        "debug=smoke",
        "trainer.accelerator=cpu",
        "train.directory=run",
        *NO_PICTURES,
    ]
    assert cli("train", *overrides).status == 0
    ended = cli("figures", "run=run")
    assert (ended.status, ended.err) == (0, "")
    folder = tmp_path / "run" / "figures"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["curves.png", "predictions.png"]


@pytest.mark.whole
def test_figures_of_a_capsnet_name_the_validation_images(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test images are not read."""
    load = MNISTDataModule.load

    def load_training_images(self: MNISTDataModule, *, train: bool) -> Any:
        assert train, "read the test images"
        return load(self, train=True)

    monkeypatch.setattr(MNISTDataModule, "load", load_training_images)
    figures = drawn(trained.directory)
    assert list(figures) == OF_ONE_DIGIT
    name_of_run = trained.directory.name
    images = "validation images of stand-in for MNIST, weights of best.ckpt, at step "
    for name, drawing in figures.items():
        heading = heading_of(drawing)
        if name in ("curves", "layers"):
            assert heading == f"{name_of_run}: stand-in for MNIST"
        else:
            assert heading.startswith(f"{name_of_run}: {images}")


def test_curves_of_a_single_point_have_markers_and_margins(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("step,train/loss,train/error,val/loss,val/error\n9,0.5,50,,\n9,,,0.25,20\n")
    loss, error = curves.training_curves(file).axes
    assert loss.get_ylim() == (0.125, 0.625)
    assert error.get_ylim() == (10, 62.5)
    for axis in (loss, error):
        assert axis.get_xlim() == (0, 20)
        assert marker_styles(axis.lines) == ["o", "o"]


def test_legend_lists_only_drawn_curves(tmp_path: Path) -> None:
    """A single point of training has a marker; a column without values is not in the legend."""
    file = tmp_path / "metrics.csv"
    file.write_text(
        "step,train/loss,train/error,val/loss,val/error\n4,,,0.5,40\n9,0.5,,,\n9,,,0.25,20\n"
    )
    loss, error = curves.training_curves(file).axes
    assert labels_of(loss.lines) == ["train", "val"]
    assert marker_styles(loss.lines) == ["o", "o"]
    (name,) = error.get_legend().get_texts()
    assert name.get_text() == "val"


@pytest.mark.parametrize(
    ("name", "label"), [("shift_r2", "R² of the shift"), ("matrix_error", "error of poses")]
)
def test_curves_of_pairs_show_poses_instead_of_the_error(
    name: str, label: str, tmp_path: Path
) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text(f"step,train/loss,val/loss,val/{name}\n1,3.0,2.0,-0.5\n2,2.0,1.0,0.5\n")
    loss, poses = curves.training_curves(file).axes
    assert loss.get_ylabel() == "loss"
    assert poses.get_ylabel() == label
    assert poses.lines[0].get_ydata().tolist() == [-0.5, 0.5]
    assert poses.get_yscale() == "linear"


def test_one_figure_is_drawn_for_a_notebook(trained: Trained) -> None:
    found = figure(trained.directory, "reconstructions", held_out=20, images=3)
    assert "validation images of stand-in for MNIST" in heading_of(found)
    run = runs.open(trained.directory)
    message = "reconstruction is not a figure of this run; did you mean reconstructions"
    with pytest.raises(RunError, match=message):
        figure(run, "reconstruction", held_out=20)


def test_loggers_have_the_names_of_the_run_and_the_options_stay(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.open(trained.directory)
    OmegaConf.update(run.config, "logger.wandb.name", "recorded", force_add=True)
    given: list[Any] = []

    def build_loggers(config: Any, _: Path) -> list[Any]:
        given.append(config.wandb.name)
        return []

    monkeypatch.setattr(build, "build_loggers", build_loggers)
    options = FiguresOptions.read(compose("figures", ["logger=wandb"]))
    before = options.logger.copy()
    open_loggers(options.logger, run)
    assert given == ["recorded"]
    assert options.logger == before
