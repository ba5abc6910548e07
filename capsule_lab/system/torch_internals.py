"""All uses of undocumented functions of torch, read from version 2.15; ``tests/system/test_torch_internals.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])


def is_transformed() -> bool:
    """Return whether a transform of ``torch.func`` (``vmap``, ``jvp``, ``grad``, …) is active.

    Python cannot read the values of tensors there, and autograd functions need special rules. ``False`` while torch
    compiles.
    """
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def backward_pass_number() -> int:
    """Return the number of the running backward pass, different for each pass; -1 outside of a pass."""
    return torch._C._current_graph_task_id()


def constant_when_compiled(function: F) -> F:
    """Do what ``torch.compiler.assume_constant_result`` does, without its slow import of torch's compiler."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def cpu_computes_bfloat16() -> bool:
    """Return whether the CPU has bfloat16 instructions."""
    native = (getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile"))
    return any(supported() for supported in native if supported)


def average_lists_(averages: list[torch.Tensor], others: list[torch.Tensor], stays: torch.Tensor) -> None:
    """Replace each average by ``stays * average + (1 - stays) * other``, with one kernel for the whole list.

    ``torch.optim`` uses the same functions. Args: lists of equal shapes and one type; ``stays``: scalar tensor.
    """
    torch._foreach_mul_(averages, stays)
    torch._foreach_add_(averages, torch._foreach_mul(others, 1 - stays))
