"""Uniform routing as the contract compares it; the transcription is in ``loops``."""

from __future__ import annotations

from tests.reference.loops import uniform_routing_loops
from tests.reference.reference import Reference, with_lengths

REFERENCE = Reference(
    lambda votes, _, module: with_lengths(uniform_routing_loops(votes, bias=module.bias, leaky=module.leaky)),
    switches={"bias": (True, False), "leaky": (False, True)},
    elsewhere=("squash",),
)
