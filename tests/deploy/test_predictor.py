"""Predictions for pictures, in Python and by the command ``predict``."""

import csv
import io
import json
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw

import capsule_lab
from capsule_lab.errors import DataError
from tests.helpers.commands import Cli, Trained


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, name in enumerate(("a.png", "[red]b$.png", "c.png")):
        picture = Image.new("L", (90, 120), 250)
        ImageDraw.Draw(picture).line([(30, 20), (60 + number * 5, 30), (40, 100)], fill=5, width=9)
        picture.save(folder / name)
    return folder


def test_pictures_paths_and_batches_give_the_same(trained: Trained, pictures: Path) -> None:
    net = capsule_lab.load(trained.directory)
    path = pictures / "a.png"
    (of_path,), (of_picture,) = net(str(path)), net(Image.open(path))
    (of_batch,) = net(net.prepare(path)[None])
    assert of_path.scores == of_picture.scores == of_batch.scores
    assert len(net([path, Image.open(path)])) == 2
    assert net([]) == []
    values = [*of_path.scores.values()]
    assert values == sorted(values, reverse=True)
    assert (of_path.name, of_path.score) == next(iter(of_path.scores.items()))
    assert of_path.pose.norm() == pytest.approx(of_path.score, rel=1e-4), (
        "the length of a capsule is its score"
    )
    assert of_path.reconstruction.shape == (1, 28, 28)
    assert "CapsNet of" in repr(net)
    assert f"Prediction({of_path.name} " in repr(of_path)
    Image.new("L", (9, 9)).save(pictures / "blank.png")
    with pytest.raises(DataError, match=r"blank\.png: the picture is blank"):
        net(pictures / "blank.png")


def test_command_prints_tables_json_and_csv(cli: Cli, trained: Trained, pictures: Path) -> None:
    ckpt, images = f"ckpt={trained.directory}", f"images={pictures}/a.png,{pictures}"
    ended = cli("predict", ckpt, images, "sheet=sheet.png")
    assert (ended.status, ended.err) == (0, "")
    assert "[red]b$.png" in ended.out
    with Image.open("sheet.png") as sheet:
        assert sheet.size > (10, 10)
    (tmp := pictures / "text.png").write_text("no picture")
    ended = cli("predict", ckpt, f"images={pictures}", "to=json", "top=2")
    assert ended.status == 1, "after the others were predicted"
    assert f"{tmp} cannot be read: it is not a picture" in ended.err
    rows = json.loads(ended.out)
    assert [len(row["scores"]) for row in rows] == [2, 2, 2]
    ended = cli("predict", ckpt, f"images={pictures}/a.png", "to=csv", "top=20")
    (row,) = csv.DictReader(io.StringIO(ended.out))
    assert row["name_1"] in [str(number) for number in range(10)]
    assert len(row) == 21


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "images is missing; expected images="),
        (["images=a.png", "to=xml"], "to is 'xml'|to=xml"),
        (["images=nowhere.png"], "nowhere.png cannot be read: No such file"),
    ],
)
def test_mistakes(cli: Cli, trained: Trained, arguments: list[str], message: str) -> None:
    ended = cli("predict", f"ckpt={trained.directory}", *arguments)
    assert ended.status in (1, 2)
    assert any(part in ended.err for part in message.split("|")), ended.err


def test_a_network_that_is_not_finite(trained: Trained) -> None:
    net = capsule_lab.load(trained.directory)
    with torch.no_grad():
        next(net.network.parameters()).fill_(torch.nan)
    with pytest.raises(capsule_lab.runs.trust.RunError):
        net(torch.rand(1, 1, 28, 28))
