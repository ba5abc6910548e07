"""Attacks on the network of a run, and the checks that belong to them."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from functools import partial

import pytest
import torch

from capsule_lab import runs
from capsule_lab.errors import RunError
from capsule_lab.studies.attacks.gradient import bim, fgsm
from capsule_lab.studies.attacks.session import AttackedRun, check_same_data, detection_threshold
from capsule_lab.studies.images import StudyImages
from tests.helpers.commands import Trained

CPU = torch.device("cpu")
IMAGES = 24


@pytest.fixture(scope="module")
def run(trained: Trained) -> runs.Run:
    return runs.open(trained.directory)


def opened(run: runs.Run, space: str = "input", **options: object) -> AttackedRun:
    return AttackedRun(run, StudyImages(run.data_with({"eval_images": IMAGES}), "test", CPU), space, **options)


@pytest.fixture(scope="module")
def attacked(run: runs.Run) -> AttackedRun:
    return opened(run)


def test_images_are_those_of_the_split_and_parameters_need_no_gradient(attacked: AttackedRun, run: runs.Run) -> None:
    assert sum(len(batch.labels) for batch in attacked.batches) == IMAGES
    assert not any(parameter.requires_grad for parameter in run.network.parameters())
    assert not run.network.training
    before = copy.deepcopy(run.network.state_dict())
    attacked.measure(fgsm, "cross_entropy", [0.1])
    assert all(torch.equal(value, before[name]) for name, value in run.network.state_dict().items())
    assert all(parameter.grad is None for parameter in run.network.parameters())


def test_accuracy_falls_below_that_of_noise(attacked: AttackedRun) -> None:
    found = attacked.measure(partial(bim, steps=10), "margin", [0.0, 0.3])
    assert found.accuracy(0.0) == 100 * found.was_right.double().mean()
    assert found.accuracy(0.3) < found.accuracy(0.0)


def test_grey_levels_give_the_same_images_to_the_network(run: runs.Run, attacked: AttackedRun) -> None:
    grey = opened(run, "grey_levels")
    assert torch.allclose(grey.logits(grey.batches[0].images), attacked.logits(attacked.batches[0].images), atol=1e-5)
    # 0.1 of [0, 1] is 25.5 of 255
    one, other = (each.measure(fgsm, "margin", [size]) for each, size in ((attacked, 0.1), (grey, 25.5)))
    assert torch.allclose(one.attacked[0.1, None].logits, other.attacked[25.5, None].logits, atol=1e-4)


def test_equal_couplings_are_of_what_the_attack_sees_only(run: runs.Run, attacked: AttackedRun) -> None:
    equal = opened(run, couplings="equal")
    images = attacked.batches[0].images
    assert torch.equal(equal.logits(images), attacked.logits(images))
    assert not torch.allclose(equal.crafted_with(images), attacked.logits(images))


def test_a_source_on_other_images_is_refused(run: runs.Run) -> None:
    for changed, message in (
        ({"spec": replace(run.spec, num_classes=5)}, "num_classes 5"),
        ({"provenance": {**run.provenance, "source": "real"}}, "source real"),
    ):
        other = replace(run, **changed)
        with pytest.raises(RunError, match=re.escape(message) + ".*expected runs on the same data"):
            opened(run, source=other)
        with pytest.raises(RunError, match="expected runs on the same data"):
            check_same_data(run, other)


def test_a_split_without_images_is_refused(run: runs.Run) -> None:
    data = run.data_with({"val_images": 0} if "val_images" in run.config.data else {"validation": "none"})
    with pytest.raises(RunError, match="there are no images in split=val"):
        StudyImages(data, "val", CPU)


def test_a_twentieth_of_the_validation_images_is_above_the_threshold(run: runs.Run) -> None:
    data = run.data_with({"eval_images": 100})
    threshold = detection_threshold(run, data)
    attacked = AttackedRun(run, StudyImages(data, "val", CPU), "input")
    attacked.keep_errors()
    errors = torch.cat([attacked.logits_and_errors(batch.images)[1] for batch in attacked.batches])
    assert threshold is not None
    assert 0.03 <= (errors > threshold).float().mean() <= 0.05
