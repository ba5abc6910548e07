"""``AbstractDataModule`` and the template of an own data set, ``tests/templates/my_data``."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from capsule_lab.data import AbstractDataModule, AbstractSource, Images
from capsule_lab.errors import DataError, MissingDataError
from capsule_lab.types import Batch, DataSpec
from tests.helpers.commands import NO_PICTURES, ROOT, TINY_CNN, Cli
from tests.helpers.data_modules import trainer

TEMPLATE = ROOT / "tests" / "templates" / "my_data"


@pytest.fixture
def my_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The DataModule of the template, copied to a folder outside of the repository."""
    shutil.copytree(TEMPLATE, tmp_path / "own", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    import stripes

    yield stripes.StripesDataModule
    del sys.modules["stripes"]


def seen(data: AbstractDataModule) -> dict[int, torch.Tensor]:
    """Every transformed training image of an epoch, by its key."""
    batches = [data.on_after_batch_transfer(batch, 0) for batch in data.train_dataloader()]
    return {key: image for batch in batches for key, image in zip(batch.key.tolist(), batch.images, strict=True)}


def of(module: Any, *, rank: int = 0, world_size: int = 1, **options: Any) -> AbstractDataModule:
    data = module(**options)
    data.trainer = trainer(rank=rank, world_size=world_size)
    data.setup("fit")
    return data


@pytest.mark.usefixtures("my_data")
def test_template_trains_for_a_step(cli: Cli, tmp_path: Path) -> None:
    options = ["trainer.max_steps=1", "trainer.accelerator=cpu", "train.directory=run", *NO_PICTURES]
    ended = cli("train", "--config-dir", str(tmp_path / "own" / "conf"), *TINY_CNN, "data=stripes", *options)
    assert (ended.status, ended.err) == (0, "")
    assert "on stripes" in ended.out
    assert (tmp_path / "run" / "metrics.json").is_file()


@pytest.mark.parametrize(("batch_size", "parts"), [(7, 1), (33, 2)])
def test_torchvision_transform_depends_only_on_the_image(my_data: Any, batch_size: int, parts: int) -> None:
    options = {"validation": "none", "train_images": 66}
    whole = seen(of(my_data, **options, batch_size=66))
    images: dict[int, torch.Tensor] = {}
    for rank in range(parts):
        images |= seen(of(my_data, **options, batch_size=batch_size, rank=rank, world_size=parts))
    assert all(image.equal(whole[key]) for key, image in images.items())
    assert len(images) >= 63  # the last batch of seven is dropped


@pytest.mark.parametrize(("training", "augment"), [(True, False), (False, True), (True, True)])
def test_only_training_images_are_augmented(my_data: Any, training: bool, augment: bool) -> None:
    data = of(my_data, augment=augment)
    data.trainer.training = training
    batch = next(iter(data.train_dataloader()))
    still = batch.images[:, :, 2:18, 2:18] / 255
    assert data.on_after_batch_transfer(batch, 0).images.equal(still) is not (training and augment)


class Missing(AbstractSource):
    def find(self) -> None:
        raise MissingDataError("no images in data/images; put them there")

    def load(self, *, train: bool) -> Images:
        pytest.fail("there is nothing to load")

    def provenance(self) -> dict[str, Any]:
        return {"name": "missing"}


class Zeros(AbstractSource):
    def load(self, *, train: bool) -> Images:
        return Images(torch.zeros(20, 1, 4, 4, dtype=torch.uint8), torch.arange(20) % 2)

    def provenance(self) -> dict[str, Any]:
        return {"name": "zeros"}


class MissingDataModule(AbstractDataModule):
    spec = DataSpec(image_shape=(1, 4, 4), num_classes=2)

    def __init__(self, *, standin: AbstractSource | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.real_source = Missing()
        self.standin_source = standin


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("auto", MissingDataError, "no images in data/images; put them there. MissingDataModule has no stand-in"),
        ("real", MissingDataError, "no images in data/images; put them there"),
        ("standin", DataError, "data.source is standin, and MissingDataModule has no stand-in: set data.source=real"),
    ],
)
def test_missing_images_without_a_stand_in_are_an_error(source: Any, error: type[Exception], message: str) -> None:
    data = MissingDataModule(source=source)
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        data.setup("fit")
    assert (data.provenance, data.sets) == ({}, {})


@pytest.mark.parametrize("source", ["auto", "standin"])
def test_data_module_needs_an_eval_transform(source: Any, caplog: pytest.LogCaptureFixture) -> None:
    data = MissingDataModule(source=source, standin=Zeros(), validation="none")
    data.setup("fit")
    assert data.uses_standin
    assert data.provenance["name"] == "zeros"
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["STAND-IN DATA, not the real set"]
    with pytest.raises(NotImplementedError, match=r"^MissingDataModule has no eval_transform; expected one"):
        data.on_after_batch_transfer(next(iter(data.train_dataloader())), 0)


class InParts(MissingDataModule):
    test_parts = ("familiar", "novel")
    further_validations = ("affine",)

    def transform_batch(self, batch: Batch, name: str) -> Batch:
        self.asked = [*getattr(self, "asked", []), name]
        return batch


@pytest.mark.parametrize(
    ("state", "names"),
    [
        (None, ["val", "affine"]),
        ({"training": True}, ["train"]),
        ({"training": False}, ["val", "affine"]),
        ({"training": False, "testing": True}, ["familiar", "novel"]),
    ],
    ids=str,
)
def test_transform_gets_the_name_of_the_set(state: dict[str, bool] | None, names: list[str]) -> None:
    data: Any = InParts(standin=Zeros())
    data.trainer = None if state is None else trainer(**state)
    batch = Batch(torch.zeros(1, 1, 4, 4, dtype=torch.uint8), torch.zeros(1).long(), torch.zeros(1).long())
    for number in range(len(names)):
        data.on_after_batch_transfer(batch, number)
    assert data.asked == names
