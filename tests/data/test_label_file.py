"""Pictures with any number of labels, from a CSV: labels, splits, training, predictions, and what is refused."""

import csv
import json
import random
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from capsule_lab.commands import compose
from capsule_lab.commands.train import train
from capsule_lab.data import PictureFolder
from capsule_lab.errors import ConfigError, DataError
from capsule_lab.runs import predictions
from tests.helpers.commands import NO_PICTURES, ROOT, Cli
from tests.helpers.data_modules import trainer

CLASSES = ("blue", "green", "red")
COLOURS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}
PICTURES = 120
SIDES = ("train", "val", "test")
OPTIONS = [
    "data=folder",
    "data.path=pictures",
    "data.labels=labels.csv",
    "data.size=20",
    "data.directory=packs",
    "data.shift=0",
    "trainer.accelerator=cpu",
    *NO_PICTURES,
]
CAPSNET = ["model=capsnet", "model.channels=8", "model.primary.types=4", "model.decoder=null"]


def make_pictures(folder: Path) -> dict[str, list[str]]:
    """Write pictures with a square of each of some colours, and ``labels.csv``; return the colours of each picture."""
    draw = random.Random(0)
    labels_of = {}
    for number in range(PICTURES):
        names = [name for name in CLASSES if draw.random() < 0.4]
        picture = Image.new("RGB", (20, 20))
        canvas = ImageDraw.Draw(picture)
        for row, name in enumerate(names):
            left, top = draw.randint(0, 12), 6 * row
            canvas.rectangle((left, top, left + 7, top + 5), fill=COLOURS[name])
        file = Path("ab"[number % 2], "deep" if number % 3 else "", f"{number:03}.png")
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        picture.save(folder / file)
        labels_of[str(file)] = names
    lines = [[file, "left", " ; ".join(names)] for file, names in labels_of.items()]
    write(folder / "labels.csv", [["file", "eye", "labels"], *lines])
    groups = [[file, f"p{Path(file).stem[:2]}"] for file in labels_of]
    write(folder / "groups.csv", [["file", "group"], *groups])
    return labels_of


def write(path: Path, lines: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "pictures"
    make_pictures(folder)
    return folder


@pytest.fixture
def pictures(made: Path) -> Path:
    Path("pictures").symlink_to(made)
    return Path("pictures")


def module(path: Path, *stages: str, **options: Any) -> PictureFolder:
    options = {"labels": "labels.csv", "size": 20, "directory": "packs", **options}
    data = PictureFolder(path=str(path), **options)
    data.trainer = trainer()
    for stage in stages:
        data.setup(stage)
    return data


def files_of(data: PictureFolder, side: str) -> list[str]:
    kept = data.real_source.kept
    return [kept[row].file for row in data.sets[side].images.rows.tolist()]


def labels_in(folder: Path) -> dict[str, list[str]]:
    with (folder / "labels.csv").open(newline="") as file:
        rows = csv.DictReader(file)
        return {row["file"]: sorted(re.findall(r"\w+", row["labels"])) for row in rows}


@pytest.mark.parametrize("options", [{}, {"folds": 3, "fold": 1}], ids=["share", "fold"])
@pytest.mark.parametrize("groups", [None, "groups.csv"], ids=["images", "groups"])
def test_every_picture_has_the_labels_of_the_file_on_one_side(
    made: Path, groups: str | None, options: dict[str, Any]
) -> None:
    expected = labels_in(made)
    data = module(made, "fit", "test", groups=groups, **options)
    assert data.spec.classes == CLASSES
    assert data.spec.labels_per_image == 0
    seen = {}
    groups_of_side = []
    for side in SIDES:
        files = files_of(data, side)
        rows = data.sets[side].labels.tolist()
        for file, row in zip(files, rows, strict=True):
            seen[file] = [name for name, has in zip(CLASSES, row, strict=True) if has]
        groups_of_side.append({Path(file).stem[:2] for file in files})
        assert any(sum(row) == 0 for row in rows)
        assert any(sum(row) > 1 for row in rows)
    assert seen == expected
    if groups:
        assert sum(map(len, groups_of_side)) == len(set.union(*groups_of_side))
    assert data.class_counts().tolist() == data.sets["train"].labels.sum(0).tolist()
    assert len(data.provenance["labels_sha256"]) == 64


def test_splits_and_batches_are_the_same_for_every_seed(made: Path) -> None:
    one, other = module(made, "fit", "test", seed=0), module(made, "fit", "test", seed=1)
    for side in SIDES:
        assert sorted(files_of(one, side)) == sorted(files_of(other, side))
    assert module(made, "fit", train_images=9).sets["train"].labels.shape == (9, 3)
    batch = next(iter(one.train_dataloader()))
    assert batch.labels.dtype == torch.bool
    assert batch.classes is batch.labels


def test_pictures_in_a_folder_for_the_test_stay_there(tmp_path: Path) -> None:
    labels_of = make_pictures(tmp_path / "all")
    lines = []
    for number, (file, labels) in enumerate(labels_of.items()):
        new = Path("train" if number % 4 else "test", file)
        (tmp_path / new).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "all" / file).rename(tmp_path / new)
        lines.append([str(new), ";".join(labels)])
    divided = tmp_path / "divided"
    divided.mkdir()
    for part in ("train", "test"):
        (tmp_path / part).rename(divided / part)
    write(divided / "labels.csv", [["file", "labels"], *lines])
    data = module(divided, "fit", "test")
    assert all(file.startswith("test/") for file in files_of(data, "test"))
    assert all(file.startswith("train/") for file in files_of(data, "train"))


def test_a_side_without_a_class_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    labels_of = make_pictures(tmp_path)
    lines = [
        [file, "rare" if file.endswith("/000.png") else ";".join(labels)]
        for file, labels in labels_of.items()
    ]
    write(tmp_path / "labels.csv", [["file", "labels"], *lines])
    module(tmp_path, "fit")
    warnings = [
        each
        for each in caplog.messages
        if each.endswith("have none of rare: their error says nothing about it")
    ]
    assert len(warnings) == 2


A, B = "a/000.png", "b/001.png"
WRONG = {
    "no column": ("file,label", "line 1 has file,label; expected the columns file and labels"),
    "no header": ("", "line 1 has no columns; expected the columns file and labels"),
    "two columns": ("file,labels,labels", "line 1 has file,labels,labels; expected the columns"),
    "an unknown file": ("file,labels\nc.png,red", "line 2: c.png is not among the pictures;"),
    "a file elsewhere": ("file,labels\n../a.png,red", "line 2: ../a.png is not among the pictures"),
    "too many columns": (f"file,labels\n{A},red,blue", "line 2 has 3 columns; expected 2"),
    "two lines": (
        f"file,labels\n{A},red\n{A},blue",
        f"line 3: {A} has labels in line 2, too; expected one line for each picture",
    ),
    "an empty name": (f"file,labels\n{A},red;;blue", f"line 2: {A} has red;;blue; expected names"),
    "a name twice": (f"file,labels\n{A},red;red", f"line 2: {A} has the label red twice;"),
    "no line": (f"file,labels\n{A},red;blue", "has no line for a/006.png; expected one for each"),
    "no text": ("file,labels\n\xff", "cannot be read ("),
}


def test_too_few_groups_of_pictures_with_labels_are_those_of_the_data_set(made: Path) -> None:
    number = len({Path(file).stem[:2] for file in labels_in(made)})
    message = (
        rf"but the data set has {number} groups; expected 99 or more: set data\.folds={number}$"
    )
    with pytest.raises(ValueError, match=message):
        module(made, "fit", groups="groups.csv", folds=99, fold=0)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_one_sentence(made: Path, tmp_path: Path, name: str) -> None:
    content, expected = WRONG[name]
    path = tmp_path / "wrong.csv"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(DataError, match=re.escape(f"data.labels: {path}")) as refused:
        _ = module(made, labels=str(path)).spec
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("label", "expected"),
    [("red", "has one class, red; expected two classes or more"), ("", "has no labels; expected")],
)
def test_fewer_than_two_classes_are_refused(
    made: Path, tmp_path: Path, label: str, expected: str
) -> None:
    lines = [[file, label] for file in labels_in(made)]
    write(tmp_path / "one.csv", [["file", "labels"], *lines])
    with pytest.raises(DataError, match=expected):
        _ = module(made, labels=str(tmp_path / "one.csv")).spec


def test_a_missing_file_and_a_class_that_the_network_does_not_know_are_refused(made: Path) -> None:
    with pytest.raises(DataError, match=r"none.csv cannot be read \(No such file or directory\);"):
        _ = module(made, labels="none.csv").spec
    other = module(made)
    spec = other.spec
    known = module(made)
    known.real_source.known = ("red", "blue")
    with pytest.raises(
        DataError, match="has the label green; expected classes of the network: red"
    ):
        _ = known.spec
    of_one = module(made, labels=None)
    of_one.use_spec(spec)
    assert of_one.spec.labels_per_image == 1


FAST = ["data.batch_size=8", "trainer.max_epochs=8", "trainer.check_val_every_n_epoch=8"]
NETWORKS = {
    "lengths": [*CAPSNET, "schedule.learning_rate.initial=0.005"],
    "logits": ["model=cnn_small", "loss=sigmoid_cross_entropy"],
}


@pytest.mark.whole
@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("scores", ["lengths", pytest.param("logits", marks=pytest.mark.slow)])
def test_a_network_learns_them_and_predict_names_them(cli: Cli, scores: str) -> None:
    config = compose("train", [*NETWORKS[scores], *OPTIONS, *FAST])
    result = train(config, Path("run"))
    test, classes = result["test"], result["classes"]
    assert test["error"] < classes["constant_error"] / 2
    assert test["label_error"] <= test["error"]
    assert test["balanced_error"] < 25
    assert test["auroc"] > 0.9
    found = predictions.read(Path("run"), result)
    assert found is not None
    np.testing.assert_array_equal(found.wrong, found.margin < 0)
    assert 100 * found.wrong.mean() == pytest.approx(test["error"])
    sets, counts = np.unique(found.label, axis=0, return_counts=True)
    assert classes["constant_error"] == pytest.approx(100 * (1 - counts.max() / counts.sum()))
    most_frequent = [CLASSES[label] for label in np.flatnonzero(sets[counts.argmax()])]
    assert classes["constant_labels"] == most_frequent
    assert classes["images"] == dict(zip(CLASSES, found.label.sum(0).tolist(), strict=True))

    answer = cli("evaluate", "ckpt=run")
    assert f"label error {test['label_error']:.2f} %, balanced error " in answer.out
    named = ", ".join(most_frequent) or "no label"
    assert f"% (always answering {named}: {classes['constant_error']:.2f} %)" in answer.out
    predicted = json.loads(cli("predict", "ckpt=run", "images=pictures/a", "to=json").out)
    threshold = 0.5 if scores == "lengths" else 0  # whose logistic function is 0.5
    for each in predicted:
        above = [name for name, score in each["scores"].items() if score > threshold]
        assert each["labels"] == above
    by_number = {len(each["labels"]) for each in predicted}
    assert by_number >= {0, 1, 2}
    table = cli("predict", "ckpt=run", "images=pictures/a", "sheet=sheet.png").out
    assert re.search("0.png .* none *$", table, re.MULTILINE)
    first, second = next(each["labels"] for each in predicted if len(each["labels"]) == 2)
    assert re.search(f" {first}, {second} *$", table, re.MULTILINE)
    assert f",{first};{second}\n" in cli("predict", "ckpt=run", "images=pictures/a", "to=csv").out


REFUSED = {
    "loss=spread": "that do not sum to 1, as of several labels; use loss=margin for capsules",
    "loss=cross_entropy": "with several labels, use loss=margin for capsules, loss=sigmoid_cross_entropy",
    "model.decoder=[8]": "images have any number of labels; expected model.decoder=null",
    "data.mixup=0.2": "and every image has any number of labels; expected null",
    "data.sampling=balanced": "has pairs or several labels, not one class for each image",
    "module.class_weights=balanced": "needs one class for each image, but these have any number",
}


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("override", REFUSED)
def test_what_needs_one_label_is_refused_before_training(override: str) -> None:
    config = compose("train", [*OPTIONS, *CAPSNET, override])
    with pytest.raises(ConfigError, match=re.escape(REFUSED[override])):
        train(config, Path("run"))
    assert not Path("run").exists()


@pytest.mark.whole  # three fits
def test_the_commands_of_the_section(cli: Cli) -> None:
    guide = (ROOT / "docs" / "guides" / "own_pictures.md").read_text()
    section = guide.split("## Several labels a picture")[1].split("\n## ")[0]
    commands = re.findall(r"^capsule-lab .*", section, re.MULTILINE)
    assert len(commands) == 4
    make_pictures(Path("pictures"))
    for command in commands:
        small = command.replace("max_steps=300", "max_steps=2 trainer.accelerator=cpu")
        _, name, *overrides = shlex.split(small)
        ended = cli(name, *overrides)
        assert ended.status == 0, ended.err
        expected = "labels" if name == "predict" else "% (always answering "
        assert expected in ended.out
