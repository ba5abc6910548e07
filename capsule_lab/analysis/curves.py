"""Curves of a run from its ``metrics.csv``: loss and error, the capsules of every layer, transfer to affNIST."""

from __future__ import annotations

import csv
import hashlib
import io
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath

from capsule_lab.analysis.axes import label_log_axis
from capsule_lab.errors import cleaned, one_line
from capsule_lab.system.files import read_regular

log = logging.getLogger(__name__)

COLOURS = (
    # Okabe and Ito 2008
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    # ours
    "#882255",
    "#332288",
    "#999933",
    "#888888",
    "#7B3F00",
    "#A040F0",
    "#A6D000",
    "#FF4D6D",
    "#004D40",
)
"""The first seven are distinguishable with any colour vision; all other pairs differ at least as much as these."""
_MARKERS = "os^Dv<>P*Xp"  # 11, coprime with the number of colours
_DASHES = ("-", "--", "-.", ":")
_LEGEND_SIZE = 8  # ours: points
_LAST_STEP = 2**53  # larger numbers are not exact
LARGEST = 1e100  # ours: matplotlib and statistics square numbers, which must not overflow

QUANTITIES = {"loss": "loss", "error": "error in %"}
_ERRORS = {"train/error", "train/error_step", "val/error"}
OF_PAIRS = {"shift_r2": "R² of the shift", "matrix_error": "error of poses"}
"""Quantities drawn in place of the error for networks that do not classify."""
VAL_ERROR, AFFNIST_ERROR = "val/error", "affine/error"
MEAN, STD, DEAD = "val/activation_", "val/activation_std_", "val/dead_"
"""Prefixes of the quantities that ``RoutingStats`` logs for each layer."""


def look(number: int) -> dict[str, Any]:
    """Return colour, marker and dashes of a curve by its number: the first 176 differ, the first 16 in colour."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _DASHES[number % len(_DASHES)],
    }


def legend_below(figure: Figure) -> None:
    """Add a legend of all curves below the figure, in as many columns as fit, and increase the figure's height."""
    curves: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            curves.setdefault(label, handle)
    widest = max(_width_in_legend(label) for label in curves)
    column_width = widest + 0.65  # ours: inches, for the line beside the text and the gap
    usable = 0.92 * figure.get_figwidth()  # ours: browser fonts are wider
    columns = min(len(curves), max(1, int(usable / column_width)))
    lines = math.ceil(len(curves) / columns)
    figure.set_figheight(figure.get_figheight() + 0.18 * lines)  # inches
    figure.legend(
        [*curves.values()],
        [*curves],
        loc="outside lower center",
        ncols=columns,
        fontsize=_LEGEND_SIZE,
        frameon=False,
        handlelength=3,
    )


def _width_in_legend(label: str) -> float:
    """Return the width of a label in inches."""
    text = TextPath((0, 0), label.replace("$", r"\$"), size=_LEGEND_SIZE)  # in points
    return float(text.get_extents().width) / 72


class Curves(dict[str, npt.NDArray[np.float64]]):
    """Columns of a ``metrics.csv`` by name, one of them ``step``; NaN where a row has no number."""

    @property
    def empty(self) -> bool:
        """Whether there is no row."""
        return len(self["step"]) == 0

    def numbers(self, name: str) -> list[float]:
        """Return the numbers in a column, without the rows that have none; empty if there is no such column."""
        column = self.get(name, np.empty(0))
        return column[~np.isnan(column)].tolist()


def read_curves(metrics: Path, sha256: str | None = None) -> Curves:
    """Read a ``metrics.csv``, and check its sha256 if it is given.

    If the file is missing, or damaged, which causes a warning, the table is empty with a column ``step``.
    """
    try:
        return _checked(read_regular(metrics, inside=metrics.parent), sha256)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError, csv.Error) as error:  # ValueError: also of the decoding
        reason = getattr(error, "strerror", None) or one_line(error)
        log.warning("%s is damaged (%s) and counts as missing", metrics, reason)
    return Curves(step=np.empty(0))


def _checked(content: bytes, sha256: str | None) -> Curves:
    if sha256 not in (None, hashlib.sha256(content).hexdigest()):
        raise ValueError("its checksum differs from that in metrics.json")
    names, *rows = csv.reader(io.StringIO(content.decode(), newline=""), strict=True)
    if "step" not in names or any(len(row) != len(names) for row in rows):
        raise ValueError("expected rows of equal length with a column step")
    table = Curves()
    for name, *texts in zip(names, *rows, strict=True):
        table[cleaned(name)] = np.array([float(text or "nan") for text in texts])
    steps = table["step"]
    if (np.diff(steps) < 0).any() or not ((steps >= 0) & (steps <= _LAST_STEP)).all():
        raise ValueError("its steps are not ascending numbers from 0")
    return table


def finite_rows(table: Curves, *columns: str) -> Curves:
    """Return the rows with a number in each of the columns that can be drawn, and the step; without a column, none."""
    chosen = ["step", *columns]
    if not {*columns} <= {*table}:
        return Curves({name: np.empty(0) for name in chosen})
    drawable = np.all([np.abs(table[name]) < LARGEST for name in chosen], axis=0)
    return Curves({name: table[name][drawable] for name in chosen})


def figures(metrics: Path) -> Iterator[tuple[str, Figure]]:
    """Yield name and figure of all curves whose columns a run's ``metrics.csv`` has; nothing if there is no file."""
    if read_curves(metrics).empty:
        return
    yield "curves", training_curves(metrics)
    if layers_in(metrics):
        yield "layers", layer_curves(metrics)
    if {VAL_ERROR, AFFNIST_ERROR} <= {*read_curves(metrics)}:
        yield "transfer", transfer_curve(metrics)


def training_curves(metrics: Path) -> Figure:
    """Draw loss and error of training and validation against the step; for pairs of images, the quality of poses.

    Training curves are means over epochs; means of ``callbacks.StepMetrics`` over a few steps are pale.
    """
    table = read_curves(metrics)
    of_poses = {name: label for name, label in OF_PAIRS.items() if f"val/{name}" in table}
    figure, axes = _loss_and_error()
    quantities = ["loss", *(of_poses or ["error"])]
    if of_poses:
        axes[1].set(ylabel=of_poses[quantities[1]], yscale="linear")
    elif not _ERRORS & {*table}:  # a network without classes and poses
        axes[1].set_visible(False)
    for axis, quantity in zip(axes, quantities, strict=True):
        _draw(axis, table, f"train/{quantity}_step", "C0-", "train, a few steps", alpha=0.35)
        train = "train, epoch" if f"train/{quantity}_step" in table else "train"
        _draw(axis, table, f"train/{quantity}", "C0o-", train)
        _draw(axis, table, f"val/{quantity}", "C1o-", "val")
        _finish(axis)
    return figure


def curves_of_runs(metrics: Mapping[str, Path]) -> Figure:
    """Draw loss and error of several runs, by name, against the step: training dashed, validation solid.

    The legend is below the figure, because that of twenty seeds is higher than a panel.
    """
    figure, axes = _loss_and_error()
    for number, (name, file) in enumerate(metrics.items()):
        table = read_curves(file)
        colour = look(number)["color"]
        for axis, quantity in zip(axes, QUANTITIES, strict=True):
            validated = f"val/{quantity}" in table
            trained = "" if validated else name
            _draw(axis, table, f"train/{quantity}", "--", trained, color=colour)
            _draw(axis, table, f"val/{quantity}", "o-", name, color=colour)
    for axis in axes:
        _widen_around_points(axis)
    if any(axis.get_legend_handles_labels()[0] for axis in axes):
        legend_below(figure)
    return figure


def layer_curves(metrics: Path) -> Figure:
    """Draw mean and spread of each layer's activations and its share of dead capsules; needs ``RoutingStats``."""
    table = read_curves(metrics)
    figure = Figure(figsize=(9, 3.2), layout="constrained")  # inches
    activation, dead = figure.subplots(1, 2)
    for number, layer in enumerate(layers_in(metrics)):
        rows = finite_rows(table, MEAN + layer, STD + layer, DEAD + layer)
        steps = rows["step"] + 1
        mean, std = rows[MEAN + layer], rows[STD + layer]
        low, high = (mean - std).clip(min=0), (mean + std).clip(max=1)
        colour = COLOURS[number % len(COLOURS)]
        style = {"color": colour, "markersize": 3, "label": layer.replace("_", " ")}
        activation.plot(steps, mean, "o-", **style)
        activation.fill_between(steps, low, high, color=colour, alpha=0.12)
        dead.plot(steps, rows[DEAD + layer], "o-", **style)
    activation.set(xlabel="step", ylabel="activation, mean and spread", ylim=(0, 1))
    # lines at 0 and 100 are inside the frame
    dead.set(xlabel="step", ylabel="dead capsules in %", ylim=(-3, 103))
    for axis in (activation, dead):
        axis.grid(alpha=0.3)
        _finish(axis)
    return figure


def layers_in(metrics: Path) -> list[str]:
    """Return the names of the layers that ``RoutingStats`` logged, from the image upwards."""
    columns: list[str] = [*read_curves(metrics)]  # in alphabetical order
    names = []
    for column in columns:
        name = column.removeprefix(STD)
        if column.startswith(STD) and {MEAN + name, DEAD + name} <= {*columns}:
            names.append(name)
    return sorted(names, key=lambda name: (name != "primary", not name.startswith("conv")))


def transfer_curve(metrics: Path) -> Figure:
    """Draw accuracy on synthetic affNIST against accuracy on the training data set (Sabour 2017, section 5.2)."""
    rows = finite_rows(read_curves(metrics), VAL_ERROR, AFFNIST_ERROR)
    figure = Figure(figsize=(5.5, 4.2), layout="constrained")  # inches
    axis = figure.add_subplot()
    val, affnist = 100 - rows[VAL_ERROR], 100 - rows[AFFNIST_ERROR]
    axis.plot(val, affnist, color="0.7", zorder=1)
    points = axis.scatter(val, affnist, c=rows["step"] + 1, cmap="viridis", zorder=2)
    figure.colorbar(points, label="step")
    axis.set(
        xlabel="accuracy in % on moved digits, as trained",
        ylabel="accuracy in % on synthetic affNIST, unseen",
    )
    axis.grid(alpha=0.3)
    return figure


def _loss_and_error() -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(9, 3.2), layout="constrained")  # inches
    axes = list(figure.subplots(1, len(QUANTITIES)))
    for axis, label in zip(axes, QUANTITIES.values(), strict=True):
        axis.set(xlabel="step", ylabel=label)
        label_log_axis(axis)
        axis.grid(alpha=0.3, which="both")
    return figure, axes


def _draw(axis: Axes, table: Curves, name: str, style: str, label: str, **more: Any) -> None:
    rows = finite_rows(table, name)
    if rows.empty:
        return
    steps = rows["step"] + 1
    (line,) = axis.plot(steps, rows[name], style, markersize=3, label=label, **more)
    if len(steps) == 1:
        line.set_marker("o")  # a line of one point is invisible


def _finish(axis: Axes) -> None:
    """Add a legend, and make single points visible."""
    _widen_around_points(axis)
    if axis.get_legend_handles_labels()[0]:  # matplotlib warns if nothing was drawn
        axis.legend()


def _widen_around_points(axis: Axes) -> None:
    """If no curve has more than one point, add markers and widen the axes around the points."""
    points = [np.asarray(line.get_xydata()) for line in axis.lines]
    if points and max(len(each) for each in points) == 1:
        steps, values = np.concatenate(points).T
        axis.set_xlim(0, 2 * steps.max())
        if axis.get_yscale() == "log" and values.min() > 0:
            axis.set_ylim(values.min() / 2, 1.25 * values.max())
        for line in axis.lines:
            line.set(marker="o", markersize=6)
