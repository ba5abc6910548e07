"""What does each component of a pose represent? Images decoded with one component changed (Sabour 2017, figure 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.analysis.plotting import (
    Column,
    Group,
    name_of_class,
    note_on_decoder,
    picture_grid,
)
from capsule_lab.analysis.reconstructions import first_of_each_class, select_images
from capsule_lab.functional import predictions_by_label
from capsule_lab.networks import Reconstructs
from capsule_lab.types import CapsuleOutput, Capsules

# Sabour 2017, figure 4: -0.25, -0.2, … 0.25
OFFSETS = tuple(step / 20 for step in range(-5, 6))
# ours: for poses of any scale, in standard deviations
DEVIATIONS = tuple(0.4 * step for step in range(-5, 6))


class Steps(NamedTuple):
    """Offsets added to a pose component: values with 0 in the middle, and a unit per component, ``None`` for 1."""

    values: tuple[float, ...] = OFFSETS
    units: Float[Tensor, " dim"] | None = None


PAPER = Steps()
Labels = Int64[Tensor, " batch"] | Int64[Tensor, "batch label"]
Rows = Float[Tensor, "row offset channel height width"]


def steps_of(output: CapsuleOutput) -> Steps:
    """Return the paper's steps if activations are lengths of poses; else standard deviations of the poses."""
    assert output.capsules is not None
    poses, activations, _ = output.capsules
    if torch.allclose(poses.norm(dim=2), activations, atol=1e-3):
        return PAPER
    return Steps(DEVIATIONS, poses.flatten(0, 1).std(0))


@torch.no_grad()
def perturbed_reconstructions(
    network: Reconstructs,
    output: CapsuleOutput,
    classes: Int64[Tensor, " batch"],
    steps: Steps = PAPER,
) -> Float[Tensor, "batch dim offset channel height width"]:
    """Decode images from the pose of one class, with each offset added to each component alone.

    The sum is decoded without squashing it again; the middle offset is 0. ``classes`` contains the capsule to perturb
    for each image; all others are zeroed. The paper's steps are for poses of length below 1.
    """
    if output.capsules is None:
        raise ValueError("this output has no capsules to perturb; expected the output of a CapsNet")
    poses = output.capsules.poses  # [b k d]
    batch, _, dim = poses.shape
    units = poses.new_ones(dim) if steps.units is None else steps.units
    offsets = units[:, None] * poses.new_tensor(steps.values)  # [d o]
    change = torch.eye(dim).to(poses)[:, None] * offsets[:, :, None]  # [d o d]
    # [b d o k d]: every class is changed; all but one are zeroed by the reconstruction
    changed = poses[:, None, None] + change[:, :, None]
    index = torch.arange(batch, device=poses.device).repeat_interleave(offsets.numel())
    capsules = Capsules(changed.flatten(0, 2), output.capsules.activations[index])
    repeated = CapsuleOutput(output.scores[index], capsules)
    decoded = network.reconstruct(repeated, classes[index])
    return decoded.unflatten(0, (batch, *offsets.shape))


def change_of_rows(
    decoded: Float[Tensor, "batch dim offset channel height width"],
) -> Float[Tensor, "batch dim"]:
    """Return each component's mean squared pixel difference from the unchanged reconstruction in the middle."""
    middle = decoded[:, :, decoded.shape[2] // 2].unsqueeze(2)
    return (decoded - middle).square().flatten(2).mean(2)


def perturbation_sheet(
    network: Reconstructs,
    output: CapsuleOutput,
    label: int,
    *,
    names: Sequence[str] = (),
    steps: Steps = PAPER,
) -> Figure:
    """Draw figure 4 for all components of one image's pose: a row for each component, a column for each offset.

    ``network`` needs a decoder; ``output`` is its output for the image; ``names`` are the classes' names, if any.
    """
    classes = torch.tensor([label], device=output.scores.device)
    (rows,) = perturbed_reconstructions(network, output, classes, steps)
    dimensions = [f"dimension {number}" for number in range(len(rows))]
    name = name_of_class(names, label)
    title = f"class {name}: in each row, one dimension of the pose changed before decoding"
    unchanged = rows[:1, len(steps.values) // 2]
    return offsets_grid(rows, dimensions, title, steps, note_on_decoder(unchanged))


def perturbation_figure(
    network: Reconstructs,
    output: CapsuleOutput,
    labels: Labels,
    *,
    names: Sequence[str] = (),
    rows: int = 6,  # Sabour 2017, figure 4
) -> Figure:
    """Draw figure 4 of Sabour 2017: rows of perturbed reconstructions, captioned with class and dimension.

    The paper's rows are chosen by hand. Here, one image of each class contributes the row in which the decoded image
    changes most, see ``change_of_rows``; at most ``rows`` of these, those that change most, are drawn. If an image has
    several digits, the first is decoded.
    """
    examples = example_of_each_class(output, labels)
    classes = labels.new_tensor([*examples])
    numbers = labels.new_tensor([*examples.values()])
    steps = steps_of(output)
    decoded = perturbed_reconstructions(network, select_images(output, numbers), classes, steps)
    change, dimensions = change_of_rows(decoded).max(1)  # [class]
    strongest = change.topk(min(rows, len(change))).indices
    chosen = strongest[classes[strongest].argsort()]
    row_names = []
    for number in chosen:
        name = name_of_class(names, int(classes[number]))
        row_names.append(f"class {name}, dimension {dimensions[number]}")
    pictures = decoded[chosen, dimensions[chosen]]
    title = (
        "one dimension of the pose changed before decoding: "
        "of each class, the one that changes the image most"
    )
    unchanged = pictures[:, len(steps.values) // 2]
    return offsets_grid(pictures, row_names, title, steps, note_on_decoder(unchanged))


def example_of_each_class(output: CapsuleOutput, labels: Labels) -> dict[int, int]:
    """Return an image's index for each class (of the first label, if several), a recognised image if there is one."""
    labels = labels.reshape(len(labels), -1)  # [b label]
    right = (predictions_by_label(output.ranking, labels) == labels).all(1)
    classes = labels[:, 0]
    recognised = first_of_each_class(classes, right)
    others = first_of_each_class(classes, ~torch.isin(classes, classes[recognised]))
    return {int(classes[number]): number for number in (*recognised, *others)}


def offsets_grid(
    pictures: Rows, rows: Sequence[str], title: str, steps: Steps = PAPER, note: str = ""
) -> Figure:
    """Draw rows of decoded images with a column for each offset; the middle column is unchanged."""
    columns = []
    for offset, column in zip(steps.values, pictures.unbind(1), strict=True):
        columns.append(Column(f"{offset:+.2f}" if offset else "0", [*column]))
    middle = len(columns) // 2
    subtracted = "subtracted" if steps.units is None else "standard deviations subtracted"
    groups = [
        Group(subtracted, columns[:middle]),
        Group("unchanged", columns[middle : middle + 1]),
        Group("added", columns[middle + 1 :]),
    ]
    return picture_grid(groups, rows, title=title, note=note)
