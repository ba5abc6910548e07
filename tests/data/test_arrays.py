"""Arrays in files: layouts, types, labels, parts given apart, and what is wrong in one sentence."""

import hashlib
import io
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from capsule_lab import load, runs
from capsule_lab.commands import compose
from capsule_lab.commands.evaluate import evaluate
from capsule_lab.commands.train import train
from capsule_lab.data import ArraysDataModule
from capsule_lab.data.formats import array_files
from capsule_lab.deploy import hub
from capsule_lab.deploy.export import export
from capsule_lab.errors import ConfigError, DataError
from capsule_lab.types import DataSpec
from tests.helpers.commands import NO_PICTURES, ROOT, TINY_CAPSNET, TINY_CNN, TINY_DATA, Cli
from tests.helpers.data_modules import trainer
from tests.helpers.matlab import matlab
from tests.helpers.tiers import whole_but

NUMBER, HEIGHT, WIDTH = 36, 20, 22
RANDOM = np.random.default_rng(0)
COLOUR = RANDOM.integers(0, 256, (NUMBER, 3, HEIGHT, WIDTH), dtype=np.uint8)
GREY = COLOUR[:, :1]
CLASSES = RANDOM.permutation(np.arange(NUMBER) % 3)
NAMES = np.array(["cat", "dog", "fox"])[CLASSES]
PARTS = ("train", "val", "test")


class Layout(NamedTuple):
    """Images ``(n, channel, height, width)``, the order of their axes in the file, and its name."""

    images: np.ndarray
    axes: str
    name: str = "a.npz"
    axes_option: str | None = None


class Pixels(NamedTuple):
    """Pixels in the file, the uint8 that they mean, and the option ``range``."""

    stored: np.ndarray
    expected: np.ndarray
    limits: list[float] | None = None


class Labels(NamedTuple):
    """Labels in the file, and the names and indices of their classes."""

    stored: np.ndarray
    names: tuple[str, ...]
    classes: np.ndarray


class Refused(NamedTuple):
    """Arrays of a file, options, and a part of the message."""

    content: dict[str, Any]
    message: str
    options: dict[str, Any] | None = None
    name: str = "a.npz"


def save(name: str, **arrays: Any) -> Path:
    """Write arrays into a file of the working directory; the only one of a ``.npy`` file has any name."""
    path = Path(name)
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".mat":
        path.write_bytes(matlab(**arrays))
    else:
        (array,) = arrays.values()
        np.save(path, array)
    return path


def module(path: Path, stage: str | None = "fit", **options: Any) -> ArraysDataModule:
    data = ArraysDataModule(path=str(path), **{"augment": False, **options})
    data.trainer = trainer()
    if stage:
        data.setup(stage)
    return data


def everything(data: ArraysDataModule) -> tuple[torch.Tensor, torch.Tensor]:
    """What the network receives of all images, in the order of the file, and their classes."""
    data.setup("test")
    images = {}
    for name in PARTS:
        dataset = data.dataset(name)
        rows = data.sets[name].images.rows
        batch = data.transform_batch(dataset[torch.arange(len(rows)), 0], name)
        for row, image, label in zip(rows.tolist(), batch.images, batch.labels, strict=True):
            assert row not in images, "an image is in one set only"
            images[row] = (image, label)
    ordered = [images[row] for row in range(len(images))]
    pixels, labels = zip(*ordered, strict=True)
    return torch.stack(pixels), torch.stack(labels)


def check(data: ArraysDataModule, images: np.ndarray, classes: np.ndarray = CLASSES) -> None:
    """Check that the network receives these images, uint8 ``(n, channel, height, width)``, in [0, 1]."""
    pixels, labels = everything(data)
    assert pixels.equal(torch.from_numpy(images).float() / 255)
    assert labels.tolist() == classes.tolist()
    assert data.spec.image_shape == images.shape[1:]


def rows_of(data: ArraysDataModule, part: str) -> list[int]:
    """The rows of the file that a part has, in order."""
    rows = data.sets[part].images.rows
    return sorted(rows.tolist())


def moved(images: np.ndarray, axes: str) -> np.ndarray:
    """The images with their axes in this order."""
    if "c" not in axes:
        images = images[:, 0]
        return images.transpose(["nhw".index(axis) for axis in axes])
    return images.transpose(["nchw".index(axis) for axis in axes])


TWO, FIVE = COLOUR[:, :2], np.concatenate([COLOUR, COLOUR[:, :2]], 1)
LAYOUTS = {
    "grey": Layout(GREY, "nhw"),
    "grey with channel first": Layout(GREY, "nchw"),
    "grey with channel last": Layout(GREY, "nhwc"),
    "colour first": Layout(COLOUR, "nchw"),
    "colour last": Layout(COLOUR, "nhwc"),
    "two channels": Layout(TWO, "nhwc"),
    "five channels": Layout(FIVE, "nhwc", axes_option="nhwc"),
    "width before height": Layout(COLOUR, "nwhc", axes_option="nwhc"),
    "MATLAB, colour": Layout(COLOUR, "hwcn", name="a.mat"),
    "MATLAB, grey": Layout(GREY, "hwn", name="a.mat"),
    "MATLAB, number first": Layout(COLOUR, "nhwc", name="a.mat"),
    "MATLAB, by option": Layout(COLOUR, "cwhn", name="a.mat", axes_option="cwhn"),
}


@pytest.mark.parametrize(
    "kind", whole_but(LAYOUTS, "grey", "colour last", "five channels", "MATLAB, colour")
)
def test_every_layout_reaches_the_network_as_it_is(kind: str) -> None:
    layout = LAYOUTS[kind]
    path = save(layout.name, images=moved(layout.images, layout.axes), labels=CLASSES)
    check(module(path, axes=layout.axes_option), layout.images)


BITS = (GREY > 127).astype(np.uint8)
TYPES = {
    "bool": Pixels(GREY > 127, 255 * BITS),
    "float64 from 0 to 1": Pixels(GREY / 255, GREY),
    "float32 from 0 to 1": Pixels(GREY.astype(np.float32) / 255, GREY),
    "float16 from 0 to 1": Pixels((GREY // 255).astype(np.float16), 255 * (GREY // 255)),
    "big-endian": Pixels((GREY / 255).astype(">f4"), GREY),
    "integers 0 and 1": Pixels(BITS.astype(np.int64), 255 * BITS),
    "uint8 of 0 and 1": Pixels(BITS, 255 * BITS, [0.0, 1.0]),
    "float of bytes": Pixels(GREY.astype(np.float64), GREY, [0.0, 255.0]),
    "from -1 to 1": Pixels(GREY / 127.5 - 1, GREY, [-1.0, 1.0]),
    "uint16": Pixels(GREY.astype(np.uint16) * 257, GREY, [0.0, 65535.0]),
    "int16": Pixels(GREY.astype(np.int16) - 128, GREY, [-128.0, 127.0]),
    "rounded": Pixels(GREY / 256, np.rint(GREY * 255.0 / 256)),
}


@pytest.mark.parametrize("kind", whole_but(TYPES, "bool", "from -1 to 1", "uint16", "rounded"))
def test_every_type_of_pixel_reaches_the_network_in_its_range(kind: str) -> None:
    pixels = TYPES[kind]
    path = save("a.npz", images=pixels.stored, labels=CLASSES)
    check(module(path, range=pixels.limits), pixels.expected.astype(np.uint8))


def test_the_log_states_what_rounding_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "capsule_lab")
    for images in (GREY / 255, GREY / 256):
        module(save("a.npz", images=images, labels=CLASSES))
    messages = [message for message in caplog.messages if "256 levels" in message]
    (message,) = messages
    assert re.search(r"float64 are stored .* by up to 0\.00\d+ of their range", message)


def test_pixels_are_converted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsule_lab.data.formats.array_values._BLOCK", 5 * HEIGHT * WIDTH)
    path = save("a.npz", images=GREY / 255, labels=CLASSES)
    check(module(path), GREY)


GAPS = np.array([10, -3, 7])[CLASSES]
LABELS = {
    "0 to 2": Labels(CLASSES.astype(np.int32), ("0", "1", "2"), CLASSES),
    "1 to 3": Labels(CLASSES.astype(np.uint8) + 1, ("1", "2", "3"), CLASSES),
    "gaps": Labels(GAPS, ("-3", "7", "10"), np.array([2, 0, 1])[CLASSES]),
    "floats": Labels(CLASSES.astype(np.float32), ("0", "1", "2"), CLASSES),
    "column": Labels(CLASSES[:, None], ("0", "1", "2"), CLASSES),
    "row": Labels(CLASSES[None], ("0", "1", "2"), CLASSES),
    "bool": Labels(CLASSES == 2, ("0", "1"), (CLASSES == 2).astype(int)),
    "names": Labels(NAMES, ("cat", "dog", "fox"), CLASSES),
    "bytes": Labels(NAMES.astype("S"), ("cat", "dog", "fox"), CLASSES),
    "one-hot": Labels(np.eye(3)[CLASSES], ("0", "1", "2"), CLASSES),
}


@pytest.mark.parametrize("kind", whole_but(LABELS, "gaps", "column", "names", "one-hot"))
def test_every_form_of_label_names_its_classes(kind: str) -> None:
    labels = LABELS[kind]
    data = module(save("a.npz", images=GREY, labels=labels.stored))
    check(data, GREY, labels.classes)
    assert data.spec == DataSpec((1, HEIGHT, WIDTH), len(labels.names), labels.names)


def test_matlab_has_labels_as_columns_and_as_text() -> None:
    for labels in (CLASSES[:, None] + 1.0, NAMES):
        path = save("a.mat", images=GREY[:, 0], labels=labels)
        check(module(path), GREY)


def digest_of(name: str) -> str:
    content = Path(name).read_bytes()
    return hashlib.sha256(content).hexdigest()


def test_a_pair_of_npy_files_is_read() -> None:
    path = save("x.npy", images=COLOUR)
    data = module(path, labels=str(save("y.npy", labels=NAMES)))
    check(data, COLOUR)
    digests = {name: digest_of(name) for name in ("x.npy", "y.npy")}
    assert data.provenance["sha256"] == digests
    assert data.provenance["name"] == "arrays of x.npy"
    assert data.provenance["images"] == NUMBER


OTHER = {"unused": np.zeros(3), "an_object": np.array([{}], dtype=object)}
FOUND = {
    "images and labels": ["images", "labels"],
    "x and y": ["x", "y"],
    "X and Y": ["X", "Y"],
    "scikit-learn's": ["data", "target"],
}


@pytest.mark.parametrize("kind", whole_but(FOUND, "scikit-learn's"))
def test_arrays_are_found_by_their_names(kind: str) -> None:
    images, labels = FOUND[kind]
    path = save("a.npz", **{images: COLOUR, labels: CLASSES}, **OTHER)
    check(module(path), COLOUR)


def test_the_first_name_is_used_or_that_of_the_option() -> None:
    path = save("a.npz", data=GREY, images=COLOUR, labels=CLASSES, y=CLASSES[::-1], other=GREY)
    check(module(path), COLOUR)
    check(module(path, images="other", labels="y"), GREY, CLASSES[::-1])


SETS = {"train": slice(0, 20), "val": slice(20, 26), "test": slice(26, 36)}


def in_parts(images: str, labels: str, of_all: np.ndarray = CLASSES) -> dict[str, np.ndarray]:
    arrays = {}
    for part, rows in SETS.items():
        arrays[images.format(part)] = COLOUR[rows]
        arrays[labels.format(part)] = of_all[rows]
    return arrays


def split() -> np.ndarray:
    parts = np.empty(NUMBER, dtype="<U5")
    for part, rows in SETS.items():
        parts[rows] = part
    return parts


ROWS = (RANDOM.random((NUMBER, 3)) < 0.5).astype(np.uint8)
ROWS[26:] = np.eye(3)[CLASSES[26:]]  # those of the test, each with a single 1
ROWS[:2] = [[0, 0, 0], [1, 1, 1]]
SEVERAL = {
    "uint8": {"images": COLOUR, "labels": ROWS},
    "bool": {"images": COLOUR, "labels": ROWS == 1},
    "float": {"images": COLOUR, "labels": ROWS.astype(np.float32)},
    "parts": in_parts("x_{}", "y_{}", ROWS),
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_rows_of_0_and_1_are_any_number_of_labels(kind: str) -> None:
    data = module(save("a.npz", **SEVERAL[kind]))
    check(data, COLOUR, ROWS == 1)
    names = ("0", "1", "2")
    assert data.spec == DataSpec((3, HEIGHT, WIDTH), 3, names, labels_per_image=0)
    counts = data.sets["train"].labels.sum(0)
    assert data.class_counts().tolist() == counts.tolist()


def test_a_column_that_no_image_has_is_a_class(caplog: pytest.LogCaptureFixture) -> None:
    rows = ROWS * [1, 1, 0]
    data = module(save("a.npz", images=GREY, labels=rows))
    assert data.spec.num_classes == 3
    assert "the test pictures have none of 2: their error says nothing about it" in caplog.messages


GIVEN_APART: dict[str, dict[str, Any]] = {
    "Keras": in_parts(
        "x_{}",
        "y_{}",
    ),
    "MedMNIST": in_parts(
        "{}_images",
        "{}_labels",
    ),
    "split": {
        "images": COLOUR,
        "labels": CLASSES,
        "split": split(),
    },
    "split of bytes": {
        "images": COLOUR,
        "labels": CLASSES,
        "split": split().astype("S"),
    },
}


@pytest.mark.parametrize("kind", whole_but(GIVEN_APART, "Keras", "split"))
def test_parts_that_are_given_apart_replace_those_that_are_drawn(kind: str) -> None:
    data = module(save("a.npz", **GIVEN_APART[kind]))
    check(data, COLOUR)
    for part, rows in SETS.items():
        expected = [*range(NUMBER)][rows]
        assert rows_of(data, part) == expected


@pytest.mark.parametrize("without", ["val", "test"])
def test_a_part_that_is_not_given_is_drawn(without: str) -> None:
    of_keras = GIVEN_APART["Keras"]
    names = [name for name in of_keras if without not in name]
    path = save("a.npz", **{name: of_keras[name] for name in names})
    data = module(path)
    everything(data)
    assert len(data.sets[without].labels.unique()) == 3


def test_splits_do_not_depend_on_the_seed() -> None:
    path = save("a.npz", images=GREY, labels=CLASSES)
    first, second = (rows_of(module(path, seed=seed), "val") for seed in (0, 1))
    assert first == second


PATIENTS = np.array([f"patient {row // 2}" for row in range(NUMBER)])


def of_npy_files() -> ArraysDataModule:
    files = {"labels": CLASSES, "groups": PATIENTS}
    options = {name: str(save(f"{name}.npy", array=array)) for name, array in files.items()}
    return module(save("a.npy", images=GREY), validation_share="1/4", **options)


WITH_GROUPS: dict[str, Callable[[], ArraysDataModule]] = {
    "groups": lambda: module(
        save("a.npz", images=GREY, labels=CLASSES, groups=PATIENTS),
        validation_share="1/4",
    ),
    "another name": lambda: module(
        save("a.npz", images=GREY, labels=CLASSES, groups=CLASSES, patient=PATIENTS),
        validation_share="1/4",
        groups="patient",
    ),
    "npy": of_npy_files,
}


@pytest.mark.parametrize("kind", WITH_GROUPS)
def test_groups_follow_their_images(kind: str) -> None:
    data = WITH_GROUPS[kind]()
    assert data.provenance["groups"] == NUMBER // 2
    chosen = data.sets["val"]
    expected = PATIENTS[chosen.images.rows.numpy()]
    found = data.groups_of(chosen)
    assert found is not None
    assert found.tolist() == expected.tolist()
    others = data.groups_of(data.sets["train"])
    assert not {*found.tolist()} & {*others.tolist()}
    without = module(save("b.npz", images=GREY, labels=CLASSES))
    assert without.groups_of(chosen) is None


def test_the_file_of_the_groups_is_recorded() -> None:
    assert of_npy_files().provenance["sha256"]["groups.npy"] == digest_of("groups.npy")


UNUSED = {
    "vector": PATIENTS,
    "column": PATIENTS[:, None],
    "objects": PATIENTS.astype(object),
}


@pytest.mark.parametrize("kind", UNUSED)
def test_an_array_of_patients_that_is_not_used_is_named(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = save("a.npz", images=GREY, labels=CLASSES, patient=UNUSED[kind], mean=np.zeros(3))
    module(path).advise_training()
    (message,) = [line for line in caplog.messages if "not used" in line]
    assert "a row for each image that are not used: patient; if one names its patient" in message
    assert "set data.groups=" in message


@pytest.mark.parametrize("options", [{}, {"groups": "patient"}], ids=["groups", "option"])
def test_with_groups_other_arrays_are_not_named(
    options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    path = save("a.npz", images=GREY, labels=CLASSES, groups=PATIENTS, patient=PATIENTS)
    module(path, **options).advise_training()
    assert "not used" not in caplog.text


def test_augmentation_uses_the_size_of_the_images() -> None:
    path = save("a.npz", images=COLOUR, labels=CLASSES)
    data = module(path, augment=True)
    assert np.max(data.largest_shift) == HEIGHT // 10
    batch = next(iter(data.train_dataloader()))
    stored = data.transform(batch.images, batch.key, augment=False)
    assert not data.on_after_batch_transfer(batch, 0).images.equal(stored)
    with pytest.raises(ConfigError, match=r"data\.shift is 20; expected fewer than the 20 pixels"):
        module(path, shift=HEIGHT)


# --- what is wrong


def arrays(**changes: Any) -> dict[str, Any]:
    return {"images": GREY, "labels": CLASSES} | changes


OBJECTS = np.array([*GREY[:2], "text"], dtype=object)
SQUARE = RANDOM.integers(0, 256, (NUMBER, NUMBER, NUMBER), dtype=np.uint8)
NAN = np.where(GREY.max() == GREY, np.nan, GREY / 255)
INFINITE = 1 / (GREY + 0.0).clip(1) * np.inf
NAN_FOR_0 = np.where(CLASSES, CLASSES, np.nan)
EMPTY_FOR_0 = np.where(CLASSES, NAMES, "")
WITH_CONTROL = np.char.add(NAMES, "\x1b[2J")
IN_LATIN_1 = np.char.add(NAMES.astype("S"), b"\xe9")
REFUSED = {
    "no images": Refused(
        content={"a": GREY, "labels": CLASSES},
        message=r"has the arrays a, labels; .*data\.images=<name>",
    ),
    "no labels": Refused(
        content={"images": GREY},
        message=r"has the arrays images; expected images, x, X or data with",
    ),
    "nothing": Refused(
        content={},
        message=r"has the arrays of no name; expected",
    ),
    "wrong name": Refused(
        content=arrays(),
        message=r"images, labels; .* with wrong, or",
        options={"labels": "wrong"},
    ),
    "test only": Refused(
        content={"x_test": GREY, "y_test": CLASSES},
        message="has the arrays x_test, y_test; ",
    ),
    "no file of labels": Refused(
        content={"images": GREY},
        message=r"data\.labels is missing; .*data\.labels=<a \.npy file",
        name="a.npy",
    ),
    "missing labels": Refused(
        content={"images": GREY},
        message=r"b\.npy does not exist; .*: correct data\.path, data\.labels or data\.groups",
        options={"labels": "b.npy"},
        name="a.npy",
    ),
    "fewer labels": Refused(
        content=arrays(labels=CLASSES[1:]),
        message=r"and there are 35 labels; expected a label for",
    ),
    "flat": Refused(
        content=arrays(images=GREY.reshape(NUMBER, -1)),
        message=r"\(36, 440\); .*nhw, nhwc or nchw",
    ),
    "volumes": Refused(
        content=arrays(images=COLOUR[:, None]),
        message=r"\(36, 1, 3, 20, 22\); .*: reshape them",
    ),
    "five channels": Refused(
        content=arrays(images=FIVE),
        message=r"can be none of .*, such as data\.axes=nhwc",
    ),
    "either": Refused(
        content=arrays(images=COLOUR[..., :3]),
        message=r"can be nhwc or nchw; .* data\.axes=nhwc",
    ),
    "cube": Refused(
        content=arrays(images=SQUARE),
        message=r"can be nhw or hwn; .* data\.axes=nhw",
        name="a.mat",
    ),
    "other axes": Refused(
        content=arrays(),
        message=r"expected images as hwn ",
        options={"axes": "hwn"},
    ),
    "no number": Refused(
        content=arrays(),
        message=r"and there are 36 labels",
        options={"axes": "hwcn"},
    ),
    "no image": Refused(
        content=arrays(images=GREY[:0], labels=CLASSES[:0]),
        message="the labels of no image; ",
    ),
    "objects": Refused(
        content=arrays(images=OBJECTS),
        message=r"images is an array of Python objects; .*np\.stack",
    ),
    "objects as labels": Refused(
        content=arrays(labels=NAMES.astype(object)),
        message=r"labels is an array of Python",
    ),
    "cells": Refused(
        content=arrays(labels=NAMES.astype(object)),
        message=r"labels is of MATLAB's type cell; .*char\(\)",
        name="a.mat",
    ),
    "records": Refused(
        content=arrays(images=np.zeros(NUMBER, "u1,u1")),
        message="an array of records",
    ),
    "text": Refused(
        content=arrays(images=np.zeros(GREY.shape, "U1")),
        message="elements of <U1; expected pixels",
    ),
    "complex": Refused(
        content=arrays(images=GREY + 1j),
        message="elements of complex128; expected pixels",
    ),
    "NaN": Refused(
        content=arrays(images=NAN),
        message="numbers that are not finite",
    ),
    "infinite": Refused(
        content=arrays(images=INFINITE),
        message="numbers that are not finite",
    ),
    "bytes in floats": Refused(
        content=arrays(images=GREY * 1.0),
        message=r"float64 from 0 to 255; .*data\.range=\[0,255\]",
    ),
    "negative": Refused(
        content=arrays(images=GREY / 127.5 - 1),
        message=r"from -1 to 1; .*data\.range=\[-1,1\]",
    ),
    "uint16": Refused(
        content=arrays(images=GREY.astype("u2") * 9),
        message=r"uint16 from 0 to 2295; .*=\[0,4095\]",
    ),
    "other range": Refused(
        content=arrays(images=GREY - 999.5),
        message=r"=\[-1000,-744\]",
    ),
    "outside": Refused(
        content=arrays(),
        message=r"expected 0 to 9, as data\.range states",
        options={"range": [0.0, 9.0]},
    ),
    "black": Refused(
        content=arrays(images=BITS),
        message=r"uint8 from 0 to 1; .*data\.range=\[0,1\]",
    ),
    "half labels": Refused(
        content=arrays(labels=CLASSES / 2),
        message=r"labels has 0\.5; expected whole numbers or text",
    ),
    "NaN as label": Refused(
        content=arrays(labels=NAN_FOR_0),
        message="labels has nan; ",
    ),
    "rows of other numbers": Refused(
        content=arrays(labels=2 * ROWS),
        message=r"\(36, 3\) and the number 2; expected one label for each image, or a row of 0 and 1",
    ),
    "rows of fractions": Refused(
        content=arrays(labels=ROWS / 2),
        message=r"the number 0\.5; .*: correct it",
    ),
    "NaN in rows": Refused(
        content=arrays(labels=np.where(ROWS, 1, np.nan)),
        message="the number nan; ",
    ),
    "fewer rows": Refused(
        content=arrays(labels=ROWS[1:]),
        message=r"and there are 35 labels; expected a label for each image",
    ),
    "columns as rows": Refused(
        content=arrays(labels=ROWS.T),
        message=r"and there are 3 labels; expected a label for each image",
    ),
    "a column without a class": Refused(
        content=arrays(labels=np.ones((NUMBER, 1))),
        message="has the labels 1; expected two or more classes",
    ),
    "rows of two widths": Refused(
        content=in_parts("x_{}", "y_{}", ROWS) | {"y_test": ROWS[26:, :2]},
        message=r"x_test has labels of shape \(10, 2\); expected a row of 0 and 1 for 3 classes for each image, as "
        "x_train has: correct the labels",
    ),
    "rows in one part": Refused(
        content=in_parts("x_{}", "y_{}") | {"y_test": ROWS[:10]},
        message=r"x_test has labels of shape \(10, 3\); expected one label for each image, as x_train has",
    ),
    "groups of rows": Refused(
        content=arrays(groups=np.eye(3)[CLASSES]),
        message=r"groups has shape \(36, 3\); expected one value",
    ),
    "one label": Refused(
        content=arrays(labels=np.zeros(NUMBER)),
        message="has the labels 0; expected two or more",
    ),
    "no axis": Refused(
        content=arrays(labels=np.array(3)),
        message=r"labels has shape \(\); expected one value",
    ),
    "dates": Refused(
        content=arrays(labels=CLASSES.astype("M8[D]")),
        message="labels has elements of datetime64",
    ),
    "control": Refused(
        content=arrays(labels=WITH_CONTROL),
        message="expected printable text",
    ),
    "empty": Refused(
        content=arrays(labels=EMPTY_FOR_0),
        message="has the text ''; expected",
    ),
    "Latin": Refused(
        content=arrays(labels=IN_LATIN_1),
        message="not UTF-8",
    ),
    "other parts": Refused(
        content=arrays(split=NAMES),
        message="split has 'cat'; expected train, val, test",
    ),
    "no training": Refused(
        content=arrays(split=np.full(NUMBER, "test")),
        message="split has no train",
    ),
    "short split": Refused(
        content=arrays(split=split()[1:]),
        message=r"split has 35 values, and there are 36 images",
    ),
    "short groups": Refused(
        content=arrays(groups=CLASSES[1:]),
        message="groups has 35 values, and there are 36 images",
    ),
    "groups of another name": Refused(
        content=arrays(patient=PATIENTS),
        options={"groups": "subject"},
        message="data.groups is subject, but .* has the arrays images, labels, patient; expected",
    ),
    "groups of parts": Refused(
        content=GIVEN_APART["Keras"] | {"groups": CLASSES},
        message="images in 3 arrays",
    ),
    "two sizes": Refused(
        content={"x_train": GREY, "y_train": CLASSES, "x_test": COLOUR, "y_test": CLASSES},
        message=r"\(1, 20, 22\) in x_train and \(3, 20, 22\) in x_test; expected one shape",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_wrong_arrays_are_refused_in_one_sentence(kind: str) -> None:
    refused = REFUSED[kind]
    path = save(refused.name, **refused.content)
    options = refused.options or {}
    with pytest.raises(DataError, match=refused.message) as caught:
        module(path, **options).setup("test")
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400 + len(str(path.absolute()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"axes": "nxw"}, r"data\.axes is 'nxw'; expected the letters"),
        ({"axes": 3}, r"data\.axes is 3; expected the letters"),
        ({"range": 5}, r"data\.range is 5; expected the numbers of black and of white"),
        ({"range": [1, 0]}, r"data\.range is \[1, 0\]; "),
        ({"range": [0, float("nan")]}, r"data\.range is \[0, nan\]; "),
        ({"range": ["a", "b"]}, r"data\.range is \['a', 'b'\]; "),
        ({"range": [0, 1, 2]}, r"data\.range is \[0, 1, 2\]; "),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_wrong_options_are_refused_before_files_are_read(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        ArraysDataModule(path="missing.npz", **options)


def written(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def replaced(old: bytes, new: bytes) -> bytes:
    """A file of an array, with a change of its header that keeps the length."""
    content = written(np.zeros((10, 10), np.uint8))
    assert content.count(old) == 1
    return content.replace(old, new)


HOSTILE = {
    "another file": b"<html>a login page</html>",
    "empty": b"",
    "truncated": written(GREY)[:-1],
    "more than the file has": replaced(b"(10, 10), }  ", b"(10, 1000), }"),
    "terabytes": replaced(b"(10, 10), }       ", b"(10, 1000000000), }"[:18] + b"}"),
    "negative": replaced(b"(10, 10), }", b"(-1, 10), }"),
    "code": replaced(b"(10, 10), } ", b"exit(1)   } "),
    "version 3": written(GREY).replace(b"NUMPY\x01", b"NUMPY\x03"),
    "of MATLAB 7.3": b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(100),
}


@pytest.mark.parametrize("ending", whole_but(array_files.ENDINGS, ".npy"))
@pytest.mark.parametrize("kind", HOSTILE)
def test_damaged_file_is_refused_in_one_sentence(kind: str, ending: str) -> None:
    path = Path(f"a{ending}")
    path.write_bytes(HOSTILE[kind])
    save("b.npy", labels=CLASSES)
    labels = "b.npy" if ending == ".npy" else None
    with pytest.raises(DataError) as caught:
        module(path, labels=labels)
    message = str(caught.value)
    assert str(path.absolute()) in message
    assert "\n" not in message


def test_hdf5_of_matlab_says_how_to_save() -> None:
    path = Path("a.mat")
    path.write_bytes(HOSTILE["of MATLAB 7.3"])
    with pytest.raises(DataError, match=r"is of MATLAB 7\.3, which is HDF5; .*'-v7'\)$"):
        module(path)


def test_a_pickle_in_an_array_is_never_loaded() -> None:
    class Calls:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
            return os.mkdir, ("MARKER",)

    calls = np.array([Calls()], dtype=object)
    of_both = save("a.npz", **arrays(labels=calls))
    of_images = save("a.npy", images=GREY)
    save("y.npy", labels=calls)
    for path, labels in ((of_both, None), (of_images, "y.npy")):
        with pytest.raises(DataError, match="Python objects"):
            module(path, labels=labels)
    assert not Path("MARKER").exists()


def test_large_array_is_refused_by_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "_LARGEST", GREY.nbytes - 1)
    message = "images has 0 GB; expected at most 0: save it as uint8"
    for name in ("a.npz", "a.mat"):
        path = save(name, **arrays())
        with pytest.raises(DataError, match=message):
            module(path)


@pytest.mark.parametrize("ending", [*array_files.ENDINGS, ".h5", ""])
def test_what_is_no_file_of_arrays_is_refused_without_waiting(ending: str) -> None:
    path = Path(f"a{ending}")
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"not a regular file|is another kind of file; expected"):
        module(path, labels="b.npy")
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=r"is a folder; .*for a folder of pictures: data=folder"):
        module(path)


# --- runs


OPTIONS = [
    "data=arrays",
    "data.source=auto",
    "data.train_images=null",
    "data.batch_size=8",
    "trainer.max_steps=2",
    *NO_PICTURES,
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps on arrays of three classes, in colour; for reading only."""
    folder = tmp_path_factory.mktemp("arrays")
    others = {"other": NAMES[::-1], "patient": np.arange(NUMBER) // 2}
    path = save(f"{folder}/a.npz", images=COLOUR.transpose(0, 2, 3, 1), labels=NAMES, **others)
    config = compose("train", [*TINY_CNN, *TINY_DATA, *OPTIONS, f"data.path={path}"])
    train(config, folder / "run")
    return folder / "run"


def picture_of(row: int) -> Image.Image:
    return Image.fromarray(COLOUR[row].transpose(1, 2, 0))


def save_for_matlab(name: str) -> Path:
    return save(name, X=COLOUR.transpose(2, 3, 1, 0))


def test_run_is_evaluated_on_its_arrays_and_prepares_pictures_and_arrays(run: Path) -> None:
    result = evaluate(runs.open(run))
    assert result["provenance"]["images"] == NUMBER
    predictor = load(run)
    assert predictor.classes == ("cat", "dog", "fox")
    expected = torch.from_numpy(COLOUR).float() / 255
    assert predictor.prepare(picture_of(3)).equal(expected[3])
    paths = (
        save("a.npz", x_test=COLOUR),
        save("b.npy", images=COLOUR),
        save_for_matlab("c.mat"),
    )
    for path in paths:
        assert predictor.prepare_arrays(path).equal(expected)


def test_run_predicts_pictures_and_arrays(run: Path, cli: Cli) -> None:
    picture_of(3).save("p.png")
    save_for_matlab("c.mat")
    save("wrong.npz", images=GREY)
    ended = cli("predict", f"ckpt={run}", "images=[p.png,c.mat,wrong.npz]", "to=csv", "top=1")
    _, *lines = ended.out.splitlines()
    rows = [line.split(",") for line in lines]
    names = [row[0] for row in rows]
    assert names == ["p.png", *(f"c.mat[{row}]" for row in range(NUMBER))]
    of_picture, of_array = rows[0], rows[4]
    assert of_picture[1:] == of_array[1:]
    assert ended.status == 1
    assert "wrong.npz: images has shape (36, 1, 20, 22); expected images of 3x20x22" in ended.err


def test_code_of_the_guide_writes_a_file_of_three_unbalanced_classes() -> None:
    guide = (ROOT / "docs" / "guides" / "own_pictures.md").read_text()
    (code,) = re.findall(r"test_arrays.py -->\n```py\n(.*?)```", guide, re.DOTALL)
    exec(code, {})
    data = module(Path("squares.npz"))
    assert data.spec == DataSpec((3, 24, 24), 3, ("blue", "green", "red"))
    assert data.provenance["groups"] == 50
    everything(data)
    for name in PARTS:
        counts = data.sets[name].labels.bincount().tolist()
        assert 0 < counts[0] < counts[1] < counts[2]


def test_commands_of_the_guide_that_weigh_classes_keep_the_best_balanced_error() -> None:
    guide = (ROOT / "docs" / "guides" / "own_pictures.md").read_text()
    commands = re.findall(
        r"^capsule-lab train .*module\.class_weights=balanced.*", guide, re.MULTILINE
    )
    assert len(commands) == 3
    for command in commands:
        assert "callbacks.best.monitor=val/balanced_error" in command


@pytest.fixture(scope="module")
def run_with_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps on arrays whose images have any number of labels; for reading only."""
    folder = tmp_path_factory.mktemp("rows")
    path = save(f"{folder}/a.npz", **SEVERAL["parts"])
    several = [f"data.path={path}", "loss=sigmoid_cross_entropy"]
    train(compose("train", [*TINY_CNN, *TINY_DATA, *OPTIONS, *several]), folder / "run")
    return folder / "run"


@pytest.mark.whole
def test_a_run_with_any_number_of_labels_is_tested_and_predicts_as_with_a_file_of_labels(
    run_with_rows: Path, cli: Cli
) -> None:
    result = runs.results.read_metrics(run_with_rows)
    assert result is not None
    assert {"error", "label_error", "balanced_error", "auroc"} < {*result["test"]}
    counts = ROWS[26:].sum(0).tolist()
    assert result["classes"]["images"] == dict(zip("012", counts, strict=True))
    again = evaluate(runs.open(run_with_rows))
    assert again["test"] == result["test"]
    single = save("single.npz", images=COLOUR, labels=np.eye(3)[CLASSES])
    tested = evaluate(runs.open(run_with_rows), data={"path": str(single)})
    assert "label_error" in tested["test"]
    ended = cli("predict", f"ckpt={run_with_rows}", f"images={single}", "to=json")
    predicted = json.loads(ended.out)
    for each in predicted:
        above = [name for name, score in each["scores"].items() if score > 0]
        assert each["labels"] == above


OTHER_ROWS = {
    "one label": Refused(
        content={"images": COLOUR, "labels": CLASSES},
        message=r"images has labels of shape \(36,\); expected a row of 0 and 1 for 3 classes for each image, as in "
        "training: correct the labels",
    ),
    "one column": Refused(
        content={"images": COLOUR, "labels": CLASSES[:, None] % 2},
        message=r"images has labels of shape \(36,\); expected a row of 0 and 1 for 3 classes",
    ),
    "fewer columns": Refused(
        content={"images": COLOUR, "labels": ROWS[:, :2]},
        message=r"images has labels of shape \(36, 2\); expected a row of 0 and 1 for 3 classes",
    ),
}


def test_other_labels_than_the_rows_of_the_training_are_refused(run_with_rows: Path) -> None:
    for other in OTHER_ROWS.values():
        path = save("other.npz", **other.content)
        with pytest.raises(ValueError, match=f"^data: .*{other.message}"):
            evaluate(runs.open(run_with_rows), data={"path": str(path)})


@pytest.mark.whole
def test_code_and_commands_of_the_guide_for_several_labels(cli: Cli) -> None:
    guide = (ROOT / "docs" / "guides" / "own_pictures.md").read_text()
    part = guide.split("test_arrays.py, several labels -->")[1]
    (code,) = re.findall(r"```py\n(.*?)```", part.split("\n## ")[0], re.DOTALL)
    exec(code, {})
    data = module(Path("channels.npz"))
    assert data.spec == DataSpec((3, 24, 24), 3, ("0", "1", "2"), labels_per_image=0)
    commands = re.findall(r"^capsule-lab .*", part.split("\n## ")[0], re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        small = command.replace("max_steps=300", "max_steps=2 trainer.accelerator=cpu")
        _, name, *overrides = shlex.split(small)
        ended = cli(name, *overrides)
        assert ended.status == 0, ended.err
        expected = "labels" if name == "predict" else "% (always answering "
        assert expected in ended.out


WITH_COWS = np.where(NAMES == "cat", "cow", NAMES)
OTHER_FILES = {
    "another size": Refused(
        content={"images": COLOUR[..., :21], "labels": NAMES},
        message=r"of shape \(3, 20, 21\); expected \(3, 20, 22\)",
    ),
    "any number of labels": Refused(
        content={"images": COLOUR, "labels": ROWS},
        message=r"has labels of shape \(36, 3\); expected one label for each image, as in training",
    ),
    "another class": Refused(
        content={"images": COLOUR, "labels": WITH_COWS},
        message="has the label cow; expected one of the 3 classes of the network, cat, dog, fox",
    ),
}


def test_other_arrays_than_those_of_the_training_are_refused(run: Path) -> None:
    for other in OTHER_FILES.values():
        path = save("other.npz", **other.content)
        with pytest.raises(ValueError, match=f"^data: .*{other.message}"):
            evaluate(runs.open(run), data={"path": str(path)})


def test_arrays_of_fewer_classes_than_those_of_the_training_are_evaluated(run: Path) -> None:
    known = NAMES != "dog"
    path = save("fewer.npz", images=COLOUR[known], labels=NAMES[known])
    result = evaluate(runs.open(run), data={"path": str(path)})
    assert result["test"]["error"] >= 0


def test_all_images_of_another_file_can_be_tested(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By default, the share that a training would leave for the test, with a warning that names the option."""
    path = str(save("other.npz", images=COLOUR, labels=NAMES))
    opened = runs.open(run)
    drawn = evaluate(opened, data={"path": path})
    assert "data.test_share=1 tests all of them" in caplog.text
    assert drawn["image_counts"]["test"] < NUMBER
    caplog.clear()
    with pytest.raises(
        ConfigError, match=r"data.test_share is 1.0, but 1/5 in the training, so that pictures of"
    ):
        evaluate(opened, data={"test_share": 1.0})
    every = evaluate(opened, data={"path": path, "test_share": 1.0})
    assert every["provenance"]["test_images"] == f"{NUMBER} of {NUMBER}"
    assert "test_share" not in caplog.text


REDRAWN: dict[str, dict[str, Any]] = {
    "data.test_share is 1/2, but 1/5 in the training": {"test_share": "1/2"},
    "data.folds is 4, but null in the training": {"folds": 4, "fold": 0},
    "data.groups is patient, but null in the training": {"groups": "patient"},
    "data.labels is other, but null in the training": {"labels": "other"},
}


def test_pictures_of_the_training_are_not_drawn_for_a_test(run: Path) -> None:
    opened = runs.open(run)
    path = opened.config.data.path
    elsewhere = shutil.copy(path, "elsewhere.npz")
    for message, options in REDRAWN.items():
        for place in ({}, {"path": path}, {"path": elsewhere}):
            with pytest.raises(ConfigError, match=f"^data: {message}, so that pictures of the"):
                evaluate(opened, data={**place, **options})
    with pytest.raises(ConfigError, match=r"^data: data.validation_share is 1/2, but 1/.* in the"):
        evaluate(opened, "val", data={"validation_share": "1/2"})
    same = evaluate(opened, data={"path": elsewhere, "test_share": 0.2})
    assert same["test"] == evaluate(opened)["test"]


def test_published_files_name_no_folder_of_the_training(run: Path, tmp_path: Path) -> None:
    opened = runs.open(run)
    folder = str(Path(opened.config.data.path).parent)
    hub.write_folder(opened, tmp_path / "published")
    export(opened, "safetensors", tmp_path / "a.safetensors")
    for file in sorted(tmp_path.rglob("*.*")):
        assert folder.encode() not in file.read_bytes(), file
    again = runs.open(tmp_path / "a.safetensors")
    assert again.config.data.path == "a.npz"
    assert again.class_counts == opened.class_counts


def test_files_that_changed_since_the_training_are_not_tested(run: Path) -> None:
    opened = runs.open(run)
    before = Path(opened.config.data.path)
    kept = before.read_bytes()
    try:
        more = np.concatenate([COLOUR[:5], COLOUR])
        save(str(before), images=more.transpose(0, 2, 3, 1), labels=np.append(NAMES[:5], NAMES))
        for place in ({}, {"path": str(before)}):
            with pytest.raises(ConfigError, match=r"changed since the training, so that others"):
                evaluate(opened, data={**place, "test_share": 1.0})
    finally:
        before.write_bytes(kept)


def test_a_training_needs_pictures_beside_those_of_the_test() -> None:
    path = save("all.npz", images=COLOUR, labels=CLASSES)
    with pytest.raises(DataError, match=r"test_share is 1, which leaves no pictures to train or"):
        module(path, test_share=1.0).setup("fit")


def test_two_channels_are_not_made_from_pictures() -> None:
    data = module(save("a.npz", images=TWO, labels=CLASSES))
    picture = Image.new("L", (9, 9))
    message = "is an array of 2 channels, which is not made of one pict"
    with pytest.raises(DataError, match=message):
        data.from_picture(picture)


def test_a_missing_file_is_one_line(cli: Cli) -> None:
    ended = cli("train", "data=arrays", "data.path=there.npz", *TINY_CAPSNET)
    assert ended.status != 0
    assert (
        "there.npz does not exist; expected a .npz, .npy or .mat file: correct data.path"
        in ended.err
    )
    assert "Traceback" not in ended.err


def test_a_missing_path_is_one_sentence() -> None:
    with pytest.raises(DataError, match=r"^data\.path is missing; expected data\.path=<a \.npz, "):
        ArraysDataModule().setup("fit")
