"""What every data set offers to the training loop: a LightningDataModule with facts and provenance."""

from __future__ import annotations

import hashlib
import logging
from abc import abstractmethod
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import lightning as L
import numpy as np
from torch import Tensor

from capsule_lab.data.download import data_directory, fetch
from capsule_lab.data.loader import EpochBatches, Images, InMemory, ResumableLoader
from capsule_lab.data.splits import Indices, Validation, index_hash, split_validation, take_stratified
from capsule_lab.errors import DataError, check_choice
from capsule_lab.types import Batch, DataSpec

Source = Literal["auto", "real", "standin"]

log = logging.getLogger(__name__)


class AbstractDataModule(L.LightningDataModule):
    """Images in memory as uint8, batches by indexing, everything random drawn on the batch and its device.

    ``source`` decides what is loaded: ``"auto"`` looks in the data directory, then downloads, then falls back
    to the stand-in and says so; ``"real"`` fails rather than fall back; ``"standin"`` never touches the
    network. The test images are read by ``setup("test")`` only.

    Args:
        directory: where data sets lie; default ``$CAPSULE_LAB_DATA``, else ``data``.
        source: ``"auto"``, ``"real"`` or ``"standin"``.
        batch_size: images per training step and process.
        eval_batch_size: images per validation or test step and process.
        validation: which training images to validate on, one of ``validations``; see ``split_training``.
        validation_share: how many of them, as a number or a fraction such as ``"1/6"``.
        train_images: train on so many images only, classes in proportion; ``None`` for all.
        eval_images: validate and test on so many images each at most, classes in proportion, for a quick look;
            ``None`` for all. Provenance says so.
        augment: draw random transformations in training.
        seed: of the order, the split and the augmentation.

    Raises:
        ValueError: for an unknown source, a batch size below 1, a negative seed or a share that is no number.
        DataError: from ``prepare_data`` and ``setup``, when the data is not there or is not whole.
    """

    spec: DataSpec
    validations: ClassVar[tuple[str, ...]] = ("first", "stratified", "none")
    """What ``validation`` may be."""
    test_parts: tuple[str, ...] = ()
    """Parts of the test set that are reported each on its own; with any, ``test_dataloader`` returns a list."""
    further_validations: tuple[str, ...] = ()
    """Sets to look at beside the validation set, in a list of loaders after its own; nothing is decided on them."""

    def __init__(
        self,
        *,
        directory: str | None = None,
        source: Source = "auto",
        batch_size: int = 128,  # official code of Sabour 2017
        eval_batch_size: int = 500,  # ours: divides 10,000
        validation: str = "first",
        validation_share: float | str = "1/6",  # Sabour 2017's code: 10,000 of 60,000
        train_images: int | None = None,
        eval_images: int | None = None,
        augment: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_choice("data.source", source, ("auto", "real", "standin"))
        check_choice("data.validation", validation, self.validations)
        if seed < 0:
            raise ValueError(f"seed is {seed}; expected 0 or more")
        if batch_size < 1 or eval_batch_size < 1:
            raise ValueError(f"batch sizes are {batch_size} and {eval_batch_size}; expected 1 or more")
        self.directory = data_directory(directory)
        self.source = source
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.validation = validation
        self.validation_share = _share(validation_share)
        if eval_images is not None and eval_images < 1:
            raise ValueError(f"data.eval_images is {eval_images}; expected 1 or more, or null for all")
        self.train_images = train_images
        self.eval_images = eval_images
        self.augment = augment
        self.seed = seed
        self.provenance: dict[str, Any] = {}
        self.sets: dict[str, Images] = {}
        self._train_batches: EpochBatches | None = None
        self._resume_at: dict[str, int] | None = None

    @abstractmethod
    def find_real(self) -> str | None:
        """``None`` if the real files are in the data directory, fetched now if need be; else why not.

        Raises:
            DataError: if files are there but are not whole.
        """

    @abstractmethod
    def load(self, *, train: bool, real: bool) -> Images:
        """The training or the test images, real or stand-in."""

    @abstractmethod
    def describe(self, *, real: bool) -> dict[str, Any]:
        """Provenance of the images: ``name`` in words, and hashes or generator."""

    @abstractmethod
    def transform(self, images: Tensor, key: Tensor, *, augment: bool) -> Tensor:
        """Stored uint8 images to what the network sees, on whatever device they are."""

    def prepare(self, batch: Batch, *, augment: bool) -> Batch:
        """A stored batch to what the network sees."""
        return batch._replace(images=self.transform(batch.images, batch.key, augment=augment))

    def dataset(self, name: str) -> InMemory:
        """What a loader of the set of this name indexes."""
        return InMemory(self.sets[name], self.seed)

    def split_training(self, everything: Images) -> tuple[Indices, Indices]:
        """Indices of the training and of the validation images; by default those of ``split_validation``."""
        labels = everything.labels.numpy()
        return split_validation(labels, cast(Validation, self.validation), self.validation_share, self.seed)

    def split_test(self, everything: Images) -> tuple[Images, ...]:
        """The test images, one set for each of ``test_parts``; all in one if there are none."""
        return (everything,)

    def prepare_data(self) -> None:
        if self.provenance:
            return
        problem = f"data.source is {self.source}" if self.source == "standin" else self.find_real()
        real = problem is None
        if not real:
            if self.source == "real":
                raise DataError(problem)
            log.warning("STAND-IN DATA, not the real set: %s", problem)
        self.provenance = {"source": "real" if real else "standin", **self.describe(real=real)}

    def setup(self, stage: str) -> None:
        self.prepare_data()
        real = self.provenance["source"] == "real"
        if stage in ("fit", "validate") and "train" not in self.sets:
            everything = self.load(train=True, real=real)
            train, validation = self.split_training(everything)
            if self.train_images is not None:
                train = take_stratified(train, everything.labels.numpy(), self.train_images, self.seed)
            validation = self._few(validation, everything)
            self.provenance["split"] = {
                "validation": self.validation,
                "train_images": len(train),
                "validation_images": len(validation),
                "hash": index_hash(train) + index_hash(validation),
            }
            # in a drawn order, so that the first few stand for all: files may be sorted by object
            drawn = np.random.default_rng(self.seed).permutation(validation)
            self.sets |= {"train": everything.subset(train), "validation": everything.subset(drawn)}
        parts = self.test_parts or ("test",)
        if stage == "test" and parts[0] not in self.sets:
            everything = self.load(train=False, real=real)
            tests = dict(zip(parts, self.split_test(everything), strict=True))
            few = {part: self._few(np.arange(len(test.labels)), test) for part, test in tests.items()}
            self.sets |= {part: test.subset(few[part]) for part, test in tests.items()}
            counts = [f"{len(few[part])} of {len(test.labels)} {part}" for part, test in tests.items()]
            self.provenance["test_images"] = ", ".join(counts).removesuffix(" test")

    def _few(self, indices: Indices, images: Images) -> Indices:
        """At most ``eval_images`` of ``indices``."""
        if self.eval_images is None or len(indices) <= self.eval_images:
            return indices
        return take_stratified(indices, images.labels.numpy(), self.eval_images, self.seed)

    def train_dataloader(self) -> ResumableLoader:
        loader = self._loader("train", self.batch_size, shuffle=True, drop_last=True)
        self._train_batches = loader.batches
        if self._resume_at is not None:
            loader.load_state_dict(self._resume_at)
            self._resume_at = None
        return loader

    def val_dataloader(self) -> ResumableLoader | list[Any]:
        if not len(self.sets["validation"].labels):
            return []
        loaders = [self._loader(name, self.eval_batch_size) for name in ("validation", *self.further_validations)]
        return loaders if self.further_validations else loaders[0]

    def test_dataloader(self) -> ResumableLoader | list[ResumableLoader]:
        loaders = [self._loader(part, self.eval_batch_size) for part in self.test_parts or ("test",)]
        return loaders if self.test_parts else loaders[0]

    def state_dict(self) -> dict[str, Any]:
        # Lightning keeps the loader's state too, but loses it where the length of the run is asked for early
        return self._train_batches.state_dict() if self._train_batches else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resume_at = state_dict or None

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        training = bool(self.trainer and self.trainer.training)
        return self.prepare(batch, augment=training and self.augment)

    def _loader(self, name: str, batch_size: int, *, shuffle: bool = False, drop_last: bool = False) -> ResumableLoader:
        trainer, dataset = self.trainer, self.dataset(name)
        batches = EpochBatches(
            len(dataset),
            batch_size,
            seed=self.seed,
            shuffle=shuffle,
            drop_last=drop_last,
            rank=trainer.global_rank if trainer else 0,
            world_size=trainer.world_size if trainer else 1,
        )
        pin_memory = trainer is not None and trainer.strategy.root_device.type == "cuda"
        return ResumableLoader(dataset, batches, pin_memory=pin_memory)


def _share(share: float | str) -> Fraction:
    try:
        return Fraction(share).limit_denominator(10**6)  # ours: floats such as 0.1
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise ValueError(f"data.validation_share is {share!r}; expected a number or a fraction such as 1/6") from error


def tensor_hash(images: Images) -> str:
    """Short fingerprint of generated images and labels, for provenance."""
    digest = hashlib.sha256(images.images.numpy().tobytes())
    digest.update(images.labels.numpy().tobytes())
    return digest.hexdigest()[:16]  # 16: enough to tell


def find_or_fetch(
    name: str, folder: Path, whole: Callable[[], bool], download: Callable[[Path], Path], *, files: str, holds: str
) -> str | None:
    """``None`` if the real files are in ``folder``, fetched now if need be; else why not, in one sentence.

    Args:
        name: of the data set.
        folder: where its files lie.
        whole: whether they are all there; ``False`` if none is. See ``verify``.
        download: see ``fetch``.
        files: their names, in words.
        holds: what the data directory holds, down to ``folder``.

    Raises:
        DataError: from ``whole``, if files are there but are not whole.
    """
    if whole():
        return None
    problem = fetch(folder, download)
    if problem is None and whole():
        return None
    return (
        f"{name} is not in {folder_in_words(folder)} and the download failed ({problem}); put {files} there, or name "
        f"the directory that holds {holds}: CAPSULE_LAB_DATA=…"
    )


def folder_in_words(folder: Path) -> str:
    """A path as a person on this machine would type it."""
    return str(folder) if folder.is_absolute() else f"{folder} (in {Path.cwd()})"
