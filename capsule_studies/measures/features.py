"""A short feature vector for each image, the pose of the label's capsule or a CNN's last features; linear maps of them.

A single linear map for all images: how much of the change of a pose it explains, and whether such maps form a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.types import Batch, CapsuleOutput
from capsule_studies.images import joined_labels
from capsule_studies.subject import Subject

_COMPONENTS = 16  # ours: as many as a pose has

Poses = Float[Tensor, "image dim"]
Matrix = Float[Tensor, "dim dim"]
Features = Callable[[Sequence[Batch]], Float[Tensor, "image component"]]


def pose_features(subject: Subject) -> Features:
    """Return a function from batches to one vector per image, in float64.

    If class capsules have poses, it is the pose of the label's capsule: with the label given, classification plays no
    role. Otherwise, it is 16 principal components of the input of the last layer: for class capsules without poses, of
    the poses below them.
    """
    if has_poses(subject.outputs(subject.batches[:1])):
        return lambda batches: label_poses(subject, batches)
    components = principal_components(last_features(subject, subject.batches))
    return lambda batches: components(last_features(subject, batches))


def has_poses(output: CapsuleOutput) -> bool:
    """Return whether class capsules have poses."""
    return output.capsules is not None and output.capsules.poses.shape[2] > 0


def check_poses(subject: Subject, output: CapsuleOutput) -> None:
    """Raise a ``ValueError`` if class capsules have no poses."""
    if not has_poses(output):
        name = type(subject.network).__name__
        raise ValueError(f"{name} has no poses; expected a network of class capsules with poses")


def label_poses(subject: Subject, batches: Sequence[Batch]) -> Float[Tensor, "image dim"]:
    """Return the pose of each label's capsule, in float64."""
    capsules = subject.outputs(batches).capsules
    assert capsules is not None
    labels = joined_labels(batches)
    return of_label(capsules.poses, labels).double()


def of_label(
    values: Float[Tensor, "image class ..."], labels: Int64[Tensor, " image"]
) -> Float[Tensor, "image ..."]:
    """Select the value of each image's label from the values of all classes."""
    image = torch.arange(len(labels), device=labels.device)
    return values[image, labels]


def last_features(subject: Subject, batches: Sequence[Batch]) -> Float[Tensor, "image feature"]:
    """Return the input of the last layer of capsules, poses only, or of a CNN's last layer with weights."""
    if isinstance(subject.network, AbstractCapsuleNetwork):
        *_, last_layer = subject.network.capsule_layers().values()
    else:
        for module in subject.network.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                last_layer = module
    kept: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        kept.append(inputs[0].flatten(1))

    with last_layer.register_forward_pre_hook(keep):
        subject.outputs(batches)
    return torch.cat(kept)


class LinearMap(NamedTuple):
    """``after ~ before @ matrix + shift``, fitted to one half of the images and evaluated on the other.

    Errors, of the prediction and of ``before`` itself, are squared distances relative to those of the mean.
    """

    matrix: Matrix
    error: float
    identity_error: float


def linear_map(before: Poses, after: Poses, ridge: float) -> LinearMap:
    """Fit a ridge regression of poses in float64 on every second image; the penalty shrinks to the identity, not to 0.

    The penalty is in units of the mean variance of ``before``.
    """
    start, end = before[0::2], after[0::2]
    mean = start.mean(0)
    centred = start - mean
    change = end - start
    shift = change.mean(0)
    size = centred.square().sum(0).mean()
    size = size.clamp_min(torch.finfo(before.dtype).tiny)
    identity = torch.eye(before.shape[1]).to(before)
    gram = centred.t() @ centred + ridge * size * identity
    moments = centred.t() @ (change - shift)
    matrix = torch.linalg.solve(gram, moments)

    held_out, target = before[1::2], after[1::2]
    predicted = held_out + (held_out - mean) @ matrix + shift
    spread = _squared(target - target.mean(0))
    error = _squared(predicted - target) / spread
    identity_error = _squared(held_out - target) / spread
    return LinearMap(matrix + identity, float(error), float(identity_error))


def _squared(values: Tensor) -> Tensor:
    return values.square().sum()


def group_law(first: Matrix, second: Matrix, both: Matrix, *, unit: Matrix | None = None) -> float:
    """Return the distance of ``first`` and then ``second`` from ``both``, over the distance of that from the identity.

    ``unit`` replaces ``both`` in the denominator if ``both`` is the identity.

    >>> turn = torch.linalg.matrix_exp(torch.tensor([[0.0, 0.1], [-0.1, 0.0]]))
    >>> round(group_law(turn, turn, turn @ turn), 4)
    0.0
    """
    identity = torch.eye(len(both)).to(both)
    size = (both if unit is None else unit) - identity
    distance = first @ second - both
    return float(distance.norm() / size.norm())


def principal_components(
    features: Float[Tensor, "image feature"], components: int = _COMPONENTS
) -> Callable[[Float[Tensor, "other feature"]], Float[Tensor, "other component"]]:
    """Return a function that projects onto the first principal components of these features, in float64."""
    features = features.double()
    mean = features.mean(0)
    _, _, directions = torch.linalg.svd(features - mean, full_matrices=False)
    basis = directions[:components].t()
    return lambda others: (others.double() - mean) @ basis
