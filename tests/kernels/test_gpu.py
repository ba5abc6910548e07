"""The kernels of a GPU without one: in Triton's interpreter against those of a CPU, and compiled.

The interpreter must be chosen before Triton is imported, so it runs in a process of its own.
"""

import importlib
import importlib.util
import multiprocessing
import os
import statistics
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from capsule_lab.kernels import backends
from capsule_lab.kernels.backends import fused_kernels
from capsule_lab.kernels.em_arguments import FitInputs, FitOptions

if importlib.util.find_spec("triton") is None:
    pytest.skip(
        "Triton, which compiles the kernels of a GPU, is not installed", allow_module_level=True
    )

from triton.runtime.driver import driver

from benchmarks import compile as compiling
from benchmarks.compile import (
    Compiler,
    Layer,
    empty_cache,
    launch_all,
    papers_kernels,
    small_kernel,
)
from tests.helpers import gpu_comparison

KERNELS = [
    "agreement",
    "contraction",
    "distances",
    "e_step_by_child",
    "e_step_by_child_backward",
    "fit",
    "fit_backward",
    "softmax_by_child",
    "softmax_by_child_backward",
    "weighted_sum",
]


def initialise() -> None:
    """First call in the process of the interpreter."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    # of masked lanes, which are not stored
    warnings.filterwarnings("ignore", "overflow encountered in exp")


@pytest.fixture(scope="module")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        # the process, which starts here, inherits it
        with patch.dict(os.environ, TRITON_INTERPRET="1"):
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


KERNEL_NAMES = {
    "_fit",
    "_fit_in_passes",
    "_parent_gradients",
    "_sum_components",
    "_grad_poses",
    "_grad_poses_of_fit",
    "_grad_weight",
    "_weighted_sum",
    "_softmax",
    "_softmax_backward",
}


@pytest.mark.whole
def test_compiled_for_hopper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every kernel becomes machine code, also where no GPU is: the interpreter allows more than the compiler."""
    from capsule_lab.kernels import gpu

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compiler = Compiler()
    empty = partial(torch.empty, device="meta")
    poses, weight, parents = empty(3, 2, 40), empty(2, 4, 40), empty(3, 2, 2)
    inputs = FitInputs(poses, weight, empty(3, 40), empty(3, 2, 40), parents)
    with compiler.in_place_of_launching(gpu):
        launch_all(gpu, Layer(3, 2, 40, 1, 2, 2), em=True, dynamic=True)
        gpu.agreement(poses[:1], weight[:1], parents[:1, :1], 2)
        monkeypatch.setattr(gpu.em, "VOTES_KEPT", 1)
        # votes are computed again for each pass over the children
        monkeypatch.setattr(gpu.em, "MOST_WARPS", 1)
        gpu.fit(inputs, FitOptions(2, 0.3, 5e-4, 1e-7, True))
    assert {report.kernel for report in compiler.reports} == KERNEL_NAMES
    assert all(report.registers > 0 == report.spilled for report in compiler.reports)


@pytest.mark.parametrize(
    ("child", "bytes_per_vote", "expected"),
    [
        (288, 64, (1, 8, 1)),  # of EMCaps 32
        (512, 64, (2, 8, 0)),
        (144, 64, (1, 4, 1)),
        (72, 64, (1, 2, 1)),
        (1, 4, (1, 1, 0)),
        (224, 64, (1, 4, 4)),
        (288, 128, (4, 2, 1)),  # float64
        (1152, 64, (4, 8, 1)),
        (1153, 64, (4, 8, None)),
        (10**6, 10**6, (4, 1, None)),
    ],
)
def test_tiles_of_a_fit(
    child: int, bytes_per_vote: int, expected: tuple[int, int, int | None]
) -> None:
    """Registers suffice for the votes of all children, unless ``rest`` is ``None``."""
    from capsule_lab.kernels import gpu

    warps, kept, rest = tiles = gpu.em.fit_tiles(child, bytes_per_vote)
    assert tiles == expected
    assert gpu.em.fit_tiles(512, 64, inner=8) == (4, 4, 0), (
        "poses and weights of coordinates need registers, too"
    )
    if rest is not None:
        assert (kept + rest) * 32 * warps >= child
        assert (kept + rest) * bytes_per_vote // 4 <= gpu.em.VOTES_KEPT


SMALL_KERNELS = 170  # ours: kernels of layers without coordinates in units of a small fixed kernel; 140 were measured
SMALL_KERNELS_OF_COORDINATES = 110  # the other ones; 95 were measured
SMALL_KERNELS_EACH = 20  # 15 were measured


@pytest.mark.slow
def test_papers_layers_compile_soon_and_spill_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Processor time as a ratio, which another machine has as well; the caches of both are empty."""
    from capsule_lab.kernels import gpu

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    small_kernel(0)  # starts the compiler
    before = [small_kernel(count).seconds for count in range(1, 6)]
    reports = list(papers_kernels(gpu))
    unit = statistics.median(before + [small_kernel(count).seconds for count in range(6, 11)])
    assert [(layer, report) for layer, report in reports if report.spilled] == []
    assert max(report.seconds for _, report in reports) < SMALL_KERNELS_EACH * unit
    of_coordinates = sum(report.seconds for layer, report in reports if "coordinates" in layer)
    assert of_coordinates < SMALL_KERNELS_OF_COORDINATES * unit
    assert sum(report.seconds for _, report in reports) - of_coordinates < SMALL_KERNELS * unit


def test_instructions_are_counted_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "        /*0000*/                   LDC R1, c[0x0][0x28] ;   /* 0x00000a00ff017b82 */",
        "                                                            /* 0x000fe20000000800 */",
        "        /*0010*/              @!P0 FFMA.FTZ R3, R0, R3, R5 ;",
        "        /*0020*/             @!PT LDS RZ, [RZ] ;",
        "        /*0030*/                   FFMA R3, R0, R3, R5 ;",
        "        /*0040*/                   NOP;",
    ]
    monkeypatch.setattr(compiling, "_cuobjdump", lambda option, _: "\n".join(lines))
    assert compiling.instructions_of(b"") == {"LDC": 1, "FFMA": 2, "LDS": 1}


def test_resources_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    line = " Function _fit:\n  REG:96 STACK:8 SHARED:1024 LOCAL:0 CONSTANT[0]:616 TEXTURE:0 SURFACE:0 SAMPLER:0"
    monkeypatch.setattr(compiling, "_cuobjdump", lambda option, _: line)
    found = compiling.resources(b"")
    assert [found[name] for name in ("REG", "STACK", "SHARED")] == [96, 8, 1024]


@pytest.mark.slow
def test_votes_with_coordinates_spill_nothing() -> None:
    """Of EMCaps' class capsules, where weights have four more rows for the coordinates."""
    from capsule_lab.kernels import gpu

    compiler = Compiler()
    empty = partial(torch.empty, device="meta")
    poses, weight, parents = empty(64, 32, 512), empty(5, 32, 512), empty(64, 5, 16)
    with compiler.in_place_of_launching(gpu), empty_cache():
        gpu.distances(poses, weight, parents, parents, 8)
        gpu.votes.votes_backward(
            poses,
            weight,
            empty(64, 5, 1, 512),
            empty(64, 5, 4, 16),
            8,
            activations=empty(64, 512),
            grad_distances=empty(64, 5, 512),
            grad_mass=empty(64, 5),
        )
    assert len(compiler.reports) == 3
    assert [report for report in compiler.reports if report.spilled] == []


def test_without_triton_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith("capsule_lab.kernels.gpu"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ImportError, match="triton"):
        importlib.import_module("capsule_lab.kernels.gpu")


def test_triton_that_cannot_start_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a C compiler it can be imported, but launches nothing."""

    class NoCompiler:
        def get_current_target(self) -> None:
            raise RuntimeError("Failed to find C compiler.\nPlease specify via CC.")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(driver, "_active", NoCompiler())  # private, read from Triton 3.8
    backends._imported.cache_clear()
    try:
        assert fused_kernels("cuda") == "Failed to find C compiler. Please specify via CC."
    finally:
        backends._imported.cache_clear()


def test_found_for_a_gpu_without_one() -> None:
    kernels = fused_kernels("cuda")
    assert not isinstance(kernels, str), kernels
    assert sorted(kernels.__all__) == KERNELS
