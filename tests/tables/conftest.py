from collections.abc import Iterator

import pytest

from tests.helpers.tables import shared_compositions


@pytest.fixture(scope="package", autouse=True)
def _shared_compositions() -> Iterator[None]:
    with shared_compositions():
        yield
