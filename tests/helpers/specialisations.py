"""The kernels that Triton would compile on a GPU, counted without one: nothing is compiled, results are arbitrary."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor
from triton.runtime.jit import JITFunction

from tests.helpers.gpu_comparison import fused_by_gpu

Specialisation = tuple[object, ...]
"""The name of a kernel, the kind of each argument, and the constants."""


@contextmanager
def specialisations() -> Iterator[set[Specialisation]]:
    """Collect what the kernels would be compiled for in this block, with tensors on a CPU."""
    found: set[Specialisation] = set()

    def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        found.add(
            (kernel.fn.__name__, *map(kind_of, arguments), *sorted(map(str, options.items())))
        )

    with fused_by_gpu(), patch.object(JITFunction, "run", run):
        yield found


def kind_of(argument: Any) -> object:
    """What Triton compiles anew for: the type of a tensor, and whether an integer is 1 or a multiple of 16."""
    if isinstance(argument, Tensor):
        return argument.dtype
    return argument if argument is None or argument == 1 else argument % 16 == 0
