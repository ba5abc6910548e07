"""What a network has of an image in one short vector: the pose of the label's capsule, or a CNN's last features."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from capsule_lab.studies.measures.linear_maps import principal_components
from capsule_lab.studies.subject import Subject
from capsule_lab.types import Batch

Features = Callable[[Sequence[Batch]], Float[Tensor, "image component"]]


def pose_features(subject: Subject) -> Features:
    """A function from images to one vector each, in float64.

    Of a network whose class capsules have poses, the pose of the label's capsule: the label is given, so that telling
    classes apart is no part of it. Of another, the 16 principal components of what its last layer with weights gets.
    """
    output = subject.outputs(subject.batches[:1])
    if output.capsules is not None and output.capsules.poses.shape[2]:
        return lambda batches: label_poses(subject, batches)
    components = principal_components(last_features(subject, subject.batches))
    return lambda batches: components(last_features(subject, batches))


def label_poses(subject: Subject, batches: Sequence[Batch]) -> Float[Tensor, "image dim"]:
    """The pose of each label's capsule, in float64."""
    capsules = subject.outputs(batches).capsules
    assert capsules is not None
    return of_label(capsules.poses, torch.cat([batch.labels for batch in batches])).double()


def of_label(values: Float[Tensor, "image class ..."], labels: Int64[Tensor, " image"]) -> Float[Tensor, "image ..."]:
    """What each image has of its label, of values of all classes."""
    return values[torch.arange(len(labels), device=labels.device), labels]


def last_features(subject: Subject, batches: Sequence[Batch]) -> Float[Tensor, "image feature"]:
    """What the last layer with weights of a network gets."""
    layers = [each for each in subject.network.modules() if isinstance(each, nn.Linear | nn.Conv2d)]
    kept: list[Tensor] = []
    hook = layers[-1].register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0].flatten(1)))
    try:
        subject.outputs(batches)
    finally:
        hook.remove()
    return torch.cat(kept)
