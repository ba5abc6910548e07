"""The reference of uniform routing for the contract: dynamic routing with one iteration and equal couplings."""

from tests.reference.contract import Reference, with_lengths
from tests.reference.loops import dynamic_routing_loops

REFERENCE = Reference(
    lambda votes, _, module: with_lengths(
        dynamic_routing_loops(votes, iterations=1, bias=module.bias, leaky=module.leaky)
    ),
    switches={"bias": (True, False), "leaky": (False, True)},
    elsewhere=("squash", "learned_gain"),
)
