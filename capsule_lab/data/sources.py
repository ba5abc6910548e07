"""Sources of images: files that the authors of a data set published, or stand-in data."""

from __future__ import annotations

import functools
import hashlib
import logging
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from capsule_lab.data.download import fetch, verify
from capsule_lab.data.loader import Images
from capsule_lab.errors import DataError, MissingDataError, MissingPackageError
from capsule_lab.system.extras import require

log = logging.getLogger(__name__)


class AbstractSource(ABC):
    """The training and test images of a data set, with their provenance."""

    has_pickles: ClassVar[bool] = False
    """Whether its files are pickles, which ``trust=safetensors`` refuses."""

    def find(self) -> None:  # noqa: B027 - to be overridden where images may be missing
        """Look for the images, and download or render them if they are missing; by default they are never missing.

        Raises:
            MissingDataError: if the images are missing and cannot be downloaded or rendered.
            MissingPackageError: if the download, or the reader of these files, needs a package of an extra.
            DataError: if files exist but are incomplete or damaged.
        """

    def is_here(self) -> bool:
        """Whether ``find`` would have nothing to download or render; checks file names only."""
        return False

    @abstractmethod
    def load(self, *, train: bool) -> Images:
        """Load the training or the test images; call ``find`` first."""

    @abstractmethod
    def provenance(self) -> dict[str, Any]:
        """Return a readable ``name``, and the hashes of the files or the generator's version and seed; plain JSON."""


class PublishedFiles(AbstractSource):
    """Published files in one folder, identified by their checksums and downloaded when they are first needed."""

    name: ClassVar[str]
    """Name of the data set."""
    path: ClassVar[str]
    """Path of the folder, relative to the directory of all data sets."""
    checksums: ClassVar[dict[str, str]] = {}
    """MD5 of each file, by file name."""

    def __init__(self, directory: Path) -> None:
        self.folder = directory / self.path

    @abstractmethod
    def download(self, scratch: Path) -> None:
        """Download the files into ``scratch``, an empty folder of the same name; put archives beside it.

        Raise an ``OSError`` with the reason if this fails: see ``download_file``.
        """

    @property
    def file_names(self) -> str:
        """Names of the files that belong in the folder, for messages."""
        return ", ".join(self.checksums)

    def is_complete(self) -> bool:
        """Whether all files exist: see ``verify``."""
        return verify(self.folder, self.checksums, self.name)

    def is_here(self) -> bool:
        are_here = [(self.folder / name).is_file() for name in self.checksums]
        return bool(are_here) and all(are_here)

    def find(self) -> None:
        if self.is_complete():
            return
        require(f"the download of {self.name}", "data", "pooch")
        problem = fetch(self.folder, self.download)
        if problem is not None or not self.is_complete():
            where = str(self.folder)
            if not self.folder.is_absolute():
                where = f"{self.folder} (in {Path.cwd()})"
            raise MissingDataError(
                f"{self.name} is not in {where} and the download failed ({problem}); put {self.file_names} there, or "
                f"set the directory that contains {self.path} with CAPSULE_LAB_DATA=…"
            )

    def provenance(self) -> dict[str, Any]:
        return {"name": f"real {self.name}", "md5": self.checksums}


def choose_source(
    option: str, real: AbstractSource, standin: AbstractSource | None, name: str
) -> AbstractSource:
    """Return ``real`` or ``standin``, after finding its images; log a warning, once, if it is the stand-in.

    ``option`` is ``"auto"``, ``"real"`` or ``"standin"``; ``name`` is the data set's class, for messages. Raise a
    ``MissingDataError`` or ``MissingPackageError`` of ``find`` if there is no stand-in or ``option`` is ``"real"``; a
    ``DataError`` if files are damaged, or ``option`` is ``"standin"`` and there is no stand-in.
    """
    reason = (
        "data.source is standin; data.source=auto uses the real set, and downloads it if it can"
    )
    if option != "standin":
        try:
            real.find()
        except (MissingDataError, MissingPackageError) as error:
            if option == "real":
                raise
            if standin is None:
                raise type(error)(f"{error}. {name} has no stand-in") from error
            reason = str(error)
        else:
            return real
    if standin is None:
        raise DataError(f"data.source is standin, and {name} has no stand-in: set data.source=real")
    _announce(f"stand-in data for {name.removesuffix('DataModule')}, not the real set: {reason}")
    standin.find()
    return standin


@functools.cache  # once per process: a notebook opens the same data for every figure
def _announce(text: str) -> None:
    log.warning("%s", text)


def tensor_hash(images: Images) -> str:
    """Compute a short fingerprint of generated images and labels, for the provenance."""
    digest = hashlib.sha256(images.images.numpy().tobytes())
    digest.update(images.labels.numpy().tobytes())
    return digest.hexdigest()[:16]
