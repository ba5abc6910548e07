"""The command ``dataset``: which files it prepares, where, and its messages."""

import json
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import toynorb
from capsule_lab.commands import dataset
from capsule_lab.data import AffNISTDataModule
from capsule_lab.data.formats import pictures
from capsule_lab.data.standins import toynorb_files as files
from tests.helpers.commands import Cli
from tests.helpers.data_modules import without_network
from tests.helpers.make_pictures import make_pictures
from tests.helpers.messages import one_sentence
from tests.helpers.toynorb_images import painted


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toys are painted instead of rendered."""
    monkeypatch.setattr(files, "render", painted)
    monkeypatch.setattr(toynorb, "render", painted)


@pytest.mark.usefixtures("quick")
def test_toynorb_is_rendered_into_the_data_directory(cli: Cli, tmp_path: Path) -> None:
    ended = cli("dataset", "name=toynorb", "size=9", "workers=1", "directory=there")
    folder = tmp_path / "there" / "toynorb" / "9x9"
    assert (ended.status, ended.err) == (0, "")
    assert f"toynorb: {files.STANDIN_NAME}, in there/toynorb/9x9" in ended.out.splitlines()
    assert str(Path("there/toynorb/9x9/contact_sheet.png")) in ended.out.splitlines()
    assert len(list(folder.glob("smallnorb-*x9x18x6x2x9x9-*.mat"))) == 6
    record = json.loads((folder / "provenance.json").read_text())
    assert (record["size"], record["seed"], len(record["azimuths"])) == (9, 0, 18)
    assert matplotlib.image.imread(folder / "contact_sheet.png")[..., :3].std() > 0


@pytest.mark.usefixtures("quick")
def test_complete_set_is_not_rendered_again(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPSULE_LAB_DATA", str(tmp_path / "elsewhere"))
    options = ("name=toynorb", "size=8", "workers=1", "sheet=false")
    assert cli("dataset", *options).status == 0
    (folder,) = (tmp_path / "elsewhere" / "toynorb").iterdir()
    assert "contact_sheet.png" not in [path.name for path in folder.iterdir()]
    monkeypatch.setattr(files, "render", lambda *_, **__: pytest.fail("rendered again"))
    ended = cli("dataset", *options)
    assert ended.status == 0
    assert ended.out.splitlines() == [f"toynorb: {files.STANDIN_NAME}, in {folder}"]


def test_contact_sheet_shows_the_images_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[np.ndarray] = []

    def keep(*images: np.ndarray, **_: Any) -> Figure:
        shown.extend(images)
        return Figure()

    monkeypatch.setattr(toynorb, "render", painted)
    monkeypatch.setattr("toynorb.catalogue.toy_sheet", keep)
    dataset._draw(tmp_path / "sheet.png", 8)
    reported = [images.reshape(*images.shape[:2], 64)[..., :6].astype(int) - 1 for images in shown]
    assert [images.shape[:2] for images in shown] == [(5, 10), (5, 18), (5, 6)]
    for images in reported:
        assert images[:, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert reported[0][2, :, 1].tolist() == list(range(10))
    assert reported[1][2, :, 3].tolist() == list(range(18))
    assert reported[2][2, :, 4].tolist() == list(range(6))


def test_real_files_are_checked(cli: Cli, real: Path) -> None:
    ended = cli("dataset", "name=mnist", f"directory={real}", "source=real", "sheet=false")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines() == [f"mnist: real MNIST, in {real}"]


def test_stand_in_is_announced_if_there_is_no_network(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_network(monkeypatch)
    ended = cli("dataset", "name=mnist", "sheet=false")
    assert (ended.status, ended.err) == (0, "")
    lines = [line.split(":")[0] for line in ended.out.splitlines()]
    assert lines == ["downloading https", "STAND-IN DATA, not the real set", "mnist"]
    assert "mnist: stand-in for MNIST" in ended.out


def test_folder_of_pictures_is_packed_and_drawn(cli: Cli, tmp_path: Path) -> None:
    make_pictures(tmp_path / "shapes", per_class=8, largest=60)
    pictures._warn_of_scaling.cache_clear()  # another test may have shown it
    options = ("name=folder", f"path={tmp_path / 'shapes'}", "directory=there")
    first = cli("dataset", *options, "size=16", "sheet=false")
    assert first.status == 0, first.err
    (packed,) = (tmp_path / "there").glob("folder-*")
    second = cli("dataset", *options, "size=24")
    warning = "pictures of 16 bits or more are scaled to 8 bits, each by its own range"
    assert warning in first.out + second.out
    *_, sheet, old = second.out.splitlines()
    unused = "is of another folder, size or state of the pictures; remove it if unused"
    assert old == f"there/{packed.name} (0 MB) {unused}"
    drawn = matplotlib.image.imread(tmp_path / sheet)
    assert drawn[..., :3].std() > 0.1


def test_contact_sheet_has_training_images_of_each_class(cli: Cli, tmp_path: Path) -> None:
    for name in ("multimnist", "cifar10"):
        sheet = f"here/{name}_contact_sheet.png"
        ended = cli("dataset", f"name={name}", "directory=here", "source=standin")
        assert (ended.status, ended.out.splitlines()[-1]) == (0, sheet)
        assert matplotlib.image.imread(tmp_path / sheet)[..., :3].std() > 0.1
    images = dataset._first_images(AffNISTDataModule(source="standin", directory=str(tmp_path)))
    assert [*images] == [*range(10)]
    pixels = torch.stack([*images.values()])
    assert pixels.shape == (10, 12, 1, 40, 40)
    assert (pixels.min(), pixels.max()) == (0, 1)


@pytest.mark.parametrize("overrides", [["data=mnist"], ["data=mnist", "model=capsnet"]])
def test_groups_of_other_commands_are_refused_in_one_sentence(
    cli: Cli, overrides: list[str]
) -> None:
    refused = one_sentence(cli("dataset", *overrides))
    assert "data does not exist; Options: directory, name, " in refused
