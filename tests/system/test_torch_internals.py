"""Undocumented functions of torch do what ``torch_internals`` says."""

import torch
from torch import Tensor

from capsule_lab.system import torch_internals


def test_processor_with_bfloat16_is_recognised() -> None:
    """On x86."""
    has_bfloat16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    assert torch_internals.cpu_computes_bfloat16() is has_bfloat16


def test_transform_is_recognised_only_while_it_is_active() -> None:
    seen = []

    def look(values: Tensor) -> Tensor:
        seen.append(torch_internals.is_transformed())
        return values

    torch.func.vmap(look)(torch.ones(2))
    assert seen == [True]
    assert not torch_internals.is_transformed()


def test_each_backward_pass_has_its_own_number() -> None:
    numbers = [torch_internals.backward_pass_number()]
    x = torch.ones(1, requires_grad=True)
    x.register_hook(lambda _: numbers.append(torch_internals.backward_pass_number()))
    x.sum().backward()
    x.sum().backward()
    assert numbers[0] == -1
    assert len({*numbers}) == 3


def test_function_that_is_marked_as_constant_is_not_traced() -> None:
    def constant() -> float:
        return float(torch.ones(1).numpy().tobytes()[3])

    marked = torch_internals.constant_when_compiled(constant)
    add = torch.compile(lambda x: x + marked(), backend="eager", fullgraph=True)
    assert add(torch.zeros(1)) == constant()


def test_lists_are_averaged_like_single_tensors() -> None:
    averages = [torch.full((2,), 1.0), torch.full((3,), 2.0)]
    others = [torch.full((2,), 5.0), torch.full((3,), 6.0)]
    torch_internals.average_lists_(averages, others, torch.tensor(0.75))
    assert [average.tolist() for average in averages] == [[2, 2], [3, 3, 3]]


def test_seeded_numbers_are_those_of_manual_seed() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch_internals.seed_generators(5, torch.device("cpu"))
    assert torch.equal(torch.rand(3), expected)
