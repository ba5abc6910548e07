"""The kernels of a GPU without one: in Triton's interpreter against those of a CPU, and compiled.

The interpreter must be chosen before Triton is imported, so it runs in a process of its own.
"""

import importlib
import importlib.util
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from capsule_lab.kernels.backends import fused_kernels
from capsule_lab.kernels.em_arguments import FitInputs, FitOptions, FitOutputs, Parents

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton, which compiles the kernels of a GPU, is not installed", allow_module_level=True)

from tests.helpers import gpu_comparison
from tests.helpers.hopper import PAPERS, Compiler, Layer, launch_all

KERNELS = ["agreement", "contraction", "distances", "fit", "fit_backward", "softmax_by_child"]
KERNELS += ["softmax_by_child_backward", "weighted_sum"]


def initialise() -> None:
    """First call in the process of the interpreter."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "overflow encountered in exp")  # of masked lanes, which are not stored


@pytest.fixture(scope="module")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with patch.dict(os.environ, TRITON_INTERPRET="1"):  # inherited by the process, which starts here
            pool.submit(initialise).result()
        yield pool


@pytest.mark.whole
@pytest.mark.parametrize("name", gpu_comparison.CASES)
def test_interpreted(name: str, interpreter: ProcessPoolExecutor) -> None:
    interpreter.submit(gpu_comparison.compare, name, "cpu").result()


@pytest.mark.whole
def test_interpreted_in_any_memory_order(interpreter: ProcessPoolExecutor) -> None:
    interpreter.submit(gpu_comparison.compare_order, "cpu").result()


@pytest.mark.whole
def test_interpreted_routing(interpreter: ProcessPoolExecutor) -> None:
    for algorithm, options in gpu_comparison.ROUTINGS:
        interpreter.submit(gpu_comparison.compare_routing, "cpu", algorithm, options).result()
    interpreter.submit(gpu_comparison.compare_convolutional_routing, "cpu").result()


KERNEL_NAMES = {"_fit", "_sum_children", "_sum_components", "_grad_poses", "_grad_poses_of_fit", "_grad_weight"}
KERNEL_NAMES |= {"_softmax", "_softmax_backward", "_weighted_sum"}


@pytest.mark.whole
def test_compiled_for_hopper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every kernel becomes machine code, also where no GPU is: the interpreter allows more than the compiler."""
    from capsule_lab.kernels import gpu

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compiler = Compiler(gpu, monkeypatch)
    launch_all(gpu, Layer(3, 2, 40, 1, 2, 2), em=True, dynamic=True)
    empty = partial(torch.empty, device="meta")
    poses, weight, parents = empty(3, 2, 40), empty(2, 4, 40), empty(3, 2, 2)
    inputs = FitInputs(poses, weight, empty(3, 40), empty(3, 2, 40), parents)
    fitted = Parents(empty(3, 2), parents, parents)
    gpu.fit_backward(inputs, fitted, FitOutputs(*fitted, empty(3, 2, 0)), 2, 0.0, 5e-4)
    gpu.agreement(poses[:1], weight[:1], parents[:1, :1], 2)
    monkeypatch.setattr(gpu.em, "VOTES_KEPT", 1)  # votes are computed again for each pass over the children
    gpu.fit(inputs, FitOptions(2, 0.3, 5e-4, 1e-7, True))
    assert {report.kernel for report in compiler.reports} == KERNEL_NAMES
    assert all(report.registers > 0 == report.spilled for report in compiler.reports)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_blocks_of_the_papers_layers_spill_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    from capsule_lab.kernels import gpu

    compiler = Compiler(gpu, monkeypatch)
    launch_all(gpu, PAPERS[name], em=name != "CapsNet", dynamic=name == "CapsNet")
    for report in compiler.reports:
        record_property(f"{name}: {report.kernel}", str(report))
        print(name, report)  # noqa: T201  # pytest -rP
    assert [report for report in compiler.reports if report.spilled] == []


@pytest.mark.slow
def test_votes_with_coordinates_spill_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of EMCaps' class capsules, where weights have four more rows for the coordinates."""
    from capsule_lab.kernels import gpu

    compiler = Compiler(gpu, monkeypatch)
    empty = partial(torch.empty, device="meta")
    poses, weight, parents = empty(64, 32, 512), empty(5, 32, 512), empty(64, 5, 16)
    gpu.distances(poses, weight, parents, parents, 8)
    gpu.votes.votes_backward(
        poses, weight, empty(64, 5, 1, 512), empty(64, 5, 4, 16), 8,
        activations=empty(64, 512), grad_distances=empty(64, 5, 512), grad_mass=empty(64, 5),
    )  # fmt: skip
    assert len(compiler.reports) == 3
    assert [report for report in compiler.reports if report.spilled] == []


def test_without_triton_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("capsule_lab.kernels.gpu")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ImportError, match="triton"):
        importlib.import_module("capsule_lab.kernels.gpu")


def test_found_for_a_gpu_without_one() -> None:
    kernels = fused_kernels("cuda")
    assert not isinstance(kernels, str), kernels
    assert sorted(kernels.__all__) == KERNELS
