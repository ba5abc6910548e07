"""Does each component of a digit capsule's pose represent one attribute of the digit? (Sabour 2017, section 5.1)"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from torch import Tensor

from capsule_lab.analysis.perturbation import (
    example_of_each_class,
    offsets_grid,
    perturbed_reconstructions,
    steps_of,
)
from capsule_lab.analysis.plotting import name_of_class, panels
from capsule_lab.analysis.reconstructions import select_images
from capsule_lab.errors import check_number
from capsule_lab.functional import in_unit_range
from capsule_lab.networks import Reconstructs, reconstructs
from capsule_lab.types import CapsuleOutput
from capsule_studies.images import joined_images, joined_labels
from capsule_studies.measures.digit_shape import ATTRIBUTES, digit_shape
from capsule_studies.measures.features import check_poses, of_label
from capsule_studies.subject import Answer, Subject, question

_FEWEST = 10  # ours: fewest images of a class
_DRAWN = ("thickness", "slant", "width")  # Sabour 2017, figure 4
_PANELS = 5  # ours: panels side by side

Correlations = Float[Tensor, "attribute component"]


@question()
def attributes(
    subject: Subject, *, training_images: int = 4000, rotations: int = 20, seed: int = 0
) -> Answer:
    """Correlate each component of the pose of the label's capsule with the attributes of the digit, by class.

    Attributes are those of Castro 2019, see ``digit_shape``. Numbers are means over classes and attributes, and, as
    ``<attribute>/…``, over classes:

    - ``explained_by_components``: the largest squared correlation of the attribute with one component;
    - ``explained_by_rotated``: the same after a random rotation of the pose space of the class, the mean over several.
      If the components are no special directions, both are equal; both are larger with fewer images;
    - ``axis_gain``: their difference;
    - ``explained_by_pose``: R² of the best linear map of all components, fitted to training images.

    The rows contain the correlation by class, component and attribute. It is 0 if one of both is constant.

    Args:
        subject: a network of class capsules with poses, and images of bright strokes on black.
        training_images: number of images that the linear map is fitted to.
        rotations: number of random rotations.
        seed: seed of the rotations.
    """
    check_number("training_images", training_images, 1)
    check_number("rotations", rotations, 1)
    output = subject.outputs()
    check_poses(subject, output)
    channels = subject.images.shape[1]
    if channels != 1:
        raise ValueError(
            f"images have {channels} channels; expected one, of bright strokes on black"
        )
    training = subject.training(training_images)
    training_output = subject.outputs(training)
    held_out = _Digits.of(subject.images, output, subject.labels)
    fitted_on = _Digits.of(joined_images(training), training_output, joined_labels(training))

    generator = torch.Generator().manual_seed(seed)
    correlations: dict[int, Correlations] = {}
    measured = []
    for label in subject.labels.unique().tolist():
        digits = held_out.of_class(label, "images")
        fit = fitted_on.of_class(label, "what.training_images")
        correlations[label] = _correlations(digits.poses, digits.shapes)
        rotated = _explained_by_rotated(digits, rotations, generator)
        measured.append(
            {
                "explained_by_components": _largest(correlations[label]),
                "explained_by_rotated": rotated,
                "axis_gain": _largest(correlations[label]) - rotated,
                "explained_by_pose": _explained_by_pose(fit, digits),
            }
        )
    return Answer(
        _means(measured),
        _rows(subject, correlations),
        partial(_figures, subject, output, correlations),
    )


class _Digits(NamedTuple):
    """Poses of the labels' capsules, attributes and labels, in float64 on the CPU."""

    poses: Float[Tensor, "image component"]
    shapes: Float[Tensor, "image attribute"]
    labels: Tensor

    @classmethod
    def of(cls, images: Tensor, output: Any, labels: Tensor) -> _Digits:
        poses = of_label(output.capsules.poses, labels).double()
        shapes = digit_shape(in_unit_range(images))
        return cls(poses.cpu(), shapes.cpu(), labels.cpu())

    def of_class(self, label: int, option: str) -> _Digits:
        """Select a class; raise a ``ValueError`` that names the option if it has too few images."""
        chosen = self.labels == label
        count = int(chosen.sum())
        if count < _FEWEST:
            raise ValueError(
                f"{count} of {len(chosen)} images are of class {label}; expected {_FEWEST} or more, by a larger "
                f"{option}"
            )
        return _Digits(*(tensor[chosen] for tensor in self))


def _correlations(
    poses: Float[Tensor, "image component"], shapes: Float[Tensor, "image attribute"]
) -> Correlations:
    """Return Pearson's correlations, whose squares are shares of the variance; 0 for constants."""
    return _standardised(shapes).t() @ _standardised(poses) / len(poses)


def _standardised(values: Float[Tensor, "image column"]) -> Float[Tensor, "image column"]:
    deviations = values - values.mean(0)
    size = deviations.square().mean(0).sqrt()
    return deviations / size.where(size > 0, 1.0)


def _largest(correlations: Correlations) -> Float[Tensor, " attribute"]:
    """Return the largest share of the variance of each attribute that one component explains."""
    return correlations.square().amax(1)


def _explained_by_rotated(
    digits: _Digits, rotations: int, generator: torch.Generator
) -> Float[Tensor, " attribute"]:
    """Return the mean of ``_largest`` over random orthonormal bases of the pose space."""
    dim = digits.poses.shape[1]
    explained = []
    for _ in range(rotations):
        gaussian = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
        # squared correlations do not depend on the signs of the columns, so that no correction of Q is needed
        basis, _ = torch.linalg.qr(gaussian)
        rotated = _correlations(digits.poses @ basis, digits.shapes)
        explained.append(_largest(rotated))
    return torch.stack(explained).mean(0)


def _explained_by_pose(fitted_on: _Digits, digits: _Digits) -> Float[Tensor, " attribute"]:
    """Return R² of each attribute on held-out images."""
    linear = LinearRegression().fit(fitted_on.poses.numpy(), fitted_on.shapes.numpy())
    predicted = linear.predict(digits.poses.numpy())
    return torch.from_numpy(r2_score(digits.shapes.numpy(), predicted, multioutput="raw_values"))


def _means(
    measured: list[dict[str, Float[Tensor, " attribute"]]],
) -> dict[str, float]:
    """Return means over classes and attributes, and over classes for each attribute."""
    numbers: dict[str, float] = {}
    for quantity in measured[0]:
        by_class = torch.stack([of_class[quantity] for of_class in measured])
        numbers[quantity] = float(by_class.mean())
        for attribute, value in zip(ATTRIBUTES, by_class.mean(0).tolist(), strict=True):
            numbers[f"{attribute}/{quantity}"] = value
    return numbers


def _rows(subject: Subject, correlations: Mapping[int, Correlations]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for label, of_class in correlations.items():
        name = name_of_class(subject.classes, label)
        for attribute, of_attribute in zip(ATTRIBUTES, of_class.tolist(), strict=True):
            for component, correlation in enumerate(of_attribute):
                rows.append(
                    {
                        "class": name,
                        "component": component,
                        "attribute": attribute,
                        "correlation": correlation,
                    }
                )
    return rows


def _figures(
    subject: Subject, output: CapsuleOutput, correlations: Mapping[int, Correlations]
) -> Mapping[str, Figure]:
    figures = {"correlations": _heat_maps(subject, correlations)}
    if reconstructs(subject.network):
        figures |= _sheets(subject, subject.network, output, correlations)
    return figures


def _heat_maps(subject: Subject, correlations: Mapping[int, Correlations]) -> Figure:
    """Draw a panel for each class: rows are attributes, columns are components."""
    down = -(-len(correlations) // _PANELS)
    title = "correlation of each component of the label's pose with each attribute of the digit"
    figure, axes = panels(down, _PANELS, (12, 1 + 1.5 * down), title, sharex=True, sharey=True)
    for axis in axes.flat[len(correlations) :]:
        axis.set_axis_off()
    for axis, (label, of_class) in zip(axes.flat, correlations.items(), strict=False):
        picture = axis.imshow(of_class.numpy(), cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
        axis.set_title(f"class {name_of_class(subject.classes, label)}", fontsize=9)
        axis.set_yticks(range(len(ATTRIBUTES)), ATTRIBUTES)
    figure.supxlabel("component of the pose", fontsize=8)
    figure.colorbar(picture, ax=axes, label="correlation")
    return figure


def _sheets(
    subject: Subject,
    network: Reconstructs,
    output: CapsuleOutput,
    correlations: Mapping[int, Correlations],
) -> dict[str, Figure]:
    """Draw for some attributes the decoded images with the component of each class that correlates most changed."""
    examples = example_of_each_class(output, subject.labels)
    labels = sorted(examples)
    classes = subject.labels.new_tensor(labels)
    numbers = subject.labels.new_tensor([examples[label] for label in labels])
    steps = steps_of(output)
    decoded = perturbed_reconstructions(network, select_images(output, numbers), classes, steps)
    figures = {}
    for attribute in _DRAWN:
        pictures, rows = [], []
        for label, of_image in zip(labels, decoded, strict=True):
            of_attribute = correlations[label][ATTRIBUTES.index(attribute)]
            component = int(of_attribute.abs().argmax())
            pictures.append(of_image[component])
            name = name_of_class(subject.classes, label)
            rows.append(f"class {name}, component {component} ({of_attribute[component]:+.2f})")
        title = f"of each class, the component of the pose that correlates most with {attribute} (correlation)"
        figures[attribute] = offsets_grid(torch.stack(pictures), rows, title, steps)
    return figures
