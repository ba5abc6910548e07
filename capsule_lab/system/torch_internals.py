"""Uses of undocumented functions of torch, read from version 2.14; ``tests/system/test_torch_internals.py``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])
ToFake = Callable[[torch.Tensor], torch.Tensor]
Peak = Callable[[], int]


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
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        is_supported = getattr(torch.cpu, name, None)
        if is_supported is not None and is_supported():
            return True
    return False


def average_lists_(
    averages: list[torch.Tensor], others: list[torch.Tensor], stays: torch.Tensor
) -> None:
    """Replace each average by ``stays * average + (1 - stays) * other``, with one kernel for the whole list.

    ``torch.optim`` uses the same functions. Args: lists of equal shapes and one type; ``stays``: scalar tensor.
    """
    torch._foreach_mul_(averages, stays)
    torch._foreach_add_(averages, torch._foreach_mul(others, 1 - stays))


def has_hooks(module: torch.nn.Module) -> bool:
    """Return whether Python functions are called in the passes of a module: hooks of modules or of parameters."""
    of_modules = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    of_parameters = ("_backward_hooks", "_post_accumulate_grad_hooks")
    modules_have = any(_has_any(part, of_modules) for part in module.modules())
    return modules_have or any(_has_any(weight, of_parameters) for weight in module.parameters())


def _has_any(owner: object, names: Iterable[str]) -> bool:
    return any(getattr(owner, name, None) for name in names)


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the generators of the CPU and of ``device`` as ``torch.manual_seed`` does.

    That function also queues the seed for every kind of device that is not in use, with the stack of its caller, which
    takes longer than the hooks of a training step.
    """
    if device.type not in ("cpu", "cuda"):
        torch.manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


def run_without_values(step: Callable[[ToFake, Peak], Any]) -> None:
    """Run ``step(fake, peak)`` with torch's ``FakeTensorMode``, which computes shapes only and stores no values.

    Random generators do not advance. ``fake(tensor)`` is a tensor like another one, without values; ``peak()`` is the
    largest number of bytes so far that the tensors of the step would have taken at the same time.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    live = 0
    largest = 0
    known: set[int] = set()

    def forget(storage: int, size: int) -> None:
        nonlocal live
        live -= size
        known.discard(storage)

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal live, largest
            result = function(*args, **(kwargs or {}))
            for value in torch.utils._pytree.tree_leaves(result):
                if not isinstance(value, torch.Tensor):
                    continue
                storage = value.untyped_storage()
                if storage._cdata not in known:
                    known.add(storage._cdata)
                    live += storage.nbytes()
                    weakref.finalize(storage, forget, storage._cdata, storage.nbytes())
            largest = max(largest, live)
            return result

    with FakeTensorMode(allow_non_fake_inputs=True) as mode, Counting():

        def fake(tensor: torch.Tensor) -> torch.Tensor:
            copied = mode.from_tensor(tensor)
            known.add(copied.untyped_storage()._cdata)  # not counted
            return copied

        step(fake, lambda: largest)
