"""How training steps call the network: as it is, compiled by torch, or as CUDA graphs.

Capsule networks launch hundreds of small kernels; at small batches launching them may take longer than running them. A
CUDA graph launches all kernels of a pass at once, on the same memory every time, and for the shapes of its capture.
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
"""Whether ``torch.compile`` compiles the network, and in which of its modes; ``True`` is its default mode."""

CallNetwork = Callable[..., Any]

_WITH_GRAPHS = ("reduce-overhead", "max-autotune")  # modes of torch.compile that make CUDA graphs of their own


class TrainingNetwork:
    """Calls a network in training steps; validation and tests call the network itself.

    It is no ``nn.Module``, and the network is not changed: weights keep their names and their memory.

    Args:
        compile: see ``Compile``.
        cuda_graphs: capture the network's forward and backward pass in the first call after ``forget``, and replay them
            in every call, with the same numbers. For one GPU and batches of one size.
    """

    def __init__(self, network: nn.Module, *, compile: Compile = False, cuda_graphs: bool = False) -> None:
        check_choice("compile", compile, (False, True, *get_args(Mode)))
        if cuda_graphs and compile in _WITH_GRAPHS:
            raise ValueError(
                f"cuda_graphs is true, and compile is {compile!r}, which makes CUDA graphs of its own; expected one of "
                "them, or compile=max-autotune-no-cudagraphs"
            )
        self.network = network
        self.compile = compile
        self.cuda_graphs = cuda_graphs
        self._graphs: _Graphs | None = None

    def __call__(self, *inputs: Tensor) -> Any:
        """The output of the network, which with CUDA graphs is one that takes images only."""
        if not self.cuda_graphs:
            return self._call(*inputs)
        (images,) = inputs
        if self._graphs is None:
            self._graphs = _Graphs(self.network, self._call, images)
        return self._graphs.replay(images)

    @property
    def has_graphs(self) -> bool:
        """Whether there are CUDA graphs, ours or those of torch.compile."""
        return self.cuda_graphs or self.compile in _WITH_GRAPHS

    @cached_property
    def _call(self) -> CallNetwork:
        if not self.compile:
            return self.network
        # the method: a compiled module would rename every weight, or be compiled for validation, too
        return torch.compile(self.network.forward, mode=None if self.compile is True else self.compile)

    def forget(self) -> None:
        """Free the CUDA graphs; needed before another ``fit``, when the weights may lie in other memory."""
        if self._graphs is not None:
            self._graphs = None
            gc.collect()  # a cycle in torch may hold them, and with them nodes of autograd that break another capture

    def check(self, trainer: L.Trainer) -> None:
        """``ConfigError`` if this cannot be used with a Trainer."""
        option = "cuda_graphs=true" if self.cuda_graphs else f"compile={self.compile}"
        device = trainer.strategy.root_device.type
        if self.cuda_graphs and device != "cuda":
            raise ConfigError(
                f"module.cuda_graphs is true, and training is on {device}; expected a GPU with CUDA, or "
                "module.cuda_graphs=false"
            )
        if self.cuda_graphs and trainer.world_size > 1:
            raise ConfigError(
                f"module.cuda_graphs is true, and the run has {trainer.world_size} processes; expected one, or "
                "module.cuda_graphs=false"
            )
        if self.has_graphs and trainer.accumulate_grad_batches > 1:
            raise ConfigError(
                f"trainer.accumulate_grad_batches is {trainer.accumulate_grad_batches} beside module.{option}, whose "
                "gradients lie in the same memory in every step and would overwrite each other; expected 1"
            )


class _Graphs:
    """The forward and the backward pass of a network on images of one shape, captured by torch.

    Autocast is captured as it is when this is made, for ``images``, a batch on a GPU.
    """

    def __init__(self, network: nn.Module, call: CallNetwork, images: Tensor) -> None:
        kind = images.device.type
        # entered in the forward pass only: under autocast the backward pass would compute routing in half precision
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
                    (images.clone(),),  # memory that every batch is copied into
                    allow_unused_input=True,  # a decoder, which the loss calls
                )
        except RuntimeError as error:
            raise ConfigError(
                f"{type(network).__name__} cannot be captured as CUDA graphs: {one_line(error)[:300]}; set "
                "module.cuda_graphs=false"
            ) from error
        self.present = on_tensors.present
        for buffer, before in buffers:  # statistics of batch normalisation: the capture was preceded by passes
            buffer.copy_(before)

    def replay(self, images: Tensor) -> CapsuleOutput:
        """The output of the network, in memory that the next call overwrites."""
        if images.shape != self.shape:
            raise ConfigError(
                f"module.cuda_graphs is true, and images are of shape {tuple(images.shape)} after {tuple(self.shape)}; "
                "expected batches of one size, or module.cuda_graphs=false"
            )
        if self.awaits_backward:
            raise ConfigError(
                "module.cuda_graphs is true, and the network is called twice before a backward pass, which would "
                "overwrite what the first call has kept; expected one call per step, or module.cuda_graphs=false"
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
    """A network in the form that torch captures: it has the parameters, and returns nothing but tensors."""

    def __init__(self, network: nn.Module, call: CallNetwork, autocast: torch.autocast) -> None:
        super().__init__()
        self.network = network
        self.call = call
        self.autocast = autocast
        self.present: list[bool] = []  # of scores, logits, and poses, activations and logits of the capsules

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        with self.autocast:
            output = self.call(images)
        tensors = (output.scores, output.logits, *(output.capsules or (None, None, None)))
        self.present = [tensor is not None for tensor in tensors]
        return tuple(tensor for tensor in tensors if tensor is not None)
