"""How training steps call the network: directly, compiled by torch, or as CUDA graphs.

Capsule networks launch hundreds of small kernels; with small batches, launching may take longer than running them. A
CUDA graph launches all kernels of a pass at once, always on the same memory and with the shapes of its capture.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, get_args

import lightning as L
import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook

from capsule_lab.errors import ConfigError, check_choice, one_line
from capsule_lab.types import CapsuleOutput, Capsules

Mode = Literal["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
Compile = bool | Mode
"""Whether ``torch.compile`` compiles the network, and in which mode; ``True`` means the default mode."""

CallNetwork = Callable[..., Any]

_WITH_GRAPHS = ("reduce-overhead", "max-autotune")  # modes in which torch.compile makes CUDA graphs


class TrainingNetwork:
    """Calls a network in training steps; validation and tests call the network directly.

    It is not an ``nn.Module``, and does not change the network: weights keep their names and their memory.

    Args:
        compile: see ``Compile``.
        cuda_graphs: capture the network's forward and backward pass in the first call after ``forget``, and replay them
            in every call, with the same results. Requires one GPU and batches of one size.
    """

    def __init__(self, network: nn.Module, *, compile: Compile = False, cuda_graphs: bool = False) -> None:
        check_choice("compile", compile, (False, True, *get_args(Mode)))
        if cuda_graphs and compile in _WITH_GRAPHS:
            raise ValueError(
                f"cuda_graphs is true, and compile is {compile!r}, which makes its own CUDA graphs; expected only one "
                "of them, or compile=max-autotune-no-cudagraphs"
            )
        self.network = network
        self.compile = compile
        self.cuda_graphs = cuda_graphs
        self._graphs: _Graphs | None = None

    def __call__(self, *inputs: Tensor) -> Any:
        """Return the output of the network; with CUDA graphs, images are the only input."""
        if not self.cuda_graphs:
            return self._call(*inputs)
        (images,) = inputs
        if self._graphs is None:
            self._graphs = _Graphs(self.network, self._call, images)
        return self._graphs.replay(images)

    @property
    def has_graphs(self) -> bool:
        """Whether ``cuda_graphs`` or ``torch.compile`` makes CUDA graphs."""
        return self.cuda_graphs or self.compile in _WITH_GRAPHS

    @cached_property
    def _call(self) -> CallNetwork:
        if not self.compile:
            return self.network
        # the method: compiling the module would rename every weight, or also affect validation
        return torch.compile(self.network.forward, mode=None if self.compile is True else self.compile)

    def forget(self) -> None:
        """Free the CUDA graphs; required before another ``fit``, when the weights may have moved in memory."""
        if self._graphs is not None:
            self._graphs = None
            gc.collect()  # a cycle in torch may keep them and autograd nodes, which break another capture

    def check(self, trainer: L.Trainer) -> None:
        """Raise a ``ConfigError`` if the options do not work with this Trainer."""
        option = "cuda_graphs=true" if self.cuda_graphs else f"compile={self.compile}"
        device = trainer.strategy.root_device.type
        if self.cuda_graphs and device != "cuda":
            raise ConfigError(
                f"module.cuda_graphs is true, but training is on {device}; expected a GPU with CUDA, or "
                "module.cuda_graphs=false"
            )
        if self.cuda_graphs and trainer.world_size > 1:
            raise ConfigError(
                f"module.cuda_graphs is true, but the run has {trainer.world_size} processes; expected one, or "
                "module.cuda_graphs=false"
            )
        if self.has_graphs and trainer.accumulate_grad_batches > 1:
            raise ConfigError(
                f"trainer.accumulate_grad_batches is {trainer.accumulate_grad_batches} with module.{option}, whose "
                "gradients use the same memory in every step and would overwrite each other; expected 1"
            )


class _Graphs:
    """The forward and backward pass of a network as CUDA graphs of torch, for the shape of ``images``.

    ``images`` is a batch on a GPU. The graphs keep the autocast state at the time of the capture.
    """

    def __init__(self, network: nn.Module, call: CallNetwork, images: Tensor) -> None:
        kind = images.device.type
        # entered in the forward pass only: with autocast, the backward pass would compute routing in half precision
        autocast = torch.autocast(
            kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), cache_enabled=False
        )
        self.shape = images.shape
        self.awaits_backward = False
        buffers = [(buffer, buffer.clone()) for buffer in network.buffers()]
        devices = range(torch.cuda.device_count())
        try:
            with torch.random.fork_rng(devices), torch.autocast(kind, enabled=False), torch.enable_grad():
                on_tensors = _OnTensors(network, call, autocast)
                self.passes: Any = torch.cuda.make_graphed_callables(
                    on_tensors,
                    (images.clone(),),  # every batch is copied into this memory
                    allow_unused_input=True,  # the loss, not the pass, calls a decoder
                )
        except RuntimeError as error:
            raise ConfigError(
                f"{type(network).__name__} cannot be captured as CUDA graphs: {one_line(error)[:300]}; set "
                "module.cuda_graphs=false"
            ) from error
        self.present = on_tensors.present
        for buffer, before in buffers:  # undo the warm-up passes' updates of batch normalisation
            buffer.copy_(before)

    def replay(self, images: Tensor) -> CapsuleOutput:
        """Return the output of the network, in memory that the next call overwrites."""
        if images.shape != self.shape:
            raise ConfigError(
                f"module.cuda_graphs is true, but images have shape {tuple(images.shape)} after {tuple(self.shape)}; "
                "expected batches of one size, or module.cuda_graphs=false"
            )
        if self.awaits_backward:
            raise ConfigError(
                "module.cuda_graphs is true, but the network is called twice before a backward pass, which would "
                "overwrite the tensors of the first call; expected one call per step, or module.cuda_graphs=false"
            )
        tensors = self.passes(images)
        if tensors[0].requires_grad:
            self.awaits_backward = True
            register_multi_grad_hook(tensors, lambda _: setattr(self, "awaits_backward", False), mode="any")
        given = iter(tensors)
        parts: list[Any] = [next(given) if present else None for present in self.present]
        scores, logits, *capsules = parts
        return CapsuleOutput(scores, None if capsules[0] is None else Capsules(*capsules), logits)


class _OnTensors(nn.Module):
    """Wraps a network in the form that torch captures: a module with its parameters that returns only tensors."""

    def __init__(self, network: nn.Module, call: CallNetwork, autocast: torch.autocast) -> None:
        super().__init__()
        self.network = network
        self.call = call
        self.autocast = autocast
        self.present: list[bool] = []  # for scores, logits, and the capsules' poses, activations and logits

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        with self.autocast:
            output = self.call(images)
        tensors = (output.scores, output.logits, *(output.capsules or (None, None, None)))
        self.present = [tensor is not None for tensor in tensors]
        return tuple(tensor for tensor in tensors if tensor is not None)
