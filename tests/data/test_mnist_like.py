"""Fashion-MNIST, KMNIST and EMNIST: their files, packed and unpacked; checksums, classes, and the split of EMNIST."""

import gzip
import io
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from capsule_lab.data import (
    EMNISTDataModule,
    FashionMNISTDataModule,
    Images,
    KMNISTDataModule,
    mnist_like,
)
from capsule_lab.data.mnist import AbstractMNISTLike
from capsule_lab.data.mnist_like import AbstractPackedFiles, EMNISTFiles
from capsule_lab.errors import DataError
from tests.helpers.data_modules import forbid_downloads, serve, without_network
from tests.helpers.mnist_files import CONTENTS, TEST, TRAINING, idx, md5

MODULES: dict[str, type[AbstractMNISTLike]] = {
    "FashionMNIST": FashionMNISTDataModule,
    "KMNIST": KMNISTDataModule,
}


def packed(contents: dict[str, bytes], mtime: int = 0) -> dict[str, bytes]:
    """The files as they are published."""
    files = {}
    for name, content in contents.items():
        files[f"{name}.gz"] = gzip.compress(content, mtime=mtime)
    return files


PACKED = packed(CONTENTS)
SETS = {"train": TRAINING, "test": TEST}


@pytest.mark.parametrize("name", MODULES)
def test_servers_checksums_and_classes_are_those_of_torchvision(name: str) -> None:
    original = getattr(datasets, name)
    data = MODULES[name](directory="data")
    source = data.real_source
    assert isinstance(source, AbstractPackedFiles)
    assert [source.server] == original.mirrors
    assert source.checksums == dict(original.resources)
    assert data.spec.classes == tuple(original.classes)
    assert source.folder == Path("data") / name / "raw"


def test_emnist_is_that_of_torchvision() -> None:
    original = datasets.EMNIST
    assert EMNISTFiles.server + mnist_like.EMNIST_ARCHIVE == original.url
    assert original.md5 == mnist_like.EMNIST_MD5
    assert set(mnist_like.EMNIST_CLASSES) == set(original.splits)
    for split, names in original.classes_split_dict.items():
        expected = tuple(name for name in names if name != "N/A")  # label 0 of letters
        data = EMNISTDataModule(split=split)
        assert data.spec.classes == expected
        assert data.spec.num_classes == len(expected)


@pytest.fixture(params=MODULES)
def module(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> type[AbstractMNISTLike]:
    """A data set whose published files are the small ones."""
    module = MODULES[request.param]
    source = module(directory=".").real_source
    monkeypatch.setattr(type(source), "checksums", checksums_of(PACKED))
    return module


def checksums_of(files: dict[str, bytes]) -> dict[str, str]:
    return {name: md5(content) for name, content in files.items()}


def write_into(folder: Path, contents: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def write(module: type[AbstractMNISTLike], contents: dict[str, bytes]) -> Path:
    folder = module(directory=".").real_source.folder
    write_into(folder, contents)
    return folder


def check(data: AbstractMNISTLike) -> None:
    """Check that the module has the small images."""
    data.setup("fit")
    data.setup("test")
    for name, images in SETS.items():
        found = data.sets[name]
        assert found.images.equal(images.images)
        assert found.labels.equal(images.labels)


@pytest.mark.parametrize("contents", [PACKED, CONTENTS], ids=["packed", "unpacked"])
def test_files_are_read_exactly(
    module: type[AbstractMNISTLike],
    monkeypatch: pytest.MonkeyPatch,
    contents: dict[str, bytes],
) -> None:
    write(module, contents)
    forbid_downloads(monkeypatch)
    data = module(directory=".", validation="none")
    assert data.real_source.is_here()
    check(data)
    assert data.provenance["source"] == "real"
    assert data.provenance["md5"] == checksums_of(contents)


def test_a_packed_file_is_used_before_an_unpacked_one(module: type[AbstractMNISTLike]) -> None:
    write(module, PACKED)
    write(module, dict.fromkeys(CONTENTS, b"another file"))
    check(module(directory=".", validation="none"))


def test_download_is_verified_and_stays_packed(
    module: type[AbstractMNISTLike], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = serve(monkeypatch, PACKED)
    data = module(directory=".", validation="none")
    check(data)
    files = data.real_source.folder.iterdir()
    assert {path.name: path.read_bytes() for path in files} == PACKED
    assert len(asked) == len(PACKED)


IMAGES = "t10k-images-idx3-ubyte"
PACKED_IMAGES = f"{IMAGES}.gz"
DAMAGED = {
    "truncated": PACKED[PACKED_IMAGES][:-9],
    "repacked": gzip.compress(CONTENTS[IMAGES], mtime=1),
    "another file": b"<html>",
}


def refuses(data: AbstractMNISTLike, message: str) -> None:
    with pytest.raises(DataError, match=message):
        data.prepare_data()


def test_damaged_files_are_refused_before_training(module: type[AbstractMNISTLike]) -> None:
    folder = write(module, PACKED)
    data = module(directory=".")
    for content in DAMAGED.values():
        (folder / PACKED_IMAGES).write_bytes(content)
        refuses(data, rf"{PACKED_IMAGES} \({len(content)} bytes, md5")
    (folder / PACKED_IMAGES).unlink()
    (folder / IMAGES).write_bytes(CONTENTS[IMAGES][:-9])
    refuses(data, rf"{IMAGES} cannot be read \(its header states")
    (folder / IMAGES).unlink()
    refuses(data, rf"holds 3 of the 4 files of .*; missing {PACKED_IMAGES}")


@pytest.mark.parametrize("kind", [*MODULES.values(), EMNISTDataModule])
@pytest.mark.parametrize("source", ["auto", "real", "standin"])
def test_without_files_one_sentence_says_what_to_fetch(
    kind: type[AbstractMNISTLike], source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_network(monkeypatch)
    data = kind(directory="there", source=source)
    with pytest.raises(DataError) as caught:
        data.setup("fit")
    message = str(caught.value)
    assert "\n" not in message
    if source == "standin":
        assert f"{kind.__name__} has no stand-in" in message
    else:
        assert str(data.real_source.folder) in message
        assert f"put {data.real_source.file_names} there" in message


def labels_of(images: Images, first: int) -> bytes:
    """A file of the labels, of which the lowest is ``first``."""
    labels = images.labels.numpy().astype(np.uint8)
    return idx(labels + first)


TRAINING_LABELS = "emnist-letters-train-labels-idx1-ubyte"
LETTERS = {
    "emnist-letters-train-images-idx3-ubyte": CONTENTS["train-images-idx3-ubyte"],
    TRAINING_LABELS: labels_of(TRAINING, 1),
    "emnist-letters-test-images-idx3-ubyte": CONTENTS["t10k-images-idx3-ubyte"],
    "emnist-letters-test-labels-idx1-ubyte": labels_of(TEST, 1),
}
PACKED_LETTERS = packed(LETTERS)
RAW = Path("data/EMNIST/raw")


def emnist_letters() -> EMNISTDataModule:
    return EMNISTDataModule(directory="data", split="letters", validation="none")


def archive(**changes: bytes) -> bytes:
    """EMNIST's archive with the letters, files of another split, and one that leads out of the folder."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as file:
        for name, content in packed(LETTERS | changes).items():
            file.writestr(f"gzip/{name}", content)
        file.writestr("gzip/emnist-digits-train-images-idx3-ubyte.gz", b"not these")
        file.writestr("../MARKER", b"nor this")
    return written.getvalue()


def check_letters(data: EMNISTDataModule) -> None:
    data.setup("fit")
    data.setup("test")
    for name, images in SETS.items():
        found = data.sets[name]
        exchanged = images.images.transpose(2, 3)
        assert found.images.equal(exchanged), "rows and columns are exchanged"
        assert found.images.is_contiguous()
        assert found.labels.equal(images.labels), "labels begin at 1"


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The archive, which counts as the published one."""
    content = archive()
    monkeypatch.setattr(mnist_like, "EMNIST_MD5", md5(content))
    return content


def test_download_of_emnist_keeps_the_split(
    letters: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = serve(monkeypatch, {"gzip.zip": letters})
    check_letters(emnist_letters())
    assert len(asked) == 1
    kept = {path for path in Path().rglob("*") if path.is_file()}
    assert kept == {RAW / name for name in PACKED_LETTERS}


def test_split_is_taken_from_an_archive_in_the_folder(
    letters: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_downloads(monkeypatch)
    write_into(RAW, {"gzip.zip": letters})
    check_letters(emnist_letters())
    write_into(RAW, {"gzip.zip": b"another file"})
    data = emnist_letters()
    check_letters(data)
    assert data.provenance["md5"].keys() == PACKED_LETTERS.keys()
    another_split = EMNISTDataModule(directory="data")
    refuses(another_split, re.escape("gzip.zip (12 bytes, md5 "))


@pytest.mark.parametrize(
    "contents",
    [LETTERS, packed(LETTERS, mtime=1)],
    ids=["unpacked", "packed"],
)
def test_files_of_a_split_are_read_without_the_archive(
    contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_downloads(monkeypatch)
    write_into(RAW, contents)
    check_letters(emnist_letters())
    *_, last = contents
    write_into(RAW, {last: contents[last][:-1]})
    refuses(emnist_letters(), rf"{last} cannot be read")


def test_a_label_of_zero_is_no_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    content = archive(**{TRAINING_LABELS: labels_of(TRAINING, 0)})
    monkeypatch.setattr(mnist_like, "EMNIST_MD5", md5(content))
    serve(monkeypatch, {"gzip.zip": content})
    data = emnist_letters()
    with pytest.raises(DataError, match="has label -1; expected 0 to 25"):
        data.setup("fit")


def test_an_unknown_split_is_refused() -> None:
    message = r"data\.split is 'letter'; expected 'balanced', 'byclass'"
    with pytest.raises(ValueError, match=message):
        EMNISTDataModule(split="letter")


@pytest.mark.parametrize("kind", [*MODULES.values(), EMNISTDataModule])
def test_a_picture_of_the_size_is_the_input_as_it_is(kind: type[AbstractMNISTLike]) -> None:
    pixels = TRAINING.images[0]
    data = kind()
    picture = Image.fromarray(pixels[0].numpy())
    found = data.from_picture(picture)
    assert found.equal(pixels / 255)
    transparent = Image.new("RGBA", (40, 40), (0, 0, 0, 0))
    assert data.from_picture(transparent).equal(torch.zeros(1, 28, 28))


@pytest.mark.parametrize(("options", "largest"), [({}, 2), ({"shift": 0}, 0)])
def test_training_images_are_shifted(options: dict[str, int], largest: int) -> None:
    data = FashionMNISTDataModule(**options)
    image = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    image[..., 14, 14] = 255
    images = image.repeat(200, 1, 1, 1)
    moved = data.transform(images, torch.arange(200), augment=True)
    brightest = moved.amax((1, 3))
    shifts = brightest.argmax(1) - 14
    assert shifts.min() == -largest
    assert shifts.max() == largest
    stored = data.transform(image, torch.arange(1), augment=False)
    assert stored.equal(image / 255)
