import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from capsule_lab.routing.batch_norm import BatchNorm

FEATURES, ROWS = 3, 8


def rows() -> Tensor:
    return 2 + torch.randn(ROWS, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def everything(norm: nn.BatchNorm1d, values: Tensor, weights: Tensor) -> list[Tensor]:
    """The output, the gradients of the input and the parameters, and the running statistics."""
    values = values.clone().requires_grad_()
    output = norm(values)
    gradients = torch.autograd.grad((weights * output).sum(), [values, norm.weight, norm.bias])
    return [output.detach(), *gradients, norm.running_mean, norm.running_var]


def weights_of_rows() -> Tensor:
    return torch.linspace(-1, 1, ROWS * FEATURES, dtype=torch.float64).view(ROWS, FEATURES)


@pytest.mark.parametrize("training", [True, False])
def test_one_process_equals_torchs_batch_norm(training: bool) -> None:
    ours, theirs = (kind(FEATURES).double().train(training) for kind in (BatchNorm, nn.BatchNorm1d))
    for one, other in zip(*(everything(norm, rows(), weights_of_rows()) for norm in (ours, theirs)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_one_row_is_normalised_by_the_running_statistics() -> None:
    norm = BatchNorm(FEATURES).double()
    norm(rows())
    before = norm.running_mean.clone()
    expected = norm.eval()(rows()[:1])
    assert torch.equal(norm.train()(rows()[:1]), expected)
    assert torch.equal(norm.running_mean, before)


def in_a_process(rank: int, shares: list[slice], folder: str) -> None:
    distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=len(shares))
    share = shares[rank]
    part = everything(BatchNorm(FEATURES).double().train(), rows()[share], weights_of_rows()[share])
    torch.save(part, Path(folder, f"{rank}.pt"))
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("shares", [[slice(0, 4), slice(4, 8)], [slice(0, 7), slice(7, 8)]], ids=["equal", "7 and 1"])
def test_two_processes_equal_one_with_both_batches(shares: list[slice], tmp_path: Path) -> None:
    context: Any = multiprocessing.get_context("spawn")
    processes = [context.Process(target=in_a_process, args=(rank, shares, str(tmp_path))) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    expected = everything(nn.BatchNorm1d(FEATURES).double().train(), rows(), weights_of_rows())
    outputs, to_rows, to_weight, to_bias, *_ = zip(*parts, strict=True)
    whole = torch.cat(outputs), torch.cat(to_rows), sum(to_weight), sum(to_bias)  # DDP takes their mean
    torch.testing.assert_close(list(whole), expected[:4], rtol=0, atol=1e-12)
    for statistics in (part[4:] for part in parts):
        torch.testing.assert_close(statistics, expected[4:], rtol=0, atol=1e-12)
