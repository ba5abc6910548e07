"""What does each component of a pose stand for? Images decoded as one of them changes (Sabour 2017, figure 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.analysis.plotting import Column, Group, name_of_class, note_on_decoder, picture_grid
from capsule_lab.analysis.reconstructions import first_of_each_class, select_images
from capsule_lab.functional import predictions_by_label
from capsule_lab.networks import Reconstructs
from capsule_lab.types import CapsuleOutput, Capsules

OFFSETS = tuple(step / 20 for step in range(-5, 6))  # Sabour 2017, figure 4: -0.25, -0.2, … 0.25
DEVIATIONS = tuple(0.4 * step for step in range(-5, 6))  # ours: of poses of any size, in standard deviations


class Steps(NamedTuple):
    """What is added to a component of a pose: numbers, 0 in the middle, in units of each component, ``None`` for 1."""

    values: tuple[float, ...] = OFFSETS
    units: Float[Tensor, " dim"] | None = None


PAPER = Steps()
Labels = Int64[Tensor, " batch"] | Int64[Tensor, "batch label"]
Rows = Float[Tensor, "row offset channel height width"]


def steps_of(output: CapsuleOutput) -> Steps:
    """The paper's, where activations are lengths of poses; else standard deviations over these images and classes."""
    assert output.capsules is not None
    poses, activations, _ = output.capsules
    if torch.allclose(poses.norm(dim=2), activations, atol=1e-3):
        return PAPER
    return Steps(DEVIATIONS, poses.flatten(0, 1).std(0))


@torch.no_grad()
def perturbed_reconstructions(
    network: Reconstructs, output: CapsuleOutput, classes: Int64[Tensor, " batch"], steps: Steps = PAPER
) -> Float[Tensor, "batch dim offset channel height width"]:
    """Images decoded from the pose of one class, with each of some offsets added to each component alone.

    The sum is decoded as it is, not squashed again; in the middle nothing is added. ``classes`` are the capsules to
    perturb, the label of each image; all others are zeroed. The paper's steps are made for poses of length below 1.
    """
    if output.capsules is None:
        raise ValueError("this output has no capsules to perturb; expected that of a CapsNet")
    poses = output.capsules.poses  # [b k d]
    batch, _, dim = poses.shape
    units = poses.new_ones(dim) if steps.units is None else steps.units
    offsets = units[:, None] * poses.new_tensor(steps.values)  # [d o]
    change = torch.eye(dim).to(poses)[:, None] * offsets[:, :, None]  # [d o d]
    changed = poses[:, None, None] + change[:, :, None]  # [b d o k d]: of every class, all but one of which are zeroed
    index = torch.arange(batch, device=poses.device).repeat_interleave(dim * offsets.shape[1])
    repeated = CapsuleOutput(output.scores[index], Capsules(changed.flatten(0, 2), output.capsules.activations[index]))
    return network.reconstruct(repeated, classes[index]).unflatten(0, (batch, dim, offsets.shape[1]))


def change_of_rows(decoded: Float[Tensor, "batch dim offset channel height width"]) -> Float[Tensor, "batch dim"]:
    """Mean squared difference of pixels from the unchanged reconstruction, that in the middle, by component."""
    middle = decoded[:, :, decoded.shape[2] // 2].unsqueeze(2)
    return (decoded - middle).square().flatten(2).mean(2)


def perturbation_sheet(
    network: Reconstructs, output: CapsuleOutput, label: int, *, names: Sequence[str] = (), steps: Steps = PAPER
) -> Figure:
    """A row for each component of the pose, a column for each offset: figure 4 complete for one image of a class.

    ``output`` is that of the network, which has a decoder, for the image; ``names`` are those of the classes, if any.
    """
    classes = torch.tensor([label], device=output.scores.device)
    (rows,) = perturbed_reconstructions(network, output, classes, steps)
    dimensions = [f"dimension {number}" for number in range(len(rows))]
    title = f"class {name_of_class(names, label)}: in each row, one dimension of the pose changed before decoding"
    return offsets_grid(rows, dimensions, title, steps, note_on_decoder(rows[:1, len(steps.values) // 2]))


def perturbation_figure(
    network: Reconstructs,
    output: CapsuleOutput,
    labels: Labels,
    *,
    names: Sequence[str] = (),
    rows: int = 6,  # Sabour 2017, figure 4
) -> Figure:
    """Figure 4 of Sabour 2017: rows of perturbed reconstructions, captioned with class and dimension.

    The paper's rows are picked by hand. Here, of one image of each class, it is the row in which the decoded image
    changes most, see ``change_of_rows``; and of those, at most ``rows`` that change most. Of several digits in an
    image, the first is decoded.
    """
    examples = example_of_each_class(output, labels)
    classes, numbers = (labels.new_tensor(list(each)) for each in (examples, examples.values()))
    steps = steps_of(output)
    decoded = perturbed_reconstructions(network, select_images(output, numbers), classes, steps)
    change, dimensions = change_of_rows(decoded).max(1)  # [class]
    strongest = change.topk(min(rows, len(change))).indices
    chosen = strongest[classes[strongest].argsort()]
    shown = [f"class {name_of_class(names, int(classes[number]))}, dimension {dimensions[number]}" for number in chosen]
    pictures = decoded[chosen, dimensions[chosen]]
    title = "one dimension of the pose changed before decoding: of each class, the one that changes the image most"
    return offsets_grid(pictures, shown, title, steps, note_on_decoder(pictures[:, len(steps.values) // 2]))


def example_of_each_class(output: CapsuleOutput, labels: Labels) -> dict[int, int]:
    """Index of an image of each class, of the first label where there are several: one that is recognised, if any."""
    labels = labels.reshape(len(labels), -1)  # [b label]
    right = (predictions_by_label(output.ranking, labels) == labels).all(1)
    classes = labels[:, 0]
    recognised = first_of_each_class(classes, right)
    others = first_of_each_class(classes, ~torch.isin(classes, classes[recognised]))
    return {int(classes[number]): number for number in (*recognised, *others)}


def offsets_grid(pictures: Rows, rows: Sequence[str], title: str, steps: Steps = PAPER, note: str = "") -> Figure:
    """Rows of decoded images, a column for each offset, in the middle that of none."""
    captions = [f"{offset:+.2f}" if offset else "0" for offset in steps.values]
    columns = [Column(caption, [*each]) for caption, each in zip(captions, pictures.unbind(1), strict=True)]
    middle = len(steps.values) // 2
    groups = [
        Group("subtracted" if steps.units is None else "standard deviations subtracted", columns[:middle]),
        Group("as it is", columns[middle : middle + 1]),
        Group("added", columns[middle + 1 :]),
    ]
    return picture_grid(groups, rows, title=title, note=note)
