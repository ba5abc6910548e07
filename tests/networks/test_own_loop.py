"""Networks and routings in a training loop without Lightning: half precision and channels last.

``tests/deploy/test_export.py`` compiles one graph.
"""

from typing import Any

import pytest
import torch

from capsule_lab.losses import margin_loss
from tests.helpers.networks import pictures, small_capsnet

pytestmark = pytest.mark.usefixtures("unchecked_types")
LABELS = torch.tensor([3, 7, 1])


def losses(dtype: torch.dtype | None, *, channels_last: bool = False) -> list[float]:
    """Losses of a few steps of SGD."""
    torch.manual_seed(0)
    network: Any = small_capsnet((1, 28, 28), 10, decoder=None)
    images = pictures(3, (1, 28, 28))
    if channels_last:
        network = network.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    found = []
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            loss = margin_loss(network(images).scores, LABELS)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_same_losses_with_channels_last() -> None:
    expected = losses(None)
    assert expected[-1] < expected[0] - 1e-3
    assert losses(None, channels_last=True) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_close(dtype: torch.dtype) -> None:
    assert losses(dtype, channels_last=True) == pytest.approx(losses(None), rel=0.02)
