"""How long layers and training steps take, how much memory, where the time goes, and what a machine allows at best.

Every case has a process of its own, so that its peak memory is its own, and the processes work in turn. Cases
are compared with the textbook form: the same layer or network as common PyTorch ports write it.
"""

from capsule_lab.bench.breakdown import profile
from capsule_lab.bench.cases import Case, device_named
from capsule_lab.bench.interleave import measure
from capsule_lab.bench.scaling import scale

__all__ = ["Case", "device_named", "measure", "profile", "scale"]
