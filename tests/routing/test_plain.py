"""Routing, layers, networks and losses need torch, numpy and jaxtyping, and take no longer to import than torch."""

import pytest

from tests.helpers.commands import ROOT, interpreter

pytestmark = pytest.mark.integration

WITHOUT_OTHERS = """
import sys

OTHERS = set(
    "beartype cloudpickle hydra lightning lightning_fabric llvmlite matplotlib numba omegaconf pandas pooch pydantic "
    "pytorch_lightning requests rich scipy sklearn submitit tensorboard torchmetrics torchvision wandb yaml".split()
)

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OTHERS:
            raise ImportError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())

import torch
import capsule_lab.layers, capsule_lab.losses, capsule_lab.networks, capsule_lab.routing, capsule_lab.schedules
from capsule_lab import ConvCapsules, DenseCapsules, DynamicRouting, EMRouting, margin_loss

poses, activations = torch.rand(2, 32, 6), torch.rand(2, 32)
conv = ConvCapsules((4, 4), 2, 6, 3, 4, rows=2, routing=EMRouting)
for layer in DenseCapsules(32, 6, 3, 4, routing=DynamicRouting), conv:
    margin_loss(layer(poses, activations).activations[:, :3], torch.tensor([1, 2])).backward()
"""


def test_numba_and_all_others_may_be_missing() -> None:
    """Votes are then summed by matrix products, which one line says."""
    ended = interpreter("-c", WITHOUT_OTHERS, cwd=ROOT)
    assert (ended.status, ended.out) == (0, ""), ended.err
    assert ended.err.strip() == "routing backend on cpu: matmul (no fused kernels: No module named 'numba')"


def test_routing_imports_neither_the_compiler_nor_numba() -> None:
    """Either would take longer than torch itself."""
    script = "import sys, capsule_lab.routing; print({'torch._dynamo', 'sympy', 'numba', 'scipy'} & {*sys.modules})"
    ended = interpreter("-c", script, cwd=ROOT)
    assert ended.out.strip() == "set()", ended.err
