from __future__ import annotations

import pytest
import torch

from capsule_lab.studies.attacks.losses import cross_entropy, dlr, margin

LOGITS = torch.tensor([[15.0, -15.0, -3.0, 1.0], [0.5, 2.0, 1.0, -1.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 0])


def test_cross_entropy_and_margin() -> None:
    assert cross_entropy(LOGITS, LABELS).tolist() == pytest.approx([8.4676e-7, 1.99518], rel=1e-3)
    assert torch.equal(cross_entropy(LOGITS, LABELS, targeted=True), -cross_entropy(LOGITS, LABELS))
    assert margin(LOGITS, LABELS).tolist() == [-14.0, 1.5]
    assert margin(LOGITS, LABELS + 1, targeted=True).tolist() == [-30.0, 1.0]


def test_margin_is_above_0_just_where_the_attack_succeeds() -> None:
    logits = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    classes = torch.randint(5, (200,), generator=torch.Generator().manual_seed(1))
    assert torch.equal(margin(logits, classes) > 0, logits.argmax(1) != classes)
    assert torch.equal(margin(logits, classes, targeted=True) > 0, logits.argmax(1) == classes)


def test_gradients_of_sure_images_do_not_vanish() -> None:
    """The clamped log-odds of activations, which many ports use, have none at (15, -15, -3)."""
    logits = LOGITS[:1, :3].clone().requires_grad_()
    (found,) = torch.autograd.grad(cross_entropy(logits, LABELS[:1]).sum(), logits)
    assert found[0].tolist() == pytest.approx([-1.5e-8, 9.4e-14, 1.5e-8], rel=0.03)
    (found,) = torch.autograd.grad(margin(logits, LABELS[:1]).sum(), logits)
    assert found[0].tolist() == [-1, 0, 1]
    activations = logits.sigmoid().clamp(1e-6, 1 - 1e-6)
    (clamped,) = torch.autograd.grad(-activations.logit().log_softmax(1)[:, 0].sum(), logits)
    assert clamped[0, 0] == 0
    assert clamped[0, 1] == 0


def test_dlr_does_not_depend_on_scale_and_shift() -> None:
    """By hand: second image, label 0: -(0.5 - 2) / (2 - 0.5); target 2: (1 - 0.5) / (2 - (0.5 - 1) / 2)."""
    assert dlr(LOGITS, LABELS).tolist() == pytest.approx([-14 / 18, 1.0])
    targets = torch.tensor([1, 2])
    assert dlr(LOGITS, LABELS, targets=targets).tolist() == pytest.approx([-30 / (15 - (-3 - 15) / 2), 0.5 / 2.25])
    for given in (None, targets):
        torch.testing.assert_close(dlr(3 * LOGITS + 7, LABELS, targets=given), dlr(LOGITS, LABELS, targets=given))
    assert dlr(torch.zeros(1, 4), LABELS[:1]).tolist() == [0.0]


def test_dlr_of_too_few_classes() -> None:
    with pytest.raises(ValueError, match=r"^the logits are of 2 classes; the loss dlr needs 3, margin needs 2$"):
        dlr(LOGITS[:, :2], LABELS)
    with pytest.raises(ValueError, match=r"^the logits are of 3 classes; the loss dlr needs 4, margin needs 2$"):
        dlr(LOGITS[:, :3], LABELS, targets=LABELS)
