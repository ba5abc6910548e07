"""CIFAR10: 50,000 + 10,000 photographs of 32x32 pixels in ten classes (Krizhevsky 2009)."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision import datasets
from torchvision.datasets.utils import download_and_extract_archive

from capsule_lab.data.base import AbstractDataModule, find_or_fetch
from capsule_lab.data.download import check_labels, reading, silently, verify
from capsule_lab.data.loader import Images
from capsule_lab.data.standins.coloured_digits import coloured_digits, standin_provenance
from capsule_lab.data.transforms import (
    brightness,
    centre_corner,
    contrast,
    crop,
    crop_at,
    mirror,
    random_integers,
    random_uniform,
    standardise,
)
from capsule_lab.errors import DataError
from capsule_lab.types import DataSpec

NAME = "CIFAR10"
FOLDER = "cifar-10-batches-py"
SIZE = 32  # Krizhevsky 2009: pixels a side
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CHECKSUMS = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
"""MD5 of the unpacked files."""

_ARRAYS: dict[tuple[str, str], Callable[..., Any]] = {  # what the files call, and what we call instead
    ("numpy.core.multiarray", "_reconstruct"): np.ndarray.__new__,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): lambda kind, *_: np.dtype(kind),  # the rest are numbers, which numpy 2.4 warns of
}
_TOP, _LEFT, _MIRROR, _BRIGHTNESS, _CONTRAST = range(5)  # numbers of the random draws


class CIFAR10DataModule(AbstractDataModule):
    """CIFAR10 as in the official code of Sabour 2017: patches of 24x24 pixels, each of mean 0 and deviation 1.

    Training patches are cut out anywhere, half of them mirrored, then made brighter or darker and stronger or weaker in
    contrast about each channel's mean; others are cut out of the middle. Standardisation comes last and undoes the
    brightness wholly and much of the contrast.

    Files lie in ``<directory>/cifar-10-batches-py``, torchvision's layout. The stand-in is ``coloured_digits``, whose
    classes are the ten digits and not ``CLASSES``; ``flip`` mirrors digits too.

    Args:
        crop: side of what the network sees, in pixels of 32. Random in training, central otherwise.
        flip: whether half of the training images are mirrored.
        brightness: largest number added to all pixels, in grey levels of 255.
        contrast: largest change of the factor 1 that contrast is multiplied by: 0.8 is 0.2 to 1.8.
        eval_batch_size, validation_share, **options: see ``AbstractDataModule``.

    Raises:
        ValueError: for an option that is out of range.
    """

    def __init__(
        self,
        *,
        crop: int = 24,  # official code of Sabour 2017
        flip: bool = True,
        brightness: float = 63.0,  # official code of Sabour 2017
        contrast: float = 0.8,  # official code of Sabour 2017
        eval_batch_size: int = 100,  # official code of Sabour 2017
        validation_share: float | str = "1/10",  # He 2016, section 4.2: 5,000 of 50,000
        **options: Any,
    ) -> None:
        super().__init__(eval_batch_size=eval_batch_size, validation_share=validation_share, **options)
        if not 1 <= crop <= SIZE:
            raise ValueError(f"data.crop is {crop}; expected 1 to {SIZE} pixels")
        if not brightness >= 0:
            raise ValueError(f"data.brightness is {brightness}; expected 0 (none) or more")
        if not 0 <= contrast <= 1:
            raise ValueError(f"data.contrast is {contrast}; expected 0 (none) to 1")
        self.crop = crop
        self.flip = flip
        self.brightness = brightness
        self.contrast = contrast
        self.spec = DataSpec(image_shape=(3, crop, crop), num_classes=len(CLASSES), classes=CLASSES)  # 3: colours

    @property
    def folder(self) -> Path:
        """Where the six batches lie."""
        return self.directory / FOLDER

    def prepare_data(self) -> None:
        super().prepare_data()
        if self.provenance["source"] != "real":
            self.spec = replace(self.spec, classes=())  # a digit is no airplane

    def find_real(self) -> str | None:
        return find_or_fetch(
            NAME, self.folder, lambda: verify(self.folder, CHECKSUMS, NAME), _download,
            files=", ".join(CHECKSUMS), holds=FOLDER,
        )  # fmt: skip

    def load(self, *, train: bool, real: bool) -> Images:
        if not real:
            return coloured_digits(train=train)
        batches = [read_batch(self.folder / file) for file in CHECKSUMS if file.startswith("data") is train]
        pixels, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
        return Images(torch.from_numpy(pixels), torch.from_numpy(labels))

    def describe(self, *, real: bool) -> dict[str, Any]:
        return {"name": f"real {NAME}", "md5": CHECKSUMS} if real else standin_provenance(NAME)

    def transform(self, images: Tensor, key: Tensor, *, augment: bool) -> Tensor:
        if not augment:
            return standardise(crop_at(images, centre_corner(SIZE, self.crop), self.crop).float())
        top, left = (random_integers(key, stream, 0, SIZE - self.crop) for stream in (_TOP, _LEFT))
        pixels = crop(images, top, left, self.crop).float()
        if self.flip:
            pixels = mirror(pixels, random_integers(key, _MIRROR, 0, 1).bool())
        pixels = brightness(pixels, random_uniform(key, _BRIGHTNESS, -self.brightness, self.brightness))
        return standardise(contrast(pixels, random_uniform(key, _CONTRAST, 1 - self.contrast, 1 + self.contrast)))


def read_batch(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Pixels ``(n, 3, 32, 32)`` and labels ``(n,)`` of one of the files, a pickle of Python 2.

    Raises:
        DataError: if it is no such file, or a label is none.
    """
    with reading(path, NAME), path.open("rb") as file:
        batch = _Unpickler(file, encoding="latin1").load()  # what numpy asks for where Python 2 wrote an array
        if not batch.keys() >= {"data", "labels"}:
            raise ValueError(f"it has {', '.join(map(str, batch))}, not data and labels")
        pixels, labels = np.asarray(batch["data"]), np.asarray(batch["labels"], dtype=np.int64)
    size = 3 * SIZE**2  # 3: colours
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (size,) or labels.shape != pixels.shape[:1]:
        raise DataError(
            f"{path} holds {pixels.dtype} of shape {pixels.shape} and labels of shape {labels.shape}; expected uint8 "
            f"of (n, {size}) and labels of (n,): remove it and its folder to have them downloaded again"
        )
    check_labels(path, labels, range(len(CLASSES)))
    return pixels.reshape(-1, 3, SIZE, SIZE), labels  # 3: colours


class _Unpickler(pickle.Unpickler):
    """Makes arrays and nothing else: a pickle may otherwise run what it likes, and MD5 is no proof against malice."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ARRAYS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, and may ask for numpy's arrays only")
        return _ARRAYS[module, name]


def _download(scratch: Path) -> Path:
    """The archive, checked by its MD5, unpacked."""
    with silently():
        download_and_extract_archive(
            datasets.CIFAR10.url, scratch, filename=datasets.CIFAR10.filename, md5=datasets.CIFAR10.tgz_md5
        )
    return scratch / FOLDER
