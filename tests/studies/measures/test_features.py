from __future__ import annotations

import torch

from capsule_lab.studies.measures.features import label_poses, last_features, pose_features
from tests.helpers.subjects import small_network, subject


def test_pose_of_the_label() -> None:
    asked = subject(small_network())
    poses = asked.outputs().capsules.poses
    expected = torch.stack([poses[image, label] for image, label in enumerate(asked.labels.tolist())])
    torch.testing.assert_close(label_poses(asked, asked.batches), expected.double())
    torch.testing.assert_close(pose_features(asked)(asked.batches), expected.double())


def test_last_features_are_what_the_last_layer_gets() -> None:
    asked = subject(small_network("cnn"))
    last = [each for each in asked.network.modules() if isinstance(each, torch.nn.Linear | torch.nn.Conv2d)][-1]
    features = last_features(asked, asked.batches)
    torch.testing.assert_close(last(features), asked.outputs().scores)


def test_principal_components_of_a_cnn() -> None:
    asked = subject(small_network("cnn"))
    found = pose_features(asked)(asked.batches)
    assert found.shape == (24, 16)
    assert (found.var(0).diff() <= 1e-9).all(), "the largest first"
