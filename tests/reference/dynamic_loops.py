"""The reference of dynamic routing for the contract; the transcription is in ``loops``."""

from typing import Any

from torch import Tensor

from tests.reference.contract import Reference, with_lengths
from tests.reference.loops import dynamic_routing_loops


def loops(votes: Tensor, _: Tensor, module: Any) -> tuple[Tensor, Tensor]:
    options = {
        "iterations": module.options["iterations"],
        "replace": module.options["update"] == "replace",
    }
    learned = {"bias": module.bias, "prior": module.prior, "leaky": module.leaky}
    return with_lengths(dynamic_routing_loops(votes, **options, **learned))


REFERENCE = Reference(
    loops,
    switches={
        "iterations": (3, 1, 2, 5),
        "leaky": (False, True),
        "bias": (True, False),
        "learned_prior": (False, True),
        "update": ("add", "replace"),
    },
    elsewhere=("squash", "gradient"),
    agreeing=True,
)
