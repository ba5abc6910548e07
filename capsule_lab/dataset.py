"""Prepare a data set: ``python -m capsule_lab.dataset name=toynorb``."""

from __future__ import annotations

import logging
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from capsule_lab.command import command
from capsule_lab.config.compose import check_effect, compose, options_of, own_options
from capsule_lab.errors import ConfigError, RunError, suggest
from capsule_lab.system.signals import interruptible

if TYPE_CHECKING:
    from torch import Tensor

_RENDERED = "toynorb"
_PICTURES = "folder"
_SHOWN = 12  # ours: pictures of each class on a contact sheet
_BATCHES = 40  # ours: as many are read for them

log = logging.getLogger(__name__)


@command("dataset")
def main(config: DictConfig) -> None:
    """Render ``toynorb``, or prepare a data set of ``conf/data`` in the same way as training."""
    options = sorted([_RENDERED, *options_of("data")])
    if OmegaConf.is_missing(config, "name"):
        raise ConfigError(f"name is missing; expected name= one of {', '.join(options)}")
    if config.name not in options:
        raise ConfigError(
            f"name={config.name} does not exist; {suggest(str(config.name), options)}"
        )
    known = (
        {"directory", "size", "workers"}
        if config.name == _RENDERED
        else _options_of(str(config.name))
    )
    others = [key for key in own_options("dataset") if key not in (*known, "name", "sheet")]
    check_effect(config, "dataset", f"with name={config.name}", others)
    (_render if config.name == _RENDERED else _fetch)(config)


def _options_of(name: str) -> set[str]:
    """Return the options of the data set in ``conf/data``."""
    return {str(key) for key in compose("train", [f"data={name}"]).data}


def _fetch(config: DictConfig) -> None:
    """Download and check a data set in the same way as training."""
    from capsule_lab.config import build
    from capsule_lab.config.check import check

    build.quiet_lightning_logs()
    training = compose("train", [f"data={config.name}"])
    for key, default in own_options("dataset").items():
        if key in training.data and config[key] != default:
            training.data[key] = config[key]
    check(training)
    data = build.build_data(training)
    data.prepare_data()
    log.info("%s: %s, in %s", config.name, data.provenance["name"], data.directory)
    if config.name == _PICTURES:
        stored = data.load(train=True)  # without pictures to test on
        rows = [
            (stored.labels == label).nonzero()[:_SHOWN, 0] for label in range(data.spec.num_classes)
        ]
        folder = data.real_source.folder
        if config.sheet:
            images = {
                label: stored.images[row].read().float() / 255 for label, row in enumerate(rows)
            }
            _draw_classes(data, images, folder / "contact_sheet.png")
        _name_unused(data, folder)
    elif config.sheet and not data.spec.change:  # of pairs, no image has one class
        try:
            _draw_classes(
                data, _first_images(data), data.directory / f"{config.name}_contact_sheet.png"
            )
        except RunError as error:  # several people may share a folder that they cannot write to
            log.warning("no contact sheet: %s", error)


def _first_images(data: Any) -> dict[int, Tensor]:
    """Return training images by class as network input, not augmented; of several labels, the first counts."""
    import torch

    data.setup("fit")
    rows: list[list[Tensor]] = [[] for _ in range(data.spec.num_classes)]
    for stored in islice(data.train_dataloader(), _BATCHES):
        batch = data.transform_batch(stored, "val")
        for image, label in zip(
            batch.images, batch.labels.reshape(len(batch.labels), -1)[:, 0], strict=True
        ):
            rows[int(label)].append(
                torch.cat([*image], 1)[None] if len(image) == 2 else image
            )  # a stereo pair
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


def _render(config: DictConfig) -> None:
    """Render the stand-in for smallNORB, and draw an overview of it."""
    import toynorb
    from capsule_lab.data.download import data_directory
    from capsule_lab.data.standins import toynorb_files

    size, workers = config.size or 48, config.workers
    if size not in toynorb.SIZES:
        raise ConfigError(
            f"size is {size}; expected {toynorb.SIZES[0]} to {toynorb.SIZES[-1]} pixels, such as 48 or 96"
        )
    folder = data_directory(config.directory) / _RENDERED / f"{size}x{size}"
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
    if config.sheet:
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
