"""Where in the image a capsule looks, found by gradients, whatever the convolutions are."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from capsule_lab.analysis.trace import trace
from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.types import Votes


def receptive_centres(
    network: AbstractCapsuleNetwork, image: Float[Tensor, "1 channel height width"]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where in the image the children of the last layer look: first position and step in pixels, of rows and columns.

    Found by the gradients of their poses: the middle of what a position is sensitive to, away from the edges, and a
    line through these.
    """
    layer = [*trace(network, image)[1].values()][-1]
    grid = layer.child_grid
    if grid is None:
        raise ValueError("the children of the last layer have no positions; expected a network where they have")
    pixels = (torch.rand(image.shape, generator=torch.Generator().manual_seed(0)).to(image)).requires_grad_()
    kept: list[Tensor] = []
    handle = layer.routing.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    try:
        with torch.enable_grad():
            network.forward(pixels)
            votes = kept[0].child_poses if isinstance(kept[0], Votes) else kept[0].flatten(2)
            sizes = grid.at_positions(votes.square().sum(2)).sum((0, 1))  # [h w]
            axes = []
            for axis, count in enumerate((grid.height, grid.width)):
                places = torch.arange(count)
                middle = (grid.width if axis == 0 else grid.height) // 2
                centres = []
                for place in places.tolist():
                    at = sizes[place, middle] if axis == 0 else sizes[middle, place]
                    (gradient,) = torch.autograd.grad(at, pixels, retain_graph=True)
                    profile = gradient.abs().sum((0, 1, 3 - axis))
                    centres.append(float((profile * torch.arange(len(profile)).to(profile)).sum() / profile.sum()))
                inside = slice(1, -1) if count > 4 else slice(None)  # the first and the last may look beyond the image
                step, first = (
                    np.polyfit(places[inside].numpy(), np.array(centres)[inside], 1) if count > 1 else (0, centres[0])
                )
                axes.append((float(first), float(step)))
    finally:
        handle.remove()
    return axes[0], axes[1]
