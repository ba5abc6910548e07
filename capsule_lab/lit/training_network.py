"""How training steps call the network: directly, or compiled by torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, get_args

import lightning as L
import torch
from torch import Tensor, nn

from capsule_lab.errors import ConfigError, check_choice

Mode = Literal["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
Compile = bool | Mode
"""Whether ``torch.compile`` compiles the network, and in which mode; ``True`` means the default mode."""

_WITH_GRAPHS = ("reduce-overhead", "max-autotune")  # modes in which torch.compile makes CUDA graphs


class TrainingNetwork:
    """Calls a network in training steps; validation and tests call the network directly.

    It is not an ``nn.Module``, and does not change the network: weights keep their names and their memory.
    """

    def __init__(self, network: nn.Module, *, compile: Compile = False) -> None:
        check_choice("compile", compile, (False, True, *get_args(Mode)))
        self.network = network
        self.compile = compile

    def __call__(self, *inputs: Tensor) -> Any:
        """Return the output of the network."""
        return self._call(*inputs)

    @property
    def has_graphs(self) -> bool:
        """Whether ``torch.compile`` makes CUDA graphs."""
        return self.compile in _WITH_GRAPHS

    @cached_property
    def _call(self) -> Callable[..., Any]:
        if not self.compile:
            return self.network
        mode = None if self.compile is True else self.compile
        # the method: compiling the module would rename every weight, or also affect validation
        return torch.compile(self.network.forward, mode=mode)

    def check(self, trainer: L.Trainer) -> None:
        """Raise a ``ConfigError`` if the options do not work with this Trainer."""
        if self.has_graphs and trainer.accumulate_grad_batches > 1:
            raise ConfigError(
                f"trainer.accumulate_grad_batches is {trainer.accumulate_grad_batches} with "
                f"module.compile={self.compile}, whose gradients use the same memory in every step and would "
                "overwrite each other; expected 1"
            )
