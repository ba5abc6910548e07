"""Parts of a range in several threads, see ``capsule_lab.kernels.cpu.threads``."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from capsule_lab.kernels.cpu import threads


def test_libgomp_is_the_one_that_torch_has_loaded() -> None:
    """Read from torch 2.15: if this fails after an upgrade, look for where torch brings its OpenMP library."""
    library = threads.libgomp()
    maps = Path("/proc/self/maps")
    loaded = maps.read_text() if maps.exists() else ""
    if "USE_OPENMP=ON" not in torch.__config__.show() or "libgomp" not in loaded:
        pytest.skip("torch runs without GNU OpenMP here")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert library.omp_get_max_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("count", "number", "grain"),
    [(0, 3, 1), (1, 2, 1), (2, 3, 1), (7, 3, 1), (7, 2, 3), (11, 3, 3), (11, 1, 1)],
)
def test_parts_cover_everything_once(
    count: int, number: int, grain: int, many_threads: Callable[[int], None]
) -> None:
    many_threads(number)
    seen: list[tuple[int, int, int]] = []
    threads.parallel_for(lambda *part: seen.append(part), count, grain=grain)
    parts = threads.number_of_parts(count, grain=grain)
    assert parts == max(1, min(number, count // grain))
    before = 0
    for expected, (part, first, last) in enumerate(sorted(seen)):
        assert (part, first) == (expected, before)
        assert parts == 1 or last - first >= grain
        before = last
    assert (len(seen), before) == (parts, count)


def test_parts_run_at_the_same_time(many_threads: Callable[[int], None]) -> None:
    """Each waits for the others."""
    many_threads(3)
    barrier = threading.Barrier(3)
    identities: set[int] = set()

    def kernel(part: int, first: int, last: int) -> None:
        barrier.wait(timeout=30)
        identities.add(threading.get_ident())

    threads.parallel_for(kernel, 3)
    assert len(identities) == 3


class Broken(BaseException):
    """Not an ``Exception``."""


@pytest.mark.parametrize(
    ("where", "kind"), [({0}, ValueError), ({2}, Broken), ({0, 1, 2}, Broken)], ids=str
)
def test_errors_are_raised_in_the_calling_thread(
    kind: type, where: set, many_threads: Callable[[int], None]
) -> None:
    many_threads(3)

    def kernel(part: int, first: int, last: int) -> None:
        if part in where:
            raise kind(f"part {first} to {last}")

    with pytest.raises(kind, match=r"part \d to \d"):
        threads.parallel_for(kernel, 3)
    done: list[int] = []
    threads.parallel_for(lambda part, *_: done.append(part), 3)  # and the next call works
    assert sorted(done) == [0, 1, 2]
