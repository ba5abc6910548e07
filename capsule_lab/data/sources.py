"""Where the images of a data set come from: files that its authors published, or a stand-in."""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from capsule_lab.data.download import fetch, verify
from capsule_lab.data.loader import Images
from capsule_lab.errors import DataError, MissingDataError

log = logging.getLogger(__name__)


class AbstractSource(ABC):
    """The training and the test images of a data set, and what is known of them."""

    def find(self) -> None:  # noqa: B027 - to be overridden where images may be missing
        """Look for the images, and download or render them if they are not there; by default they always are.

        Raises:
            MissingDataError: if they are not there and cannot be brought there.
            DataError: if files are there but are incomplete or damaged.
        """

    def is_here(self) -> bool:
        """Whether ``find`` would have nothing to download or to render; asks for names of files only."""
        return False

    @abstractmethod
    def load(self, *, train: bool) -> Images:
        """The training or the test images, after ``find``."""

    @abstractmethod
    def provenance(self) -> dict[str, Any]:
        """``name``, for a reader, and hashes of the files or version and seed of the generator; plain JSON."""


class PublishedFiles(AbstractSource):
    """Published files in one folder, known by their checksums, downloaded when they are first needed.

    Args:
        directory: of all data sets.
    """

    name: ClassVar[str]
    """Of the data set."""
    path: ClassVar[str]
    """Of the folder, in the directory of all data sets."""
    checksums: ClassVar[dict[str, str]] = {}
    """MD5 of each file, by its name."""

    def __init__(self, directory: Path) -> None:
        self.folder = directory / self.path

    @abstractmethod
    def download(self, scratch: Path) -> None:
        """Download the files into ``scratch``, an empty folder of the same name; archives go beside it.

        An ``OSError`` says why that failed: see ``download_file``.
        """

    @property
    def file_names(self) -> str:
        """What to put into the folder, for messages."""
        return ", ".join(self.checksums)

    def is_complete(self) -> bool:
        """Whether all files are there: see ``verify``."""
        return verify(self.folder, self.checksums, self.name)

    def is_here(self) -> bool:
        return bool(self.checksums) and all((self.folder / name).is_file() for name in self.checksums)

    def find(self) -> None:
        if self.is_complete():
            return
        problem = fetch(self.folder, self.download)
        if problem is not None or not self.is_complete():
            where = str(self.folder) if self.folder.is_absolute() else f"{self.folder} (in {Path.cwd()})"
            raise MissingDataError(
                f"{self.name} is not in {where} and the download failed ({problem}); put {self.file_names} there, or "
                f"name the directory that holds {self.path}: CAPSULE_LAB_DATA=…"
            )

    def provenance(self) -> dict[str, Any]:
        return {"name": f"real {self.name}", "md5": self.checksums}


def choose_source(option: str, real: AbstractSource, standin: AbstractSource | None, name: str) -> AbstractSource:
    """``real`` or ``standin``, with its images found; a warning says when it is the stand-in.

    Args:
        option: ``"auto"``, ``"real"`` or ``"standin"``.
        real: the real images.
        standin: what may take their place, if anything.
        name: of the data set's class, for messages.

    Raises:
        MissingDataError: if the real images are missing and there is no stand-in, or only they will do.
        DataError: if there are damaged files, or ``option`` asks for a stand-in that does not exist.
    """
    reason = "data.source is standin"
    if option != "standin":
        try:
            real.find()
        except MissingDataError as error:
            if option == "real":
                raise
            if standin is None:
                raise MissingDataError(f"{error}. {name} has no stand-in") from error
            reason = str(error)
        else:
            return real
    if standin is None:
        raise DataError(f"{reason}, and {name} has no stand-in: set data.source=real")
    log.warning("STAND-IN DATA, not the real set: %s", reason)
    standin.find()
    return standin


def tensor_hash(images: Images) -> str:
    """Short fingerprint of generated images and labels, for provenance."""
    digest = hashlib.sha256(images.images.numpy().tobytes())
    digest.update(images.labels.numpy().tobytes())
    return digest.hexdigest()[:16]
