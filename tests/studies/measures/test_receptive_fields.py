from __future__ import annotations

import pytest
import torch

from capsule_lab.networks import EfficientCapsNet
from capsule_lab.studies.measures.receptive_fields import receptive_centres
from tests.helpers.subjects import small_network


def test_children_look_where_their_convolutions_do() -> None:
    """Of a CapsNet: 9x9, then 9x9 of stride 2: the first looks at pixel 8, the next at 10."""
    torch.manual_seed(0)
    network = small_network("capsnet")
    (top, down), (left, right) = receptive_centres(network, torch.rand(1, 1, 24, 24))
    assert down == pytest.approx(2, abs=0.4)
    assert right == pytest.approx(2, abs=0.4)
    assert (top, left) == (pytest.approx(8, abs=1.5), pytest.approx(8, abs=1.5))


def test_children_without_positions() -> None:
    with pytest.raises(ValueError, match="children of the last layer have no positions"):
        receptive_centres(EfficientCapsNet((1, 28, 28), 4).eval(), torch.rand(1, 1, 28, 28))
