"""Scaled-distance agreement: golden numbers, and the batch mean of the official code, which is a mistake."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.kernels import run_routing
from capsule_lab.layers import ConvCapsules
from capsule_lab.routing import Normaliser, ScaledDistanceAgreement, scaled_distance_agreement
from capsule_lab.types import RoutingTrace
from tests.helpers.closeness import assert_close
from tests.helpers.waves import cosine, sine
from tests.reference.wrong import check_catches, scaled_distances

VOTES = sine(1, 6, 3, 5, scale=0.6, frequency=0.37, phase=0.1)
LENGTHS = cosine(1, 6, 4, scale=0.3, frequency=0.41).norm(dim=2)
BIAS = torch.full((3, 5), 0.1, dtype=torch.float64)
COUPLINGS = [  # of child 0
    (1 / 3, 1 / 3, 1 / 3),
    (0.346253367979, 0.606606017899, 0.047140614122),
    (0.546197239822, 0.452892879428, 0.000909880751),
]
# of parent 0
POSE = (0.026320132353, 0.049847254203, 0.071601041078, 0.088637219976, 0.098650024002)
SCALES = (-14.435897768403, -11.656865222022, -10.712660031698)  # t


def golden(found: Tensor, numbers: tuple[float, ...]) -> None:
    """Compare to 1e-7: the code adds 1e-8 under roots, the paper adds nothing."""
    expected = torch.tensor(numbers, dtype=torch.float64)
    assert_close(found, expected, atol=1e-7)


class Recorder(Normaliser):
    """Keeps the logits of every iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.logits: list[Tensor] = []

    def __call__(self, log_couplings: Tensor) -> Tensor:
        self.logits.append(log_couplings)
        return super().__call__(log_couplings)


def test_values_are_the_golden_numbers() -> None:
    """Poses and couplings are the golden numbers; logits are the distances before them times one factor."""
    recorder = Recorder()
    traces: list[RoutingTrace] = []
    scaled_distance_agreement(
        VOTES,
        LENGTHS,
        iterations=4,
        bias=BIAS,
        normalise=recorder,
        on_iteration=traces.append,
    )
    for trace, expected in zip(traces, COUPLINGS, strict=False):
        golden(trace.couplings[0, 0], expected)
    golden(traces[2].poses[0, 0], POSE)
    ratios = LENGTHS.unsqueeze(2) / VOTES.norm(dim=3)
    factors = ratios.clamp_max(1)
    shortened = VOTES * factors.unsqueeze(3)
    rows = zip(recorder.logits[1:], traces, SCALES, strict=False)
    for logits, trace, scale in rows:
        differences = trace.poses.unsqueeze(1) - shortened  # [b i j d]
        distances = differences.norm(dim=3).transpose(1, 2)  # [b j i]
        assert_close(logits, scale * distances, atol=1e-6)


def test_single_parent_gets_all_couplings() -> None:
    votes = VOTES[:, :, :1]
    once = scaled_distance_agreement(votes, LENGTHS, iterations=1)
    thrice = scaled_distance_agreement(votes, LENGTHS)
    torch.testing.assert_close(thrice, once)


def check_images_are_independent(route: Any) -> None:
    other_votes = 3 * VOTES.flip(1)
    other_lengths = 2 * LENGTHS
    one = route(VOTES, LENGTHS)
    other = route(other_votes, other_lengths)
    alone = torch.cat([one, other])
    votes = torch.cat([VOTES, other_votes])
    lengths = torch.cat([LENGTHS, other_lengths])
    together = route(votes, lengths)
    assert_close(alone, together, atol=1e-10)
    golden(alone[0, 0], POSE)


def our_poses(votes: Tensor, lengths: Tensor) -> Tensor:
    return scaled_distance_agreement(votes, lengths, bias=BIAS).poses


def test_scale_from_the_batch_mean_is_caught() -> None:
    right = partial(scaled_distances, over_batch=False)
    mistake = partial(scaled_distances, over_batch=True)
    check_catches(check_images_are_independent, mistake, right, our_poses)


@pytest.mark.parametrize("normalisation", ["window", "all_parents"])
def test_images_are_independent_in_a_convolutional_layer(
    normalisation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions of an image share a scale, also when few images are routed at a time."""
    torch.manual_seed(0)
    options: Any = {"normalisation": normalisation, "backend": "matmul"}
    routing = partial(ScaledDistanceAgreement, **options)
    layer = ConvCapsules((4, 4), 2, 6, 3, 5, weight_std=1.0, routing=routing)
    layer.double()
    poses = torch.randn(3, 32, 6).double()
    present = torch.rand(3, 32).double()
    whole = layer(poses, present).poses
    images = zip(poses.split(1), present.split(1), strict=True)
    alone = torch.cat([layer(*image).poses for image in images])
    assert_close(alone, whole)
    monkeypatch.setattr(run_routing, "VOTES_IN_CACHE", 1)
    assert_close(layer(poses, present).poses, whole)
