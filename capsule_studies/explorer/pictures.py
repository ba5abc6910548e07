"""The pictures of the explorer's page: how it takes those of its reader, and the examples that it has."""

from __future__ import annotations

import base64
import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import ImageColor
from torch import Tensor

from capsule_lab import runs
from capsule_lab.data import AbstractDataModule
from capsule_lab.data.transforms import to_unit_interval
from capsule_lab.deploy.export import check_data_is_here
from capsule_lab.errors import CapsuleLabError, RunError, one_line
from capsule_lab.types import Batch
from capsule_studies.images import count_images, joined_images, joined_labels

_DIGITS = Path(__file__).parent / "assets" / "digits.npz"
_IMAGES = 2000  # ours: training images for the ranges of poses and for the examples
_NOISE = 64  # ours: images without classes, to try a network whose data are not here
_BUTTONS = 10  # ours: examples on the page, at least one of each class

log = logging.getLogger(__name__)


class Pictures(NamedTuple):
    """Images as network input, their labels (none for noise), and what they are; empty for noise."""

    images: Tensor
    labels: Tensor
    kind: str


def check_pictures(run: runs.Run) -> None:
    """Check that the page can show the input of a network.

    Raises:
        RunError: if the network has several labels for an image, or images that are neither grey nor in colour.
    """
    channels = run.spec.image_shape[0]
    if channels not in (1, 3):
        raise RunError(
            f"{run.checkpoint} has images of {channels} channels; expected 1 or 3: the page shows grey and colour "
            "pictures, not pairs of pictures"
        )
    if run.spec.labels_per_image != 1:
        number = run.spec.labels_per_image or "any number of"
        raise RunError(
            f"{run.checkpoint} has {number} labels for an image; expected one, such as data=mnist"
        )


def entry(run: runs.Run) -> dict[str, Any]:
    """Return how a reader enters a picture.

    ``source`` is ``"drawing"`` for digits; ``"file"`` for pictures that are fitted to the size as ``fit`` and
    ``background`` state, see ``data.formats.pictures.fitted``; or ``"examples"`` if the data module changes pixels in
    another way, which the page does not know.
    """
    data = run.build_data()
    form = data.input_form
    if form["kind"] == "digit":
        return {"source": "drawing"}
    if form["kind"] == "photograph" and _only_scales(data):
        background = ImageColor.getrgb(form["background"])
        return {"source": "file", "fit": form["fit"], "background": list(background[:3])}
    return {"source": "examples"}


def _only_scales(data: AbstractDataModule) -> bool:
    """Return whether the network's input is the fitted picture, with pixels in [0, 1]."""
    shape = data.spec.image_shape
    if data.input_form["size"] != list(shape[1:]):
        return False
    stored = torch.arange(torch.Size(shape).numel()).to(torch.uint8).view(1, *shape)
    transformed = data.transform(stored, torch.zeros(1, dtype=torch.int64), augment=False)
    return torch.allclose(transformed, to_unit_interval(stored))


def load(run: runs.Run, source: str) -> Pictures:
    """Return training images of the run, not augmented.

    If its data set is not here, return the first digits of MNIST for a network of digits, and noise for others.
    """
    try:
        check_data_is_here(run)
        batches: list[Batch] = []
        for batch in run.batches("train"):
            batches.append(batch)
            if count_images(batches) >= _IMAGES:
                break
        return Pictures(joined_images(batches), joined_labels(batches), "training images")
    except CapsuleLabError as error:
        if source == "drawing":
            log.info(
                "there are no training images (%s); the page has 400 training digits of MNIST",
                one_line(error),
            )
            return _stored_digits(run.spec.image_shape)
        log.warning(
            "there are no training images (%s); the page has no examples and no sliders",
            one_line(error),
        )
        noise = torch.rand(
            _NOISE, *run.spec.image_shape, generator=torch.Generator().manual_seed(0)
        )
        return Pictures(noise, torch.zeros(0, dtype=torch.int64), "")


def _stored_digits(shape: tuple[int, int, int]) -> Pictures:
    with np.load(_DIGITS, allow_pickle=False) as stored:
        pixels = torch.from_numpy(stored["images"])
        labels = torch.from_numpy(stored["labels"])
    images = pixels[:, None].float() / 255
    margin = (shape[2] - images.shape[3]) // 2  # around the digit, on each side
    images = torch.nn.functional.pad(images, (margin,) * 4)
    return Pictures(images, labels.long(), "first 40 training digits of its class in MNIST")


def examples(pictures: Pictures) -> dict[str, Any]:
    """Return examples of each class, their pixels as bytes from the lowest to the highest value of all."""
    labels = pictures.labels.unique().tolist()
    each = max(1, _BUTTONS // max(1, len(labels)))
    chosen: list[int] = []
    for label in labels:
        of_class = (pictures.labels == label).nonzero().flatten()
        chosen += of_class[:each].tolist()
    images = pictures.images[chosen]
    low = min(0.0, float(images.min())) if chosen else 0.0
    high = max(1.0, float(images.max())) if chosen else 1.0
    levels = (255 * (images - low) / (high - low)).round().to(torch.uint8)
    listed = []
    for number, image in zip(chosen, levels, strict=True):
        pixels = base64.b64encode(image.numpy().tobytes()).decode()
        listed.append({"label": int(pictures.labels[number]), "pixels": pixels})
    return {"what": pictures.kind, "low": low, "high": high, "pictures": listed}
