"""Classify pictures with a trained network: ``capsule-lab predict ckpt=runs/… images=a.png,folder/``."""

from __future__ import annotations

import csv
import logging
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capsule_lab import runs
from capsule_lab.commands.declare import command
from capsule_lab.config.check_options import check_effect
from capsule_lab.config.declaration import Count, Options, Paths, Trusted, Weights
from capsule_lab.errors import ConfigError, DataError, printable
from capsule_lab.system.files import expanded

if TYPE_CHECKING:
    from torch import Tensor

    from capsule_lab.deploy.predictor import Prediction

SHEET = 400  # ours: most pictures on a sheet, 20 rows of 20
_ACROSS = 20  # ours


class PredictOptions(Options):
    """Options of ``predict``."""

    ckpt: Weights
    """A run directory (its best checkpoint), a .ckpt or .safetensors file, the name of ready weights, or last: the
    latest finished run."""
    images: Paths
    """Pictures, folders and files of arrays (.npz, .npy, .mat), separated by commas."""
    to: Literal["table", "json", "csv"] = "table"
    """json or csv: to the standard output, for other programs."""
    top: Count = 3
    """Classes that are printed for each picture."""
    sheet: str | None = None
    """A .png, .pdf, .svg or .jpg file for a picture of what the network sees, at most 400 pictures."""
    polarity: Literal["auto", "dark_on_light", "light_on_dark"] = "auto"
    """Of drawn digits: dark_on_light or light_on_dark if auto is wrong."""
    trust: Trusted = Field([])
    """Your own packages that the checkpoint may name, such as the one with your routing;
    safetensors refuses files that must be unpickled."""


@command("predict", PredictOptions, first="ckpt")
def main(options: PredictOptions) -> None:
    """Print the predictions for ``images``, then the pictures that cannot be read; with these, exit with 1."""
    from capsule_lab.config import build
    from capsule_lab.data.formats.array_files import ENDINGS
    from capsule_lab.deploy.predictor import load  # torch and Lightning

    for handler in logging.getLogger().handlers:  # of Hydra; only results belong to the output
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
    build.quiet_lightning_logs()
    sheet = expanded(options.sheet) if options.sheet else None
    if sheet is not None:
        runs.files.check_figure_name("sheet", sheet)
    predictor = load(options.ckpt, trust=options.trust)
    if predictor.input_form["kind"] != "digit":
        where = "on networks that were not trained on digits"
        check_effect(options, where, ["polarity"])
    seen: dict[str, Tensor] = {}
    unreadable = []
    for path in _pictures(options.images):
        try:
            if path.lower().endswith(ENDINGS):
                for row, image in enumerate(predictor.prepare_arrays(path)):
                    seen[f"{path}[{row}]"] = image
            else:
                seen[path] = predictor.prepare(path, polarity=options.polarity)
        except DataError as error:
            unreadable.append(str(error))
    import torch

    predictions: dict[str, Prediction] = {}
    if seen:
        images = torch.stack([*seen.values()])
        predictions = dict(zip(seen, predictor(images), strict=True))
    write = {"table": _print_table, "json": _print_json, "csv": _print_csv}[options.to]
    if predictions or options.to != "table":
        write(predictions, options.top)
    if sheet is not None and seen:
        _draw(seen, predictions, sheet)
    for reason in unreadable:
        sys.stderr.write(f"capsule_lab: {printable(reason)}\n")
    if unreadable:
        sys.exit(1)


def _pictures(images: Any) -> list[str]:
    """Return the paths of pictures; a folder stands for all pictures in it."""
    from capsule_lab.data.formats.pictures import pictures_in

    names = images if isinstance(images, list) else [images]
    paths = [expanded(str(name)) for name in names]
    found: list[str] = []
    for path in paths:
        found += pictures_in(path) if path.is_dir() else [str(path)]
    if not found:
        raise ConfigError(
            f"there is no picture in {', '.join(map(str, paths))}; expected PNG, JPEG or the like"
        )
    return found


def _print_table(predictions: dict[str, Prediction], top: int) -> None:
    table = Table("picture", "class", "score", box=None, pad_edge=False)
    if top > 1:
        table.add_column("then")
    has_labels = any(prediction.labels is not None for prediction in predictions.values())
    if has_labels:
        table.add_column("labels")
    for path, prediction in predictions.items():
        cells = [path, prediction.name, f"{prediction.score:.3f}"]
        if top > 1:
            others = _highest(prediction, top)[1:]
            cells.append(", ".join(f"{name} {score:.3f}" for name, score in others))
        if has_labels:
            cells.append(", ".join(prediction.labels or ("none",)))
        table.add_row(*(escape(printable(cell)) for cell in cells))
    Console(highlight=False).print(table)


def _highest(prediction: Prediction, top: int) -> list[tuple[str, float]]:
    """Return class and score of the highest scores."""
    return [*prediction.scores.items()][:top]


def _print_json(predictions: dict[str, Prediction], top: int) -> None:
    rows = []
    for path, prediction in predictions.items():
        row = {
            "picture": path,
            "name": prediction.name,
            "score": prediction.score,
            "scores": dict(_highest(prediction, top)),
            "pose": None if prediction.pose is None else prediction.pose.tolist(),
        }
        if prediction.labels is not None:
            row["labels"] = [*prediction.labels]
        rows.append(row)
    sys.stdout.write(runs.files.json_text(rows, "the output", indent=2) + "\n")


def _print_csv(predictions: dict[str, Prediction], top: int) -> None:
    from capsule_lab.data.label_file import SEPARATOR  # torch

    writer = csv.writer(sys.stdout, lineterminator="\n")
    classes = max((len(prediction.scores) for prediction in predictions.values()), default=top)
    headings = ["picture"]
    for place in range(1, min(top, classes) + 1):
        headings += [f"name_{place}", f"score_{place}"]
    if any(prediction.labels is not None for prediction in predictions.values()):
        headings.append("labels")
    writer.writerow(headings)
    for path, prediction in predictions.items():
        row: list[str | float] = [path]
        for name, score in _highest(prediction, top):
            row += [name, score]
        if prediction.labels is not None:
            row.append(SEPARATOR.join(prediction.labels))
        writer.writerow(row)


def _draw(seen: dict[str, Tensor], predictions: dict[str, Prediction], path: Path) -> None:
    """Draw what the network received, with file and class below, in red if the folder is named like another class."""
    import torch

    from capsule_lab.analysis.plotting import Column, Group, picture_grid, plain_label

    shown = [*seen][:SHEET]
    images = torch.stack([seen[name] for name in shown])
    low, high = min(0.0, float(images.min())), max(1.0, float(images.max()))
    images = (images - low) / (high - low)
    across = min(_ACROSS, len(shown))
    down = math.ceil(len(shown) / across)
    pictures = [*images]
    below = []
    for name in shown:
        prediction = predictions[name]
        answer = prediction.name
        if prediction.labels is not None:
            answer = ", ".join(prediction.labels) or "none"
        text = plain_label(f"{Path(name).name}: {answer}")
        folder = Path(name).parent.name
        is_class = prediction.labels is None and folder in prediction.scores
        is_wrong = is_class and folder != prediction.name
        below.append((text, "red" if is_wrong else "black"))
    is_colour = images.shape[1] == 3
    # grey is drawn inverted
    white = torch.ones_like(images[0]) if is_colour else torch.zeros_like(images[0])
    while len(pictures) < across * down:
        pictures.append(white)
        below.append(("", "black"))
    columns = []
    for column in range(across):
        columns.append(Column("", pictures[column::across], below=below[column::across]))
    title = "pictures as the network sees them"
    if len(seen) > SHEET:
        title = f"the first {SHEET} of {len(seen)} pictures, as the network sees them"
    runs.files.save_figure(picture_grid([Group("", columns)], [""] * down, title=title), path)


if __name__ == "__main__":
    main()
