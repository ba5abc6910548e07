"""Does the pose of a class capsule contain the viewpoint of a toy, better than pixels do? (Hinton 2018)"""

from __future__ import annotations

import warnings
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
from capsule_studies.measures.features import label_poses, last_features
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
    missing = [name for name in _NEEDED if name not in subject.factors]
    if missing:
        raise ValueError(
            f"this data has no factor {missing[0]}; expected smallNORB, or its stand-in"
        )
    training = subject.training(training_images)
    fitted, judged = _views(subject, training), _views(subject, subject.batches)
    shared = {*zip(fitted.labels, fitted.instance, strict=True)} & {
        *zip(judged.labels, judged.instance, strict=True)
    }
    if shared:
        label, instance = min(shared)
        raise ValueError(
            f"toy {instance} of class {label} is in the training images and in the {len(judged.labels)} held-out "
            "images, whose views are nearly copies; expected split=test, or data.validation with other toys"
        )
    for label in np.unique(judged.labels):
        known = int((fitted.labels == label).sum())
        if known < _FEWEST:
            raise ValueError(
                f"{known} of the {len(fitted.labels)} training images are of class {label}; expected {_FEWEST} or "
                "more, by a larger what.training_images"
            )
    familiar, novel = (
        fitted.of(np.isin(fitted.azimuth, FAMILIAR)),
        judged.of(~np.isin(judged.azimuth, FAMILIAR)),
    )
    numbers: dict[str, float] = {}
    for name, inputs in {"linear": "features", "network": "features", "pixels": "pixels"}.items():
        network = name == "network"
        scores = _judge(fitted, judged, inputs, network=network)
        if all(
            (familiar.labels == label).sum() >= _FEWEST for label in np.unique(novel.labels)
        ) and len(novel.labels):
            novel_scores = _judge(familiar, novel, inputs, network=network)
            scores |= {
                f"novel_{name}": value
                for name, value in novel_scores.items()
                if name.startswith("azimuth_degrees")
            }
        numbers |= {f"{name}/{key}": value for key, value in scores.items()}
    return Answer(numbers)


def _views(subject: Subject, batches: Sequence[Batch]) -> _Views:
    factors = (
        torch.cat([batch.factors for batch in batches if batch.factors is not None]).cpu().numpy()
    )
    column = {name: factors[:, subject.factors.index(name)].astype(int) for name in _NEEDED}
    angle = np.deg2rad(_DEGREES * column["azimuth"])
    lamps = np.eye(_LAMPS)[column["lighting"]]
    output = subject.outputs(batches[:1])
    has_poses = output.capsules is not None and output.capsules.poses.shape[2]
    features = (label_poses if has_poses else last_features)(subject, batches)
    return _Views(
        features=features.double().cpu().numpy(),
        pixels=torch.cat([batch.images for batch in batches]).flatten(1).double().cpu().numpy(),
        labels=torch.cat([batch.labels for batch in batches]).cpu().numpy(),
        instance=column["instance"],
        azimuth=column["azimuth"],
        targets=np.column_stack([np.sin(angle), np.cos(angle), column["elevation"], lamps]),
    )


def _judge(fitted: _Views, judged: _Views, inputs: str, *, network: bool) -> dict[str, float]:
    """Return R² and angles, computed for each class, then averaged."""
    by_class = []
    for label in np.unique(judged.labels):
        training, held_out = fitted.of(fitted.labels == label), judged.of(judged.labels == label)
        targets, features = StandardScaler().fit(training.targets), getattr(training, inputs)
        components = PCA(min(_COMPONENTS, *features.shape), random_state=0)
        reduced, toys = components.fit_transform(features), training.instance
        model: BaseEstimator = make_pipeline(StandardScaler(), Ridge())
        groups = {}
        if network:
            layers = MLPRegressor(
                hidden_layer_sizes=_HIDDEN, alpha=1e-3, max_iter=200, random_state=0
            )  # ours
            model = make_pipeline(StandardScaler(), layers)
        elif len(np.unique(toys)) > 1:
            penalties, groups = {"ridge__alpha": _PENALTIES}, {"groups": toys}
            model = GridSearchCV(
                model, penalties, cv=LeaveOneGroupOut(), scoring="neg_mean_squared_error"
            )
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", ConvergenceWarning
            )  # the network's last steps change little
            model.fit(reduced, targets.transform(training.targets), **groups)
        predicted = model.predict(components.transform(getattr(held_out, inputs)))
        by_class.append(_of_class(targets.inverse_transform(predicted), held_out))
    return {key: _mean(np.array([scores[key] for scores in by_class])) for key in by_class[0]}


def _mean(values: Array) -> float:
    """Return the mean of the finite values; NaN if there are none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _of_class(predicted: Array, judged: _Views) -> dict[str, float]:
    residual = ((predicted - judged.targets) ** 2).sum(0)
    total = ((judged.targets - judged.targets.mean(0)) ** 2).sum(0)
    share = np.where(total > 0, 1 - residual / np.where(total > 0, total, 1), np.nan)
    error = np.arctan2(predicted[:, 0], predicted[:, 1]) - np.deg2rad(_DEGREES * judged.azimuth)
    aligned = np.full_like(error, np.nan)
    for toy in np.unique(judged.instance):
        of_toy = np.flatnonzero(judged.instance == toy)
        if len(of_toy) > 1:  # rotate each view by the mean error of the others
            directions = np.exp(1j * error[of_toy])
            aligned[of_toy] = error[of_toy] - np.angle(directions.sum() - directions)
    return {
        "azimuth_r2": _mean(share[:2]),
        "elevation_r2": float(share[2]),
        "lighting_r2": _mean(share[3:]),
        "azimuth_degrees": _median_angle(error),
        "azimuth_degrees_aligned": _median_angle(aligned),
    }


def _median_angle(error: Array) -> float:
    known = error[np.isfinite(error)]
    return (
        float(np.median(np.abs(np.rad2deg(np.angle(np.exp(1j * known))))))
        if len(known)
        else float("nan")
    )
