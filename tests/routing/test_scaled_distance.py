"""Scaled-distance agreement: golden numbers, and the mean over the batch that official code takes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from capsule_lab.kernels import run_routing
from capsule_lab.layers import ConvCapsules
from capsule_lab.routing import Normaliser, ScaledDistanceAgreement, scaled_distance_agreement
from capsule_lab.types import RoutingTrace
from tests.helpers.waves import cosine, sine
from tests.reference.wrong_attention import mean_over_batch, mean_over_image, scaled_distances

golden = partial(
    torch.testing.assert_close, rtol=0, atol=1e-7
)  # under roots there is 1e-8, of which the paper has none

VOTES = sine(1, 6, 3, 5, scale=0.6, frequency=0.37, phase=0.1)
LENGTHS = cosine(1, 6, 4, scale=0.3, frequency=0.41).norm(dim=2)
BIAS = torch.full((3, 5), 0.1, dtype=torch.float64)
COUPLINGS = [  # of child 0
    (1 / 3, 1 / 3, 1 / 3),
    (0.346253367979, 0.606606017899, 0.047140614122),
    (0.546197239822, 0.452892879428, 0.000909880751),
]
POSE = (0.026320132353, 0.049847254203, 0.071601041078, 0.088637219976, 0.098650024002)  # of parent 0
SCALES = (-14.435897768403, -11.656865222022, -10.712660031698)  # t


def double(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


class Recorder(Normaliser):
    """Keeps the logits of every iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.logits: list[Tensor] = []

    def __call__(self, log_couplings: Tensor) -> Tensor:
        self.logits.append(log_couplings)
        return super().__call__(log_couplings)


def test_golden_numbers() -> None:
    traces: list[RoutingTrace] = []
    poses = scaled_distance_agreement(VOTES, LENGTHS, bias=BIAS, on_iteration=traces.append).poses
    for trace, expected in zip(traces, COUPLINGS, strict=True):
        golden(trace.couplings[0, 0], double(*expected))
    golden(poses[0, 0], double(*POSE))


def test_golden_scales_of_the_distances() -> None:
    """Logits are the distances of the iteration before, times one number."""
    recorder, traces = Recorder(), []
    scaled_distance_agreement(VOTES, LENGTHS, iterations=4, bias=BIAS, normalise=recorder, on_iteration=traces.append)
    shortened = VOTES * (LENGTHS[:, :, None] / VOTES.norm(dim=3)).clamp_max(1)[..., None]
    for logits, trace, scale in zip(recorder.logits[1:], traces, SCALES, strict=False):
        distances = (trace.poses.unsqueeze(1) - shortened).norm(dim=3).transpose(1, 2)
        torch.testing.assert_close(logits, scale * distances, rtol=0, atol=1e-6)


def test_vote_at_half_the_mean_distance_gets_the_share() -> None:
    """Where the other votes of its child are at the mean; checked through the logits' own definition."""
    recorder = Recorder()
    traces: list[RoutingTrace] = []
    scaled_distance_agreement(VOTES, LENGTHS, share=0.8, iterations=2, normalise=recorder, on_iteration=traces.append)
    shortened = VOTES * (LENGTHS[:, :, None] / VOTES.norm(dim=3)).clamp_max(1)[..., None]
    distances = (traces[0].poses.unsqueeze(1) - shortened).norm(dim=3).transpose(1, 2)
    per_distance = (recorder.logits[1] / distances).mean()
    logits = per_distance * distances.mean() * double(0.5, 1, 1)
    torch.testing.assert_close(logits.softmax(0)[0].item(), 0.8, rtol=0, atol=1e-6)


def test_votes_are_no_longer_than_their_child() -> None:
    traces: list[RoutingTrace] = []
    scaled_distance_agreement(VOTES, LENGTHS, iterations=1, on_iteration=traces.append)
    long, as_long = (scaled_distance_agreement(scale * VOTES, LENGTHS).poses for scale in (1e3, 1e4))
    torch.testing.assert_close(long, as_long, rtol=0, atol=1e-9)
    longer_children = scaled_distance_agreement(VOTES, 2 * LENGTHS).poses
    assert not torch.allclose(longer_children, scaled_distance_agreement(VOTES, LENGTHS).poses)


# --------------------------------------------------------------------------------------- the mistake of official code


def check_images_are_independent(route: Any) -> None:
    votes, lengths = torch.cat([VOTES, 3 * VOTES.flip(1)]), torch.cat([LENGTHS, 2 * LENGTHS])
    alone = torch.cat([route(*image) for image in zip(votes.split(1), lengths.split(1), strict=True)])
    torch.testing.assert_close(alone, route(votes, lengths), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "route",
    [
        pytest.param(lambda votes, lengths: scaled_distance_agreement(votes, lengths, bias=BIAS).poses, id="ours"),
        pytest.param(partial(scaled_distances, mean=mean_over_image), id="right"),
    ],
)
def test_images_are_independent(route: Any) -> None:
    check_images_are_independent(route)
    golden(route(VOTES, LENGTHS)[0, 0], double(*POSE))


def test_mean_over_the_batch_is_caught() -> None:
    with pytest.raises(AssertionError):
        check_images_are_independent(partial(scaled_distances, mean=mean_over_batch))


@pytest.mark.parametrize("normalisation", ["window", "all_parents"])
def test_images_are_independent_in_a_convolutional_layer(normalisation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions of an image share a scale, also if few images are routed at a time."""
    torch.manual_seed(0)
    routing = partial(ScaledDistanceAgreement, normalisation=normalisation, backend="matmul")
    layer = ConvCapsules((4, 4), 2, 6, 3, 5, weight_std=1.0, routing=routing).double()
    poses, present = torch.randn(3, 32, 6).double(), torch.rand(3, 32).double()
    whole = layer(poses, present).poses
    alone = torch.cat([layer(*image).poses for image in zip(poses.split(1), present.split(1), strict=True)])
    torch.testing.assert_close(alone, whole, rtol=0, atol=1e-12)
    monkeypatch.setattr(run_routing, "VOTES_IN_CACHE", 1)
    torch.testing.assert_close(layer(poses, present).poses, whole, rtol=0, atol=1e-12)


def test_one_parent_gets_everything() -> None:
    votes = VOTES[:, :, :1]
    once = scaled_distance_agreement(votes, LENGTHS, iterations=1)
    torch.testing.assert_close(scaled_distance_agreement(votes, LENGTHS), once)
