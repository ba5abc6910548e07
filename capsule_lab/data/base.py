"""The base class of all data sets: a LightningDataModule with a specification and provenance."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import lightning as L
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from capsule_lab.data.balanced import BalancedBatches, Repeated
from capsule_lab.data.download import data_directory
from capsule_lab.data.loader import (
    EpochBatches,
    Images,
    InMemory,
    ReplayedSet,
    ResumableLoader,
    check_batch,
    check_images,
    fits,
    warn_of_unusual,
)
from capsule_lab.data.mixup import WithPartners, mix, shares_of
from capsule_lab.data.sources import AbstractSource, choose_source
from capsule_lab.data.splits import (
    Indices,
    Validation,
    index_hash,
    parse_share,
    split_validation,
    take_stratified,
)
from capsule_lab.data.transforms import transform_each
from capsule_lab.errors import CapsuleLabError, DataError, check_choice, check_number, one_line
from capsule_lab.system import environment
from capsule_lab.types import Batch, DataSpec, TrainingData

if TYPE_CHECKING:
    from pathlib import Path

    from PIL import Image

    from capsule_lab.data.formats.pictures import Polarity
    from capsule_lab.system.cuda_graphs import Replayed

log = logging.getLogger(__name__)

_CHECKED = 8  # ours: images of each set that are compared with the specification

Source = Literal["auto", "real", "standin"]
OnDevice = Literal["auto"] | bool


class AbstractDataModule(L.LightningDataModule):
    """Base class of data sets: keeps images in memory as uint8 and transforms whole batches on their device.

    A data set defines its specification (``spec``), its source (``real_source`` and, if there is one,
    ``standin_source``), and its preprocessing: either ``transform``, which transforms a whole batch, or pipelines of
    ``torchvision.transforms.v2``, which transform one image at a time. ``PublishedFiles`` is the source for files that
    are downloaded and verified. Override the other methods where needed. ``CONTRIBUTING.md`` has an example.

    The sets are named ``"train"``, ``"val"`` and ``"test"``, plus the names in ``further_validations``. The names in
    ``test_parts``, if there are any, replace ``"test"``. Only ``setup("test")`` reads the test images.

    Args:
        directory: directory of all data sets; default ``$CAPSULE_LAB_DATA``, else ``data``.
        source: ``"auto"`` looks in the directory, then downloads, then falls back to the stand-in with a warning;
            ``"real"`` fails instead of falling back; ``"standin"`` never uses the network.
        batch_size: images per training step and process.
        eval_batch_size: images per validation or test step and process.
        validation: which training images to validate on, one of ``validations``; see ``split_training``.
        validation_share: share of these images, as a number or a fraction such as ``"1/6"``.
        train_images: number of images to train on, drawn in proportion to the classes; ``None`` for all.
        eval_images: maximum number of images in each validation and test set, drawn in proportion to the classes, for
            a quick look; ``None`` for all. The provenance records it.
        augment: apply random transformations in training.
        mixup: mix every training image and its label with those of another, in shares from Beta(mixup, mixup) (Zhang
            et al. 2018); labels become shares of the classes. ``None`` turns it off. Requires one label per image.
        sampling: ``"balanced"`` draws each class equally often in training, as many images per epoch as there are, see
            ``BalancedBatches``; ``None`` has every image once. Requires one label per image.
        on_device: copy the sets to the training device and index batches there; the batches are the same. ``"auto"``
            copies a set to a GPU if the set takes at most a quarter of the free memory. If a set does not fit, it and
            all later sets stay on the CPU, with a warning.
        seed: seed of the order, the split and the augmentation.

    Raises:
        DataError: from ``prepare_data`` and ``setup``, if the data is missing, incomplete or damaged.
    """

    real_source: AbstractSource
    standin_source: AbstractSource | None = None
    image_source: AbstractSource
    """The source in use, one of the two above; set by ``prepare_data``."""
    train_transform: Callable[[Tensor], Tensor] | None = None
    """Transforms a uint8 image ``(channel, height, width)`` in training; default ``eval_transform``."""
    eval_transform: Callable[[Tensor], Tensor] | None = None
    """Transforms an image in validation and testing, and in training without augmentation."""
    validations: ClassVar[tuple[str, ...]] = ("first", "stratified", "none")
    """Allowed values of ``validation``."""
    test_parts: tuple[str, ...] = ()
    """Parts of the test set that are reported separately; if there are any, ``test_dataloader`` returns a list."""
    test_sizes: dict[str, int]
    """Number of images of each test set before ``eval_images``; ``setup("test")`` adds it."""
    test_clusters: npt.NDArray[np.int64] | None = None
    """Number of the object or group of each test image, if several images share one; ``setup("test")`` sets it."""
    further_validations: tuple[str, ...] = ()
    """Additional sets that every validation measures and reports; their loaders follow that of the validation set."""
    training: TrainingData | None = None
    """The data of the training of a network that is tested; ``None`` in a training."""

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
        mixup: float | None = None,
        sampling: Literal["balanced"] | None = None,
        on_device: OnDevice = "auto",
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_choice("data.source", source, ("auto", "real", "standin"))
        check_choice("data.on_device", on_device, ("auto", True, False))
        check_choice("data.validation", validation, self.validations)
        if eval_images is not None:
            check_number("data.eval_images", eval_images, 1)
        if mixup is not None:
            check_number("data.mixup", mixup, above=0)
        check_choice("data.sampling", sampling, ("balanced", None))
        if sampling and mixup is not None:
            raise ValueError(
                f"data.sampling is {sampling}, but data.mixup={mixup} mixes images with any other; expected one of them"
            )
        if batch_size < 1 or eval_batch_size < 1:
            raise ValueError(
                f"batch sizes are {batch_size} and {eval_batch_size}; expected 1 or more"
            )
        self.directory = data_directory(directory)
        self.source = source
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.validation = validation
        self.validation_share = parse_share(validation_share)
        self.train_images = train_images
        self.eval_images = eval_images
        self.augment = augment
        self.mixup = mixup
        self.sampling = sampling
        self._shares = None if mixup is None else shares_of(mixup)
        self.on_device = on_device
        self.seed = seed
        self.provenance: dict[str, Any] = {}
        self.sets: dict[str, Images] = {}
        self.test_sizes: dict[str, int] = {}
        self._replayed: Replayed | None = None
        self._train_batches: EpochBatches | None = None
        self._resume_at: dict[str, int] | None = None

    # --- what a data set defines

    @property
    @abstractmethod
    def spec(self) -> DataSpec:
        """Specification of the images that the network receives; may be a class attribute."""

    def use_spec(self, spec: DataSpec) -> None:
        """Use the specification in a checkpoint instead of what would be read from files, such as names of classes.

        Call it right after construction. By default, no part of ``spec`` is read from files.
        """

    @property
    def input_form(self) -> dict[str, Any]:
        """How ``from_picture`` makes the network's input; plain JSON, recorded in every checkpoint.

        ``kind`` is ``"digit"``: one drawn digit as in MNIST, with its ``polarity``; or ``"photograph"``, fitted to
        ``size``, ``[height, width]``, and ``channels`` as ``fit`` states (see ``formats.pictures.fitted``), with
        ``background`` where it is transparent. With any other kind, the input is not made from one picture.
        """
        channels, *size = self.spec.image_shape
        return {
            "kind": "photograph",
            "size": size,
            "channels": channels,
            "fit": "crop",
            "background": "white",
        }

    def from_picture(self, picture: Image.Image, *, polarity: Polarity = "auto") -> Tensor:
        """Return what the network receives for a picture: float32 ``(channel, height, width)``, not augmented.

        Args:
            picture: of any size and mode.
            polarity: of a drawn digit, see ``formats.pictures.as_digit``; photographs have none.

        Raises:
            DataError: if the input is not made from one picture, or if a picture of a digit is blank.
        """
        stored = self.stored_picture(picture, polarity)[None]
        return self.transform(stored, torch.zeros(1, dtype=torch.int64), augment=False)[0]

    def stored_picture(self, picture: Image.Image, polarity: Polarity = "auto") -> Tensor:
        """Return a picture as ``Images`` store it, uint8 ``(channel, height, width)``; see ``from_picture``."""
        from capsule_lab.data.formats import pictures

        form = self.input_form
        check_choice("polarity", polarity, ("auto", "light_on_dark", "dark_on_light"))
        if form["kind"] == "digit":
            return pictures.as_digit(picture, polarity)
        if form["kind"] != "photograph":
            raise DataError(
                f"the network's input is {form['kind']}, which is not made of one picture; expected a network that was "
                "trained on single digits or photographs: use evaluate for this one"
            )
        height, width = form["size"]
        opaque = pictures.opaque(picture, form["background"])
        fitted = pictures.fitted(opaque, (width, height), form["fit"], form["background"])
        return pictures.as_pixels(fitted, form["channels"])

    def from_arrays(self, path: Path) -> Tensor:
        """Return what the network receives for the images in a file of arrays: float32 ``(n, channel, height, width)``.

        Raises:
            DataError: if the file cannot be read, or if its images are not of the network's shape.
        """
        stored = self.stored_arrays(path)
        prepared = self.transform(
            stored, torch.zeros(len(stored), dtype=torch.int64), augment=False
        )
        if prepared.shape[1:] != self.spec.image_shape:
            raise DataError(
                f"{path} has arrays, from which {type(self).__name__} does not make the network's input; expected "
                "pictures: use their files"
            )
        return prepared

    def stored_arrays(self, path: Path) -> Tensor:
        """Return the images in a file of arrays as ``Images`` store them, uint8; see ``from_arrays``."""
        from capsule_lab.data.formats.array_images import read_images

        channels, *size = self.spec.image_shape
        height, width = self.input_form.get("size", size)  # before a crop
        return read_images(path, (channels, height, width))

    def load(self, *, train: bool) -> Images:
        """Load the training or the test images."""
        return self.image_source.load(train=train)

    def split_training(self, images: Images) -> tuple[Indices, Indices]:
        """Return the indices of the training and of the validation images; by default from ``split_validation``."""
        validation = cast(Validation, self.validation)
        return split_validation(images.strata(), validation, self.validation_share, self.seed)

    def split_test(self, images: Images) -> tuple[Images, ...]:
        """Split the test images into one set per name in ``test_parts``, or a single set if there are no parts."""
        return (images,)

    def dataset(self, name: str) -> InMemory:
        """Return the named set as the dataset of its loader; ``InMemory.to`` copies its tensors to a device."""
        return InMemory(self.sets[name], self.seed)

    def transform_batch(self, batch: Batch, name: str) -> Batch:
        """Transform a stored batch of the named set into the network's input, on the batch's device."""
        augment = name == "train" and self.augment
        return batch._replace(images=self.transform(batch.images, batch.key, augment=augment))

    def unpaired_batch(self, batch: Batch, name: str) -> Batch:
        """Return ``transform_batch`` without pairing, for data sets that make pairs; analyses use it."""
        return self.transform_batch(batch, name)

    def transform(self, images: Tensor, key: Tensor, *, augment: bool) -> Tensor:
        """Transform stored uint8 images into the network's input; by default with ``train_transform`` or
        ``eval_transform``, see ``transform_each``. Every random number must be a function of the image's key, as in
        ``random_uniform``: a run can then be resumed, and depends neither on the batch size nor on the processes.
        """
        pipeline = (augment and self.train_transform) or self.eval_transform
        if pipeline is None:
            raise DataError(
                f"{type(self).__name__} has no eval_transform; expected one, or a transform()"
            )
        return transform_each(pipeline, images, key)

    def describe(self) -> dict[str, Any]:
        """Return the provenance of the images."""
        return self.image_source.provenance()

    def describe_test(self, counts: Mapping[str, int]) -> str:
        """Describe the tested images for the provenance: ``"100 of 10000"``; ``counts`` is by test set."""
        numbers = []
        for name, size in self.test_sizes.items():
            number = f"{counts[name]} of {size}"
            numbers.append(number if name == "test" else f"{number} {name}")
        return ", ".join(numbers)

    def whole_test_size(self) -> int:
        """Return the number of test images without ``eval_images``."""
        return sum(self.test_sizes.values())

    def class_counts(self) -> Tensor:
        """Return the number of training images of each class, ``(class,)``; after ``setup("fit")``."""
        labels = self.sets["train"].labels.cpu()
        if labels.ndim > 1:
            return labels.sum(0)
        return torch.bincount(labels, minlength=self.spec.num_classes)

    # --- what training uses

    @property
    def uses_standin(self) -> bool:
        """Whether the images are stand-in data; ``False`` before ``prepare_data``."""
        return self.provenance.get("source") == "standin"

    @property
    def val_names(self) -> tuple[str, ...]:
        """Names of the sets in ``val_dataloader``."""
        return ("val", *self.further_validations)

    @property
    def test_names(self) -> tuple[str, ...]:
        """Names of the sets in ``test_dataloader``."""
        return self.test_parts or ("test",)

    def prepare_data(self) -> None:
        if self.provenance:
            return
        self.image_source = choose_source(
            self.source, self.real_source, self.standin_source, type(self).__name__
        )
        real = self.image_source is self.real_source
        self.provenance = {"source": "real" if real else "standin", **self.describe()}

    def setup(self, stage: str) -> None:
        self.prepare_data()
        before = {*self.sets}
        if stage in ("fit", "validate") and "train" not in self.sets:
            self._setup_training()
        if stage == "test" and self.test_names[0] not in self.sets:
            self._setup_test()
        for name in self.sets:
            if name not in before and len(self.sets[name].labels):
                self._check_first_images(name)

    def advise_training(self) -> None:
        """Log what helps before a training, as after ``setup("fit")``, which also reads training images for others."""

    def _check_first_images(self, name: str) -> None:
        """Check that the first images of a set reach the network as ``spec`` states."""
        what = f"the {name} set of {type(self).__name__}"
        dataset = self.dataset(name)
        index = torch.arange(min(_CHECKED, len(dataset)))
        try:
            with torch.random.fork_rng([]):
                batch = self.transform_batch(dataset[index, 0], name)
        except CapsuleLabError:
            raise
        except Exception as error:  # of any kind, from the user's own transform
            raise DataError(
                f"{what} cannot be transformed ({type(error).__name__}: {one_line(error)})"
            ) from error
        check_batch(batch, self.spec, what)

    def _setup_training(self) -> None:
        labels_per_image = self.spec.labels_per_image
        if self.mixup is not None and labels_per_image != 1:
            raise ValueError(
                f"data.mixup is {self.mixup}, and every image has {labels_per_image or 'any number of'} labels; "
                "expected null"
            )
        if self.sampling and (labels_per_image != 1 or self.spec.change):
            raise ValueError(
                f"data.sampling is {self.sampling}, but {type(self).__name__} has pairs or several labels, not one "
                "class for each image; expected null"
            )
        images = self.load(train=True)
        what = f"the training set of {type(self).__name__}"
        check_images(images, self.spec.num_classes, what)
        warn_of_unusual(images, self.spec.num_classes, what)
        train, val = self.split_training(images)
        if self.train_images is not None:
            train = take_stratified(train, images.strata(), self.train_images, self.seed)
        val = self._limit(val, images)
        self.provenance["split"] = {
            "validation": self.validation,
            "train_images": len(train),
            "val_images": len(val),
            "hash": index_hash(train) + index_hash(val),
        }
        # files may be sorted by object; the first images should show all kinds of objects
        shuffled = np.random.default_rng(self.seed).permutation(val)
        self.sets |= {"train": images.subset(train), "val": images.subset(shuffled)}

    def _setup_test(self) -> None:
        everything = self.load(train=False)
        check_images(everything, self.spec.num_classes, f"the test set of {type(self).__name__}")
        for name, images in zip(self.test_names, self.split_test(everything), strict=True):
            limited = self._limit(np.arange(len(images.labels)), images)
            self.sets[name] = images.subset(limited)
            self.test_sizes[name] = len(images.labels)
        self.record_tested({name: len(self.dataset(name)) for name in self.test_names})

    def record_tested(self, counts: Mapping[str, int]) -> None:
        """Record in the provenance how many images of each test set were tested; after ``setup`` it has all."""
        self.provenance["test_images"] = self.describe_test(counts)

    def _limit(self, indices: Indices, images: Images) -> Indices:
        if self.eval_images is None or len(indices) <= self.eval_images:
            return indices
        return take_stratified(indices, images.strata(), self.eval_images, self.seed)

    def train_dataloader(self) -> ResumableLoader:
        loader = self._loader("train", self.batch_size, training=True)
        self._train_batches = loader.batches
        if self._resume_at is not None:
            loader.load_state_dict(self._resume_at)
            self._resume_at = None
        return loader

    def val_dataloader(self) -> ResumableLoader | list[Any]:
        if not len(self.sets["val"].labels):
            return []
        loaders = [self._loader(name, self.eval_batch_size) for name in self.val_names]
        return loaders if self.further_validations else loaders[0]

    def test_dataloader(self) -> ResumableLoader | list[ResumableLoader]:
        loaders = [self._loader(name, self.eval_batch_size) for name in self.test_names]
        return loaders if self.test_parts else loaders[0]

    def state_dict(self) -> dict[str, Any]:
        # Lightning also saves the loader's state, but loses it if the length of the run is read early
        return self._train_batches.state_dict() if self._train_batches else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resume_at = state_dict or None

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        if batch.labels.device == device:  # in most runs, the data set is already on the device
            return batch
        moved: list[Any] = [
            values if values is None else values.to(device, non_blocking=True) for values in batch
        ]
        return Batch(*moved)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        trainer = self.trainer
        if trainer is not None and trainer.training:
            transform = self._training_batch if self._replayed is None else self._replayed
            seen: Batch = transform(batch)
            return seen
        is_test = trainer is not None and trainer.testing
        names = self.test_names if is_test else self.val_names
        return self.transform_batch(batch, names[dataloader_idx])

    def use_cuda_graphs(self, use: bool) -> None:
        """Whether to transform training batches with a CUDA graph, on the device on which ``fit`` begins."""
        self._replayed = None
        if use:
            # optional: data sets work without this file
            from capsule_lab.system.cuda_graphs import Replayed

            self._replayed = Replayed(
                "the transformation of training batches", self._training_batch
            )

    def _training_batch(self, batch: Batch) -> Batch:
        seen = self.transform_batch(batch, "train")
        if self._shares is None:
            return seen
        self._shares = self._shares.to(seen.key.device)
        return mix(seen, self._shares, self.spec.num_classes)

    def _loader(self, name: str, batch_size: int, *, training: bool = False) -> ResumableLoader:
        trainer = self.trainer
        rank, world_size = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        device = trainer.strategy.root_device if trainer else torch.device("cpu")
        dataset = self._dataset_on(device, name)
        if training and self.mixup is not None and trainer is not None:  # only a Trainer mixes them
            dataset = WithPartners(dataset)
        options: dict[str, Any] = {
            "seed": self.seed,
            "shuffle": training,
            "drop_last": training,
            "rank": rank,
            "world_size": world_size,
            "device": dataset.device,
        }
        batches = EpochBatches(len(dataset), batch_size, **options)
        if training and self.sampling:
            dataset = Repeated(dataset)
            labels = self.sets["train"].labels.cpu().numpy()
            batches = BalancedBatches(len(dataset), batch_size, labels=labels, **options)
        if training and environment.is_gpu(dataset.device):
            dataset = ReplayedSet(dataset, lambda: self._replayed is not None)
        pin_memory = dataset.device.type == "cpu" and device.type == "cuda"
        return ResumableLoader(dataset, batches, pin_memory=pin_memory)

    def _dataset_on(self, device: torch.device, name: str) -> InMemory:
        """Return the named set, on ``device`` as far as the option ``on_device`` and its memory allow."""
        dataset = self.dataset(name)
        if not self.on_device or (self.on_device == "auto" and not fits(dataset.data, device)):
            return dataset
        try:
            return dataset.to(device)
        except torch.OutOfMemoryError:
            log.warning(
                "the %s set (%.1f GB) does not fit into the free memory of %s: its batches and those of all later "
                "sets are made on the CPU; set data.on_device=false to use the CPU from the beginning",
                name,
                dataset.data.nbytes / 1e9,
                device,
            )
            self.on_device = False
            return dataset
