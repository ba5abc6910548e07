"""Prepare a data set: ``capsule-lab dataset name=toynorb``."""

from __future__ import annotations

import logging
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from capsule_lab.commands import train
from capsule_lab.commands.declare import command
from capsule_lab.config.check_options import check_effect
from capsule_lab.config.compose import compose
from capsule_lab.config.declaration import Count, Options
from capsule_lab.config.folders import options_of
from capsule_lab.errors import ConfigError, RunError, suggest
from capsule_lab.system.extras import require
from capsule_lab.system.signals import interruptible

if TYPE_CHECKING:
    from torch import Tensor

_RENDERED = "toynorb"
_PICTURES = "folder"
_SHOWN = 12  # ours: pictures of each class on a contact sheet
_BATCHES = 40  # ours: as many are read for them

log = logging.getLogger(__name__)


class DatasetOptions(Options):
    """Options of ``dataset``."""

    name: Any = None
    """A data set of conf/data, or toynorb."""
    directory: str | None = None
    """Default: $CAPSULE_LAB_DATA, else data."""
    source: str = "auto"
    """auto: directory, then download, then stand-in; real: fail instead of using a stand-in; standin."""
    path: str | None = None
    """folder: the folder with a folder of pictures for each class; arrays: the .npz, .npy or .mat file."""
    labels: str | None = None
    """folder, arrays: a file of labels, as in training."""
    groups: str | None = None
    """folder, arrays: a file of groups, as in training."""
    size: Count | tuple[Count, Count] | None = None
    """Pixels a side; folder: 64 by default, or [height,width]; toynorb: 48, which data=smallnorb expects; the original
    smallNORB has 96."""
    workers: Count | None = None
    """toynorb: threads; default: one per core."""
    sheet: bool = True
    """Also draw a contact sheet of training images."""


@command("dataset", DatasetOptions, first="name")
def main(options: DatasetOptions) -> None:
    """Render ``toynorb``, or prepare a data set of ``conf/data`` in the same way as training."""
    names = sorted([_RENDERED, *options_of("data")])
    if options.name is None:
        raise ConfigError(f"name is missing; expected name= one of {', '.join(names)}")
    if options.name not in names:
        raise ConfigError(
            f"name={options.name} does not exist; {suggest(str(options.name), names)}"
        )
    known = {"name", "sheet"}
    if options.name == _RENDERED:
        known |= {"directory", "size", "workers"}
    else:
        known |= {str(key) for key in _training(options.name).data}
    others = [key for key in main.own_options if key not in known]
    check_effect(options, f"with name={options.name}", others)
    if options.name == _RENDERED:
        _render(options)
    else:
        _fetch(options)


def _training(name: str) -> DictConfig:
    """Return the configuration of a training run on the data set in ``conf/data``."""
    return compose(train.main, [f"data={name}"])


def _fetch(options: DatasetOptions) -> None:
    """Download and check a data set in the same way as training."""
    from capsule_lab.config import build

    build.quiet_lightning_logs()
    training = _training(options.name)
    for key, option in main.own_options.items():
        value = getattr(options, key)
        if key in training.data and value != option.default:
            training.data[key] = value
    train.check_training(training)
    data = build.build_data(training)
    data.prepare_data()
    log.info("%s: %s, in %s", options.name, data.provenance["name"], data.directory)
    if options.name == _PICTURES:
        folder = data.real_source.folder
        if options.sheet:
            _draw_classes(data, _first_pictures(data), folder / "contact_sheet.png")
        _name_unused(data, folder)
    elif options.sheet and not data.spec.change:  # of pairs, no image has one class
        sheet = data.directory / f"{options.name}_contact_sheet.png"
        try:
            _draw_classes(data, _first_images(data), sheet)
        except RunError as error:  # several people may share a folder that they cannot write to
            log.warning("no contact sheet: %s", error)


def _first_pictures(data: Any) -> dict[int, Tensor]:
    """Return the first training pictures of each class of a user's folder, in [0, 1]."""
    stored = data.load(train=True)  # without pictures to test on
    images = {}
    for label in range(data.spec.num_classes):
        labels = stored.labels
        is_of_class = labels == label if labels.ndim == 1 else labels[:, label] > 0
        rows = is_of_class.nonzero()[:_SHOWN, 0]
        if len(rows):
            images[label] = stored.images[rows].read().float() / 255
    return images


def _first_images(data: Any) -> dict[int, Tensor]:
    """Return training images by class as network input, not augmented.

    Of a fixed number of labels, the first counts; an image with any number of labels is of each of its classes.
    """
    import torch

    data.setup("fit")
    rows: list[list[Tensor]] = [[] for _ in range(data.spec.num_classes)]
    for stored in islice(data.train_dataloader(), _BATCHES):
        batch = data.transform_batch(stored, "val")
        for image, labels in zip(batch.images, batch.labels, strict=True):
            shown = torch.cat([*image], 1)[None] if len(image) == 2 else image  # a stereo pair
            if data.spec.labels_per_image == 0:
                classes = labels.nonzero()[:, 0].tolist()
            else:
                classes = [int(labels.reshape(-1)[0])]
            for label in classes:
                rows[label].append(shown)
        if min(map(len, rows)) >= _SHOWN:
            break
    images = {label: torch.stack(row[:_SHOWN]) for label, row in enumerate(rows) if row}
    low, high = (
        min(float(each.min()) for each in images.values()),
        max(float(each.max()) for each in images.values()),
    )
    return {
        label: (each - low) / (high - low) for label, each in images.items()
    }  # some data sets are standardised


def _draw_classes(data: Any, by_class: dict[int, Tensor], path: Path) -> None:
    """Draw images in [0, 1] by class as networks see them."""
    import torch

    from capsule_lab import runs
    from capsule_lab.analysis.plotting import (
        Column,
        Group,
        name_of_class,
        picture_grid,
        plain_label,
    )

    images = [*by_class.values()]
    blank = torch.full_like(
        images[0][0], float(data.spec.image_shape[0] == 3)
    )  # grey is drawn inverted
    shown = max(map(len, images))
    columns = [
        Column("", [line[n] if n < len(line) else blank for line in images]) for n in range(shown)
    ]
    names = [name_of_class(data.spec.classes, label) for label in by_class]
    title = plain_label(f"{data.provenance['name']}, training")
    figure = picture_grid([Group("", columns)], names, title=title)
    runs.files.save_figure(figure, path)
    log.info("%s", path)


def _name_unused(data: Any, folder: Path) -> None:
    """Name packed folders that this data set does not use."""
    for other in sorted(data.directory.glob("folder-*")):
        if other != folder and other.is_dir():
            size = sum(file.stat().st_size for file in other.iterdir()) / 1e6
            log.info(
                "%s (%.0f MB) is of another folder, size or state of the pictures; remove it if unused",
                other,
                size,
            )


def _render(options: DatasetOptions) -> None:
    """Render the stand-in for smallNORB, and draw an overview of it."""
    require("name=toynorb", "toynorb", "toynorb")
    import toynorb
    from capsule_lab.data.download import data_directory
    from capsule_lab.data.standins import toynorb_files

    size, workers = options.size or 48, options.workers
    if not isinstance(size, int) or size not in toynorb.SIZES:
        raise ConfigError(
            f"size is {size}; expected {toynorb.SIZES[0]} to {toynorb.SIZES[-1]} pixels, such as 48 or 96"
        )
    folder = data_directory(options.directory) / _RENDERED / f"{size}x{size}"
    try:
        with interruptible(
            "stopped; nothing was written, and the same command starts from the beginning"
        ):
            toynorb_files.render_files(folder, size=size, workers=workers)
    except OSError as error:
        raise ConfigError(
            f"cannot write to {folder} ({error.strerror}); expected a writable folder with free space: choose "
            "another one with directory=…"
        ) from error
    log.info("%s: %s, in %s", _RENDERED, toynorb_files.STANDIN_NAME, folder)
    if options.sheet:
        _draw(folder / "contact_sheet.png", size)


def _draw(path: Path, size: int) -> None:
    import numpy as np

    import toynorb
    from capsule_lab import runs
    from capsule_lab.data.standins import toynorb_files
    from toynorb.catalogue import toy_sheet

    def images(category: int, instance: int, azimuths: Any, lightings: Any) -> np.ndarray:
        # ours: elevation 1, 35 degrees, shows both the sides and the shadow; the left camera
        return toynorb.render(category, instance, [1], azimuths, lightings, [-1], size=size)[
            0, :, :, 0
        ]

    categories, instances = range(len(toynorb.CATEGORIES)), range(toynorb.INSTANCES)
    # ours: azimuth 2, 40 degrees, shows front and side; instance 4 is the first training toy
    toys = np.stack(
        [
            [images(category, instance, [2], [0])[0, 0] for instance in instances]
            for category in categories
        ]
    )
    around = np.stack(
        [images(category, 4, range(len(toynorb.AZIMUTHS)), [0])[:, 0] for category in categories]
    )
    lit = np.stack(
        [images(category, 4, [2], range(toynorb.LIGHTINGS))[0] for category in categories]
    )
    sheet = toy_sheet(
        toys, around, lit, categories=toynorb.CATEGORIES, training=toynorb.TRAIN_INSTANCES,
        title=f"{toynorb_files.STANDIN_NAME}, version {toynorb_files.VERSION}, {size}x{size}",
    )  # fmt: skip
    runs.files.save_figure(sheet, path)
    log.info("%s", path)


if __name__ == "__main__":
    main()
