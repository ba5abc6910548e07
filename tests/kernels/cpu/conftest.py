from collections.abc import Callable, Iterator

import pytest
import torch

from capsule_lab.kernels.cpu import threads


@pytest.fixture(params=["libgomp", "pool"])
def many_threads(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], None]]:
    """Sets the number of threads, of both kinds."""
    if request.param == "pool":
        monkeypatch.setattr(threads, "libgomp", lambda: None)
    elif threads.libgomp() is None:
        pytest.skip("torch brings no GNU OpenMP here")
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
