from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from capsule_lab.functional import in_unit_range
from capsule_lab.networks import AbstractNetwork
from capsule_lab.types import Batch, CapsuleOutput, Capsules
from capsule_studies.measures.digit_shape import ATTRIBUTES, digit_shape
from capsule_studies.questions.attributes import attributes
from capsule_studies.subject import Answer, Subject
from capsule_studies.tests.strokes import bar
from capsule_studies.tests.subjects import CLASSES, subject

NOISE = 2  # components that do not depend on the image's shape
DIM = len(ATTRIBUTES) + NOISE


def bars(images: int, seed: int) -> Batch:
    """Bars whose thickness, slant and length are independent."""
    generator = np.random.default_rng(seed)
    pictures = []
    for width, slant, length in generator.uniform((2, -30, 10), (6, 30, 18), (images, 3)):
        pictures.append(bar(width, slant, length=length, side=24))
    labels = torch.arange(images) % CLASSES
    return Batch(torch.stack(pictures), labels, labels)


BARS = bars(160, 0)
TRAINING = bars(80, 1)
SHAPES = digit_shape(BARS.images)


class KnowsTheShape(AbstractNetwork):
    """Poses are standardised attributes and noise, in a basis of the pose space."""

    def __init__(self, basis: Tensor) -> None:
        super().__init__()
        self.basis = basis

    def forward(self, images: Tensor) -> CapsuleOutput:
        shapes = digit_shape(in_unit_range(images))
        shapes = (shapes - SHAPES.mean(0)) / SHAPES.std(0)
        generator = torch.Generator().manual_seed(len(images))
        noise = torch.randn(len(images), NOISE, generator=generator, dtype=torch.float64)
        pose = torch.cat([shapes, noise], 1) @ self.basis
        poses = pose.float().unsqueeze(1).expand(-1, CLASSES, -1)
        activations = torch.ones(len(images), CLASSES)
        return CapsuleOutput(activations, Capsules(poses, activations), activations)


def asked(basis: Tensor, contrast: float = 1.0) -> Subject:
    def batch(original: Batch, images: int) -> Batch:
        # standardised pixels are below 0 on the background
        pixels = original.images[:images] * contrast + (1 - contrast) / 2
        return Batch(pixels, original.labels[:images], original.key[:images])

    return replace(
        subject(KnowsTheShape(basis)),
        batches=[batch(BARS, len(BARS.labels))],
        training=lambda images: [batch(TRAINING, images)],
    )


AXES = torch.eye(DIM, dtype=torch.float64)


def rotation() -> Tensor:
    generator = torch.Generator().manual_seed(5)
    gaussian = torch.randn(DIM, DIM, generator=generator, dtype=torch.float64)
    basis, _ = torch.linalg.qr(gaussian)
    return basis


@pytest.fixture(scope="module")
def answer() -> Answer:
    """Of poses whose components are attributes, with the default options."""
    return attributes(asked(AXES))


def test_components_that_are_attributes_explain_them_and_rotated_ones_do_not(
    answer: Answer,
) -> None:
    on_axes = answer.numbers
    rotated = attributes(asked(rotation())).numbers
    assert on_axes["explained_by_components"] == pytest.approx(1, abs=1e-5)
    assert on_axes["explained_by_pose"] == pytest.approx(1, abs=1e-5)
    assert rotated["explained_by_pose"] == pytest.approx(1, abs=1e-5)
    assert on_axes["axis_gain"] > 0.2
    assert abs(rotated["axis_gain"]) < 0.1
    gain = on_axes["explained_by_components"] - on_axes["explained_by_rotated"]
    assert on_axes["axis_gain"] == pytest.approx(gain)


@pytest.mark.whole
def test_rotated_control_does_not_depend_on_the_axes() -> None:
    options = {"rotations": 200}
    on_axes = attributes(asked(AXES), **options).numbers
    rotated = attributes(asked(rotation()), **options).numbers
    assert rotated["explained_by_rotated"] == pytest.approx(
        on_axes["explained_by_rotated"], abs=0.02
    )


def test_rows_contain_the_correlation_of_each_component(answer: Answer) -> None:
    rows = pd.DataFrame(answer.rows)
    assert len(rows) == CLASSES * DIM * len(ATTRIBUTES)
    of_class = BARS.labels == 1
    poses = KnowsTheShape(AXES)(BARS.images).capsules.poses[of_class, 1]
    both = torch.cat([poses, SHAPES[of_class]], 1)
    expected = np.corrcoef(both.numpy().T)[:DIM, DIM:]
    table = rows[rows["class"] == "class 1"].pivot(
        index="component", columns="attribute", values="correlation"
    )
    assert table[[*ATTRIBUTES]].to_numpy() == pytest.approx(expected, abs=1e-6)
    largest = (rows.correlation**2).groupby([rows["class"], rows.attribute]).max()
    assert answer.numbers["explained_by_components"] == pytest.approx(largest.mean())
    slants = largest[:, "slant"]
    assert answer.numbers["slant/explained_by_components"] == pytest.approx(slants.mean())


@pytest.mark.whole
def test_standardised_pixels_give_the_same_numbers() -> None:
    plain = attributes(asked(AXES), rotations=2).numbers
    standardised = attributes(asked(AXES, contrast=3.0), rotations=2).numbers
    assert standardised == pytest.approx(plain, abs=0.01)


def test_constant_components_correlate_with_nothing() -> None:
    nothing = torch.zeros(DIM, DIM, dtype=torch.float64)
    numbers = attributes(asked(nothing), rotations=2).numbers
    assert numbers["explained_by_components"] == 0
    assert numbers["explained_by_rotated"] == 0
    assert abs(numbers["explained_by_pose"]) < 0.1


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({"rotations": 3}, "axis_gain"),
        ({"seed": 1}, "axis_gain"),
        ({"training_images": 48}, "explained_by_pose"),
    ],
)
def test_every_option_changes_a_number(
    answer: Answer, options: dict[str, int], number: str
) -> None:
    numbers = attributes(asked(AXES), **options).numbers
    assert numbers[number] != answer.numbers[number]
