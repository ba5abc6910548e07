"""Choice of the backend for given votes."""

from __future__ import annotations

import functools
import importlib
import logging
from types import ModuleType
from typing import Literal, get_args

import torch
from torch import Tensor

from capsule_lab.errors import ConfigError, check_choice
from capsule_lab.system.torch_internals import constant_when_compiled, is_transformed
from capsule_lab.types import Votes

Backend = Literal["auto", "reference", "matmul", "fused"]
"""How votes are summed. ``reference``: over the whole vote tensor, as in the papers; ``matmul``: as batched matrix
products, on a CPU for as many images at a time as fit into its cache; ``fused``: without storing votes (numba on a CPU,
Triton on a GPU); ``auto``: the fastest that runs."""

_LOG = logging.getLogger(__name__)
_FUSED = {"cpu": "capsule_lab.kernels.cpu", "cuda": "capsule_lab.kernels.gpu"}


@constant_when_compiled
def fused_kernels(device_type: str) -> ModuleType | str:
    """Return the module of fused kernels for a type of device, or the reason why there is none."""
    return _imported(device_type)


@functools.cache
def _imported(device_type: str) -> ModuleType | str:
    if device_type not in _FUSED:
        return f"there are none for {device_type}"
    try:
        kernels = importlib.import_module(_FUSED[device_type])
        if device_type == "cuda" and torch.cuda.is_available():
            _start_triton()
    except (
        Exception
    ) as error:  # numba, llvmlite and Triton raise many types if they are missing or do not work
        return " ".join(str(error).split())
    return kernels


def _start_triton() -> None:
    """Load what launches kernels; raise what Triton raises if it cannot, for example without a C compiler."""
    import triton

    triton.runtime.driver.active.get_current_target()


def check_backend(backend: Backend) -> Backend:
    """Return ``backend``; raise ``ValueError`` if it is unknown."""
    check_choice("routing backend", backend, get_args(Backend))
    return backend


def select_backend(backend: Backend, votes: Tensor | Votes, *, fused: bool = True) -> Backend:
    """Return the backend to use: ``reference``, ``matmul`` or ``fused``; raise ``ValueError`` for an unknown one.

    For a routing without a ``fused`` form, ``auto`` and ``fused`` are ``matmul``, so that every routing takes every
    backend. Otherwise raise ``ConfigError`` if ``fused`` is not available, for example in ``torch.func.vmap`` and
    ``jvp``, for which its gradients have no rules.
    """
    if check_backend(backend) in ("reference", "matmul"):
        return backend
    if not fused:
        return "matmul"
    if not isinstance(votes, Votes):
        if backend == "fused":
            raise ValueError(
                "routing backend is 'fused' but votes are a tensor; expected Votes(poses, weight)"
            )
        return "matmul"
    device = votes.poses.device.type
    kernels = (
        "torch.func transforms what it computes" if is_transformed() else fused_kernels(device)
    )
    if backend == "fused" and isinstance(kernels, str):
        raise ConfigError(
            f"routing backend is 'fused', which does not run here: {kernels}; expected auto or matmul"
        )
    best: Backend = "matmul" if isinstance(kernels, str) else "fused"
    if backend == "auto" and not torch.compiler.is_compiling() and not is_transformed():
        _log_once(device, best, kernels if isinstance(kernels, str) else "")
    return best


@functools.cache
def _log_once(device: str, backend: str, reason: str) -> None:
    level = logging.WARNING if reason and device in _FUSED else logging.INFO
    _LOG.log(
        level,
        "routing backend on %s: %s%s",
        device,
        backend,
        reason and f" (no fused kernels: {reason})",
    )
