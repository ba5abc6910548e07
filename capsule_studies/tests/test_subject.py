import pytest
import torch
from torch.optim.swa_utils import update_bn

from capsule_lab.routing import NormalisedEMRouting
from capsule_lab.routing.batch_norm import BatchNorm
from capsule_lab.types import CapsuleOutput
from capsule_studies.subject import error_percent
from capsule_studies.tests.subjects import small_network, subject


def test_outputs_are_those_of_all_batches() -> None:
    asked = subject(small_network())
    expected = asked.network(asked.images)
    found = asked.outputs()
    torch.testing.assert_close(found.scores, expected.scores)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.capsules.poses, expected.capsules.poses)
    first = asked.traces["classes"].iterations[0]
    assert len(first.couplings) == len(asked.labels)


def test_outputs_of_changed_images_of_a_cnn() -> None:
    asked = subject(small_network("cnn"))
    flipped = asked.changed(lambda images, _: images.flip(3), 0.0)
    found = asked.outputs(flipped)
    expected = asked.network(asked.images.flip(3))
    torch.testing.assert_close(found.scores, expected.scores)
    assert found.capsules is None


def test_running_statistics_of_our_own_batch_normalisation() -> None:
    network = small_network(routing=NormalisedEMRouting)
    images = [batch.images for batch in subject(network).batches]
    update_bn(images, network)
    norms = [module for module in network.modules() if isinstance(module, BatchNorm)]
    assert norms
    for norm in norms:
        assert (norm.running_mean != 0).any()
        assert norm.momentum is not None, "as before"
    assert not network.training


def test_error() -> None:
    output = CapsuleOutput(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.7, 0.3]]))
    labels = torch.tensor([0, 1, 1, 1])
    assert error_percent(output, labels) == 50


def test_images_that_memory_is_too_small_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsule_studies.subject._MOST_BYTES", 2**10)
    asked = subject(small_network())
    message = r"the couplings of 24 images take .* expected images=\d+ or fewer"
    with pytest.raises(ValueError, match=message):
        _ = asked.traces
