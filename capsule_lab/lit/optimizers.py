"""Parameter groups of optimizers, and the one optimizer for which torch's class is not enough."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from capsule_lab.errors import check_number
from capsule_lab.system import environment


def parameter_groups(
    network: nn.Module, frozen: Set[Tensor] = frozenset(), *, decay_all: bool = False
) -> list[dict[str, Any]]:
    """Divide the parameters of a network, but those that are ``frozen``, into groups for an optimizer.

    The groups are kernels of linear layers and convolutions; transformations of capsules; and the rest: biases, betas,
    scales of normalisations, and the attention of ``AttentionOverChildren``. The rest has weight decay only with
    ``decay_all``: shrinking these does not limit complexity, and most recipes exempt them (He et al. 2019, "Bag of
    tricks", section 3.1). Kernels and transformations are parameters named ``weight`` with two or more dimensions, as
    in ``losses.l2_loss``.

    Returns:
        Groups with ``params`` and, for ``Muon``, ``rows``: the number of leading dimensions that are the rows of a
        matrix, or 0 if the parameter is not a matrix: neither a kernel nor a ``weight`` of four dimensions.
    """
    members: dict[tuple[int, bool], list[Tensor]] = {}  # by rows, and whether weights decay
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in frozen:
                continue
            is_kernel = name.endswith("weight") and parameter.ndim > 1
            rows = _rows(module, parameter) if is_kernel else 0
            members.setdefault((rows, is_kernel or decay_all), []).append(parameter)
    groups = []
    for rows, decays in sorted(members, reverse=True):
        group: dict[str, Any] = {"params": members[rows, decays], "rows": rows}
        if not decays:
            group["weight_decay"] = 0.0
        groups.append(group)
    return groups


def use_device_values(optimizer: Optimizer, device: torch.device) -> None:
    """Keep what changes from step to step in the memory of a GPU, where CUDA graphs can read it.

    It is done with and without graphs, so that both have the same results, and after a checkpoint is loaded, which may
    have been written on another device. Optimizers that are not ``capturable`` stay as they are.
    """
    for group in optimizer.param_groups:
        rate = float(group["lr"])
        reads_device = "capturable" in group or bool(group.get("fused"))
        on_device = reads_device and environment.is_gpu(device)
        group["lr"] = torch.tensor(rate, device=device) if on_device else rate
        if "capturable" in group:
            # a CPU counts steps on the host
            group["capturable"] = on_device and device.type != "cpu"
        if group.get("capturable"):
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                if "step" in state:
                    state["step"] = state["step"].to(device)


def _rows(module: nn.Module, parameter: Tensor) -> int:
    if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return 1
    return 2 if parameter.ndim == 4 else 0


def _empty_groups() -> list[dict[str, Any]]:
    return [{"params": []}]


class Muon(Optimizer):
    """One optimizer with Muon (Jordan 2024) for the matrices of a network and AdamW for all other parameters.

    ``torch.optim.Muon`` accepts parameters of two dimensions only. This class reshapes others to matrices: kernels of
    convolutions to (out, in * height * width), as in its author's code; transformations of capsules, ``(child, inner,
    parent, columns)``, to (child * inner, parent * columns), the linear map of their layer under equal couplings
    (ours). AdamW trains everything else: biases, betas, scales, and other parameters of two or more dimensions, such as
    the weights of ``SelfRouting`` and the attention of ``AttentionOverChildren``.

    Args:
        params: groups from ``parameter_groups``; without ``rows``, a parameter of two or more dimensions is a matrix
            with its first dimension as rows.
        lr: learning rate of both; ``adjust_lr_fn`` makes it suit both.
        weight_decay: decoupled weight decay of both.
        momentum, nesterov, ns_steps, adjust_lr_fn: see ``torch.optim.Muon``. ``"match_rms_adamw"`` scales the steps of
            a matrix to the size of AdamW's, so that one learning rate suits all parameters (Liu et al. 2025, "Muon is
            scalable for LLM training", section 2.2).
        betas, eps: see ``torch.optim.AdamW``.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        weight_decay: float = 0.1,  # torch's default, and Liu et al. 2025
        momentum: float = 0.95,  # Jordan 2024
        nesterov: bool = True,  # Jordan 2024
        ns_steps: int = 5,  # Jordan 2024
        adjust_lr_fn: Literal[
            "original", "match_rms_adamw", "spectral_unclamped"
        ] = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.95),  # Jordan 2024, for AdamW
        eps: float = 1e-8,  # Kingma and Ba 2015
    ) -> None:
        check_number("optimizer.ns_steps", ns_steps, 1)
        self._muon = torch.optim.Muon(
            _empty_groups(),
            lr,
            weight_decay,
            momentum,
            nesterov,
            ns_steps=ns_steps,
            adjust_lr_fn=adjust_lr_fn,
        )
        first, second = betas  # a configuration has a list
        self._adamw = torch.optim.AdamW(_empty_groups(), lr, (first, second), eps, weight_decay)
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step of both optimizers on all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            matrices: list[_Matrix] = []
            states_of_matrices: dict[Tensor, Any] = {}
            states_of_others: dict[Tensor, Any] = {}
            for parameter in group["params"]:
                rows = group.get("rows", int(parameter.ndim > 1))
                if parameter.grad is None:
                    continue
                if rows == 0:
                    states_of_others[parameter] = self.state[parameter]
                    continue
                matrix = _Matrix(parameter, rows)
                matrices.append(matrix)
                states_of_matrices[matrix.matrix] = self.state[parameter]
            self._step_of(self._muon, group, states_of_matrices)
            self._step_of(self._adamw, group, states_of_others)
            for matrix in matrices:
                matrix.write()
        return loss

    @staticmethod
    def _step_of(optimizer: Optimizer, group: dict[str, Any], states: dict[Tensor, Any]) -> None:
        if states:
            options = dict(optimizer.defaults, lr=group["lr"], weight_decay=group["weight_decay"])
            optimizer.param_groups = [{**options, "params": list(states)}]
            optimizer.state = states  # type: ignore[assignment]
            optimizer.step()


class _Matrix:
    """A parameter and its gradient as matrices: views of the same memory where strides allow it, else copies."""

    def __init__(self, parameter: Tensor, rows: int) -> None:
        assert parameter.grad is not None
        self.parameter = parameter
        self.matrix = parameter.detach().flatten(rows).flatten(0, rows - 1)
        self.matrix.grad = parameter.grad.flatten(rows).flatten(0, rows - 1)

    def write(self) -> None:
        if self.matrix.data_ptr() != self.parameter.data_ptr():
            self.parameter.copy_(self.matrix.view(self.parameter.shape))
