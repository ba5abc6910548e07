"""What a gradient takes at its peak, as the operating system sees it, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource
from functools import partial

import torch

from capsule_lab.networks import EMCaps
from capsule_lab.routing import EMRouting

for iterations in (1, 5):
    network = EMCaps((2, 32, 32), 5, routing=partial(EMRouting, iterations=iterations, backend="fused"))
    network(torch.randn(16, 2, 32, 32)).scores.sum().backward()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no resource module")
def test_does_not_grow_with_iterations() -> None:
    """Forward and back through the network of Hinton 2018, section 4, with one iteration and then with five."""
    ended = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True, timeout=120)
    one, five = map(int, ended.stdout.split())
    assert five < 1.3 * one
