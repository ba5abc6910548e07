"""Folds and groups of pictures of your own: what is on which side, and what is wrong in one sentence."""

import csv
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from capsule_lab.data import PictureFolder
from capsule_lab.data.folds import fold_of_each
from capsule_lab.data.splits import index_hash
from capsule_lab.errors import DataError
from tests.helpers.data_modules import trainer

UNEVEN = np.repeat(np.arange(3, dtype=np.int64), [50, 30, 11])
GROUPS = np.arange(len(UNEVEN)) * 7 % 23  # each has pictures of several classes
PER_CLASS = {"a": 13, "b": 17, "c": 10}
PATIENTS = 11
SIDES = ("train", "val", "test")


def scikit_learns(labels: Any, folds: int, groups: Any, seed: int) -> Any:
    kind = StratifiedKFold if groups is None else StratifiedGroupKFold
    splitter = kind(folds, shuffle=True, random_state=seed)
    fold_of = np.empty(len(labels), dtype=np.int64)
    for fold, (_, test) in enumerate(splitter.split(labels, labels, groups)):
        fold_of[test] = fold
    return fold_of


@pytest.mark.parametrize("groups", [None, GROUPS], ids=["images", "groups"])
@pytest.mark.parametrize("folds", [2, 5, 10])
@pytest.mark.parametrize("labels", [UNEVEN, 7 - UNEVEN], ids=["rising", "falling"])
def test_folds_are_those_of_scikit_learn(labels: Any, groups: Any, folds: int) -> None:
    for seed in range(3):
        expected = scikit_learns(labels, folds, groups, seed)
        np.testing.assert_array_equal(fold_of_each(labels, groups, folds, seed), expected)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [(None, "47e8a8407795ce17"), (GROUPS, "74790eb137decb3a")],
    ids=["images", "groups"],
)
def test_folds_stay_the_same(groups: Any, expected: str) -> None:
    assert index_hash(fold_of_each(UNEVEN, groups, 5, seed=0)) == expected


def test_folds_have_the_same_share_of_every_class() -> None:
    fold_of = fold_of_each(UNEVEN, None, 4, seed=0)
    for label in range(3):
        numbers = np.bincount(fold_of[label == UNEVEN], minlength=4)
        assert np.ptp(numbers) <= 1


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    lines = []
    for name, number in PER_CLASS.items():
        (folder / name).mkdir()
        for index in range(number):
            file = f"{name}/{index:02}.png"
            Image.new("L", (4, 4), 5 * index).save(folder / file)
            lines.append([file, f"p{index % PATIENTS}", "left"])
    write(folder / "groups.csv", lines, ["file", "group", "eye"])
    write(folder / "of_one.csv", [[line[0], "p0"] for line in lines])
    return folder


def write(path: Path, lines: list[list[str]], header: list[str] | None = None) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header or ["file", "group"], *lines])


def module(path: Path, *stages: str, **options: Any) -> PictureFolder:
    data = PictureFolder(path=str(path), **{"size": 4, "directory": "packs", **options})
    data.trainer = trainer()
    for stage in stages or ("fit", "test"):
        data.setup(stage)
    return data


def files_of(data: PictureFolder, side: str) -> list[str]:
    kept = data.real_source.kept
    return sorted(kept[row].file for row in data.sets[side].images.rows.tolist())


def patients_of(data: PictureFolder, side: str) -> set[int]:
    return {int(file[2:4]) % PATIENTS for file in files_of(data, side)}


OPTIONS = [{}, {"groups": "groups.csv"}]


@pytest.mark.parametrize("options", OPTIONS, ids=["images", "groups"])
def test_every_picture_is_tested_in_one_fold_and_used_once_in_each(
    made: Path, options: dict[str, Any]
) -> None:
    tested: Counter[str] = Counter()
    for fold in range(3):
        data = module(made, folds=3, fold=fold, **options)
        used = [file for side in SIDES for file in files_of(data, side)]
        assert len(used) == len({*used}) == sum(PER_CLASS.values())
        tested.update(files_of(data, "test"))
    assert {*tested.values()} == {1}
    assert len(tested) == sum(PER_CLASS.values())


@pytest.mark.parametrize("options", [{}, {"folds": 3, "fold": 1}], ids=["share", "fold"])
def test_no_group_is_on_two_sides(made: Path, options: dict[str, Any]) -> None:
    data = module(made, groups="groups.csv", **options)
    patients = [patients_of(data, side) for side in SIDES]
    assert all(patients)
    assert sum(map(len, patients)) == len(set.union(*patients)) == PATIENTS
    recorded = data.provenance["split"]["groups"]
    assert recorded == {side: len(of_side) for side, of_side in zip(SIDES, patients, strict=True)}
    assert re.fullmatch("[0-9a-f]{64}", data.provenance["groups_sha256"])
    clusters = data.test_clusters
    assert clusters is not None
    assert len(clusters) == len(data.sets["test"].labels)
    assert len({*clusters.tolist()}) == len(patients[2])


def test_groups_divide_neither_training_and_validation_pictures_without_validation(
    made: Path,
) -> None:
    data = module(made, groups="groups.csv", validation="none")
    assert not files_of(data, "val")
    assert not patients_of(data, "train") & patients_of(data, "test")


@pytest.mark.parametrize("options", OPTIONS, ids=["images", "groups"])
def test_folds_depend_neither_on_the_seed_nor_on_shares(
    made: Path, options: dict[str, Any]
) -> None:
    fold = {"folds": 3, "fold": 1, **options}
    one = module(made, seed=0, **fold)
    other = module(made, seed=1, test_share="1/9", **fold)
    for side in SIDES:
        assert files_of(one, side) == files_of(other, side)
    assert one.provenance["split"].items() >= {"folds": 3, "fold": 1}.items()


def test_without_folds_and_groups_the_split_is_as_before(made: Path) -> None:
    data = module(made)
    assert data.provenance["split"].keys() == {"validation", "train_images", "val_images", "hash"}
    assert data.provenance["split"]["hash"] == "065d88a5b17adba476dce81160d327a9"
    assert data.test_clusters is None


def test_pictures_in_a_folder_for_validation_stay_there(made: Path, tmp_path: Path) -> None:
    parts = divided(made, tmp_path / "parts", "val")
    data = module(parts, folds=3, fold=0)
    assert all(file.startswith("val/") for file in files_of(data, "val"))
    assert all(file.startswith("train/") for file in files_of(data, "train"))
    assert {file[:4] for file in files_of(data, "test")} == {"val/", "trai"}
    without_folds = module(parts)
    assert len(files_of(without_folds, "test")) == sum(PER_CLASS.values()) // 5


def divided(made: Path, folder: Path, other: str) -> Path:
    """The pictures of the odd patients in ``other``, the others in ``train``; group files are beside them."""
    lines = []
    for file in sorted(made.glob("*/*.png")):
        patient = int(file.stem) % PATIENTS
        part = other if patient % 2 else "train"
        to = folder / part / file.parent.name / file.name
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(file.read_bytes())
        lines.append([to.relative_to(folder).as_posix(), f"p{patient}"])
    write(folder / "groups.csv", lines)
    halves = [[file, f"p{int(patient[1:]) // 2}"] for file, patient in lines]
    write(folder / "halves.csv", halves)
    return folder


@pytest.mark.parametrize("other", ["val", "test"])
def test_a_group_on_two_sides_that_are_given_apart_is_reported(
    made: Path, tmp_path: Path, other: str
) -> None:
    parts = divided(made, tmp_path / "parts", other)
    if other == "test":
        data = module(parts, groups="groups.csv", validation_share="1/3")
        assert data.provenance["split"]["groups"]["test"] == 5
    message = rf"^group p\d has pictures in (train|val) and in {other}; expected each group in "
    with pytest.raises(DataError, match=message):
        module(parts, "fit", groups="halves.csv", validation_share="1/3")


def test_a_fold_without_a_class_is_a_warning(
    made: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts = divided(made, tmp_path / "parts", "val")
    for file in (parts / "val" / "c").iterdir():
        file.unlink()
    (parts / "val" / "c").rmdir()
    module(parts, "fit", folds=3, fold=2)
    assert "the val pictures of fold 2 have none of c: their error says nothing" in caplog.text


# --- what is wrong


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folds": 1, "fold": 0}, r"data\.folds is 1; expected 2 or more"),
        ({"folds": True, "fold": 0}, r"data\.folds is True; expected 2 or more"),
        ({"folds": 3, "fold": 3}, r"data\.fold is 3; expected 0 to 2"),
        ({"folds": 3, "fold": -1}, r"data\.fold is -1; expected 0 to 2"),
        (
            {"fold": 0},
            r"data\.fold is 0 without data\.folds; expected both, such as data\.folds=5 ",
        ),
        ({"folds": 3}, r"data\.folds is 3 without data\.fold; expected data\.fold=0 to 2"),
        (
            {"folds": 11, "fold": 0},
            r"data\.folds is 11, but class c has 10 images; expected 11 or more .*: set data\.folds=10$",
        ),
        (
            {"folds": 11, "fold": 0, "groups": "groups.csv"},
            r"class c has 10 groups; expected 11 or more of every class: set data\.folds=10$",
        ),
        (
            {"folds": 2, "fold": 0, "groups": "of_one.csv"},
            r"data\.folds is 2, but class a has 1 group; expected 2 or more of every class: add oth",
        ),
        (
            {"test_share": "1/11", "groups": "groups.csv"},
            r"data\.test_share is 1/11, one of 11 parts .*10 groups; .*: set data\.test_share=1/10$",
        ),
        (
            {"validation_share": "1/9", "groups": "groups.csv"},
            r"data\.validation_share is 1/9, .* set data\.validation_share=1/\d$",
        ),
        (
            {"test_share": "0.9", "groups": "groups.csv"},
            r"data\.test_share is 9/10 with groups; expected a share above 0, up to 1/2$",
        ),
        (
            {"validation_share": "3/5", "groups": "groups.csv"},
            r"data\.validation_share is 3/5 with groups; expected a share above 0, up to 1/2$",
        ),
        (
            {"test_share": 0.0, "groups": "groups.csv"},
            r"data\.test_share is 0 with groups; expected",
        ),
    ],
)
def test_folds_and_shares_that_do_not_fit_are_refused(
    made: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        module(made, **options)


def test_folds_beside_a_folder_for_the_test_are_refused(made: Path, tmp_path: Path) -> None:
    parts = divided(made, tmp_path / "parts", "test")
    message = (
        r"^data\.folds is 3, and pictures for the test are given apart; expected one of them: leave"
    )
    with pytest.raises(DataError, match=message):
        module(parts, folds=3, fold=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r" cannot be read \(No such file or directory\); expected a CSV in UTF-8 with the"),
        (
            b"",
            r", line 1 has no columns; expected the columns file and group, separated by commas$",
        ),
        (b"file;group\n", r", line 1 has file;group; expected the columns file and group, separat"),
        (b"file,group,group\n", r", line 1 has file,group,group; expected the columns file and "),
        (
            b"file,group\n\xff,a\n",
            r" cannot be read \('utf-8' codec can't decode byte 0xff .*\); ex",
        ),
        (
            b"file,group\na\x00b,a\n",
            r", line 2: a b is not among the pictures; expected paths rela",
        ),
        (b"file,group\n" + 200_000 * b"a", r" cannot be read \(field larger than field limit"),
        (b"file,group\na/00.png,p,q\n", r", line 2 has 3 columns; expected 2$"),
        (b"file,group\na/00.png,p\n\n", r" has no line for a/01\.png; .*: 39 of 40 have none$"),
        (
            b"\xef\xbb\xbfgroup,file\r\np,./a/00.png\r\n",
            r" has no line for a/01\.png; .*: 39 of 40",
        ),
        (
            b"file,group\n\na/99.png,p\n",
            r", line 3: a/99\.png is not among the pictures; expected p",
        ),
        (
            b"file,group\n../b/00.png,p\n",
            r", line 2: \.\./b/00\.png is not among the pictures; exp",
        ),
        (
            b"file,group\n,p\n",
            r", line 2: \. is not among the pictures; expected paths relative to",
        ),
        (b"file,group\na/00.png, \n", r", line 2: a/00\.png has no group; expected a name$"),
        (
            b"file,group\na/00.png,p\na/01.png,p\na/00.png,q\n",
            r", line 4: a/00\.png is in group q, and in p in line 2; expected one group for each pic",
        ),
    ],
)
def test_a_wrong_file_of_groups_is_reported(
    made: Path, tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "mine.csv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError, match=rf"^data\.groups: {re.escape(str(file))}{message}"):
        module(made, "fit", groups=str(file))
