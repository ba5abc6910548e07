"""What a gradient takes at its peak, as the operating system sees it: each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

STEP = """
import resource
import sys
from functools import partial

import torch

from capsule_lab.networks import EMCaps
from capsule_lab.routing import EMRouting

iterations, backend = int(sys.argv[1]), sys.argv[2]
network = EMCaps((2, 32, 32), 5, routing=partial(EMRouting, iterations=iterations, backend=backend))
network(torch.randn(16, 2, 32, 32)).scores.sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(iterations: int, backend: str) -> int:
    """Forward and back through the network of Hinton 2018, section 4."""
    words = [sys.executable, "-c", STEP, str(iterations), backend]
    return int(subprocess.run(words, check=True, capture_output=True, text=True, timeout=120).stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no resource module")
def test_does_not_grow_with_iterations() -> None:
    one, five = peak(1, "fused"), peak(5, "fused")
    assert five < 1.3 * one
