"""A CapsNet with a fixed output whose decoder draws the poses, and functions that read figures."""

from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from torch import Tensor, nn

from capsule_lab.layers import PrimaryCapsules
from capsule_lab.networks import CapsNet
from capsule_lab.types import CapsuleOutput, Capsules, OnIteration


class PoseDecoder(nn.Module):
    """Decodes to an image of the poses: a row for each capsule, a column for each component, 0 where masked."""

    def __init__(self, weight: Tensor | float) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, poses: Tensor, mask: Tensor) -> Tensor:
        return (poses * mask.unsqueeze(2) * self.weight).unsqueeze(1)


class FakeCapsNet(CapsNet):
    """Returns the same output for any images; ``weight`` is of the poses' components in the decoded image."""

    def __init__(self, output: CapsuleOutput, weight: Tensor | float = 1.0) -> None:
        _, classes, dim = output.capsules.poses.shape
        primary = partial(PrimaryCapsules, types=1)
        super().__init__(
            (1, 17, 17), classes, channels=2, primary=primary, class_dim=dim, decoder=(2,)
        )
        self.decoder = PoseDecoder(weight)
        self.output = output

    def forward(self, images: Tensor, *, on_iteration: OnIteration | None = None) -> CapsuleOutput:
        return self.output


def fake_output(predictions: list[list[int]], classes: int = 5, dim: int = 3) -> CapsuleOutput:
    """Scores with these predictions, the highest first, and poses that are all different, in [0.3, 0.7]."""
    # of the other classes, the highest comes next
    scores = torch.linspace(0.1, 0.2, classes).repeat(len(predictions), 1)
    for number, chosen in enumerate(predictions):
        scores[number, chosen] = torch.linspace(0.9, 0.8, len(chosen))
    poses = torch.linspace(0.3, 0.7, scores.numel() * dim).reshape(len(scores), classes, dim)
    return CapsuleOutput(scores, Capsules(poses, poses.norm(dim=2)))


def decoded_picture(output: CapsuleOutput, image: int, *classes: int) -> np.ndarray:
    """The picture that ``PoseDecoder`` decodes from the capsules of these classes."""
    picture = torch.zeros_like(output.capsules.poses[image])
    for label in classes:
        picture[label] = output.capsules.poses[image, label]
    return picture.numpy()


def captions(figure: Figure) -> list[str]:
    return [label.get_text() for label in _caption_labels(figure)]


def colours(figure: Figure) -> list[str]:
    return [str(label.get_color()) for label in _caption_labels(figure)]


def _caption_labels(figure: Figure) -> list[Text]:
    return [label for axes in figure.axes for label in axes.get_xticklabels()]


def row_names(figure: Figure) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def texts(figure: Figure) -> list[str]:
    """Names of groups, from left to right, then the note below."""
    names = [axes.get_title() for axes in figure.axes]
    return [text.replace("\n", " ") for text in [*names, figure.get_supxlabel()]]


def picture_at(figure: Figure, row: int, column: int) -> np.ndarray:
    """The picture at this place of the grid, in red, green and blue."""
    images = [image for axes in figure.axes for image in axes.images]
    rows = len(row_names(figure))
    return np.asarray(images[column * rows + row].get_array())


def grey_at(figure: Figure, row: int, column: int) -> np.ndarray:
    """The picture at this place of the grid, drawn dark on white: 1 is black."""
    picture = picture_at(figure, row, column)
    assert (picture == picture[..., :1]).all()
    return 1 - picture[..., 0]
