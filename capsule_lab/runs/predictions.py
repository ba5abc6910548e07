"""The predictions of a test, image by image: ``predictions.npz`` of a run, and a file beside each evaluation."""

from __future__ import annotations

import hashlib
import io
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from capsule_lab.errors import RunError, one_line, printable
from capsule_lab.runs.files import writing
from capsule_lab.system.files import atomically, read_regular

FILE = "predictions.npz"
_LARGEST = 2**28  # ours: bytes, unpacked; ten million images have less
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Predictions:
    """What a network predicted for each test image.

    Attributes:
        label: classes of the image, ``(image,)``, or ``(image, label)`` in ascending order; for any number of labels,
            1 for each class that it has, else 0, ``(image, class)``.
        prediction: predicted classes, in the same shape.
        margin: lowest score of the image's classes minus the highest score of the others, in the unit of the
            network's logits or, without logits, scores; negative if a class is wrong. For any number of labels, the
            smallest distance of a score from ``metrics.HAS_LABEL``, negative on the wrong side.
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
        """Return the predictions for one part of the test set; ``None`` without parts, or without images of it."""
        if self.part is None:
            return None
        chosen = self.part == part
        if not chosen.any():
            return None
        cluster = None if self.cluster is None else self.cluster[chosen]
        return Predictions(
            self.label[chosen],
            self.prediction[chosen],
            self.margin[chosen],
            cluster,
            self.part[chosen],
        )


def percent_wrong(every: Iterable[Predictions]) -> Array:
    """Return 0 or 100 for each image of the same test set, ``(run, image)``."""
    return np.stack([100.0 * each.wrong for each in every])


def concatenated(parts: Sequence[Predictions]) -> Predictions:
    """Return the predictions for several sets of images without a common cluster, such as folds, one after another."""
    clusters = []
    first = 0
    for part in parts:
        if part.cluster is not None:
            clusters.append(first + part.cluster)
            first += int(part.cluster.max()) + 1
    together = {}
    for name in ("label", "prediction", "margin"):
        arrays = [getattr(part, name) for part in parts]
        together[name] = np.concatenate(arrays)
    cluster = None
    if len(clusters) == len(parts):
        cluster = np.concatenate(clusters)
    return Predictions(**together, cluster=cluster)


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

    ``record`` is ``metrics.json`` of the run, or that of the evaluation. Raise a ``RunError`` for another file, and for
    one that is outside of the run directory, damaged, or has arrays that do not fit together.
    """
    entry = record.get("predictions")
    if not entry:
        return None
    path = directory / entry["file"]
    try:
        content = read_regular(path, inside=directory)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # ValueError: a name with NUL
        reason = getattr(error, "strerror", None) or one_line(error)
        raise RunError(
            f"{printable(str(path))} cannot be read ({reason}); evaluate the run again"
        ) from error
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise RunError(
            f"{path} is not the file of the run's test (another SHA-256); evaluate the run again"
        )
    try:
        return _checked(Predictions(**_arrays(content)))
    except Exception as error:  # numpy and zipfile raise many types of errors for files of others
        reason = one_line(error)[:200] or type(error).__name__
        raise RunError(
            f"{path} is no file of predictions ({reason}); evaluate the run again"
        ) from error


def _arrays(archive: bytes) -> dict[str, Array]:
    """Return the arrays in an archive of numpy; raise an error of any kind if it is damaged or too large."""
    arrays: dict[str, Array] = {}
    with zipfile.ZipFile(io.BytesIO(archive)) as packed, warnings.catch_warnings(action="error"):
        unpacked = sum(member.file_size for member in packed.infolist())
        if unpacked > _LARGEST:
            raise ValueError(f"{unpacked} bytes unpacked, more than {_LARGEST}")
        for member in packed.infolist():
            name = member.filename.removesuffix(".npy")
            if name in arrays or name == member.filename:
                raise ValueError(f"{printable(member.filename)} twice, or no array of numpy")
            content = io.BytesIO(packed.read(member))
            arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
    return arrays


def _checked(found: Predictions) -> Predictions:
    """Return predictions whose arrays fit together; raise a ``ValueError`` for others."""
    label, margin = found.label, found.margin
    if not label.size or label.ndim not in (1, 2):
        raise ValueError(f"label of shape {label.shape}")
    if margin.dtype.kind != "f" or np.isnan(margin).any():
        raise ValueError(f"margin of {margin.dtype}, or NaN in it")
    numbers = {
        "label": label,
        "prediction": found.prediction,
        "cluster": found.cluster,
        "part": found.part,
    }
    for name, array in numbers.items():
        if array is not None and (array.dtype.kind != "i" or array.min(initial=0) < 0):
            raise ValueError(
                f"{name} of {array.dtype}, or a number below 0 in it; expected integers from 0"
            )
    if found.prediction.shape != label.shape:
        raise ValueError(f"prediction of shape {found.prediction.shape}; expected {label.shape}")
    for name, array in {"margin": margin, "cluster": found.cluster, "part": found.part}.items():
        if array is not None and array.shape != label.shape[:1]:
            raise ValueError(f"{name} of shape {array.shape}; expected {label.shape[:1]}")
    return found
