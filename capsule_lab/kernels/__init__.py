"""What routing asks of votes, and the ways to answer: plainly, by matrix products, or without ever storing a vote."""

from capsule_lab.kernels.backends import Backend, check_backend
from capsule_lab.kernels.base import AbstractVotes, Explanation
from capsule_lab.kernels.dispatch import couplings_of_children, route

__all__ = ["AbstractVotes", "Backend", "Explanation", "check_backend", "couplings_of_children", "route"]
