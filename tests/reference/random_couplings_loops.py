"""The reference of random couplings for the contract: dynamic routing with one iteration and a prior per child."""

from typing import Any

from torch import Tensor

from tests.reference.contract import Reference, with_lengths
from tests.reference.loops import dynamic_routing_loops


def loops(votes: Tensor, _: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    given = {"prior": module.log_couplings, "bias": module.bias, "leaky": module.leaky}
    return with_lengths(dynamic_routing_loops(votes, iterations=1, **given))


REFERENCE = Reference(
    loops,
    switches={
        "spread": (1.0, 0.0, 3.0),
        "seed": (0, 1),
        "bias": (True, False),
        "leaky": (False, True),
    },
    exchangeable=False,
)
