from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from capsule_lab.networks import AbstractNetwork
from capsule_lab.types import CapsuleOutput, Capsules
from capsule_studies.questions.decoder import _change, decoder
from capsule_studies.subject import Subject
from capsule_studies.tests.subjects import CLASSES, column_of_square, subject

FEW: dict[str, Any] = {"epochs": 3, "hidden": (16,), "training_images": 24}


class KnowsTheImage(AbstractNetwork):
    """Poses encode the column of the square: the only difference, except noise, between images of one class."""

    def __init__(self, *, knows: bool = True) -> None:
        super().__init__()
        self.knows = knows

    def forward(self, images: Tensor) -> CapsuleOutput:
        poses = torch.ones(len(images), CLASSES, 24)
        if self.knows:
            column = column_of_square(images).round().long()
            poses = torch.nn.functional.one_hot(column, 24).float()
            poses = poses.unsqueeze(1).expand(-1, CLASSES, -1)
        activations = torch.ones(len(images), CLASSES)
        capsules = Capsules(poses, activations)
        return CapsuleOutput(activations, capsules, activations)


def asked(*, knows: bool = True) -> Subject:
    return subject(KnowsTheImage(knows=knows), images=48)


@pytest.mark.whole
def test_poses_with_the_position_explain_more_than_the_class() -> None:
    options = {**FEW, "epochs": 200, "hidden": (64,), "learning_rate": 0.006}
    knows = decoder(asked(), **options).numbers
    ignorant = decoder(asked(knows=False), **options).numbers
    assert knows["class_mean_squared_error"] == ignorant["class_mean_squared_error"]
    assert knows["explained"] > 0.5
    assert -0.5 < ignorant["explained"] < 0.1


def test_perturbations_are_in_standard_deviations_of_the_class_poses() -> None:
    answer = decoder(asked(), **FEW)
    rows = pd.DataFrame(answer.rows)
    assert set(rows["class"]) == {"class 0"}
    assert list(rows.component) == list(range(24))
    changing = (rows.change > 0).sum()
    assert 0 < changing <= 3, "columns where squares of the class are"
    figure = answer.draw()["components"]
    first, *_ = figure.axes[0].get_xticklabels()
    assert first.get_text() == "-2.00"


def test_change_is_between_the_largest_offsets() -> None:
    pictures = torch.zeros(2, 5, 1, 2, 2)
    pictures[1, 0] = 1.0
    pictures[1, -1] = 3.0
    pictures[1, 1] = 7.0
    assert _change(pictures).tolist() == [0.0, 5.0]
