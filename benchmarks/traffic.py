"""Count the operators of a training step and the bytes that they move: ``python -m benchmarks.traffic key=value ...``.

Nothing is computed: tensors have shapes and no values, so that a GPU's batch sizes need no memory. The bytes of an
operator are those of its arguments and results, each once; a broadcast argument counts with its own size. Operations
that change only shapes move none. Operators that custom kernels launch inside are not counted one by one. Options are
those of ``benchmarks``, of which ``models``, ``precisions`` and ``batch_size`` matter.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode  # private, read from torch 2.14
from torch.utils._python_dispatch import TorchDispatchMode  # private, read from torch 2.14
from torch.utils._pytree import tree_leaves  # private, read from torch 2.14

from benchmarks.cases import FULL, Case, check_bench, configuration, model_groups, training_config
from benchmarks.models import as_pairs, build_network, loss_of, random_batch
from capsule_lab.errors import ConfigError

LISTED = 20  # operators


class Traffic(TorchDispatchMode):
    """Counts calls and bytes of operators while it is entered.

    Attributes:
        calls, moved: number of calls, and bytes, by the name of the operator.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        name = operator.name().split("::")[1].split(".")[0]
        is_query = not tensors_in(result)
        if operator.is_view or is_query or "empty" in name or name in ("detach", "_unsafe_view"):
            return result
        self.calls[name] += 1
        for tensor in tensors_in((args, kwargs, result)):
            # a broadcast argument is larger than its storage
            self.moved[name] += min(tensor.nbytes, tensor.untyped_storage().nbytes())
        return result


def tensors_in(values: Any) -> list[Tensor]:
    """Return the tensors in nested containers."""
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def count_step(case: Case) -> Traffic:
    """Count the forward and the backward pass of a case's training step."""
    module = build_network(case, training_config(case.overrides))
    with FakeTensorMode(allow_non_fake_inputs=True):
        batch = as_pairs(random_batch(case, case.sizes["batch_size"]), module)
        with Traffic() as traffic:
            with torch.autocast(case.device, torch.bfloat16, enabled=case.precision != FULL):
                loss = loss_of(module, batch)
            loss.backward()
    return traffic


def main(config: DictConfig) -> None:
    """Print the operators of each model with the most bytes."""
    check_bench(config)
    config.backends = ["fused"]
    for case in itertools.chain(*model_groups(config, textbook=False)):
        traffic = count_step(case)
        calls = traffic.calls.total()
        gigabytes = traffic.moved.total() / 1e9
        batch = f"batch {case.sizes['batch_size']}"
        sys.stdout.write(f"{case.label}, {batch}: {calls} operators, {gigabytes:.2f} GB\n")
        for name, size in traffic.moved.most_common(LISTED):
            sys.stdout.write(f"{size / 1e6:10.1f} MB {traffic.calls[name]:5} {name}\n")


if __name__ == "__main__":
    try:
        main(configuration("bench", sys.argv[1:]))
    except ConfigError as error:
        sys.exit(f"benchmarks.traffic: {error}")
