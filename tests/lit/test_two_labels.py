"""Training on two overlapping digits: a decoder for each, errors of pairs, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.commands.train import train
from capsule_lab.functional import predictions_by_label
from capsule_lab.lit import CapsNetModule
from capsule_lab.losses import margin_loss, reconstruction_loss
from capsule_lab.schedules import Constant
from capsule_lab.types import Batch
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, TINY_CNN, Tiny
from tests.helpers.networks import small_capsnet
from tests.helpers.training import trained_module

PAIRS = ["data=multimnist", "data.val_pairs=100", "data.test_pairs=60", *NO_PICTURES]


def module(masked_decoder: bool = True, **options: Any) -> CapsNetModule:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"class_dim": 4, "decoder": [8]}
    network = small_capsnet((1, 20, 20), 5, masked_decoder=masked_decoder, **sizes)
    return CapsNetModule(
        network,
        loss=margin_loss,
        reconstruction=reconstruction_loss,
        optimizer=torch.optim.Adam,
        schedule={"learning_rate": Constant(1e-3)},
        num_classes=5,
        labels_per_image=2,
        **options,
    )


def batch(images: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(1)
    parts = torch.rand(images, 2, 1, 20, 20, generator=generator)
    orders = [torch.randperm(5, generator=generator) for _ in range(images)]
    labels = torch.stack(orders)[:, :2]
    overlapping = parts.sum(1).clamp(max=1)
    return Batch(overlapping, labels, torch.arange(images), None, parts)


def by_hand(lit: CapsNetModule, given: Batch, classes: Tensor) -> Tensor:
    """0.0005 times the squared error of each digit, added, averaged over images (Sabour 2017, section 6)."""
    output = lit.network(given.images)
    total = torch.zeros(())
    for digit in range(2):
        decoded = lit.network.reconstruct(output, classes[:, digit])
        squared = (decoded - given.parts[:, digit]).square().sum()
        total = total + 0.0005 * squared / len(given.images)
    return total


@pytest.mark.parametrize(
    ("training", "decode_at_test", "by"),
    [
        (True, "prediction", "label"),
        (False, "label", "label"),
        (False, "prediction", "prediction"),
    ],
)
def test_each_digit_is_decoded_and_compared_with_itself(
    training: bool, decode_at_test: Any, by: str
) -> None:
    lit = module(decode_at_test=decode_at_test).train(training)
    given = batch()
    output = lit.network(given.images)
    classes = {
        "label": given.labels,
        "prediction": predictions_by_label(output.scores, given.labels),
    }
    assert not classes["label"].equal(classes["prediction"])
    terms = lit.loss_terms(given, output, {})
    reconstruction = by_hand(lit, given, classes[by])
    margin = margin_loss(output.scores, given.labels)
    torch.testing.assert_close(terms["reconstruction"], reconstruction)
    torch.testing.assert_close(terms["margin"], margin)


@pytest.mark.parametrize(
    "model",
    [
        TINY_CAPSNET,
        pytest.param(
            [*TINY_CNN, "model=cnn_multimnist", "model.kernel_size=3"], marks=pytest.mark.whole
        ),
    ],
)
def test_a_run_reports_pairs_and_single_labels(
    tmp_path: Path, model: list[str], tiny: Tiny
) -> None:
    result = train(tiny(*PAIRS, model=model), tmp_path / "run")
    for split in ("val", "test"):
        found = result[split]
        assert 0 <= found["label_error"] <= found["error"] <= 100
        assert 0 <= found["present_f1"] <= 1
    assert result["provenance"]["test_images"] == "60 pairs of 359"
    assert trained_module(tmp_path / "run").metrics.labels_per_image == 2


def test_decoder_that_sees_all_capsules_is_refused() -> None:
    message = "masked_decoder is false, but images have several digits, "
    with pytest.raises(ValueError, match=message):
        module(masked_decoder=False)
