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
from capsule_lab.data import AffNISTDataModule, ArraysDataModule
from capsule_lab.data.formats import pictures
from capsule_lab.data.standins import toynorb_files as files
from tests.helpers.commands import Cli
from tests.helpers.data_modules import without_network
from tests.helpers.make_pictures import make_pictures
from tests.helpers.messages import one_sentence
from tests.helpers.tiers import whole_but
from tests.helpers.toynorb_images import painted


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toys are painted instead of rendered."""
    monkeypatch.setattr(files, "render", painted)
    monkeypatch.setattr(toynorb, "render", painted)


@pytest.mark.whole
@pytest.mark.usefixtures("quick")
def test_toynorb_is_rendered_into_the_data_directory(cli: Cli, tmp_path: Path) -> None:
    ended = cli("dataset", "name=toynorb", "size=9", "workers=1", "directory=there")
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert f"toynorb: {files.STANDIN_NAME}, in there/toynorb/9x9" in lines
    assert "there/toynorb/9x9/contact_sheet.png" in lines
    folder = tmp_path / "there" / "toynorb" / "9x9"
    rendered = [*folder.glob("smallnorb-*x9x18x6x2x9x9-*.mat")]
    assert len(rendered) == 6
    record = json.loads((folder / "provenance.json").read_text())
    assert record["size"] == 9
    assert record["seed"] == 0
    assert len(record["azimuths"]) == 18
    assert is_a_picture(folder / "contact_sheet.png")


def is_a_picture(file: Path) -> bool:
    """Whether the pixels of the file differ."""
    pixels = matplotlib.image.imread(file)[..., :3]
    return bool(pixels.std() > 0.1)


@pytest.mark.usefixtures("quick")
def test_complete_set_is_not_rendered_again(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "elsewhere"
    monkeypatch.setenv("CAPSULE_LAB_DATA", str(data))
    options = ("name=toynorb", "size=8", "workers=1", "sheet=false")
    assert cli("dataset", *options).status == 0
    (folder,) = (data / "toynorb").iterdir()
    assert not (folder / "contact_sheet.png").exists()

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
    factors = []
    for images in shown:
        rows, columns = images.shape[:2]
        pixels = images.reshape(rows, columns, 64)
        painted_factors = pixels[..., :6].astype(int) - 1
        assert painted_factors[:, 0, 0].tolist() == [0, 1, 2, 3, 4]
        factors.append(painted_factors[2])
    instances, azimuths, lightings = factors
    assert instances[:, 1].tolist() == list(range(10))
    assert azimuths[:, 3].tolist() == list(range(18))
    assert lightings[:, 4].tolist() == list(range(6))


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
    lines = ended.out.splitlines()
    beginnings = [line.split(":")[0] for line in lines]
    assert beginnings == ["downloading https", "stand-in data for MNIST, not the real set", "mnist"]
    assert lines[-1].startswith("mnist: stand-in for MNIST")


def test_folder_of_pictures_is_packed_and_drawn(cli: Cli, tmp_path: Path) -> None:
    shapes = tmp_path / "shapes"
    make_pictures(shapes, per_class=8, largest=60)
    pictures._warn_of_scaling.cache_clear()  # another test may have shown it
    options = ("name=folder", f"path={shapes}", "directory=there")
    first = cli("dataset", *options, "size=16", "sheet=false")
    assert first.status == 0, first.err
    (packed,) = (tmp_path / "there").glob("folder-*")
    second = cli("dataset", *options, "size=24")
    warning = "pictures of 16 bits or more are scaled to 8 bits, each by its own range"
    assert warning in first.out + second.out
    *_, sheet, old = second.out.splitlines()
    unused = "is of another folder, size or state of the pictures; remove it if unused"
    assert old == f"there/{packed.name} (0 MB) {unused}"
    assert is_a_picture(tmp_path / sheet)


@pytest.mark.parametrize("name", whole_but(["multimnist", "cifar10"], "multimnist"))
def test_contact_sheet_is_written_into_the_data_directory(
    cli: Cli, tmp_path: Path, name: str
) -> None:
    sheet = f"here/{name}_contact_sheet.png"
    ended = cli("dataset", f"name={name}", "directory=here", "source=standin")
    assert ended.status == 0
    assert ended.out.splitlines()[-1] == sheet
    assert is_a_picture(tmp_path / sheet)


def test_contact_sheet_shows_an_image_with_each_of_its_labels(tmp_path: Path) -> None:
    grey_of_class = np.array([50, 100, 200])
    rows = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 0]] * 12)
    images = np.zeros((48, 8, 8), dtype=np.uint8)
    images[:, 0, :3] = rows * grey_of_class
    np.savez(tmp_path / "a.npz", images=images, labels=rows)
    data = ArraysDataModule(path=str(tmp_path / "a.npz"))
    data.prepare_data()
    found = dataset._first_images(data)
    assert [*found] == [0, 1, 2]
    for label, shown in found.items():
        assert (shown[:, 0, 0, label] > 0).all()


def test_labels_and_groups_are_those_of_a_training(cli: Cli, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((40, 8, 8), dtype=np.uint8))
    np.save(tmp_path / "y.npy", np.arange(40) % 2)
    ended = cli("dataset", "name=arrays", "path=x.npy", "labels=y.npy", "directory=here")
    assert ended.status == 0, ended.err
    assert "arrays of x.npy" in ended.out


def test_contact_sheet_has_training_images_of_each_class(tmp_path: Path) -> None:
    data = AffNISTDataModule(source="standin", directory=str(tmp_path))
    images = dataset._first_images(data)
    assert [*images] == [*range(10)]
    pixels = torch.stack([*images.values()])
    assert pixels.shape == (10, 12, 1, 40, 40)
    assert pixels.min() == 0
    assert pixels.max() == 1


@pytest.mark.parametrize("overrides", [["data=mnist"], ["data=mnist", "model=capsnet"]])
def test_groups_of_other_commands_are_refused_in_one_sentence(
    cli: Cli, overrides: list[str]
) -> None:
    refused = one_sentence(cli("dataset", *overrides))
    assert "data does not exist; Options: directory, groups, labels, name, " in refused
