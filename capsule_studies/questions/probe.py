"""Does the pose of a class capsule contain the viewpoint of a toy, better than pixels do? (Hinton 2018)"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from capsule_lab.errors import check_number
from capsule_lab.types import Batch
from capsule_studies.images import joined_images, joined_labels
from capsule_studies.measures.features import has_poses, label_poses, last_features
from capsule_studies.names import prefixed
from capsule_studies.subject import Answer, Subject, question

FAMILIAR = (30, 32, 34, 0, 2, 4)  # Hinton 2018, section 5: azimuths, x 10 degrees
_DEGREES = 10  # per unit of azimuth
_PENALTIES = tuple(10.0**power for power in range(-2, 5))  # ours: for poses of unit variance
_HIDDEN = (64, 64)  # ours
_COMPONENTS = 16  # ours: as many as a pose has
_FEWEST = 10  # ours: fewest training images of a class
_LAMPS = 6  # smallNORB
_NEEDED = ("instance", "elevation", "azimuth", "lighting")

Array = np.ndarray[Any, np.dtype[Any]]


class _Views(NamedTuple):
    """Images of one set: their feature vectors, pixels, labels and factors."""

    features: Array
    pixels: Array
    labels: Array
    instance: Array
    azimuth: Array
    targets: Array

    def of(self, chosen: Array) -> _Views:
        return _Views(*(tensor[chosen] for tensor in self))


@question()
def probe(subject: Subject, *, training_images: int = 4000) -> Answer:
    """Measure how well azimuth, elevation and lighting can be predicted from a pose, on toys not used for the fit.

    A ridge regression for each class, whose penalty is chosen by leave-one-toy-out cross-validation, is fitted to
    training images and evaluated on held-out toys. For each ``<probe>/``: ``linear`` takes the label's pose,
    ``network`` has two layers of 64 units in place of the regression, and ``pixels`` is the regression on pixels; all
    take 16 principal components of each class:

    - ``azimuth_r2`` (of sine and cosine), ``elevation_r2``, ``lighting_r2`` (one number per lamp): the mean over
      classes; 0 for a constant prediction of the mean;
    - ``azimuth_degrees``: median error of the angle, 90 by chance; ``azimuth_degrees_aligned``: the same after rotating
      each view by the mean error of the toy's other views, since toys have no common front;
    - ``novel_azimuth_degrees…``: fitted to the six familiar azimuths of Hinton 2018, evaluated on the others.

    Args:
        subject: any network, and images with known factors, such as smallNORB.
        training_images: number of images that the probe is fitted to.
    """
    check_number("training_images", training_images, 1)
    for name in _NEEDED:
        if name not in subject.factors:
            raise ValueError(f"this data has no factor {name}; expected smallNORB, or its stand-in")
    fitted = _views(subject, subject.training(training_images))
    judged = _views(subject, subject.batches)
    _check_toys(fitted, judged)
    familiar = fitted.of(np.isin(fitted.azimuth, FAMILIAR))
    novel = judged.of(~np.isin(judged.azimuth, FAMILIAR))
    counts = _counts(familiar, novel)
    has_novel = len(counts) > 0 and min(counts.values()) >= _FEWEST
    numbers: dict[str, float] = {}
    for name in ("linear", "network", "pixels"):
        inputs = "pixels" if name == "pixels" else "features"
        network = name == "network"
        numbers |= prefixed(name, _judge(fitted, judged, inputs, network=network))
        if has_novel:
            scores = _judge(familiar, novel, inputs, network=network)
            for key in ("azimuth_degrees", "azimuth_degrees_aligned"):
                numbers[f"{name}/novel_{key}"] = scores[key]
    return Answer(numbers)


def _check_toys(fitted: _Views, judged: _Views) -> None:
    """Raise a ``ValueError`` if sets share a toy, or if there are too few training images of a class."""
    toys_of_training = set(zip(fitted.labels, fitted.instance, strict=True))
    held_out_toys = set(zip(judged.labels, judged.instance, strict=True))
    shared = toys_of_training & held_out_toys
    if shared:
        label, instance = min(shared)
        raise ValueError(
            f"toy {instance} of class {label} is in the training images and in the {len(judged.labels)} held-out "
            "images, whose views are nearly copies; expected split=test, or data.validation with other toys"
        )
    for label, known in _counts(fitted, judged).items():
        if known < _FEWEST:
            raise ValueError(
                f"{known} of the {len(fitted.labels)} training images are of class {label}; expected {_FEWEST} or "
                "more, by a larger what.training_images"
            )


def _counts(fitted: _Views, judged: _Views) -> dict[int, int]:
    """Return the number of fitted images of each class that is judged."""
    counts = {}
    for label in np.unique(judged.labels).tolist():
        of_class = fitted.labels == label
        counts[label] = int(of_class.sum())
    return counts


def _views(subject: Subject, batches: Sequence[Batch]) -> _Views:
    factors = torch.cat([batch.factors for batch in batches if batch.factors is not None])
    factors_by_column = factors.cpu().numpy().astype(int).T
    columns = dict(zip(subject.factors, factors_by_column, strict=True))
    angle = np.deg2rad(_DEGREES * columns["azimuth"])
    lamps = np.eye(_LAMPS)[columns["lighting"]]
    first = subject.outputs(batches[:1])
    features_of = label_poses if has_poses(first) else last_features
    features = features_of(subject, batches)
    pixels = joined_images(batches).flatten(1)
    return _Views(
        features=features.double().cpu().numpy(),
        pixels=pixels.double().cpu().numpy(),
        labels=joined_labels(batches).cpu().numpy(),
        instance=columns["instance"],
        azimuth=columns["azimuth"],
        targets=np.column_stack([np.sin(angle), np.cos(angle), columns["elevation"], lamps]),
    )


def _judge(fitted: _Views, judged: _Views, inputs: str, *, network: bool) -> dict[str, float]:
    """Return R² and angles, computed for each class, then averaged."""
    scores: dict[str, list[float]] = defaultdict(list)
    for label in np.unique(judged.labels):
        training = fitted.of(fitted.labels == label)
        held_out = judged.of(judged.labels == label)
        features = getattr(training, inputs)
        scale = StandardScaler().fit(training.targets)
        components = PCA(min(_COMPONENTS, *features.shape), random_state=0)
        reduced = components.fit_transform(features)
        targets = scale.transform(training.targets)
        model = _fit(reduced, targets, training.instance, network=network)
        held_out_features = components.transform(getattr(held_out, inputs))
        predicted = scale.inverse_transform(model.predict(held_out_features))
        for key, value in _of_class(predicted, held_out).items():
            scores[key].append(value)
    return {key: _mean(np.array(values)) for key, values in scores.items()}


def _fit(features: Array, targets: Array, toys: Array, *, network: bool) -> BaseEstimator:
    """Fit a network, or a ridge regression whose penalty is chosen by leaving out each toy in turn, if several."""
    model: BaseEstimator = make_pipeline(StandardScaler(), Ridge())
    if network:
        options = {"hidden_layer_sizes": _HIDDEN, "alpha": 1e-3, "max_iter": 200}  # ours
        model = make_pipeline(StandardScaler(), MLPRegressor(random_state=0, **options))
        with warnings.catch_warnings():
            # the network's last steps change little
            warnings.simplefilter("ignore", ConvergenceWarning)
            return model.fit(features, targets)
    if len(np.unique(toys)) == 1:
        return model.fit(features, targets)
    penalties = {"ridge__alpha": _PENALTIES}
    search = GridSearchCV(model, penalties, cv=LeaveOneGroupOut(), scoring="neg_mean_squared_error")
    return search.fit(features, targets, groups=toys)


def _mean(values: Array) -> float:
    """Return the mean of the finite values; NaN if there are none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _of_class(predicted: Array, judged: _Views) -> dict[str, float]:
    """Return R² and angles of one class."""
    deviations = judged.targets - judged.targets.mean(0)
    residual = ((predicted - judged.targets) ** 2).sum(0)
    total = (deviations**2).sum(0)
    varies = total > 0
    unexplained = residual / np.where(varies, total, 1)
    share = np.where(varies, 1 - unexplained, np.nan)
    angle = np.arctan2(predicted[:, 0], predicted[:, 1])
    error = angle - np.deg2rad(_DEGREES * judged.azimuth)
    aligned = _aligned(error, judged.instance)
    return {
        "azimuth_r2": _mean(share[:2]),
        "elevation_r2": float(share[2]),
        "lighting_r2": _mean(share[3:]),
        "azimuth_degrees": _median_angle(error),
        "azimuth_degrees_aligned": _median_angle(aligned),
    }


def _aligned(error: Array, toys: Array) -> Array:
    """Return errors after rotating each view by the mean error of the toy's other views; NaN if there are none."""
    aligned = np.full_like(error, np.nan)
    for toy in np.unique(toys):
        of_toy = np.flatnonzero(toys == toy)
        if len(of_toy) > 1:
            directions = np.exp(1j * error[of_toy])
            others = directions.sum() - directions
            aligned[of_toy] = error[of_toy] - np.angle(others)
    return aligned


def _median_angle(error: Array) -> float:
    known = error[np.isfinite(error)]
    if not len(known):
        return float("nan")
    within_half_turn = np.angle(np.exp(1j * known))
    degrees = np.abs(np.rad2deg(within_half_turn))
    return float(np.median(degrees))
