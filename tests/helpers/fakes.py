"""A CapsNet with a fixed output whose decoder draws the poses, and functions that read figures."""

from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
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
        masked = poses * mask.unsqueeze(2)
        return (masked * self.weight).unsqueeze(1)


class FakeCapsNet(CapsNet):
    """Returns the same output for any images; ``weight`` is of the poses' components in the decoded image."""

    def __init__(self, output: CapsuleOutput, weight: Tensor | float = 1.0) -> None:
        _, classes, dim = output.capsules.poses.shape
        super().__init__(
            image_shape=(1, 17, 17),
            num_classes=classes,
            channels=2,
            primary=partial(PrimaryCapsules, types=1),
            class_dim=dim,
            decoder=(2,),
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
    numbers = torch.linspace(0.3, 0.7, scores.numel() * dim)
    poses = numbers.view(len(scores), classes, dim)
    capsules = Capsules(poses, poses.norm(dim=2))
    return CapsuleOutput(scores, capsules)


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
    labels = []
    for axes in figure.axes:
        labels += axes.get_xticklabels()
    return labels


def row_names(figure: Figure) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def texts(figure: Figure) -> list[str]:
    """Names of groups, from left to right, then the note below."""
    found = [axes.get_title() for axes in figure.axes]
    found.append(figure.get_supxlabel())
    return [text.replace("\n", " ") for text in found]


def picture_at(figure: Figure, row: int, column: int) -> np.ndarray:
    """The picture at this place of the grid, in red, green and blue."""
    images: list[AxesImage] = []
    for axes in figure.axes:
        images += axes.images
    rows = len(row_names(figure))
    image = images[column * rows + row]
    return np.asarray(image.get_array())


def grey_at(figure: Figure, row: int, column: int) -> np.ndarray:
    """The picture at this place of the grid, drawn dark on white: 1 is black."""
    picture = picture_at(figure, row, column)
    assert (picture == picture[..., :1]).all()
    return 1 - picture[..., 0]
