"""Error on other images at the moment when the validation error has a given value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import lightning as L
import numpy as np

from capsule_lab.errors import check_number

_WINDOW = 1.5  # ours: validations with an error within this factor of the level determine the line
_ROUNDING = 1e-5  # ours, relative: a float32 of 4 % may be 4.0000019


class AtEqualError(L.Callback):
    """Compares networks that generalise to other images at equal error on images like those of the training.

    A network that has trained longer has a smaller error on both kinds of images. The last weights of two networks
    therefore compare how fast they learn, too. This callback stores both errors at every validation. For each level, it
    fits a line, by least squares, to the other error as a function of the first. It uses the validations whose first
    error is between two thirds of the level and one and a half times the level, because a single validation is partly
    chance. The value of the line at the level is the result. A level has no result without three validations in its
    range, with errors on both sides of the level: a run that learns fast may skip a level, so validate often.
    ``levels`` are percentages of the logged error ``first``, which is made equal; ``other`` is the one that is
    compared, or several, whose results are ``<name>/<level>``.
    """

    def __init__(
        self,
        levels: Sequence[float],
        *,
        first: str = "val/error",
        other: str | Sequence[str] = "novel_val/error",
    ) -> None:
        if not levels:
            raise ValueError(
                "levels is empty; expected percentages of the error that is made equal, such as [15, 10]"
            )
        for level in levels:
            check_number("levels", level, above=0, below=100)
        self.levels = {f"{level:g}": float(level) for level in levels}
        self.first = first
        self.others = (other,) if isinstance(other, str) else tuple(other)
        if not self.others or len({*self.others}) < len(self.others):
            raise ValueError(
                f"other is {[*self.others]}; expected one or several different errors, such as novel_val/error"
            )
        self.errors: list[tuple[float, ...]] = []

    @classmethod
    def of(cls, trainer: L.Trainer) -> AtEqualError | None:
        """Return the callback of this class in a run, if there is one."""
        callbacks = cast(Any, trainer).callbacks  # not in the type
        return next((callback for callback in callbacks if isinstance(callback, cls)), None)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        metrics = trainer.callback_metrics
        names = (self.first, *self.others)
        for name in names:
            if name not in metrics:
                logged = sorted(metric for metric in metrics if metric.endswith("/error"))
                raise ValueError(
                    f"this run does not log {name}, which callbacks.at_equal_error compares; expected some of "
                    f"{', '.join(logged)}"
                )
        self.errors.append(tuple(float(metrics[name]) for name in names))

    def results(self) -> dict[str, float | None]:
        """Return each other error at each level and in the last validation (``end``), ``None`` without a result."""
        results: dict[str, float | None] = {}
        for index, other in enumerate(self.others, start=1):
            prefix = f"{other.removesuffix('/error')}/" if len(self.others) > 1 else ""
            pairs = [(errors[0], errors[index]) for errors in self.errors]
            for name, level in self.levels.items():
                results[prefix + name] = at_level(pairs, level)
            results[f"{prefix}end"] = pairs[-1][1] if pairs else None
        return results

    def state_dict(self) -> dict[str, Any]:
        return {"errors": self.errors}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.errors = [tuple(pair) for pair in state_dict["errors"]]


def at_level(errors: Sequence[tuple[float, float]], level: float) -> float | None:
    """Return the second error where the first equals ``level``, ``None`` without a result; see ``AtEqualError``."""
    rounding = _ROUNDING * level
    least, most = level / _WINDOW - rounding, level * _WINDOW + rounding
    near = [pair for pair in errors if least <= pair[0] <= most]
    if len(near) < 3:
        return None
    first, other = np.array(near).T
    lowest, highest = first.min(), first.max()
    if lowest == highest or not lowest - rounding <= level <= highest + rounding:
        return None
    _, at_zero = np.polyfit(first - level, other, 1)
    return float(at_zero)
