"""How do rotation, translation, scaling and shear change the capsule of the class? (Sabour 2017; Hinton 2018)

The claim is that the activation does not change (invariance of presence) and that the pose changes by the same linear
map for all images (equivariance of the pose).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from scipy.stats import rankdata
from torch import Tensor

from capsule_lab.analysis.curves import COLOURS
from capsule_lab.analysis.plotting import panels
from capsule_lab.errors import check_choice, check_number
from capsule_studies.images import joined_images
from capsule_studies.measures.features import (
    LinearMap,
    group_law,
    linear_map,
    of_label,
    pose_features,
    principal_components,
)
from capsule_studies.names import prefixed
from capsule_studies.subject import Answer, Change, Subject, error_percent, question


class Strengths(NamedTuple):
    """Strengths for the curves, for one step of the linear map, for two steps, for the inverse step; and their unit."""

    curve: tuple[float, ...]
    step: float
    twice: float
    back: float
    unit: str


KINDS: Mapping[str, Strengths] = {
    "rotation": Strengths(
        curve=(-30.0, -25.0, -20.0, -15.0, -10.0, -5.0, 0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0),
        step=10.0,
        twice=20.0,
        back=-10.0,
        unit="degrees",
    ),
    "translation": Strengths(
        curve=(-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0),
        step=1.0,
        twice=2.0,
        back=-1.0,
        unit="pixels to the right",
    ),
    "scaling": Strengths(
        curve=(-0.2, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2),
        step=0.1,
        twice=1.1**2 - 1,
        back=1 / 1.1 - 1,
        unit="the factor less 1",
    ),
    "shear": Strengths(
        curve=(-0.4, -0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.4),
        step=0.1,
        twice=0.2,
        back=-0.1,
        unit="pixels to the right per pixel up",
    ),
}
"""Ours: approximately the ranges of affNIST."""


@question()
def transforms(
    subject: Subject,
    *,
    kinds: Sequence[str] = ("rotation", "translation", "scaling", "shear"),
    ridge: float = 0.001,  # ours
) -> Answer:
    """Compute curves of presence and pose over the strength of each change, and one linear map of poses per change.

    For capsule networks, presence and pose are the activation and the pose of the label's capsule; for CNNs, the
    probability of the label and 16 principal components of the features below the last layer. If class capsules have no
    poses, 16 principal components of the poses below them are in place of a pose. For each ``<kind>/``:

    - ``error``: at the largest strength, mean of both signs;
    - ``presence_change``: variance of the label's presence over strengths (mean over images), divided by the sum of
      itself and the variance of a class's presence over images of all classes. 0: presence depends on the class and not
      on the change; 1: it does not depend on the class;
    - ``monotony``: Spearman's rank correlation of ``|strength|`` and the angle between the pose and that at 0, a mean
      over images;
    - ``linear_share``: R² of the pose's change regressed on the strength, with one direction for each class;
    - ``explained``: share of the squared change of poses that one affine map of the poses explains, on the half of the
      images not used for the fit: 1 for an equivariant pose, at most 0 for changes that no map predicts;
      ``explained_by_shift``: by the mean change alone; ``pixels_explained``: by a map of 16 principal components of the
      pixels, of their change;
    - ``map_error``: error of predicting the changed image's pose by one linear map from the image's pose, in units of
      its variance within classes, on the half of the images not used for the fit; ``identity_error``: without a map;
      ``equivariance_gain``: the difference; ``pixels_gain``: the same for 16 principal components of the pixels. Here,
      the mean of each class is subtracted before and after the change, so that shifts of all poses count as no change;
    - ``group_law``: distance of two steps from one step of twice the strength; ``inverse``: distance of a step and its
      negative from the identity; in units of the map's distance from the identity.

    Args:
        kinds: names of the changes.
        ridge: penalty of the linear maps, for unit variance.
    """
    if not kinds:
        raise ValueError(f"kinds is empty; expected some of {', '.join(KINDS)}")
    for kind in kinds:
        check_choice("kinds", kind, tuple(KINDS))
    check_number("ridge", ridge, above=0)
    numbers: dict[str, float] = {"error": error_percent(subject.outputs(), subject.labels)}
    rows: list[dict[str, object]] = []
    curves: dict[str, list[dict[str, float]]] = {}
    pixels = principal_components(subject.images.flatten(1))
    features = pose_features(subject)
    for kind in kinds:
        strengths = KINDS[kind]
        change = subject.changes[kind]
        show = functools.cache(partial(_Shown.of, subject, change, features, pixels))
        shown = {strength: show(strength) for strength in strengths.curve}
        curves[kind] = []
        for strength, images in shown.items():
            point = _point(images, shown[0], strength, subject)
            curves[kind].append(point)
            rows.append({"change": kind, **point})
        numbers |= prefixed(kind, _numbers(shown, subject))
        steps = [show(strengths.step), show(strengths.twice), show(strengths.back)]
        numbers |= prefixed(kind, _maps(subject.labels, shown[0], steps, ridge))
    return Answer(numbers, rows, partial(_figures, curves))


class _Shown(NamedTuple):
    """Presences, poses and pixels of all images after a change, and the error."""

    presences: Float[Tensor, "image class"]
    poses: Float[Tensor, "image dim"]
    pixels: Float[Tensor, "image component"]
    error: float

    @classmethod
    def of(
        cls,
        subject: Subject,
        change: Change,
        features: Callable[..., Tensor],
        pixels: Callable[..., Tensor],
        strength: float,
    ) -> _Shown:
        batches = subject.changed(change, strength) if strength else subject.batches
        output = subject.outputs(batches)
        capsules = output.capsules
        return cls(
            presences=output.ranking.softmax(1) if capsules is None else capsules.activations,
            poses=features(batches),
            pixels=pixels(joined_images(batches).flatten(1)),
            error=error_percent(output, subject.labels),
        )


def _angles(poses: Tensor, before: Tensor) -> Float[Tensor, " image"]:
    cosines = torch.cosine_similarity(poses, before, dim=1).clamp(-1, 1)
    return cosines.arccos().rad2deg()


def _point(shown: _Shown, before: _Shown, strength: float, subject: Subject) -> dict[str, float]:
    measured = {
        "strength": float(strength),
        "error": shown.error,
        "images": float(len(subject.labels)),
    }
    presence = of_label(shown.presences, subject.labels).double()
    angles = _angles(shown.poses, before.poses)
    for name, values in {"presence": presence, "angle": angles}.items():
        quartiles = values.new_tensor([0.25, 0.5, 0.75])
        low, middle, high = values.quantile(quartiles).tolist()
        measured |= {f"{name}_quarter": low, name: middle, f"{name}_three_quarters": high}
    distances = (shown.poses - before.poses).norm(dim=1)
    return measured | {"distance": float(distances.median())}


def _numbers(shown: Mapping[float, _Shown], subject: Subject) -> dict[str, float]:
    every = [*shown.values()]
    angles = torch.stack([_angles(images.poses, shown[0].poses) for images in every])
    sizes = torch.tensor([*shown]).abs()
    is_changed = sizes > 0  # without a change, every angle is 0
    presences = torch.stack([images.presences for images in every])
    return {
        "error": (every[0].error + every[-1].error) / 2,
        "presence_change": _presence_change(presences, subject.labels),
        "monotony": _monotony(sizes[is_changed], angles[is_changed].cpu()),
        "linear_share": _linear_share(shown, subject),
    }


def _monotony(sizes: Float[Tensor, " strength"], angles: Float[Tensor, "strength image"]) -> float:
    """Return Spearman's rank correlation of strength and angle, the mean over images; 0 for one that never changes."""
    of_sizes = rankdata(sizes)[:, np.newaxis]
    of_angles = rankdata(angles, axis=0)
    of_sizes -= of_sizes.mean(0)
    of_angles -= of_angles.mean(0)
    products = (of_sizes * of_angles).sum(0)
    lengths = np.sqrt(np.square(of_sizes).sum(0) * np.square(of_angles).sum(0))
    correlations = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return float(correlations.mean())


def _presence_change(
    presences: Float[Tensor, "strength image class"], labels: Int64[Tensor, " image"]
) -> float:
    """Return the label's variance over strengths, divided by the sum of itself and the mean's variance over images."""
    presences = presences.double()
    over_strengths = presences.var(0, correction=0)  # [image class]
    over_images = presences.mean(0).var(0, correction=0)  # [class]
    of_strengths = float(of_label(over_strengths, labels).mean())
    of_images = float(over_images[labels].mean())
    total = of_strengths + of_images
    return of_strengths / total if total else float("nan")


def _linear_share(shown: Mapping[float, _Shown], subject: Subject) -> float:
    """Return R² of the pose's change on the strength, with one direction through the origin for each class."""
    residual, total = 0.0, 0.0
    for label in subject.labels.unique():
        chosen = subject.labels == label
        before = shown[0].poses[chosen]
        changes = torch.stack([after.poses[chosen] - before for after in shown.values()])
        strengths = changes.new_tensor(list(shown))
        size = strengths.square().sum() * changes.shape[1]
        slope = torch.einsum("s,sid->d", strengths, changes) / size
        predicted = strengths[:, None, None] * slope
        residual += float((changes - predicted).square().sum())
        total += float(changes.square().sum())
    return 1 - residual / total if total else float("nan")


def _maps(
    labels: Tensor, before: _Shown, steps: Sequence[_Shown], ridge: float
) -> dict[str, float]:
    """Fit one map for all images to the differences of poses from the mean pose of their class before and after."""
    step = steps[0]
    explained, by_shift = _explained(labels, before.poses, step.poses, ridge)
    pixels_explained, _ = _explained(labels, before.pixels, step.pixels, ridge)

    def centred_map(start: Tensor, end: Tensor) -> LinearMap:
        return linear_map(_centred(labels, start), _centred(labels, end), ridge)

    one, two, back = (centred_map(before.poses, after.poses) for after in steps)
    of_pixels = centred_map(before.pixels, step.pixels)
    identity = torch.eye(len(one.matrix)).to(one.matrix)
    return {
        "explained": explained,
        "explained_by_shift": by_shift,
        "pixels_explained": pixels_explained,
        "map_error": one.error,
        "identity_error": one.identity_error,
        "equivariance_gain": one.identity_error - one.error,
        "pixels_gain": of_pixels.identity_error - of_pixels.error,
        "group_law": group_law(one.matrix, one.matrix, two.matrix),
        "inverse": group_law(one.matrix, back.matrix, identity, unit=one.matrix),
    }


def _explained(labels: Tensor, before: Tensor, after: Tensor, ridge: float) -> tuple[float, float]:
    """Return the share of the squared change that one affine map explains, and the mean change alone.

    The mean of the class before the change is subtracted from both, so that differences between classes are no map.
    """
    means = _class_means(labels, before)
    found = linear_map(before - means, after - means, ridge)
    change = (after - before).double()
    fitted, judged = change[0::2], change[1::2]
    remaining = judged - fitted.mean(0)
    rest = remaining.square().sum() / judged.square().sum()
    explained = 1 - found.error / found.identity_error
    return explained, 1 - float(rest)


def _centred(labels: Tensor, poses: Tensor) -> Tensor:
    return poses - _class_means(labels, poses)


def _class_means(labels: Tensor, poses: Tensor) -> Tensor:
    """Return for each image the mean pose of its class, computed on the images that maps are fitted to."""
    means = torch.zeros_like(poses)
    fitted = torch.arange(len(labels), device=labels.device) % 2 == 0  # as in linear_map
    for label in labels.unique():
        of_class = labels == label
        averaged = of_class & fitted
        if not averaged.any():
            averaged = of_class
        means[of_class] = poses[averaged].mean(0)
    return means


def _figures(curves: Mapping[str, Sequence[Mapping[str, float]]]) -> Mapping[str, Figure]:
    title = "medians and quartiles over the images; below, their errors"
    figure, axes = panels(3, len(curves), (3.4 * len(curves), 6.6), title)
    for column, (kind, points) in zip(axes.T, curves.items(), strict=True):
        table = pd.DataFrame(points)
        names = ("presence", "angle", "error")
        for axis, name, colour in zip(column, names, COLOURS, strict=False):
            axis.plot(table.strength, table[name], color=colour, marker="o", markersize=3)
            axis.grid(alpha=0.3)
            if name != "error":
                ends = table[f"{name}_quarter"], table[f"{name}_three_quarters"]
                axis.fill_between(table.strength, *ends, color=colour, alpha=0.2, linewidth=0)
        column[0].set(title=kind, ylim=(-0.02, 1.02))
        column[2].set(xlabel=KINDS[kind].unit, ylim=(-2, 102))
    labels = ("presence of the label", "angle of the pose, degrees", "error, %")
    for axis, label in zip(axes[:, 0], labels, strict=True):
        axis.set_ylabel(label)
    return {"curves": figure}
