"""Data loading from memory: one indexing operation per batch, exact resume, exact sharding."""

from __future__ import annotations

import copy
import functools
import logging
import math
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from capsule_lab.data.transforms import sample_key
from capsule_lab.errors import DataError
from capsule_lab.system.environment import runs_per_gpu
from capsule_lab.system.files import open_regular
from capsule_lab.types import Batch, DataSpec

if TYPE_CHECKING:
    from capsule_lab.system.cuda_graphs import Replayed

log = logging.getLogger(__name__)

_SAMPLE = 100  # ours: images of which blank ones are counted before training
_BRIGHTEST = 10  # ours: standardised images have negative pixels, too


class PixelFile:
    """Images in a file of their pixels, which stays open; images are read when they are used.

    If the file becomes shorter, reading raises a ``DataError``. A memory map would end the process by SIGBUS.

    Args:
        path: the file, of one byte per number.
        shape: ``(n, channel, height, width)``.
    """

    def __init__(self, path: Path, shape: Sequence[int]) -> None:
        self.path, self.shape = path, torch.Size(shape)
        with open_regular(path) as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, rows: Int64[Tensor, " some"]) -> UInt8[Tensor, "some channel height width"]:
        """Return the images in these rows."""
        images = torch.empty((len(rows), *self.shape[1:]), dtype=torch.uint8)
        size = self.shape[1:].numel()
        for row, image in zip(rows.tolist(), images.numpy(), strict=True):
            if os.preadv(self._descriptor, [image], row * size) != size:
                raise DataError(
                    f"{self.path} became shorter while it was used; start again, and the pictures are read"
                )
        return images


class PixelArray:
    """Images in memory, to be used like those of a ``PixelFile``.

    Args:
        images: ``(n, channel, height, width)``.
    """

    def __init__(self, images: UInt8[Tensor, "n channel height width"]) -> None:
        self.images, self.shape = images, images.shape

    def read(self, rows: Int64[Tensor, " some"]) -> UInt8[Tensor, "some channel height width"]:
        """Return the images in these rows."""
        return self.images[rows]


class Rows:
    """Some images of a ``PixelFile`` or ``PixelArray``; a subset is a list of rows and does not copy images.

    It has those attributes of a tensor ``(n, channel, height, width)`` that ``Images`` and ``InMemory`` use.

    Args:
        stored: all images.
        rows: ``(n,)``, the index of each image in ``stored``.
    """

    _BLOCK = 2**28  # ours: bytes that are copied to a device at once
    dtype, ndim, device = torch.uint8, 4, torch.device("cpu")

    def __init__(self, stored: PixelFile | PixelArray, rows: Int64[Tensor, " n"]) -> None:
        self.stored, self.rows = stored, rows
        self.shape = torch.Size((len(rows), *stored.shape[1:]))
        self.nbytes = self.shape.numel()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Int64[Tensor, " some"]) -> Rows:
        return Rows(self.stored, self.rows[index])

    def read(self) -> UInt8[Tensor, "n channel height width"]:
        """Return the images as a tensor."""
        rows, order = self.rows.sort()  # in the order of the file, so that each page is read once
        images = torch.empty(self.shape, dtype=self.dtype)
        images[order] = self.stored.read(rows)
        return images

    def to(self, device: torch.device) -> Rows | Tensor:
        """Copy the images to ``device``, in blocks; on the CPU they stay where they are."""
        if device.type == "cpu":
            return self
        images = torch.empty(self.shape, dtype=self.dtype, device=device)
        step = max(1, self._BLOCK // self.shape[1:].numel())
        for first in range(0, len(self), step):
            block = slice(first, first + step)
            images[block] = self.stored.read(self.rows[block]).to(device)
        return images


class Images(NamedTuple):
    """A set of images with their labels, as stored.

    Attributes:
        images: ``(n, channel, height, width)`` uint8; ``Rows`` for images that stay in a file.
        labels: ``(n,)`` classes; for images with any number of labels, whether each has each class, ``(n, class)``.
        factors: ``(n, factor)``, how each image was taken; ``None`` if unknown.
    """

    images: UInt8[Tensor, "n channel height width"]
    labels: Int64[Tensor, " n"] | Bool[Tensor, "n class"]
    factors: Int64[Tensor, "n factor"] | Float[Tensor, "n factor"] | None = None

    def subset(self, indices: Any) -> Images:
        """Return the images at ``indices``, in that order, or those where a mask ``(n,)`` is true.

        Raises:
            ValueError: if a mask has another length, or the indices are not integers.
        """
        given = torch.as_tensor(indices)
        if given.dtype == torch.bool:
            if given.shape != (len(self.labels),):
                raise ValueError(
                    f"the mask has shape {tuple(given.shape)}; expected ({len(self.labels)},), one value for each image"
                )
            given = given.nonzero()[:, 0]
        if given.numel() and (given.is_floating_point() or given.is_complex()):
            raise ValueError(f"indices are {given.dtype}; expected integers or a mask")
        chosen = given.to(torch.int64)
        factors = None if self.factors is None else self.factors[chosen]
        return Images(self.images[chosen], self.labels[chosen], factors)

    def strata(self) -> npt.NDArray[np.int64]:
        """Return the class of each image, in proportion to which images are drawn, ``(n,)``.

        With any number of labels it is always 0: there are too many sets of labels to draw from each.
        """
        if self.labels.ndim == 1:
            return self.labels.numpy()
        return np.zeros(len(self.labels), dtype=np.int64)

    def pixels(self) -> UInt8[Tensor, "n channel height width"]:
        """Return the images as a tensor; those of ``Rows`` are read from their file."""
        images: Tensor | Rows = self.images
        return images.read() if isinstance(images, Rows) else images

    def to(self, device: torch.device) -> Images:
        factors = None if self.factors is None else self.factors.to(device)
        return Images(self.images.to(device), self.labels.to(device), factors)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self if tensor is not None)


def check_images(images: Images, classes: int, what: str) -> None:
    """Raise a ``DataError`` about ``what`` unless it has uint8 images, and for each image a label below ``classes``, or
    a row of bool for the classes.
    """
    pixels, labels, factors = images
    shape = pixels.shape[:1]
    dtype = torch.int64
    if labels.dtype == torch.bool:
        shape = torch.Size((*shape, classes))
        dtype = torch.bool
    if pixels.dtype != torch.uint8 or pixels.ndim != 4:
        found = f"images of {pixels.dtype} and shape {tuple(pixels.shape)}"
        expected = "torch.uint8 of shape (n, channel, height, width)"
    elif labels.dtype != dtype or labels.shape != shape:
        found = f"labels of {labels.dtype} and shape {tuple(labels.shape)} for {len(pixels)} images"
        expected = "one of torch.int64 for each"
    elif factors is not None and factors.shape[:1] != labels.shape[:1]:
        found = f"factors of shape {tuple(factors.shape)} for {len(pixels)} images"
        expected = "a row for each"
    elif not len(labels):
        found = "no images"
        expected = "one or more"
    elif not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        wrong = min(int(labels.min()), 0) or int(labels.max())
        found = f"label {wrong}"
        expected = f"0 to {classes - 1}, as there are {classes} classes"
    else:
        return
    raise DataError(
        f"{what} has {found}; expected {expected}: correct the files, or the load() that reads them"
    )


def check_batch(batch: Batch, spec: DataSpec, what: str) -> None:
    """Raise a ``DataError`` about ``what`` unless a transformed batch has images and labels as ``spec`` states."""
    images, labels = batch.images, batch.labels
    axes_before = 2 if images.ndim == 5 else 1  # 5: several crops of each image
    shape = tuple(images.shape[axes_before:])
    label_shape: tuple[int, ...] = ()
    if spec.labels_per_image != 1:
        label_shape = (spec.labels_per_image or spec.num_classes,)
    if shape != tuple(spec.image_shape):
        found = f"images of shape {shape}"
        expected = f"{tuple(spec.image_shape)}, as its spec states"
    elif images.dtype != torch.float32:
        found = f"images of {images.dtype}"
        expected = "torch.float32, as from v2.ToDtype(torch.float32, scale=True)"
    elif not images.isfinite().all():
        found = "pixels that are not finite"
        expected = "numbers, such as from 0 to 1"
    elif images.min() >= 0 and images.max() > _BRIGHTEST:
        found = f"pixels up to {images.max():g}"
        expected = "0 to 1, as from v2.ToDtype(torch.float32, scale=True), or standardised ones"
    elif labels.shape[1:] != label_shape:
        found = f"labels of shape {tuple(labels.shape)}"
        expected = f"{(len(labels), *label_shape)}, as its spec states labels_per_image={spec.labels_per_image}"
    elif spec.classes and len(spec.classes) != spec.num_classes:
        found = f"{len(spec.classes)} names of classes"
        expected = f"{spec.num_classes}, as its spec states num_classes"
    else:
        return
    raise DataError(
        f"{what} gives the network {found}; expected {expected}: correct the spec or the transform"
    )


def warn_of_unusual(images: Images, classes: int, what: str) -> None:
    """Warn about classes without images, and about images that are mostly blank, judged by a sample."""
    labels = images.labels
    present = {*(labels if labels.ndim == 1 else labels.nonzero()[:, 1]).tolist()}
    absent = [label for label in range(classes) if label not in present]
    if absent:
        log.warning(
            "%s has no image of %d of the %d classes, such as class %d",
            what,
            len(absent),
            classes,
            absent[0],
        )
    number = len(images.labels)
    step = math.ceil(number / _SAMPLE)
    sample = images.subset(torch.arange(0, number, step))
    pixels = sample.pixels().flatten(2)  # [n channel pixel]
    is_blank = (pixels.amin(2) == pixels.amax(2)).all(1)
    blank = int(is_blank.sum())
    if blank > len(is_blank) / 2:
        log.warning(
            "%s has %d blank images among %d that were looked at: each has a single colour, and no network can tell "
            "them apart; check the files, and how they are read and resized",
            what,
            blank,
            len(is_blank),
        )


Index = tuple[Tensor, int | Tensor]
"""Indices of the samples of a batch, and the number of the epoch: a scalar tensor in a CUDA graph."""


class InMemory(Dataset[Batch]):
    """A dataset that is indexed by whole batches: ``dataset[indices, epoch] -> Batch``, on the device of ``data``.

    An epoch has ``size`` samples, by default as many as images. ``fixed`` uses the keys of the first epoch, which
    derive from ``seed``, in every epoch, so that random transformations stay the same.
    """

    def __init__(
        self, images: Images, seed: int, *, size: int | None = None, fixed: bool = False
    ) -> None:
        self.data = images
        self.seed = seed
        self.size = len(images.labels) if size is None else size
        self.fixed = fixed

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, batch: Index) -> Batch:
        index, _ = batch
        chosen = self.data.subset(index)
        return Batch(chosen.pixels(), chosen.labels, self.key(*batch), chosen.factors)

    def key(self, index: Tensor, epoch: int | Tensor) -> Tensor:
        """Return the keys of samples."""
        return sample_key(self.seed, 0 if self.fixed else epoch, index)

    @property
    def device(self) -> torch.device:
        """Device of the indices and of the batches."""
        return self.data.images.device

    def to(self, device: torch.device) -> InMemory:
        """Return a copy of the set with all tensors on ``device``; it makes the same batches there."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Images | Tensor):
                setattr(moved, name, value.to(device))
        return moved


class ReplayedSet(InMemory):
    """A set on a GPU that gathers its batches with a CUDA graph, with the same results.

    The number of the epoch is a tensor then. A set that computes with it in Python is not captured, see ``Replayed``.
    Graphs are used while ``may_replay`` returns true.
    """

    def __init__(self, dataset: InMemory, may_replay: Callable[[], bool]) -> None:
        super().__init__(dataset.data, dataset.seed, size=len(dataset))
        self.dataset = dataset
        self.may_replay = may_replay
        self._epoch = torch.full((), -1, device=dataset.device)
        self._epoch_number = -1

    def __getitem__(self, batch: Any) -> Batch:
        if not self.may_replay():
            return self.dataset[batch]
        index, epoch = batch
        if epoch != self._epoch_number:
            self._epoch.fill_(epoch)
            self._epoch_number = epoch
        gathered: Batch = self._gather((index, self._epoch))
        return gathered

    @functools.cached_property
    def _gather(self) -> Replayed:
        # optional: data sets work without this file
        from capsule_lab.system.cuda_graphs import Replayed

        return Replayed("the gathering of training batches", self.dataset.__getitem__)


@dataclass(eq=False)
class EpochBatches(Sampler[tuple[Tensor, int]]):
    """Sampler of the index batches of one epoch; the order is a function of ``(seed, epoch)`` alone.

    With several processes, every batch of ``batch_size * world_size`` consecutive images is distributed among
    the processes, so that together they process the images that a single process would.

    Args:
        batch_size: images per batch and process.
        shuffle: ``False`` keeps the stored order.
        drop_last: leave out the images that do not fill a batch (in training, so that all steps have equal weight);
            a set smaller than one batch is always one batch.
        rank, world_size: rank of this process, and number of processes.
        device: device of the indices; the order of an epoch is copied to it at once.
    """

    size: int
    batch_size: int
    _: KW_ONLY
    seed: int = 0
    shuffle: bool = False
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    device: torch.device | None = None
    epoch: int = field(default=0, init=False)
    position: int = field(default=0, init=False)
    resume_at: dict[str, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.size < self.world_size:
            raise ValueError(
                f"{self.size} images for {self.world_size} processes; expected at least one for each"
            )
        together = self.batch_size * self.world_size
        self.bounds = [*range(0, self.size, together), self.size]
        remainder = self.size % together
        is_single_batch = len(self.bounds) == 2
        if is_single_batch or not remainder:
            return
        if self.drop_last:
            del self.bounds[-1]
        elif remainder < self.world_size:  # too few for all processes: join the previous batch
            del self.bounds[-2]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; Lightning calls this before each epoch."""
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        """Return the epoch, and how many of its batches have been yielded."""
        return self.resume_at or {"epoch": self.epoch, "batch": self.position}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Continue after the batches that ``state_dict`` counts, in that epoch only."""
        self.resume_at = dict(state_dict)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def order(self) -> Tensor:
        """Return the indices of this epoch on the CPU, ``(size,)``."""
        if not self.shuffle:
            return torch.arange(self.size)
        generator = np.random.default_rng((self.seed, self.epoch))
        return torch.from_numpy(generator.permutation(self.size))

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        order = self.order().to(self.device)
        for batch in range(self._first_batch(), len(self)):
            self.position = batch + 1
            indices = order[self.bounds[batch] : self.bounds[batch + 1]]
            yield indices[self.rank :: self.world_size], self.epoch

    def _first_batch(self) -> int:
        """Return the batch to begin with, and forget the state that it comes from."""
        state = self.resume_at
        self.resume_at = {}
        if state.get("epoch") == self.epoch and state["batch"] < len(self):
            return state["batch"]
        return 0


def _unchanged(batch: Any) -> Any:
    """Return a batch as it is: torch's own ``collate_fn`` would examine each of its fields."""
    return batch


class ResumableLoader(DataLoader[Batch]):
    """A ``DataLoader`` that resumes from a checkpoint written in the middle of an epoch."""

    def __init__(self, dataset: InMemory, batches: EpochBatches, *, pin_memory: bool) -> None:
        super().__init__(
            dataset, sampler=batches, batch_size=None, collate_fn=_unchanged, pin_memory=pin_memory
        )
        self.batches = batches

    def state_dict(self) -> dict[str, int]:
        return self.batches.state_dict()

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.batches.load_state_dict(state_dict)


def fits(images: Images, device: torch.device) -> bool:
    """Return whether ``device`` is a GPU and the images take at most a quarter of its free memory.

    Where several runs share a GPU, each of them may take a quarter of its share: all of them may start now.
    """
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return images.nbytes <= free / runs_per_gpu() / 4  # ours: room for other sets and activations
