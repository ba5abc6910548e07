import torch
from torch import Tensor

from capsule_lab.routing import dynamic_routing, em_routing
from capsule_lab.types import RoutingTrace


def golden_votes() -> tuple[Tensor, Tensor]:
    """Votes ``sin(.37 n + .1)``, ``(1, 6, 3, 16)``, and activations ``.5 + .4 sin(.91 n)``."""
    votes = torch.sin(0.37 * torch.arange(288, dtype=torch.float64) + 0.1).view(1, 6, 3, 16)
    return votes, 0.5 + 0.4 * torch.sin(0.91 * torch.arange(6, dtype=torch.float64)).unsqueeze(0)


def golden_traces(*, em: bool) -> list[RoutingTrace]:
    """Their routing, three iterations: EM routing with the paper's cost and betas of 0, or dynamic routing."""
    traces: list[RoutingTrace] = []
    votes, activations = golden_votes()
    if em:
        beta_u = beta_a = votes.new_zeros(3)
        em_routing(votes, activations, beta_u, beta_a, on_iteration=traces.append)
    else:
        dynamic_routing(votes, on_iteration=traces.append)
    return traces
