"""All uses of private parts of hydra-core 1.3.8.

``capsule_lab/config/composition.py`` uses ``GlobalHydra.hydra`` beside it, which is undocumented but not private.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hydra._internal import utils
from hydra._internal.hydra import Hydra


@contextmanager
def errors_are_raised() -> Iterator[None]:
    """Within, ``hydra.main`` raises errors instead of printing them and exiting, and composes only once.

    It composes a second time to look for ``hydra.mode``.
    """
    logger = logging.getLogger("hydra.utils")  # it also logs the errors that it raises
    before = utils.run_and_report, Hydra.get_mode, logger.level
    utils.run_and_report = _call  # type: ignore[assignment]
    Hydra.get_mode = _no_mode  # type: ignore[method-assign]
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        utils.run_and_report, Hydra.get_mode = before[:2]  # type: ignore[method-assign]
        logger.setLevel(before[2])


def _call(function: Callable[[], Any]) -> Any:
    return function()


def _no_mode(*_: Any, **__: Any) -> None:
    return None
