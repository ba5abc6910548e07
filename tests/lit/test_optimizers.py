"""Groups of parameters, Muon against torch's own classes, and every option of ``conf/optimizer`` in training."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsule_lab.commands.train import train
from capsule_lab.commands.training import Training
from capsule_lab.config.folders import options_of
from capsule_lab.lit.optimizers import Muon, parameter_groups
from capsule_lab.networks import AbstractNetwork, BaselineCNN
from tests.helpers.commands import NO_PICTURES, Tiny
from tests.helpers.modules import classifier
from tests.helpers.networks import small_capsnet, small_em_caps
from tests.helpers.tiers import slow_but
from tests.helpers.training import interrupted_and_resumed, results, weights

NETWORKS: dict[str, Callable[[], AbstractNetwork]] = {
    "cnn": lambda: BaselineCNN((1, 9, 9), 3, channels=(2,), kernel_size=3, hidden=(4,)),
    "capsnet": lambda: small_capsnet((1, 9, 9), 3, kernel_size=3, class_dim=4, decoder=(5,)),
    "em_caps": lambda: small_em_caps((1, 24, 24), 3, conv_types=(2, 3), batch_norm=True),
}
OPTIMIZERS = sorted({*options_of("optimizer")} - {"adam"})


def build_network(name: str) -> AbstractNetwork:
    torch.manual_seed(0)
    return NETWORKS[name]()


@pytest.mark.parametrize(
    ("network", "kernels", "transformations"),
    [
        ("cnn", ["features.0.weight", "classifier.0.weight", "classifier.3.weight"], []),
        (
            "capsnet",
            [
                "conv.weight",
                "primary.conv.weight",
                "decoder.layers.0.weight",
                "decoder.layers.2.weight",
            ],
            ["digits.weight"],
        ),
        (
            "em_caps",
            ["conv.weight", "primary.pose.weight", "primary.activation.weight"],
            ["conv_capsules.0.weight", "conv_capsules.1.weight", "classes.weight"],
        ),
    ],
)
def test_groups(network: str, kernels: list[str], transformations: list[str]) -> None:
    built = build_network(network)
    names = {parameter: name for name, parameter in built.named_parameters()}
    groups = {}
    for group in parameter_groups(built):
        groups[group["rows"]] = {names[parameter] for parameter in group["params"]}
    assert groups[1] == set(kernels)
    assert groups.get(2, set()) == set(transformations)
    assert set().union(*groups.values()) == set(names.values())
    for name in groups[0]:
        assert not name.endswith("weight") or built.get_parameter(name).ndim == 1


@pytest.mark.parametrize("decay_all", [False, True])
def test_weight_decay_is_not_for_biases(decay_all: bool) -> None:
    adamw = functools.partial(torch.optim.AdamW, weight_decay=0.5)
    lit = classifier(optimizer=adamw, decay_all=decay_all)
    nn.init.ones_(lit.network.get_parameter("features.0.bias"))
    before = {name: value.detach().clone() for name, value in lit.network.named_parameters()}
    for parameter in lit.network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = lit.build_optimizer()
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    optimizer.step()
    for name, value in lit.network.named_parameters():
        expected = before[name]
        if value.ndim > 1 or decay_all:
            expected = 0.95 * expected
        torch.testing.assert_close(value.detach(), expected, msg=name)


def test_clipped_gradients_are_for_an_optimizer_that_is_not_fused() -> None:
    """Lightning refuses to clip those of a fused one."""
    lit = classifier(optimizer=functools.partial(torch.optim.Adam, fused=True))
    for clipped in (True, False):
        optimizer = lit.build_optimizer(clipped=clipped)
        assert len(optimizer.param_groups) == 1, "there is no weight decay"
        assert bool(optimizer.defaults["fused"]) is not clipped
        assert bool(getattr(optimizer, "_step_supports_amp_scaling", False)) is not clipped


def stepped(
    build_optimizer: Callable[[list[Tensor]], torch.optim.Optimizer], values: list[Tensor]
) -> list[Tensor]:
    """Values after three steps with gradients that are a function of them."""
    parameters = [nn.Parameter(value.clone()) for value in values]
    optimizer = build_optimizer(parameters)
    for step in range(3):
        for parameter in parameters:
            parameter.grad = (parameter.detach() * (step + 1)).sin()
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


def of_muon(rows: int) -> Callable[[list[Tensor]], torch.optim.Optimizer]:
    return lambda parameters: Muon([{"params": parameters, "rows": rows}], 0.1)


def matrix_of_torch(parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Muon(parameters, 0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")


@pytest.mark.parametrize(
    ("shape", "rows", "matrix", "memory_format"),
    [
        ((6, 4, 3, 2), 1, (6, 24), torch.channels_last),
        ((6, 4, 3, 2), 2, (24, 6), torch.contiguous_format),
        ((5, 7, 1, 1), 1, (5, 7), torch.channels_last),
    ],
)
def test_parameters_of_four_dimensions_step_as_matrices(
    shape: tuple[int, ...], rows: int, matrix: tuple[int, int], memory_format: torch.memory_format
) -> None:
    value = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    laid_out = value.to(memory_format=memory_format)
    (found,) = stepped(of_muon(rows), [laid_out])
    (expected,) = stepped(matrix_of_torch, [value.reshape(matrix)])
    # orthogonalised in bfloat16
    torch.testing.assert_close(found, expected.reshape(shape), rtol=0.02, atol=1e-3)
    assert not torch.allclose(found, value, atol=0.01)


def test_vectors_step_as_adamw() -> None:
    vector = torch.linspace(-1, 1, 5)
    matrix = torch.eye(3, 2)
    options: dict[str, Any] = {"lr": 0.1, "betas": (0.9, 0.95), "weight_decay": 0.1}
    (expected,) = stepped(functools.partial(torch.optim.AdamW, **options), [vector])
    (expected_matrix,) = stepped(matrix_of_torch, [matrix])
    (found,) = stepped(of_muon(0), [vector])
    assert torch.equal(found, expected)
    found, found_matrix = stepped(functools.partial(Muon, lr=0.1), [vector, matrix])
    assert torch.equal(found, expected)
    assert torch.equal(found_matrix, expected_matrix)


def test_parameters_without_a_gradient_stay() -> None:
    unused = nn.Parameter(torch.ones(2, 2))
    Muon([unused], 0.1).step()
    assert torch.equal(unused, torch.ones(2, 2))


def test_every_argument_of_muon_does_something() -> None:
    matrix = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    vector = torch.linspace(-1, 1, 5)
    expected = stepped(functools.partial(Muon, lr=0.1), [matrix, vector])
    changed: dict[str, Any] = {
        "lr": 0.05,
        "weight_decay": 0.5,
        "momentum": 0.5,
        "nesterov": False,
        "ns_steps": 2,
        "adjust_lr_fn": "original",
        "betas": (0.5, 0.95),
        "eps": 0.5,
    }
    for argument, value in changed.items():
        options = {"lr": 0.1, argument: value}
        found = stepped(functools.partial(Muon, **options), [matrix, vector])
        equal = [torch.equal(*pair) for pair in zip(found, expected, strict=True)]
        assert not all(equal), argument


def test_muon_without_orthogonalisation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"optimizer.ns_steps is 0; expected 1 or more"):
        Muon([torch.ones(2, 2)], ns_steps=0)


@pytest.mark.parametrize("optimizer", slow_but(OPTIMIZERS, "muon"))
def test_optimizer_trains_and_resumes_exactly(tiny: Tiny, tmp_path: Path, optimizer: str) -> None:
    config = tiny(
        f"optimizer={optimizer}",
        "trainer.max_epochs=1",
        "schedule.learning_rate.initial=0.01",
        *NO_PICTURES,
    )
    whole = train(config, tmp_path / "whole")
    initial = Training(config, tmp_path / "run", [], 0.0).module.state_dict()
    resumed = interrupted_and_resumed(config, tmp_path / "run", 2)
    assert results(resumed) == results(whole)
    final = weights(tmp_path / "run")
    of_whole = weights(tmp_path / "whole")
    torch.testing.assert_close(final, of_whole, rtol=0, atol=0)
    for name, value in initial.items():
        assert not torch.equal(value, final[name]), name


def test_schedule_and_clipping_reach_all_groups_of_muon(tiny: Tiny, tmp_path: Path) -> None:
    # of gradients this small AdamW makes no steps with such an eps
    config = tiny(
        "optimizer=muon",
        "optimizer.eps=1",
        "trainer.gradient_clip_val=1e-6",
        "trainer.max_epochs=1",
        *NO_PICTURES,
    )
    training = Training(config, tmp_path / "run", [], 0.0)
    training.run()
    groups = training.trainer.optimizers[0].param_groups
    assert len(groups) == 3
    assert {group["lr"] for group in groups} == {groups[0]["lr"]}
    assert 0 < groups[0]["lr"] < 1e-3
    biases = weights(tmp_path / "run")["network.digits.routing.bias"]
    torch.testing.assert_close(biases, torch.full_like(biases, 0.1), rtol=0, atol=1e-6)
