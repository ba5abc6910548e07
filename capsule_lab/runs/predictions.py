"""The predictions of a test, image by image: ``predictions.npz`` of a run, and a file beside each evaluation."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from capsule_lab.errors import RunError, one_line
from capsule_lab.runs.files import writing
from capsule_lab.system.files import atomically

FILE = "predictions.npz"
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Predictions:
    """What a network predicted for each test image.

    Attributes:
        label: classes of the image, ``(image,)``, or ``(image, label)`` in ascending order.
        prediction: predicted classes, in the same shape.
        margin: lowest score of the image's classes minus the highest score of the others, in the unit of the
            network's logits or, without logits, scores; negative if a class is wrong.
        cluster: number of the object that the image shows, such as the toy of smallNORB; ``None`` if each image
            shows another.
        part: index of the image's part of the test set in ``DataModule.test_parts``; ``None`` without parts.
    """

    label: Array
    prediction: Array
    margin: Array
    cluster: Array | None = None
    part: Array | None = None

    @property
    def wrong(self) -> npt.NDArray[np.bool_]:
        """Whether any class of an image is wrong, ``(image,)``."""
        different = self.label != self.prediction
        return different if different.ndim == 1 else different.any(1)

    def of_part(self, part: int) -> Predictions | None:
        """Return the predictions for one part of the test set; ``None`` if there are no parts."""
        if self.part is None:
            return None
        fields = (self.label, self.prediction, self.margin, self.cluster, self.part)
        return Predictions(*(None if each is None else each[self.part == part] for each in fields))  # type: ignore[arg-type]


def write(directory: Path, file: str, arrays: Mapping[str, Array]) -> dict[str, str]:
    """Write arrays, the attributes of ``Predictions``, to ``file`` in a run; return its entry in the run's record."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the flag for an array
    path = directory / file
    with writing(path), atomically(path) as temporary:
        temporary.write_bytes(content.getvalue())
    return {"file": file, "sha256": hashlib.sha256(content.getvalue()).hexdigest()}


def read(directory: Path, record: Mapping[str, Any]) -> Predictions | None:
    """Read the predictions of a run or an evaluation; ``None`` if its record has none, or the file is gone.

    ``record`` is ``metrics.json`` of the run, or that of the evaluation. Raise a ``RunError`` for another file.
    """
    entry = record.get("predictions")
    if not entry:
        return None
    path = directory / entry["file"]
    if directory.resolve() not in path.resolve().parents or not path.is_file():
        return None
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise RunError(f"{path} is not the file of the run's test (another SHA-256); evaluate the run again")
    try:
        return Predictions(**np.load(io.BytesIO(content), allow_pickle=False))
    except (ValueError, TypeError, OSError, zipfile.BadZipFile) as error:
        raise RunError(f"{path} is no file of predictions ({one_line(error)}); evaluate the run again") from error
