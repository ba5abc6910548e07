"""Open a run's network as the subject of a question."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from capsule_lab.runs.open_run import Run
from capsule_studies.attacks import shifts
from capsule_studies.attacks.gradient import GREY_LEVELS
from capsule_studies.images import StudyImages
from capsule_studies.subject import Subject


def open_subject(run: Run, network: Any, images: StudyImages) -> Subject:
    """Return the subject of a question: a network, in evaluation mode and float32, with a run's images."""
    images.check_preprocessing(
        "a transformation that treats integer and floating-point grey levels of 0 to 255 alike"
    )
    fill = "black" if images.has_black_background else "border"

    def change(shift: Callable[..., Tensor], pixels: Tensor, strength: float) -> Tensor:
        return shift(None, pixels, strength, box=GREY_LEVELS, fill=fill)

    functions = (shifts.rotation, shifts.translation, shifts.scaling, shifts.shear)
    return Subject(
        network=network.float().eval().to(images.device),
        batches=images.seen,
        changed=lambda change, strength: images.changed(lambda pixels: change(pixels, strength)),
        changes={shift.__name__: partial(change, shift) for shift in functions},
        training=images.of_training,
        factors=images.data.spec.factors,
        classes=images.data.spec.classes,
        num_classes=run.spec.num_classes,
    )
