"""Slow float64 transcription of routing with couplings that are given: plain loops, nothing from the package."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.reference.loops import softmax_list, squash_vector
from tests.reference.reference import Reference, with_lengths


def fixed_couplings_loops(
    votes: Tensor, log_couplings: Tensor, *, bias: Tensor | None = None, leaky: bool = False
) -> Tensor:
    """Votes ``(b, i, j, d)`` and log-couplings ``(j, i)``, the same for every image, to poses ``(b, j, d)``."""
    batch, children, parents, dim = votes.shape
    results = []
    for b in range(batch):
        vote = votes[b].double().tolist()
        poses = []
        for j in range(parents):
            total = [0.0] * dim if bias is None else bias[j].double().tolist()
            for i in range(children):
                logits = [log_couplings[parent, i].item() for parent in range(parents)]
                coupling = softmax_list([*logits, 0.0] if leaky else logits)[j]
                for d in range(dim):
                    total[d] += coupling * vote[i][j][d]
            poses.append(squash_vector(total))
        results.append(poses)
    return torch.tensor(results, dtype=torch.float64)


REFERENCE = Reference(
    lambda votes, _, module: with_lengths(
        fixed_couplings_loops(votes, module.log_couplings, bias=module.bias, leaky=module.leaky)
    ),
    switches={"spread": (1.0, 0.0, 3.0), "seed": (0, 1), "bias": (True, False), "leaky": (False, True)},
    exchangeable=False,
)
