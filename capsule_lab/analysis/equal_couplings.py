"""Equal couplings in a trained network, to measure what routing contributes apart from the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsule_lab.routing import AbstractRouting, Normaliser, SelfAttentionRouting


class EqualCouplings(Normaliser):
    """Applies ``normaliser`` to equal log-couplings in place of those that the routing computes."""

    def __init__(self, normaliser: Normaliser) -> None:
        super().__init__(leaky=normaliser.leaky)
        self.normaliser = normaliser
        self.rows_per_image = normaliser.rows_per_image

    def __call__(
        self, log_couplings: Float[Tensor, "batch parent child"]
    ) -> Float[Tensor, "batch parent child"]:
        return self.normaliser(torch.zeros_like(log_couplings))

    def total(self, mass: Float[Tensor, "batch parent"]) -> Float[Tensor, "batch 1"]:
        return self.normaliser.total(mass)


def routings_with_shares(network: nn.Module) -> list[AbstractRouting]:
    """Return the routings of ``network``; raise a ``ValueError`` if a child's couplings do not sum to one in each."""
    routings = [module for module in network.modules() if isinstance(module, AbstractRouting)]
    for routing in routings:
        name = type(routing).__name__
        if routing.competing == "children":
            raise ValueError(
                f"the couplings of {name} sum to one over the children of a parent; expected a "
                "routing whose couplings sum to one over the parents of a child, which can have equal shares"
            )
        if routing.leaky:
            raise ValueError(
                f"{name} is leaky, so that the couplings of a child sum to less than one; expected a network with "
                "routing.leaky=false"
            )
        # this prior is added after the softmax, so that equal log-couplings do not give equal couplings
        if isinstance(routing, SelfAttentionRouting) and routing.built_prior is not None:
            raise ValueError(
                f"the couplings of {name} are shares plus a learned prior, which need not sum to one; expected a "
                "network with routing.prior=false"
            )
    return routings


@contextmanager
def equal_couplings(network: nn.Module) -> Iterator[None]:
    """Make all routings of ``network`` couple every child equally to all parents that see it.

    The *routing gain* of a network is its error with equal couplings minus its normal error. Its routings must compute
    couplings from log-couplings by the normaliser that they receive, like all routings of this project whose couplings
    are learned or iterated.

    Raises:
        ValueError: if the network has no routing, or couplings of a child do not sum to one over its parents.
    """
    routings = routings_with_shares(network)
    if not routings:
        raise ValueError(f"{type(network).__name__} has no couplings; expected a capsule network")
    with ExitStack() as stack:
        for routing in routings:
            hook = routing.register_forward_pre_hook(_with_equal_couplings, with_kwargs=True)
            stack.callback(hook.remove)
        yield


def _with_equal_couplings(_: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    equal = EqualCouplings(options.get("normalise") or Normaliser())
    return inputs, {**options, "normalise": equal}
