import copy
import multiprocessing
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from capsule_lab.routing.batch_norm import BatchNorm, batch_norm_of_all_processes
from tests.helpers.closeness import assert_close

FEATURES, ROWS = 3, 8
Case = tuple[nn.Module, tuple[int, ...]]
NORMS: dict[str, Case] = {
    "rows": (nn.BatchNorm1d(FEATURES), ()),
    "sequences": (nn.BatchNorm1d(FEATURES), (5,)),
    "maps": (nn.BatchNorm2d(FEATURES, eps=1e-3, momentum=0.3), (4, 2)),
    "types": (nn.BatchNorm3d(FEATURES), (4, 2, 2)),
    "plain mean": (nn.BatchNorm2d(FEATURES, momentum=None), (4, 2)),
    "no weights": (nn.BatchNorm2d(FEATURES, affine=False), (4, 2)),
    "no running statistics": (
        nn.BatchNorm2d(FEATURES, track_running_stats=False),
        (4, 2),
    ),
}
"""Batch normalisations, and the shape of what they normalise after row and feature."""


def rows(*positions: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = ROWS, FEATURES, *positions
    return 2 + torch.randn(shape, dtype=torch.float64, generator=generator)


def weights_of_rows(*positions: int) -> Tensor:
    shape = torch.Size((ROWS, FEATURES, *positions))
    weights = torch.linspace(-1, 1, shape.numel(), dtype=torch.float64)
    return weights.view(shape)


def everything(
    norm: Any, values: Tensor, weights: Tensor, *, everywhere: bool = False
) -> dict[str, list[Tensor]]:
    """Output, gradients of the values and the parameters, and running statistics; of two steps."""
    normalise = partial(batch_norm_of_all_processes, norm) if everywhere else norm
    values = values.clone().requires_grad_()
    normalise(values.flip(-1) ** 2)
    output = normalise(values)
    inputs = [values, *norm.parameters()]
    loss = (weights * output).sum()
    to_values, *to_parameters = torch.autograd.grad(loss, inputs)
    return {
        "output": [output.detach()],
        "values": [to_values],
        "parameters": to_parameters,
        "kept": [*norm.buffers()],
    }


@pytest.fixture
def a_group_of_one() -> Iterator[None]:
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("name", NORMS)
def test_batch_norm_of_all_processes_is_torchs_in_a_single_one(
    name: str, a_group_of_one: None
) -> None:
    norm, positions = NORMS[name]
    given = rows(*positions), weights_of_rows(*positions)
    ours = copy.deepcopy(norm).double()
    theirs = copy.deepcopy(norm).double()
    found = everything(ours, *given, everywhere=True)
    expected = everything(theirs, *given)
    assert_close(found, expected)


def test_half_precision_is_normalised_in_single_precision(a_group_of_one: None) -> None:
    images = rows(4, 2).bfloat16()
    ours = nn.BatchNorm2d(FEATURES)
    theirs = nn.BatchNorm2d(FEATURES)
    output = batch_norm_of_all_processes(ours, images)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, theirs(images))
    torch.testing.assert_close(ours.running_var, theirs.running_var)


@pytest.mark.parametrize("training", [True, False])
def test_one_process_equals_torchs_batch_norm(training: bool) -> None:
    ours = BatchNorm(FEATURES).double().train(training)
    theirs = nn.BatchNorm1d(FEATURES).double().train(training)
    found = everything(ours, rows(), weights_of_rows())
    expected = everything(theirs, rows(), weights_of_rows())
    assert_close(found, expected)


def test_one_row_is_normalised_by_the_running_statistics() -> None:
    norm = BatchNorm(FEATURES).double()
    norm(rows())
    before = norm.running_mean.clone()
    row = rows()[:1]
    expected = norm.eval()(row)
    found = norm.train()(row)
    assert torch.equal(found, expected)
    assert torch.equal(norm.running_mean, before)


def in_a_process(rank: int, shares: list[slice], folder: str) -> None:
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", store, rank=rank, world_size=len(shares))
    share = shares[rank]
    capsules = BatchNorm(FEATURES).double()
    values = rows()[share]
    weights = weights_of_rows()[share]
    parts = {"capsules": everything(capsules, values, weights)}
    for name, (norm, positions) in NORMS.items():
        values = rows(*positions)[share]
        weights = weights_of_rows(*positions)[share]
        parts[name] = everything(norm.double(), values, weights, everywhere=True)
    torch.save(parts, Path(folder, f"{rank}.pt"))
    distributed.destroy_process_group()


@pytest.mark.whole
@pytest.mark.integration
@pytest.mark.parametrize(
    "shares",
    [
        pytest.param([slice(0, 4), slice(4, 8)], id="equal", marks=pytest.mark.slow),
        pytest.param([slice(0, 7), slice(7, 8)], id="7 and 1"),
    ],
)
def test_two_processes_equal_one_with_both_batches(shares: list[slice], tmp_path: Path) -> None:
    context: Any = multiprocessing.get_context("spawn")
    processes = []
    for rank in range(2):
        given = (rank, shares, str(tmp_path))
        process = context.Process(target=in_a_process, args=given)
        process.start()
        processes.append(process)
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    of_one = torch.load(tmp_path / "0.pt")
    of_other = torch.load(tmp_path / "1.pt")
    norms = {"capsules": (nn.BatchNorm1d(FEATURES), ()), **NORMS}
    for name, (norm, positions) in norms.items():
        norm = copy.deepcopy(norm).double()
        values = rows(*positions)
        weights = weights_of_rows(*positions)
        expected = everything(norm, values, weights)
        one = of_one[name]
        other = of_other[name]
        for part in ("output", "values"):
            whole = torch.cat([*one[part], *other[part]])
            assert_close([whole], expected[part])
        # DDP takes the mean of the gradients of parameters
        pairs = zip(one["parameters"], other["parameters"], strict=True)
        sums = [first + second for first, second in pairs]
        assert_close(sums, expected["parameters"])
        assert_close(one["kept"], expected["kept"])
        assert_close(other["kept"], expected["kept"])
