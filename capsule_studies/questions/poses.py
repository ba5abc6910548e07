"""Do poses move with the image, even beyond the shifts of training? (Hinton, Krizhevsky and Wang 2011)"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.analysis.plotting import Column, Group, image_rows, panels, picture_grid
from capsule_lab.errors import check_widths
from capsule_lab.lit import pair_metrics
from capsule_lab.networks import AbstractPairNetwork, TransformingAutoencoder
from capsule_studies.images import joined_images
from capsule_studies.names import prefixed
from capsule_studies.subject import Answer, Subject, question

_SHOWN = 16  # ours: number of images in the sheet
_ACROSS = 3  # ours: capsules side by side
_FIELDS = 10  # Hinton 2011, from memory: of 20 generation units
_SEEN = 0.1  # Hinton 2011, from memory: presence above which a pose is drawn
_CAPSULES = 9  # Hinton 2011, figure 2, from memory
_SCATTERED = 3  # Hinton 2011, figure 2, from memory: pixels


@question(of_pairs=True)
def poses(
    subject: Subject,
    *,
    shifts: Sequence[int] = (1, 2, 3, 4, 5),
    degrees: Sequence[int] = (10, 20, 40),
) -> Answer:
    """Compute ``pair_metrics`` of images and their copies, for each strength of the change.

    For a network with shifts as input, ``shift_<pixels>/<quantity>``: copies are moved left, right, up and down. For a
    network with matrices as input, ``rotation_<degrees>/<quantity>``: copies are rotated in both directions.
    ``reconstruction`` is the squared error per image of the drawn copies. Beyond the training range, it extrapolates.
    """
    subject.check_network(
        AbstractPairNetwork, "takes no change of images; expected model=transforming_autoencoder"
    )
    check_widths("what", shifts=shifts, degrees=degrees)
    network = subject.network
    numbers: dict[str, float] = {}
    if network.pose == "translation":
        for pixels in shifts:
            measured = _measured(subject, network, _shifted(subject, pixels))
            numbers |= prefixed(f"shift_{pixels}", measured)
    else:
        for angle in degrees:
            measured = _measured(subject, network, _turned(subject, angle))
            numbers |= prefixed(f"rotation_{angle}", measured)
    return Answer(numbers, draw=partial(_figures, subject, network))


OfCapsules = Float[Tensor, "image capsule"]
_Copies = list[tuple[Float[Tensor, "image channel height width"], Tensor]]
"""Pairs of copies of all images and the change that these copies have in common."""


def _shifted(subject: Subject, shift: int) -> _Copies:
    right = subject.changes["translation"]

    def down(images: Tensor, strength: float) -> Tensor:
        return right(images.mT, strength).mT

    copies = []
    for pixels in (-shift, shift):
        change = torch.tensor([float(pixels), 0.0])
        copies.append((_copy(subject, right, pixels), change))
    for pixels in (-shift, shift):
        change = torch.tensor([0.0, float(pixels)])
        copies.append((_copy(subject, down, pixels), change))
    return copies


def _turned(subject: Subject, degrees: int) -> _Copies:
    """Rotate images in both directions; the change is in the image plane or, for views, of the camera, with y up."""
    down = -1 if "azimuth" in subject.factors else 1
    copies = []
    for angle in (-degrees, degrees):
        cos = math.cos(math.radians(angle))
        sin = down * math.sin(math.radians(angle))
        change = torch.tensor([[cos, sin, 0.0], [-sin, cos, 0.0], [0.0, 0.0, 1.0]])
        turned = _copy(subject, subject.changes["rotation"], angle)
        copies.append((turned, change))
    return copies


def _copy(subject: Subject, change: Callable[[Tensor, float], Tensor], strength: int) -> Tensor:
    return joined_images(subject.changed(change, float(strength)))


@torch.no_grad()
def _measured(subject: Subject, network: AbstractPairNetwork, copies: _Copies) -> dict[str, float]:
    metrics = pair_metrics.pair_metrics(network)
    for metric in metrics.values():
        metric.to(subject.images.device)
    squared = pairs = 0.0
    for images, change in copies:
        changes = change.to(images).expand(len(images), *change.shape)
        output = network(subject.images, changes)
        pair_metrics.update_pair_metrics(metrics, network, subject.images, changes, images, output)
        differences = output.images - images
        squared += float(differences.square().sum())
        pairs += len(images)
    measured = {"reconstruction": squared / pairs}
    for metric in metrics.values():
        for name, value in metric.compute().items():
            measured[name] = float(value)
    return measured


@torch.no_grad()
def _figures(subject: Subject, network: AbstractPairNetwork) -> Mapping[str, Figure]:
    if not isinstance(network, TransformingAutoencoder):
        return {}
    poses, presences = network.recognise(subject.images)
    energies = network.energies(poses, presences).mean(0)
    capsules = energies.argsort(descending=True)[:_CAPSULES].cpu()
    figures = {}
    if network.window is None:
        figures["generative_fields"] = generative_fields(network, capsules)
    if network.pose != "translation":
        return figures
    right = subject.changes["translation"]
    shifts = range(-2 * _SCATTERED + 1, 2 * _SCATTERED)
    scattered = {}
    mean_presences = []
    for shift in shifts:
        moved_poses, moved_presences = network.recognise(_copy(subject, right, shift))
        if abs(shift) == _SCATTERED:
            scattered[shift] = moved_poses[:, :, 0].cpu()
        mean_presences.append(moved_presences.mean(0).cpu())
    x = poses[:, :, 0].cpu()
    figures["scatter"] = shift_scatter(x, scattered, presences.cpu(), capsules)
    figures["presence"] = presence_curve(shifts, torch.stack(mean_presences), capsules)
    first = subject.images[:_SHOWN]
    changes = torch.tensor([float(_SCATTERED), 0.0]).to(first).expand(len(first), 2)
    rows = {
        "image": first,
        "drawn": network(first, changes).images,
        "3 to the right": _copy(subject, right, _SCATTERED)[:_SHOWN],
    }
    figures["images"] = image_rows(rows)
    return figures


def shift_scatter(
    poses: OfCapsules,
    moved: Mapping[int, OfCapsules],
    presences: OfCapsules,
    capsules: Int64[Tensor, " chosen"],
) -> Figure:
    """Draw x of images against x of their shifted copies, ideally lines parallel to the diagonal, offset by the shift.

    Only images with a presence above 0.1 are drawn, as in figure 2 of Hinton 2011.
    """
    down = -(-len(capsules) // _ACROSS)
    figure, every = panels(down, _ACROSS, (3.0 * _ACROSS, 3.0 * down), "")
    for axes in every.flat[len(capsules) :]:
        axes.set_visible(False)
    for axes, capsule in zip(every.flat, capsules.tolist(), strict=False):
        seen = presences[:, capsule] > _SEEN
        x = poses[seen, capsule]
        ends = torch.stack([x.min(), x.max()]) if len(x) else x
        for number, (shift, after) in enumerate(moved.items()):
            label = f"{shift:+d} pixels"
            axes.plot(x, after[seen, capsule], ".", color=f"C{number}", markersize=3, label=label)
            axes.plot(ends, ends + shift, "--", color="black", linewidth=1)
        axes.set(
            title=f"capsule {capsule}, in {int(seen.sum())} images",
            xlabel="x, pixels",
            ylabel="x of the copy",
        )
        axes.legend(fontsize="small")
    return figure


def generative_fields(
    network: TransformingAutoencoder, capsules: Int64[Tensor, " chosen"]
) -> Figure:
    """Draw the outgoing weights of the first generation units of capsules without windows; grey is 0."""
    weights = network.drawing.weight[capsules, :_FIELDS].detach()
    weights = weights.unflatten(2, network.image_shape)  # [k g c h w]
    largest = weights.abs().amax((1, 2, 3, 4), keepdim=True)
    pictures = 0.5 + weights / largest.clamp_min(1e-12) / 2
    columns = []
    for unit, pictures_of_unit in enumerate(pictures.unbind(1)):
        columns.append(Column(str(unit), [*pictures_of_unit]))
    rows = [f"capsule {number}" for number in capsules.tolist()]
    return picture_grid([Group("generation unit", columns)], rows)


def presence_curve(
    shifts: Sequence[int],
    presences: Float[Tensor, "shift capsule"],
    capsules: Int64[Tensor, " chosen"],
) -> Figure:
    """Draw the presence of capsules in images moved to the right; a horizontal line means invariance."""
    figure, ((axes,),) = panels(1, 1, (6.0, 4.0), "")
    for capsule in capsules.tolist():
        axes.plot(shifts, presences[:, capsule], marker=".", label=str(capsule))
    axes.plot(shifts, presences.mean(1), color="black", linewidth=2, label="mean of all")
    axes.set(xlabel="shift to the right, pixels", ylabel="presence, mean over images", ylim=(0, 1))
    axes.legend(title="capsule", fontsize="small", ncols=2)
    return figure
