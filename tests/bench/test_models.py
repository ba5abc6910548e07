"""Training steps have the sizes and the loss of the configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

from capsule_lab.bench import cases, models
from capsule_lab.routing import DynamicRouting
from tests.helpers.bench import small_case


@pytest.mark.parametrize(("model", "biases"), [("capsnet", 0), ("em_caps_paper", 2 * 17)])
def test_textbook_has_the_sizes_that_were_asked_for(model: str, biases: int) -> None:
    case = small_case(model, "options=['model.channels=3','model.primary.types=2','routing.iterations=2']")
    config = cases.training_config(case.overrides)
    textbook, ours = models.build_textbook(case, config), models.build_network(case, config).network
    sizes = [sum(parameter.numel() for parameter in network.parameters()) for network in (textbook, ours)]
    assert sizes[0] == sizes[1] + biases
    assert len(getattr(textbook, "lambdas", [1, 2])) == 2


def test_step_has_every_term_of_the_loss() -> None:
    terms = []
    for weight in (0.0, 1.0):
        step = models.build_step(small_case("em_caps_paper", f"options=['model.channels=4','module.l2={weight}']"))
        terms.append(step.loss().item())
    kernels = [parameter for name, parameter in step.network.named_parameters() if name.endswith("weight")]
    assert terms[1] - terms[0] == pytest.approx(sum(kernel.square().sum().item() for kernel in kernels) / 2)


def test_compiled_form_compiles_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda network: compiled.append(network))
    step = models.build_step(replace(small_case("capsnet"), form="compiled"))
    assert compiled == [step.network]
    assert [each.backend for each in step.network.modules() if isinstance(each, DynamicRouting)] == ["matmul"]


@pytest.mark.parametrize(
    ("model", "data"),
    [
        ("transforming_autoencoder", "data.change=shift"),
        ("transforming_autoencoder_affine", "data.change=affine"),
        ("pair_autoencoder", "data.change=shift"),
    ],
)
def test_step_of_a_network_that_is_told_a_change(model: str, data: str) -> None:
    overrides = (f"model={model}", "data=mnist_pairs", data)
    sizes = {"batch_size": 2, "image_shape": [1, 28, 28], "num_classes": 10}
    step = models.build_step(cases.Case("model", model, "plain", "32-true", "cpu", sizes, overrides))
    models.take_step(step)
    assert all(parameter.grad is not None for parameter in step.network.parameters())
