"""``AbstractDataModule`` and the template of an own data set, ``tests/templates/my_data``."""

import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.transforms import v2

from capsule_lab.data import AbstractDataModule, AbstractSource, Images
from capsule_lab.errors import DataError, MissingDataError
from capsule_lab.types import Batch, DataSpec
from tests.helpers.commands import NO_PICTURES, ROOT, TINY_CNN, Cli
from tests.helpers.data_modules import trainer
from tests.helpers.messages import one_sentence

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
    images: dict[int, torch.Tensor] = {}
    for stored in data.train_dataloader():
        batch = data.on_after_batch_transfer(stored, 0)
        images |= zip(batch.key.tolist(), batch.images, strict=True)
    return images


def of(module: Any, *, rank: int = 0, world_size: int = 1, **options: Any) -> AbstractDataModule:
    data = module(**options)
    data.trainer = trainer(rank=rank, world_size=world_size)
    data.setup("fit")
    return data


@pytest.mark.usefixtures("my_data")
def test_template_trains_for_a_step(cli: Cli, tmp_path: Path) -> None:
    conf = str(tmp_path / "own" / "conf")
    options = [
        "data=stripes",
        "trainer.max_steps=1",
        "trainer.accelerator=cpu",
        "train.directory=run",
        *NO_PICTURES,
    ]
    ended = cli("train", "--config-dir", conf, *TINY_CNN, *options)
    assert (ended.status, ended.err) == (0, "")
    assert "on stripes" in ended.out
    assert (tmp_path / "run" / "metrics.json").is_file()


@pytest.mark.parametrize(("batch_size", "parts"), [(7, 1), (33, 2)])
def test_torchvision_transform_depends_only_on_the_image(
    my_data: Any, batch_size: int, parts: int
) -> None:
    options = {"validation": "none", "train_images": 66}
    whole = seen(of(my_data, **options, batch_size=66))
    options["batch_size"] = batch_size
    images: dict[int, torch.Tensor] = {}
    for rank in range(parts):
        images |= seen(of(my_data, **options, rank=rank, world_size=parts))
    for key, image in images.items():
        assert image.equal(whole[key]), key
    assert len(images) >= 63  # the last batch of seven is dropped


@pytest.mark.parametrize(("training", "augment"), [(True, False), (False, True), (True, True)])
def test_only_training_images_are_augmented(my_data: Any, training: bool, augment: bool) -> None:
    data = of(my_data, augment=augment)
    data.trainer.training = training
    batch = next(iter(data.train_dataloader()))
    still = batch.images[:, :, 2:18, 2:18] / 255
    images = data.on_after_batch_transfer(batch, 0).images
    is_augmented = training and augment
    assert images.equal(still) is not is_augmented


class Missing(AbstractSource):
    def find(self) -> None:
        raise MissingDataError(NO_IMAGES)

    def load(self, *, train: bool) -> Images:
        pytest.fail("there is nothing to load")

    def provenance(self) -> dict[str, Any]:
        return {"name": "missing"}


class Ramps(AbstractSource):
    def load(self, *, train: bool) -> Images:
        pixels = torch.arange(20 * 16, dtype=torch.uint8).view(20, 1, 4, 4)
        return Images(pixels, torch.arange(20) % 2)

    def provenance(self) -> dict[str, Any]:
        return {"name": "ramps"}


NO_IMAGES = "no images in data/images; put them there"
NO_STANDIN = "data.source is standin, and MissingDataModule has no stand-in: set data.source=real"


class MissingDataModule(AbstractDataModule):
    spec = DataSpec(image_shape=(1, 4, 4), num_classes=2)

    def __init__(self, *, standin: AbstractSource | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.real_source = Missing()
        self.standin_source = standin


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("auto", MissingDataError, f"{NO_IMAGES}. MissingDataModule has no stand-in"),
        ("real", MissingDataError, NO_IMAGES),
        ("standin", DataError, NO_STANDIN),
    ],
)
def test_missing_images_without_a_stand_in_are_an_error(
    source: Any, error: type[Exception], message: str
) -> None:
    data = MissingDataModule(source=source)
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        data.setup("fit")
    assert (data.provenance, data.sets) == ({}, {})


@pytest.mark.parametrize("source", ["auto", "standin"])
def test_data_module_needs_an_eval_transform(source: Any, caplog: pytest.LogCaptureFixture) -> None:
    data = MissingDataModule(source=source, standin=Ramps(), validation="none")
    with pytest.raises(DataError, match=r"^MissingDataModule has no eval_transform; expected one"):
        data.setup("fit")
    assert data.uses_standin
    assert data.provenance["name"] == "ramps"
    (message,) = caplog.messages
    assert message.startswith("stand-in data for Missing, not the real set:")


class Own(AbstractDataModule):
    """A data module whose parts a test chooses."""

    def __init__(self, images: Any, spec: DataSpec, transform: Any, parts: dict[str, Any]) -> None:
        super().__init__(validation="stratified", seed=0)
        self.given = images
        self.chosen = spec
        self.parts = parts
        self.eval_transform = transform
        self.real_source = Ramps()

    spec = property(lambda self: self.chosen)

    def load(self, *, train: bool) -> Images:
        return self.given

    def transform_batch(self, batch: Batch, name: str) -> Batch:
        return super().transform_batch(batch, name)._replace(**self.parts)


FLOATS = v2.ToDtype(torch.float32, scale=True)
DOUBLES = v2.ToDtype(torch.float64, scale=True)
FLOATS_TO_255 = v2.ToDtype(torch.float32)
FOUR = DataSpec(image_shape=(1, 4, 4), num_classes=2)
ONE_BY_ONE = {"labels": torch.zeros(8, 1, dtype=torch.int64)}


def divided_by_zero(image: torch.Tensor) -> torch.Tensor:
    return image / 0.0


HIGHER = replace(FOUR, image_shape=(1, 5, 4))


COLOURED = replace(FOUR, image_shape=(3, 4, 4))


TWO_LABELS = replace(FOUR, labels_per_image=2)


THREE_NAMES = replace(FOUR, classes=("a", "b", "c"))


@pytest.mark.parametrize("stage", ["fit", "test"])
@pytest.mark.parametrize(
    ("spec", "transform", "parts", "message"),
    [
        (HIGHER, FLOATS, {}, "images of shape (1, 4, 4); expected (1, 5, 4), as its"),
        (COLOURED, FLOATS, {}, "images of shape (1, 4, 4); expected (3, 4, 4), as its"),
        (FOUR, v2.CenterCrop(3), {}, "images of shape (1, 3, 3); expected (1, 4, 4)"),
        (FOUR, v2.CenterCrop(4), {}, "images of torch.uint8; expected torch.float32, as from v2"),
        (FOUR, DOUBLES, {}, "images of torch.float64; expected torch.float32"),
        (FOUR, FLOATS_TO_255, {}, "pixels up to 1"),
        (FOUR, divided_by_zero, {}, "pixels that are not finite; expected numbers"),
        (TWO_LABELS, FLOATS, {}, "labels of shape (8,); expected (8, 2), as its spec states l"),
        (FOUR, FLOATS, ONE_BY_ONE, "labels of shape (8, 1); expected (8,), as its spec"),
        (THREE_NAMES, FLOATS, {}, "3 names of classes; expected 2, as its spec states num"),
    ],
)
def test_images_that_are_not_as_the_specification_states_are_refused(
    stage: str, spec: DataSpec, transform: Any, parts: dict[str, Any], message: str
) -> None:
    data = Own(Ramps().load(train=True), spec, transform, parts)
    name = "train" if stage == "fit" else "test"
    expected = f"the {name} set of Own gives the network {message}"
    with pytest.raises(DataError, match=f"^{re.escape(expected)}"):
        data.setup(stage)


def without_a_product(image: torch.Tensor) -> torch.Tensor:
    return image[0] @ image[0, :2]


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (v2.RandomCrop(9), r"ValueError: Required crop size \(9, 9\) is larger than"),
        (v2.Normalize([0.5], [0.5]), "TypeError: Input tensor should be a float"),
        (without_a_product, "RuntimeError: "),
    ],
)
def test_transform_that_fails_is_one_sentence(transform: Any, reason: str) -> None:
    data = Own(Ramps().load(train=True), FOUR, transform, {})
    with pytest.raises(DataError, match=f"^the train set of Own cannot be transformed \\({reason}"):
        data.setup("fit")


STANDARDISED = v2.Compose([FLOATS, v2.Normalize([0.13], [0.001])])


@pytest.mark.parametrize("transform", [FLOATS, STANDARDISED])
def test_usual_images_are_accepted_and_no_random_number_is_drawn(transform: Any) -> None:
    state = torch.get_rng_state()
    pipeline = v2.Compose([v2.RandomCrop(4, 1), transform])
    data = Own(Ramps().load(train=True), FOUR, pipeline, {})
    data.setup("fit")
    assert torch.get_rng_state().equal(state)


RAMPS = Ramps().load(train=True)
BLANK = RAMPS._replace(images=torch.full((20, 1, 4, 4), 7, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("images", "classes", "expected"),
    [
        (RAMPS, 5, "has no image of 3 of the 5 classes, such as class 2"),
        (BLANK, 2, "20 blank images among 20"),
    ],
)
def test_classes_without_images_and_blank_images_are_a_warning(
    images: Images, classes: int, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = DataSpec((1, 4, 4), classes)
    Own(images, spec, FLOATS, {}).setup("fit")
    (message,) = caplog.messages
    assert expected in message


@pytest.mark.usefixtures("my_data")
@pytest.mark.parametrize("size", [15, 24])
def test_specification_of_another_size_is_one_line_before_a_run(
    cli: Cli, tmp_path: Path, size: int
) -> None:
    own = tmp_path / "own"
    file = own / "stripes.py"
    source = file.read_text()
    file.write_text(source.replace("(3, 16, 16)", f"(3, {size}, {size})"))
    del sys.modules["stripes"]
    options = [*TINY_CNN, "data=stripes", "trainer.max_steps=1"]
    ended = cli("train", f"--config-dir={own}/conf", *options)
    message = f"images of shape (3, 16, 16); expected (3, {size}, {size}), as its spec states"
    beginning = f"data: the train set of StripesDataModule gives the network {message}"
    assert one_sentence(ended).startswith(beginning)
    assert not (tmp_path / "runs").exists()
    sys.modules["stripes"] = None


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
def test_transform_gets_the_name_of_the_set(
    state: dict[str, bool] | None, names: list[str]
) -> None:
    data: Any = InParts(standin=Ramps())
    data.trainer = None if state is None else trainer(**state)
    zero = torch.zeros(1, dtype=torch.int64)
    batch = Batch(torch.zeros(1, 1, 4, 4, dtype=torch.uint8), labels=zero, key=zero)
    for number in range(len(names)):
        data.on_after_batch_transfer(batch, number)
    assert data.asked == names
