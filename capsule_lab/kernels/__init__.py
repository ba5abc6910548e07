"""Operations of routing on votes, and their backends: dense votes, batched matrix products, fused kernels."""

from capsule_lab.kernels.backends import Backend, check_backend
from capsule_lab.kernels.base import AbstractVotes
from capsule_lab.kernels.run_routing import child_softmax, route

__all__ = ["AbstractVotes", "Backend", "check_backend", "child_softmax", "route"]
