"""smallNORB: 24,300 + 24,300 stereo pairs of 50 toys in five categories (LeCun, Huang and Bottou 2004)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from capsule_lab.data import transforms
from capsule_lab.data.base import AbstractDataModule
from capsule_lab.data.formats import smallnorb as files
from capsule_lab.data.loader import Images
from capsule_lab.data.sources import PublishedFiles
from capsule_lab.data.splits import Indices, Viewpoints, split_by_instance, split_by_viewpoint
from capsule_lab.data.standins.smallnorb import RenderedToys, StandIn
from capsule_lab.errors import check_choice, check_number
from capsule_lab.types import Batch, DataSpec

Preprocessing = Literal["official", "paper"]

_JITTER = {  # largest brightness added, and largest deviation of the contrast factor from 1
    "official": (63.0, 0.8),  # official code of Hinton 2018: grey levels of 255; factors 0.2 to 1.8
    # IBM's matrix-capsules-with-em-routing: standard deviations; factors 0.5 to 1.5
    "paper": (2.0, 0.5),
}
_BRIGHTNESS, _CONTRAST, _TOP, _LEFT = range(4)  # streams of the random draws
NOVEL_VAL = "novel_val"  # name of the further validation set
_THIRTEEN = 13  # official code of Hinton 2018


class SmallNORBFiles(PublishedFiles):
    """smallNORB's six files in ``<directory>/smallNORB``, ``.mat`` or ``.mat.gz``; for ``resize`` see ``load_part``."""

    name = files.NAME
    path = files.NAME

    def __init__(self, directory: Path, resize: files.Resize) -> None:
        super().__init__(directory)
        self.resize = resize

    @property
    def file_names(self) -> str:
        return f"{', '.join(files.PUBLISHED)}, with or without .gz,"

    def is_complete(self) -> bool:
        return files.verified(self.folder)

    def download(self, scratch: Path) -> None:
        files.download(scratch)

    def load(self, *, train: bool) -> Images:
        return files.load_part(self.folder, "training" if train else "testing", self.resize)

    def provenance(self) -> dict[str, Any]:
        md5 = {name: published.md5 for name, published in files.PUBLISHED.items()}
        return {"name": f"real {self.name}", "md5": md5}


class SmallNORBDataModule(AbstractDataModule):
    """smallNORB as in Hinton, Sabour and Frosst 2018: 96x96 pixels reduced to 48x48, then cropped to 32x32.

    The stand-in is ``toynorb``, rendered into ``<directory>/toynorb`` when it is first needed.

    ``preprocessing="official"`` follows the official code: brightness, contrast about each channel's mean, crop, then
    standardisation (mean 0 and standard deviation 1 over both channels of the crop). This last step cancels the
    brightness completely and nearly all of the contrast, so that only the crop augments. ``"paper"`` follows the
    order in the paper, as IBM's code does: standardisation of the 48x48 pixels first, then crop, brightness and
    contrast.

    Validation uses whole toys held out of the training set, drawn separately for each category: a split with views
    of one toy on both sides would measure memorisation. The test set shows other toys.

    Args:
        crop: side of the crop, in pixels of 48; random in training, central otherwise.
        resize: ``"subsample"`` or ``"area"``, see ``load_part``; the stand-in is rendered at 48x48.
        preprocessing: ``"official"`` or ``"paper"``.
        brightness: largest number added to all pixels: grey levels of 255 (official) or standard deviations (paper).
            ``None`` is the default of the preprocessing, 63 or 2.
        contrast: largest deviation of the contrast factor from 1. ``None`` is the default of the preprocessing,
            0.8 or 0.5.
        stereo: ``"channels"`` makes a stereo pair one sample of two channels; ``"separate"`` makes it two samples of
            one channel, with the eye (0 left, 1 right) as a fifth factor.
        split: ``"full"``, or ``"azimuth"`` or ``"elevation"`` to train on a third of the viewpoints and to report
            familiar and novel viewpoints separately (Hinton 2018, section 5). ``"azimuth_all"`` and
            ``"elevation_all"`` report them separately, too, but train on all viewpoints: an upper bound.
        test_crops: 1, the central crop, or 13, see ``thirteen_corners``; with 13, test images are
            ``(batch, 13, channel, crop, crop)``.
        validation: ``"instance"``, ``"none"``, or with a split ``"instance_all_viewpoints"``, which also validates on
            the held-out toys from novel viewpoints; logged as ``novel_val/error``.
        validation_instances: number of toys per category to validate on, of five.
        validation_fold: index of the disjoint choice of these toys, from 0, for cross-validation.
        standin: ``"full"`` is as large as smallNORB; ``"small"``, for a quick look, has 900 + 900 pairs.
        batch_size, eval_batch_size, options: see ``AbstractDataModule``.
    """

    validations = ("instance", "instance_all_viewpoints", "none")

    def __init__(
        self,
        *,
        crop: int = 32,  # Hinton 2018, section 4
        resize: files.Resize = "subsample",
        preprocessing: Preprocessing = "official",
        brightness: float | None = None,
        contrast: float | None = None,
        stereo: Literal["channels", "separate"] = "channels",
        split: Viewpoints | Literal["azimuth_all", "elevation_all"] = "full",
        test_crops: int = 1,
        validation: str = "instance",
        validation_instances: int = 1,
        validation_fold: int = 0,
        standin: StandIn = "full",
        batch_size: int = 64,  # official code of Hinton 2018
        eval_batch_size: int = 100,  # ours: divides 24,300, 8,100 and 16,200
        **options: Any,
    ) -> None:
        if "validation_share" in options:
            raise ValueError(
                f"data.validation_share is {options['validation_share']}; smallNORB holds out whole toys, because a "
                "share of the images would show the same toys on both sides: set data.validation_instances"
            )
        super().__init__(
            validation=validation, batch_size=batch_size, eval_batch_size=eval_batch_size, **options
        )
        check_choice("data.resize", resize, ("subsample", "area"))
        check_choice("data.preprocessing", preprocessing, ("official", "paper"))
        check_choice("data.stereo", stereo, ("channels", "separate"))
        check_choice(
            "data.split", split, ("full", "azimuth", "elevation", "azimuth_all", "elevation_all")
        )
        check_choice("data.test_crops", test_crops, (1, _THIRTEEN))
        check_choice("data.standin", standin, ("full", "small"))
        own_brightness, own_contrast = _JITTER[preprocessing]
        self.brightness = own_brightness if brightness is None else brightness
        self.contrast = own_contrast if contrast is None else contrast
        check_number("data.crop", crop, 1, files.SIZE)
        check_number("data.brightness", self.brightness, 0)
        check_number("data.contrast", self.contrast, 0, 1)
        self.crop = crop
        self.preprocessing = preprocessing
        self.stereo = stereo
        if validation == "instance_all_viewpoints":
            if split == "full":
                raise ValueError(
                    f"data.validation is {validation} with data.split=full, which has no novel viewpoints; expected "
                    "data.split=azimuth or elevation, or data.validation=instance"
                )
            self.further_validations = (NOVEL_VAL,)
        self.viewpoints = cast(Viewpoints, split.removesuffix("_all"))
        self.trains_on_all = split != self.viewpoints
        self.test_crops = test_crops
        self.validation_instances = validation_instances
        self.validation_fold = validation_fold
        self.test_parts = () if split == "full" else ("familiar", "novel")
        self.real_source = SmallNORBFiles(self.directory, resize)
        self.standin_source = RenderedToys(self.directory, standin)

    @property
    def spec(self) -> DataSpec:
        channels = 2
        factors: tuple[str, ...] = files.FACTORS
        if self.stereo == "separate":
            channels = 1
            factors = (*files.FACTORS, "eye")
        return DataSpec(
            image_shape=(channels, self.crop, self.crop),
            num_classes=len(files.CLASSES),
            classes=files.CLASSES,
            factors=factors,
        )

    @property
    def input_form(self) -> dict[str, Any]:
        if self.stereo == "channels":
            return {"kind": "a stereo pair"}
        return super().input_form | {"size": [files.SIZE, files.SIZE]}

    def load(self, *, train: bool) -> Images:
        pairs = super().load(train=train)
        return pairs if self.stereo == "channels" else _separate(pairs)

    def split_training(self, images: Images) -> tuple[Indices, Indices]:
        familiar, novel = self._by_viewpoint(images)
        labels = images.labels.numpy()
        instances = _column(images, "instance").numpy()
        seen = np.arange(len(labels)) if self.trains_on_all else familiar
        if self.validation == "none":
            return seen, seen[:0]
        train, validation = split_by_instance(
            labels, instances, self.validation_instances, self.seed, self.validation_fold
        )
        if self.further_validations:
            novel_validation = self._limit(np.intersect1d(validation, novel), images)
            self.sets[NOVEL_VAL] = images.subset(novel_validation)
        return np.intersect1d(train, seen), np.intersect1d(validation, familiar)

    def split_test(self, images: Images) -> tuple[Images, ...]:
        if not self.test_parts:
            return (images,)
        familiar, novel = self._by_viewpoint(images)
        return images.subset(familiar), images.subset(novel)

    def _by_viewpoint(self, images: Images) -> tuple[Indices, Indices]:
        factor = "azimuth" if self.viewpoints == "full" else self.viewpoints
        return split_by_viewpoint(_column(images, factor).numpy(), self.viewpoints)

    def transform_batch(self, batch: Batch, name: str) -> Batch:
        if self.test_crops == 1 or name not in self.test_names:
            return super().transform_batch(batch, name)
        corners = transforms.thirteen_corners(files.SIZE, self.crop)
        crops = [self._still(batch.images, corner) for corner in corners]
        return batch._replace(images=torch.stack(crops, dim=1))

    def transform(self, images: Tensor, key: Tensor, *, augment: bool) -> Tensor:
        if not augment:
            return self._still(images, transforms.centre_corner(files.SIZE, self.crop))
        margin = files.SIZE - self.crop
        top = transforms.random_integers(key, _TOP, 0, margin)
        left = transforms.random_integers(key, _LEFT, 0, margin)
        pixels = images.float()
        if self.preprocessing == "official":
            pixels = self._jitter(pixels, key)
            pixels = transforms.crop(pixels, top, left, self.crop)
            return transforms.standardise(pixels)
        pixels = transforms.standardise(pixels)
        pixels = transforms.crop(pixels, top, left, self.crop)
        return self._jitter(pixels, key)

    def _jitter(self, pixels: Tensor, key: Tensor) -> Tensor:
        added = transforms.random_uniform(key, _BRIGHTNESS, -self.brightness, self.brightness)
        factor = transforms.random_uniform(key, _CONTRAST, 1 - self.contrast, 1 + self.contrast)
        return transforms.contrast(pixels + added[:, None, None, None], factor)

    def _still(self, images: Tensor, corner: tuple[int, int]) -> Tensor:
        """Return the preprocessed crop at ``corner``, without augmentation."""
        pixels = transforms.as_float(images)
        if self.preprocessing == "official":
            return transforms.standardise(transforms.crop_at(pixels, corner, self.crop))
        return transforms.crop_at(transforms.standardise(pixels), corner, self.crop)


def _column(images: Images, factor: str) -> Tensor:
    assert images.factors is not None
    return images.factors[:, files.FACTORS.index(factor)]


def _separate(pairs: Images) -> Images:
    """Split each stereo pair into two samples of one channel, left before right; the eye is the last factor."""
    assert pairs.factors is not None
    eyes = torch.arange(2).repeat(len(pairs.labels))
    factors = torch.cat([pairs.factors.repeat_interleave(2, dim=0), eyes[:, None]], dim=1)
    return Images(pairs.images.flatten(0, 1)[:, None], pairs.labels.repeat_interleave(2), factors)
