"""Data sets in MNIST's format: Fashion-MNIST, KMNIST and EMNIST."""

from __future__ import annotations

import shutil
import string
import zipfile
from pathlib import Path
from typing import Any, ClassVar

from capsule_lab.data.download import (
    download_file,
    filling,
    md5_of_archive,
    reading,
    verify,
)
from capsule_lab.data.loader import Images
from capsule_lab.data.mnist import SIZE, AbstractIDXFiles, AbstractMNISTLike
from capsule_lab.errors import check_choice
from capsule_lab.types import DataSpec

_DIGITS = string.digits
_UPPER, _LOWER = string.ascii_uppercase, string.ascii_lowercase
_BY_MERGE = _DIGITS + _UPPER + "abdefghnqrt"  # 15 letters look alike in both cases
EMNIST_CLASSES = {
    "balanced": _BY_MERGE,
    "byclass": _DIGITS + _UPPER + _LOWER,
    "bymerge": _BY_MERGE,
    "digits": _DIGITS,
    "letters": _LOWER,
    "mnist": _DIGITS,
}
"""The character of each class, by split; Cohen 2017, table II, and the mapping files of EMNIST."""
EMNIST_ARCHIVE = "gzip.zip"
EMNIST_MD5 = "58c8d27c78d21e728a6bc7b3cc06412e"  # torchvision 0.29


class AbstractPackedFiles(AbstractIDXFiles):
    """Four IDX files that stay packed, because published checksums are those of the ``.gz`` files.

    Files without a published checksum, such as unpacked ones, are read before training, and their own MD5 is recorded.
    If both forms exist, the packed one is used.
    """

    server: ClassVar[str]
    """Address of the folder of the files."""

    def download(self, scratch: Path) -> None:
        for file, md5 in self.checksums.items():
            download_file(file, f"md5:{md5}", (self.server,), scratch)

    def path_of(self, name: str) -> Path:
        path = self.folder / name
        packed = self.folder / f"{name}.gz"
        return path if path.is_file() and not packed.is_file() else packed

    def is_complete(self) -> bool:
        files = [self.path_of(name).name for name in self.names]
        checksums = {file: self.checksums.get(file) for file in files}
        if not verify(self.folder, checksums, self.name, algorithm="md5_of_archive"):
            return False
        for name in self.names:
            if self.path_of(name).name not in self.checksums:
                self.read(name)
        return True

    def provenance(self) -> dict[str, Any]:
        paths = [self.path_of(name) for name in self.names]
        return {
            "name": f"real {self.name}",
            "md5": {path.name: md5_of_archive(path) for path in paths},
        }


class FashionMNISTFiles(AbstractPackedFiles):
    """Fashion-MNIST's files in ``<directory>/FashionMNIST/raw``, torchvision's layout."""

    name = "Fashion-MNIST"
    path = "FashionMNIST/raw"
    server = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"  # torchvision 0.29
    checksums = {  # noqa: RUF012 - declared a ClassVar in the base
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    }


class KMNISTFiles(AbstractPackedFiles):
    """KMNIST's files in ``<directory>/KMNIST/raw``, torchvision's layout."""

    name = "KMNIST"
    path = "KMNIST/raw"
    server = "http://codh.rois.ac.jp/kmnist/dataset/kmnist/"  # torchvision 0.29
    checksums = {  # noqa: RUF012 - declared a ClassVar in the base
        "train-images-idx3-ubyte.gz": "bdb82020997e1d708af4cf47b453dcf7",
        "train-labels-idx1-ubyte.gz": "e144d726b3acfaa3e44228e80efcd344",
        "t10k-images-idx3-ubyte.gz": "5c965bf0a639b31b8f53240b1b52f4d7",
        "t10k-labels-idx1-ubyte.gz": "7320c461ea6c1c855c0b718fb2a4b134",
    }


class EMNISTFiles(AbstractPackedFiles):
    """The files of one split of EMNIST in ``<directory>/EMNIST/raw``, torchvision's layout.

    All splits are published in one archive. The split is taken from it if it is in the folder; a download keeps the
    split only. Files store every image with rows and columns exchanged; labels of letters begin at 1.
    """

    name = "EMNIST"
    path = "EMNIST/raw"
    server = "https://biometrics.nist.gov/cs_links/EMNIST/"  # torchvision 0.29
    largest = 16 + 697_932 * SIZE * SIZE  # Cohen 2017, table II: By_Class

    def __init__(self, directory: Path, split: str) -> None:
        super().__init__(directory)
        self.split = split
        self.parts = (f"emnist-{split}-train", f"emnist-{split}-test")

    @property
    def file_names(self) -> str:
        return EMNIST_ARCHIVE

    def find(self) -> None:
        archive = self.folder / EMNIST_ARCHIVE
        has_split = any(self.path_of(name).is_file() for name in self.names)
        if archive.is_file() and not has_split:
            verify(self.folder, {EMNIST_ARCHIVE: EMNIST_MD5}, self.name)
            with reading(archive, self.name), filling(self.folder) as scratch:
                self._take_split(archive, scratch)
        super().find()

    def download(self, scratch: Path) -> None:
        md5 = f"md5:{EMNIST_MD5}"
        archive = download_file(EMNIST_ARCHIVE, md5, (self.server,), scratch.parent)
        self._take_split(archive, scratch)

    def _take_split(self, archive: Path, folder: Path) -> None:
        """Copy the files of the split; no name of the archive becomes a path."""
        with zipfile.ZipFile(archive) as packed:
            for name in self.names:
                kept = folder / f"{name}.gz"
                with packed.open(f"gzip/{name}.gz") as content, kept.open("wb") as file:
                    shutil.copyfileobj(content, file)

    def load(self, *, train: bool) -> Images:
        images, labels, _ = super().load(train=train)
        first = 1 if self.split == "letters" else 0
        return Images(images.transpose(2, 3).contiguous(), labels - first)


class FashionMNISTDataModule(AbstractMNISTLike):
    """Fashion-MNIST: 60,000 + 10,000 grey pictures of clothes, light on black (Xiao, Rasul and Vollgraf 2017).

    Args:
        options: see ``AbstractMNISTLike`` and ``AbstractDataModule``.
    """

    spec = DataSpec(
        (1, SIZE, SIZE),
        10,
        (
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.real_source = FashionMNISTFiles(self.directory)


class KMNISTDataModule(AbstractMNISTLike):
    """KMNIST: 60,000 + 10,000 cursive characters of ten Japanese syllables, light on black (Clanuwat et al. 2018).

    Args:
        options: see ``AbstractMNISTLike`` and ``AbstractDataModule``.
    """

    spec = DataSpec(
        (1, SIZE, SIZE), 10, ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.real_source = KMNISTFiles(self.directory)


class EMNISTDataModule(AbstractMNISTLike):
    """EMNIST: handwritten letters and digits, light on black, upright (Cohen, Afshar, Tapson and van Schaik 2017).

    Args:
        split: ``"balanced"``, 47 classes; ``"byclass"``, 62; ``"bymerge"``, 47; ``"letters"``, 26; ``"digits"`` or
            ``"mnist"``, 10.
        options: see ``AbstractMNISTLike`` and ``AbstractDataModule``.
    """

    def __init__(
        self,
        *,
        split: str = "balanced",  # Cohen 2017 recommends it
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_choice("data.split", split, tuple(EMNIST_CLASSES))
        self.split = split
        self.real_source = EMNISTFiles(self.directory, split)

    @property
    def spec(self) -> DataSpec:
        classes = tuple(EMNIST_CLASSES[self.split])
        return DataSpec((1, SIZE, SIZE), len(classes), classes)
