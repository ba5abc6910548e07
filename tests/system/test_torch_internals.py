"""Undocumented functions of torch do what ``torch_internals`` says."""

import torch

from capsule_lab.system import torch_internals


def test_processor_with_bfloat16_is_recognised() -> None:
    """On x86."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    assert (
        any(getattr(torch.cpu, each)() for each in names) is torch_internals.cpu_computes_bfloat16()
    )


def test_transform_is_recognised_only_while_it_is_active() -> None:
    seen = []
    torch.func.vmap(lambda x: seen.append(torch_internals.is_transformed()) or x)(torch.ones(2))
    assert (seen, torch_internals.is_transformed()) == ([True], False)


def test_each_backward_pass_has_its_own_number() -> None:
    numbers, x = [torch_internals.backward_pass_number()], torch.ones(1, requires_grad=True)
    x.register_hook(lambda _: numbers.append(torch_internals.backward_pass_number()))
    for _ in range(2):
        x.sum().backward()
    assert (numbers[0], len({*numbers})) == (-1, 3)


def test_function_that_is_marked_as_constant_is_not_traced() -> None:
    marked = torch_internals.constant_when_compiled(
        lambda: float(torch.ones(1).numpy().tobytes()[3])
    )
    assert (
        torch.compile(lambda x: x + marked(), backend="eager", fullgraph=True)(torch.zeros(1))
        == marked()
    )


def test_lists_are_averaged_like_single_tensors() -> None:
    averages, others = (
        [torch.full((2,), start), torch.full((3,), start + 1)] for start in (1.0, 5.0)
    )
    torch_internals.average_lists_(averages, others, torch.tensor(0.75))
    assert [average.tolist() for average in averages] == [[2, 2], [3, 3, 3]]


def test_seeded_numbers_are_those_of_manual_seed() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch_internals.seed_generators(5, torch.device("cpu"))
    assert torch.equal(torch.rand(3), expected)
