"""Routing on votes of all sizes and shapes: parents and gradients are finite."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Iterator
from typing import Any

from tests.campaign.outcomes import Fault, ended
from tests.campaign.processes import Process
from tests.campaign.small_runs import fresh_folder

Case = dict[str, Any]
LARGEST = 10  # powers of ten; at 1e18 squares of float32 overflow


def cases(seed: int) -> Iterator[Case]:
    draw = random.Random(seed)
    for _ in range(1000):
        yield {"draws": 100, "seed": draw.randrange(2**31)}


def attempt(case: Case) -> None:
    with fresh_folder() as folder:
        result = ended(Process(lambda: _try_draws(case), folder))
        if result.status or result.out:
            raise Fault("not finite", result.out + result.err)


def _try_draws(case: Case) -> None:
    import torch

    from capsule_lab.functional import dense_votes
    from capsule_lab.routing import DynamicRouting, EMRouting, UniformRouting
    from capsule_lab.types import Votes
    from tests.reference.em_bridge import PRESETS, preset

    draw = random.Random(case["seed"])
    torch.manual_seed(case["seed"])
    known = inspect.signature(EMRouting).parameters
    presets = [{name: value for name, value in preset(each).items() if name in known} for each in PRESETS]
    for _ in range(case["draws"]):
        parents, inner, columns, rows = draw.randint(1, 6), *(draw.randint(1, 4) for _ in range(3))
        batch, children, scale = draw.randint(1, 3), draw.randint(1, 40), 10 ** draw.uniform(-12, LARGEST)
        options: dict[str, Any] = {"backend": draw.choice(["reference", "matmul", "fused"])}
        kind = draw.choice([DynamicRouting, EMRouting, UniformRouting])
        if kind is DynamicRouting:
            options |= {"iterations": draw.randint(1, 5), "leaky": draw.random() < 0.5}
        elif kind is EMRouting:
            options = {**draw.choice(presets), "iterations": draw.randint(1, 5), **options}
        poses = torch.randn(batch, children, rows * inner) * scale * draw.choice([0, 1, 1, 1])
        weight = torch.randn(children, inner, parents, columns)
        activations = torch.full((batch, children), draw.choice([0.0, 0.5, 1.0]))
        inputs = [tensor.requires_grad_() for tensor in (poses, weight, activations)]
        dense = options["backend"] != "fused" and draw.random() < 0.5
        votes = dense_votes(poses, weight) if dense else Votes(poses, weight)
        found = kind(parents, rows * columns, **options)(votes, activations)
        torch.stack([each.sum() for each in found]).sum().backward()
        results = {**found._asdict(), **{f"gradient {tuple(each.shape)}": each.grad for each in inputs}}
        wrong = [name for name, tensor in results.items() if tensor is not None and not tensor.isfinite().all()]
        if wrong:
            shape = (batch, children, parents, rows, inner, columns)
            sys.stdout.write(
                f"{wrong} at {scale:.3g} of {shape} with {float(activations[0, 0])} by {kind}({options})\n"
            )
