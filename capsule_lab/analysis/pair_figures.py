"""Figures of transforming auto-encoders (Hinton, Krizhevsky and Wang 2011, figures 2 to 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.analysis.plotting import Column, Group, picture_grid
from capsule_lab.networks import TransformingAutoencoder

_ACROSS = 3  # ours: capsules side by side
_FIELDS = 10  # Hinton 2011, from memory: of 20 generation units
_SEEN = 0.1  # Hinton 2011, from memory: presence above which a pose is drawn


def image_rows(rows: Mapping[str, Float[Tensor, "image channel height width"]]) -> Figure:
    """Images of the same things, one row for each name, all in the range of the last row.

    Args:
        rows: in [0, 1], where they are drawn as they are; or in any other range.
    """
    last = [*rows.values()][-1]
    low, high = (0.0, 1.0) if last.min() >= 0 and last.max() <= 1 else (float(last.min()), float(last.max()))
    columns = [
        Column("", [(picture - low) / max(high - low, 1e-12) for picture in pictures])
        for pictures in zip(*rows.values(), strict=True)
    ]
    return picture_grid([Group("", columns)], [*rows])


def shift_scatter(
    poses: Float[Tensor, "image capsule"],
    moved: Mapping[int, Float[Tensor, "image capsule"]],
    presences: Float[Tensor, "image capsule"],
    capsules: Int64[Tensor, " chosen"],
) -> Figure:
    """Where capsules see images and their shifted copies: parallel lines, as far from the diagonal as the shift.

    Images in which a capsule is more probable than 0.1, as in figure 2 of Hinton 2011.

    Args:
        poses: to the right, in pixels, of images as they are.
        moved: the same of their copies, by the shift to the right.
        presences: in the images as they are.
        capsules: which to draw.
    """
    down = -(-len(capsules) // _ACROSS)
    figure = Figure(figsize=(3 * _ACROSS, 3 * down), layout="constrained")  # inches
    panels = [*figure.subplots(down, _ACROSS, squeeze=False).flat]
    for axes, capsule in zip(panels[: len(capsules)], capsules.tolist(), strict=True):
        seen = presences[:, capsule] > _SEEN
        x = poses[seen, capsule].numpy()
        for number, (shift, after) in enumerate(moved.items()):
            axes.plot(
                x, after[seen, capsule].numpy(), ".", color=f"C{number}", markersize=3, label=f"{shift:+d} pixels"
            )
            ends = np.array([x.min(), x.max()] if len(x) else [])
            axes.plot(ends, ends + shift, "--", color="black", linewidth=1)
        axes.set(title=f"capsule {capsule}, in {int(seen.sum())} images", xlabel="x, pixels", ylabel="x of the copy")
        axes.legend(fontsize="small")
    for axes in panels[len(capsules) :]:
        axes.set_visible(False)
    return figure


def generative_fields(network: TransformingAutoencoder, capsules: Int64[Tensor, " chosen"]) -> Figure:
    """What the first generation units of capsules draw: their outgoing weights, grey where they are 0.

    Args:
        network: whose capsules see the whole image.
        capsules: one row each.

    Raises:
        ValueError: for a network with windows.
    """
    if network.window is not None:
        raise ValueError("capsules have windows, and what each draws is a part of an image; expected window=null")
    weights = network.drawing.weight[capsules, :_FIELDS].detach().unflatten(2, network.image_shape)  # [k g c h w]
    largest = weights.abs().amax((1, 2, 3, 4), keepdim=True).clamp_min(1e-12)
    pictures = 0.5 + weights / largest / 2
    columns = [Column(str(unit), [*pictures[:, unit]]) for unit in range(pictures.shape[1])]
    return picture_grid([Group("generation unit", columns)], [f"capsule {each}" for each in capsules.tolist()])


def presence_curve(
    shifts: Sequence[int], presences: Float[Tensor, "shift capsule"], capsules: Int64[Tensor, " chosen"]
) -> Figure:
    """How probable capsules are in images moved to the right: level lines are invariant.

    Args:
        shifts: in pixels.
        presences: means over images.
        capsules: which to draw.
    """
    figure = Figure(figsize=(6, 4), layout="constrained")  # inches
    axes = figure.subplots()
    for capsule in capsules.tolist():
        axes.plot(shifts, presences[:, capsule].numpy(), marker=".", label=str(capsule))
    axes.plot(shifts, presences.mean(1).numpy(), color="black", linewidth=2, label="mean of all")
    axes.set(xlabel="shift to the right, pixels", ylabel="presence, mean over images", ylim=(0, 1))
    axes.legend(title="capsule", fontsize="small", ncols=2)
    return figure


def strongest(energies: Float[Tensor, "image capsule"], count: int) -> Int64[Tensor, " chosen"]:
    """The capsules that draw most, in this order."""
    return torch.argsort(energies.mean(0), descending=True)[:count].cpu()
