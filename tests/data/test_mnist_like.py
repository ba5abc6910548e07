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
PACKED = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in CONTENTS.items()}


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
    checksums = {file: md5(content) for file, content in PACKED.items()}
    monkeypatch.setattr(type(module(directory=".").real_source), "checksums", checksums)
    return module


def write(module: type[AbstractMNISTLike], contents: dict[str, bytes]) -> Path:
    folder = module(directory=".").real_source.folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def check(data: AbstractMNISTLike) -> None:
    """Check that the module has the small images."""
    data.setup("fit")
    data.setup("test")
    expected = (TRAINING, TEST)
    for name, images in zip(("train", "test"), expected, strict=True):
        assert data.sets[name].images.equal(images.images)
        assert data.sets[name].labels.equal(images.labels)


@pytest.mark.parametrize("contents", [PACKED, CONTENTS], ids=["packed", "unpacked"])
def test_files_are_read_exactly(
    module: type[AbstractMNISTLike], monkeypatch: pytest.MonkeyPatch, contents: dict[str, bytes]
) -> None:
    write(module, contents)
    forbid_downloads(monkeypatch)
    data = module(directory=".", validation="none")
    assert data.real_source.is_here()
    check(data)
    assert data.provenance["source"] == "real"
    assert data.provenance["md5"] == {name: md5(content) for name, content in contents.items()}


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
    folder = data.real_source.folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == PACKED
    assert len(asked) == len(PACKED)


def test_damaged_files_are_refused_before_training(module: type[AbstractMNISTLike]) -> None:
    name = "t10k-images-idx3-ubyte"
    folder = write(module, PACKED)
    repacked = gzip.compress(CONTENTS[name], mtime=1)
    for content in (PACKED[f"{name}.gz"][:-9], repacked, b"<html>"):
        (folder / f"{name}.gz").write_bytes(content)
        with pytest.raises(DataError, match=rf"{name}\.gz \({len(content)} bytes, md5"):
            module(directory=".").prepare_data()
    (folder / f"{name}.gz").unlink()
    (folder / name).write_bytes(CONTENTS[name][:-9])
    with pytest.raises(DataError, match=rf"{name} cannot be read \(its header states"):
        module(directory=".").prepare_data()
    (folder / name).unlink()
    with pytest.raises(DataError, match=rf"holds 3 of the 4 files of .*; missing {name}\.gz"):
        module(directory=".").prepare_data()


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


LETTERS = {
    "emnist-letters-train-images-idx3-ubyte": CONTENTS["train-images-idx3-ubyte"],
    "emnist-letters-train-labels-idx1-ubyte": idx(TRAINING.labels.numpy().astype(np.uint8) + 1),
    "emnist-letters-test-images-idx3-ubyte": CONTENTS["t10k-images-idx3-ubyte"],
    "emnist-letters-test-labels-idx1-ubyte": idx(TEST.labels.numpy().astype(np.uint8) + 1),
}


PACKED_LETTERS = {f"{name}.gz": gzip.compress(content) for name, content in LETTERS.items()}


def archive(**changes: bytes) -> bytes:
    """EMNIST's archive with the letters, files of another split, and one that leads out of the folder."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as packed:
        for name, content in (LETTERS | changes).items():
            packed.writestr(f"gzip/{name}.gz", gzip.compress(content, mtime=0))
        packed.writestr("gzip/emnist-digits-train-images-idx3-ubyte.gz", b"not these")
        packed.writestr("../MARKER", b"nor this")
    return written.getvalue()


def check_letters(data: EMNISTDataModule) -> None:
    data.setup("fit")
    data.setup("test")
    for name, images in (("train", TRAINING), ("test", TEST)):
        found = data.sets[name]
        assert found.images.equal(images.images.transpose(2, 3)), "rows and columns are exchanged"
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
    check_letters(EMNISTDataModule(directory="data", split="letters", validation="none"))
    assert len(asked) == 1
    kept = {path.name for path in Path().rglob("*") if path.is_file()}
    assert kept == {f"{name}.gz" for name in LETTERS}
    assert {path.parent for path in Path().rglob("*.gz")} == {Path("data/EMNIST/raw")}


def test_split_is_taken_from_an_archive_in_the_folder(
    letters: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_downloads(monkeypatch)
    folder = Path("data/EMNIST/raw")
    folder.mkdir(parents=True)
    (folder / "gzip.zip").write_bytes(letters)
    check_letters(EMNISTDataModule(directory="data", split="letters", validation="none"))
    (folder / "gzip.zip").write_bytes(b"another file")
    data = EMNISTDataModule(directory="data", split="letters", validation="none")
    check_letters(data)
    assert set(data.provenance["md5"]) == {f"{name}.gz" for name in LETTERS}
    with pytest.raises(DataError, match=re.escape("gzip.zip (12 bytes, md5 ")):
        EMNISTDataModule(directory="data").prepare_data()


@pytest.mark.parametrize(
    "contents",
    [LETTERS, {f"{k}.gz": gzip.compress(v) for k, v in LETTERS.items()}],
    ids=["unpacked", "packed"],
)
def test_files_of_a_split_are_read_without_the_archive(
    contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_downloads(monkeypatch)
    folder = Path("data/EMNIST/raw")
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    check_letters(EMNISTDataModule(directory="data", split="letters", validation="none"))
    *_, last = contents
    (folder / last).write_bytes(contents[last][:-1])
    with pytest.raises(DataError, match=rf"{last} cannot be read"):
        EMNISTDataModule(directory="data", split="letters").prepare_data()


def test_a_label_of_zero_is_no_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    zero = idx(TRAINING.labels.numpy().astype(np.uint8))
    content = archive(**{"emnist-letters-train-labels-idx1-ubyte": zero})
    monkeypatch.setattr(mnist_like, "EMNIST_MD5", md5(content))
    serve(monkeypatch, {"gzip.zip": content})
    with pytest.raises(DataError, match="has label -1; expected 0 to 25"):
        EMNISTDataModule(directory="data", split="letters").setup("fit")


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"data\.split is 'letter'; expected 'balanced', 'byclass'"
    ):
        EMNISTDataModule(split="letter")


@pytest.mark.parametrize("kind", [*MODULES.values(), EMNISTDataModule])
def test_a_picture_of_the_size_is_the_input_as_it_is(kind: type[AbstractMNISTLike]) -> None:
    pixels = TRAINING.images[0]
    data = kind()
    found = data.from_picture(Image.fromarray(pixels[0].numpy()))
    assert found.equal(pixels / 255)
    transparent = Image.new("RGBA", (40, 40), (0, 0, 0, 0))
    assert data.from_picture(transparent).equal(torch.zeros(1, 28, 28))


@pytest.mark.parametrize(("options", "largest"), [({}, 2), ({"shift": 0}, 0)])
def test_training_images_are_shifted(options: dict[str, int], largest: int) -> None:
    data = FashionMNISTDataModule(**options)
    image = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    image[..., 14, 14] = 255
    moved = data.transform(image.repeat(200, 1, 1, 1), torch.arange(200), augment=True)
    rows = moved.amax((1, 3)).argmax(1) - 14
    assert (int(rows.min()), int(rows.max())) == (-largest, largest)
    assert data.transform(image, torch.arange(1), augment=False).equal(image / 255)
