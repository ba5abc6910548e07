"""Comparison of tensors with an absolute tolerance only."""

from typing import Any

import torch


def assert_close(found: Any, expected: Any, atol: float = 1e-12) -> None:
    """Numbers differ by at most ``atol``, by default what is left of double precision after a few hundred sums."""
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)
