"""Predictions for pictures, in Python and by the command ``predict``."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image, ImageDraw

import capsule_lab
from capsule_lab import runs
from capsule_lab.commands import predict
from capsule_lab.deploy.predictor import Prediction
from capsule_lab.errors import DataError
from tests.helpers.commands import Cli, Trained


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for right, name in ((60, "a.png"), (65, "[red]b$.png"), (70, "c.png")):
        picture = Image.new("L", (90, 120), 250)
        corners = [(30, 20), (right, 30), (40, 100)]
        ImageDraw.Draw(picture).line(corners, fill=5, width=9)
        picture.save(folder / name)
    return folder


def test_pictures_paths_and_batches_give_the_same(trained: Trained, pictures: Path) -> None:
    net = capsule_lab.load(trained.directory)
    path = pictures / "a.png"
    (of_path,) = net(str(path))
    (of_picture,) = net(Image.open(path))
    (of_batch,) = net(net.prepare(path)[None])
    assert of_path.scores == of_picture.scores == of_batch.scores
    assert len(net([path, Image.open(path)])) == 2
    assert net([]) == []


def test_a_prediction_has_the_class_of_the_largest_score(trained: Trained, pictures: Path) -> None:
    net = capsule_lab.load(trained.directory)
    (prediction,) = net(pictures / "a.png")
    names, scores = zip(*prediction.scores.items(), strict=True)
    assert [*scores] == sorted(scores, reverse=True)
    assert prediction.name == names[0]
    assert prediction.score == scores[0]
    length = prediction.pose.norm().item()
    assert length == pytest.approx(prediction.score, rel=1e-4)
    assert prediction.reconstruction.shape == (1, 28, 28)
    assert f"Prediction({prediction.name} " in repr(prediction)
    assert "CapsNet of" in repr(net)


def test_a_blank_picture_is_named(trained: Trained, pictures: Path) -> None:
    blank = pictures / "blank.png"
    Image.new("L", (9, 9)).save(blank)
    with pytest.raises(DataError, match=r"blank\.png: the picture is blank"):
        capsule_lab.load(trained.directory)(blank)


def test_command_prints_a_table_and_draws_a_sheet(
    cli: Cli, trained: Trained, pictures: Path
) -> None:
    images = f"images={pictures}/a.png,{pictures}"
    ended = cli("predict", f"ckpt={trained.directory}", images, "sheet=sheet.png")
    assert (ended.status, ended.err) == (0, "")
    assert "[red]b$.png" in ended.out
    with Image.open("sheet.png") as sheet:
        assert sheet.size > (10, 10)


def test_sheet_is_red_where_the_folder_is_named_like_another_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(runs.files, "save_figure", lambda figure, _: figures.append(figure))
    scores = {"disc": 0.9, "star": 0.1}
    found = Prediction("disc", 0.9, scores, pose=None, reconstruction=None)
    paths = ["star/a.png", "disc/b.png", "new/c.png", "d.png"]
    seen = {path: torch.zeros(3, 4, 9) for path in paths}
    predict._draw(seen, dict.fromkeys(paths, found), Path("sheet.png"))
    colours = [text.get_color() for text in figures[0].axes[0].texts]
    assert colours == ["red", "black", "black", "black"]


def test_command_prints_json_and_names_what_is_no_picture(
    cli: Cli, trained: Trained, pictures: Path
) -> None:
    text = pictures / "text.png"
    text.write_text("no picture")
    ended = cli("predict", f"ckpt={trained.directory}", f"images={pictures}", "to=json", "top=2")
    assert ended.status == 1, "after the others were predicted"
    assert f"{text} cannot be read: it is not a picture" in ended.err
    assert [len(row["scores"]) for row in json.loads(ended.out)] == [2, 2, 2]


def test_command_prints_csv(cli: Cli, trained: Trained, pictures: Path) -> None:
    images = f"images={pictures}/a.png"
    ended = cli("predict", f"ckpt={trained.directory}", images, "to=csv", "top=20")
    (row,) = csv.DictReader(io.StringIO(ended.out))
    assert row["name_1"] in list("0123456789")
    assert len(row) == 21


def test_arrays_are_no_pictures(trained: Trained) -> None:
    net = capsule_lab.load(trained.directory)
    with pytest.raises(
        DataError, match=r"is a ndarray; expected a file, a PIL image, or a batch of"
    ):
        net([np.zeros((28, 28), dtype=np.uint8)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "images is missing; expected images="),
        (["images=a.png", "to=xml"], "to is 'xml'|to=xml"),
        (["images=nowhere.png"], r"nowhere\.png cannot be read: No such file"),
    ],
)
def test_mistakes(cli: Cli, trained: Trained, arguments: list[str], message: str) -> None:
    ended = cli("predict", f"ckpt={trained.directory}", *arguments)
    assert ended.status in (1, 2)
    assert re.search(message, ended.err), ended.err


def test_a_network_that_is_not_finite(trained: Trained) -> None:
    net = capsule_lab.load(trained.directory)
    with torch.no_grad():
        next(net.network.parameters()).fill_(torch.nan)
    with pytest.raises(capsule_lab.runs.trust.RunError):
        net(torch.rand(1, 1, 28, 28))
