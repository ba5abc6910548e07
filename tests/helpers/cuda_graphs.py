"""A stand-in for CUDA graphs without a GPU: passes are recomputed into memory that stays the same."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_lab.lit.training_network import TrainingNetwork


class FakeGraphs:
    """Stands in for ``torch.cuda.make_graphed_callables`` and overwrites the same memory."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.captures: list[tuple[int, ...]] = []  # shapes of images
        self.replays = 0  # of forward passes
        patch.setattr(torch.cuda, "make_graphed_callables", self.capture)
        patch.setattr(TrainingNetwork, "check", lambda self, trainer: None)  # that there is a GPU

    def capture(self, module: nn.Module, sample: tuple[Tensor], *, allow_unused_input: bool = False) -> nn.Module:
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu"), "the backward pass would be captured under autocast"
        self.captures.append(tuple(sample[0].shape))
        images, run, parameters = sample[0], module.forward, tuple(module.parameters())

        def gradients(outputs: tuple[Tensor, ...], given: list[Tensor]) -> tuple[Tensor | None, ...]:
            return torch.autograd.grad(outputs, parameters, given, allow_unused=allow_unused_input)

        for _ in range(3):  # as torch does, with any numbers
            outputs = run(images)
            gradients(outputs, [torch.full_like(each, torch.nan) for each in outputs])
        memory = _Memory()
        fake = self

        class Graphed(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, given: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
                fake.replays += 1
                images.copy_(given)
                with torch.enable_grad():
                    memory.outputs = run(images)  # with what the backward pass needs
                return tuple(each.detach() for each in memory.keep("outputs", memory.outputs))

            @staticmethod
            def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
                computed = gradients(memory.outputs, [value.clone() for value in given])
                return None, *(each if each is None else each.detach() for each in memory.keep("gradients", computed))

        module.forward = lambda images: Graphed.apply(images, *parameters)  # type: ignore[method-assign]
        return module


class _Memory:
    """Tensors in the same memory after every replay."""

    def __init__(self) -> None:
        self.outputs: tuple[Tensor, ...] = ()
        self.kept: dict[str, list[Tensor | None]] = {}

    def keep(self, name: str, values: tuple[Any, ...]) -> list[Any]:
        if name not in self.kept:
            self.kept[name] = [value if value is None else value.detach().clone() for value in values]
        for old, new in zip(self.kept[name], values, strict=True):
            if old is not None:
                old.copy_(new.detach())
        return self.kept[name]
