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
NORMS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "rows": (nn.BatchNorm1d(FEATURES), ()),
    "sequences": (nn.BatchNorm1d(FEATURES), (5,)),
    "maps": (nn.BatchNorm2d(FEATURES, eps=1e-3, momentum=0.3), (4, 2)),
    "types": (nn.BatchNorm3d(FEATURES), (4, 2, 2)),
    "plain mean": (nn.BatchNorm2d(FEATURES, momentum=None), (4, 2)),
    "no weights": (nn.BatchNorm2d(FEATURES, affine=False), (4, 2)),
    "no running statistics": (nn.BatchNorm2d(FEATURES, track_running_stats=False), (4, 2)),
}
"""Batch normalisations, and the shape of what they normalise after row and feature."""


def rows(*positions: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return 2 + torch.randn(ROWS, FEATURES, *positions, dtype=torch.float64, generator=generator)


def weights_of_rows(*positions: int) -> Tensor:
    values = rows(*positions)
    return torch.linspace(-1, 1, values.numel(), dtype=torch.float64).view_as(values)


def everything(
    norm: Any, values: Tensor, weights: Tensor, *, everywhere: bool = False
) -> dict[str, list[Tensor]]:
    """Output, gradients of the values and the parameters, and running statistics; of two steps."""
    normalise = partial(batch_norm_of_all_processes, norm) if everywhere else norm
    values = values.clone().requires_grad_()
    normalise(values.flip(-1) ** 2)
    output = normalise(values)
    inputs = [values, *norm.parameters()]
    to_values, *to_parameters = torch.autograd.grad((weights * output).sum(), inputs)
    return {
        "output": [output.detach()],
        "values": [to_values],
        "parameters": to_parameters,
        "kept": [*norm.buffers()],
    }


@pytest.fixture
def a_group_of_one() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("name", NORMS)
def test_batch_norm_of_all_processes_is_torchs_in_a_single_one(
    name: str, a_group_of_one: None
) -> None:
    norm, positions = NORMS[name]
    given = rows(*positions), weights_of_rows(*positions)
    ours = everything(copy.deepcopy(norm).double(), *given, everywhere=True)
    theirs = everything(copy.deepcopy(norm).double(), *given)
    assert_close(ours, theirs)


def test_half_precision_is_normalised_in_single_precision(a_group_of_one: None) -> None:
    images = rows(4, 2).bfloat16()
    ours, theirs = nn.BatchNorm2d(FEATURES), nn.BatchNorm2d(FEATURES)
    output = batch_norm_of_all_processes(ours, images)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, theirs(images))
    torch.testing.assert_close(ours.running_var, theirs.running_var)


@pytest.mark.parametrize("training", [True, False])
def test_one_process_equals_torchs_batch_norm(training: bool) -> None:
    ours = BatchNorm(FEATURES).double().train(training)
    theirs = nn.BatchNorm1d(FEATURES).double().train(training)
    found = everything(ours, rows(), weights_of_rows())
    assert_close(found, everything(theirs, rows(), weights_of_rows()))


def test_one_row_is_normalised_by_the_running_statistics() -> None:
    norm = BatchNorm(FEATURES).double()
    norm(rows())
    before = norm.running_mean.clone()
    expected = norm.eval()(rows()[:1])
    assert torch.equal(norm.train()(rows()[:1]), expected)
    assert torch.equal(norm.running_mean, before)


def in_a_process(rank: int, shares: list[slice], folder: str) -> None:
    distributed.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=len(shares)
    )
    share = shares[rank]
    capsules = BatchNorm(FEATURES).double()
    parts = {"capsules": everything(capsules, rows()[share], weights_of_rows()[share])}
    for name, (norm, positions) in NORMS.items():
        values = rows(*positions)[share]
        weights = weights_of_rows(*positions)[share]
        parts[name] = everything(norm.double(), values, weights, everywhere=True)
    torch.save(parts, Path(folder, f"{rank}.pt"))
    distributed.destroy_process_group()


@pytest.mark.whole
@pytest.mark.integration
@pytest.mark.parametrize(
    "shares", [[slice(0, 4), slice(4, 8)], [slice(0, 7), slice(7, 8)]], ids=["equal", "7 and 1"]
)
def test_two_processes_equal_one_with_both_batches(shares: list[slice], tmp_path: Path) -> None:
    context: Any = multiprocessing.get_context("spawn")
    processes = []
    for rank in range(2):
        given = (rank, shares, str(tmp_path))
        processes.append(context.Process(target=in_a_process, args=given))
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    of_one = torch.load(tmp_path / "0.pt")
    of_other = torch.load(tmp_path / "1.pt")
    norms = {"capsules": (nn.BatchNorm1d(FEATURES), ()), **NORMS}
    for name, (norm, positions) in norms.items():
        norm = copy.deepcopy(norm).double()
        expected = everything(norm, rows(*positions), weights_of_rows(*positions))
        one, other = of_one[name], of_other[name]
        for part in ("output", "values"):
            whole = torch.cat([*one[part], *other[part]])
            assert_close([whole], expected[part])
        # DDP takes the mean of the gradients of parameters
        pairs = zip(one["parameters"], other["parameters"], strict=True)
        assert_close([first + second for first, second in pairs], expected["parameters"])
        assert_close(one["kept"], expected["kept"])
        assert_close(other["kept"], expected["kept"])
