"""Matrix capsules with a decoder: what is decoded, from what, and that it learns beside the classes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from capsule_lab.config import build
from capsule_lab.config.compose import compose
from capsule_lab.errors import ConfigError
from capsule_lab.functional import in_unit_range
from capsule_lab.lit import CapsNetModule
from capsule_lab.losses import reconstruction_loss
from capsule_lab.networks import CapsNet, EMCaps, reconstructs
from capsule_lab.train import train
from capsule_lab.types import Batch

SMALL = [
    "model=em_caps_decoder", "data=smallnorb", "data.source=standin", "model.stem=[[4,3,2],[4,3,2]]",
    "model.primary_types=2", "model.decoder=[8]",
]  # fmt: skip


def module(*overrides: str) -> CapsNetModule:
    torch.manual_seed(0)
    config = compose("train", [*SMALL, *overrides])
    lit = build.build_module(config, build.build_data(config).spec)
    assert isinstance(lit, CapsNetModule)
    return lit


def standardised() -> Batch:
    images = torch.randn(4, 2, 32, 32, generator=torch.Generator().manual_seed(0))
    return Batch(images, torch.tensor([0, 3, 1, 4]), torch.arange(4))


def test_standardised_images_are_decoded_in_the_unit_range() -> None:
    lit, batch = module(), standardised()
    output = lit(batch.images)
    terms = lit.loss_terms(batch, output, {})
    decoded = lit.network.reconstruct(output, batch.labels)
    expected = reconstruction_loss(decoded, in_unit_range(batch.images))
    torch.testing.assert_close(terms["reconstruction"], expected)
    assert {*terms} == {"logits_cross_entropy", "reconstruction"}


def test_the_decoder_and_the_capsules_below_it_get_gradients() -> None:
    lit, batch = module(), standardised()
    lit.loss_terms(batch, lit(batch.images), {})["reconstruction"].backward()
    network = lit.network
    assert isinstance(network, EMCaps)
    assert network.decoder is not None
    for part in (network.decoder, network.classes, network.primary):
        gradients = [each.grad for each in part.parameters() if each.grad is not None]
        assert any((gradient != 0).any() for gradient in gradients)


def test_decoder_learns_one_batch() -> None:
    lit, batch = module(), standardised()
    optimizer = torch.optim.Adam(lit.network.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        term = lit.loss_terms(batch, lit(batch.images), {})["reconstruction"]
        optimizer.zero_grad()
        term.backward()
        optimizer.step()
        losses.append(term.item())
    assert losses[-1] < 0.8 * losses[0]


def test_images_of_a_capsnet_are_decoded_as_they_are() -> None:
    """Those in [0, 1] count as before, whatever their darkest and brightest pixels."""
    torch.manual_seed(0)
    config = compose("train", ["model=capsnet", "data=mnist", "data.source=standin", "model.channels=4"])
    lit = build.build_module(config, build.build_data(config).spec)
    assert isinstance(lit.network, CapsNet)
    images = 0.2 + 0.5 * torch.rand(3, 1, 28, 28)
    batch = Batch(images, torch.arange(3), torch.arange(3))
    output = lit(images)
    expected = reconstruction_loss(lit.network.reconstruct(output, batch.labels), images)
    torch.testing.assert_close(lit.loss_terms(batch, output, {})["reconstruction"], expected, rtol=0, atol=0)


def test_matrix_capsules_have_no_decoder_unless_asked_for() -> None:
    assert reconstructs(module().network)
    assert not reconstructs(EMCaps((1, 28, 28), 10, channels=2, primary_types=1, conv_types=(1, 1)))


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("decoder", ["model.decoder=[0]", "model.decoder=[a]"])
def test_widths_that_are_refused(decoder: str) -> None:
    with pytest.raises(ConfigError, match="EMCaps has decoder"):
        module(decoder)


def test_a_decoder_of_classes_without_poses_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"routing\.poses is false, and the decoder reads poses; expected true"):
        module("routing=self_routing")


def test_a_decoder_that_would_not_be_trained_is_refused(tmp_path: Path) -> None:
    config = compose("train", [*SMALL, "module=classifier", "data=mnist", "trainer.max_epochs=1"])
    with pytest.raises(ConfigError, match="has a decoder, and ClassifierModule would not train it; expected module="):
        train(config, tmp_path / "run")
