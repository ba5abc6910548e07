"""Matrix capsules with a decoder: what is decoded, from what, and that it learns beside the classes."""

import torch

from capsule_lab.commands import compose
from capsule_lab.config import build
from capsule_lab.functional import in_unit_range
from capsule_lab.losses import reconstruction_loss
from capsule_lab.types import Batch
from tests.helpers.modules import capsnet

SMALL = [
    "model=em_caps",
    "module=capsnet",
    "data=smallnorb",
    "data.source=standin",
    "model.stem=[[4,3,2],[4,3,2]]",
    "model.primary.types=2",
    "model.decoder=[8]",
]


def test_standardised_images_are_decoded_in_the_unit_range_and_train_the_capsules() -> None:
    torch.manual_seed(0)
    config = compose("train", SMALL)
    spec = build.build_data(config).spec
    lit = build.build_module(config, spec)
    images = torch.randn(4, 2, 32, 32)
    batch = Batch(images, torch.tensor([0, 3, 1, 4]), torch.arange(4))
    output = lit(batch.images)
    terms = lit.loss_terms(batch, output, {})
    decoded = lit.network.reconstruct(output, batch.labels)
    expected = reconstruction_loss(decoded, in_unit_range(batch.images))
    torch.testing.assert_close(terms["reconstruction"], expected)
    assert {*terms} == {"logits_cross_entropy", "reconstruction"}
    terms["reconstruction"].backward()
    network = lit.network
    for part in (network.decoder, network.classes, network.primary):
        gradients = [each.grad for each in part.parameters() if each.grad is not None]
        has_gradient = [bool(gradient.any()) for gradient in gradients]
        assert any(has_gradient)


def test_images_of_a_capsnet_are_decoded_as_they_are() -> None:
    """Those in [0, 1], whatever their darkest and brightest pixels."""
    lit = capsnet()
    images = 0.2 + 0.5 * torch.rand(3, 1, 9, 9)
    batch = Batch(images, torch.arange(3), torch.arange(3))
    output = lit(images)
    decoded = lit.network.reconstruct(output, batch.labels)
    expected = (decoded - images).square().mean()
    terms = lit.loss_terms(batch, output, {})
    torch.testing.assert_close(terms["reconstruction"], expected, rtol=0, atol=0)
