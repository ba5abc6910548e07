from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from matplotlib.figure import Figure

from capsule_lab.routing import SelfRouting
from capsule_lab.studies.measures import votes as measures
from capsule_lab.studies.questions.votes import votes
from tests.helpers.subjects import small_network, subject


@pytest.mark.parametrize("kind", ["em_caps"])
def test_numbers_are_of_the_class_layer(kind: str) -> None:
    asked = subject(small_network(kind))
    numbers = votes(asked).numbers
    name, layer = [*asked.traces.items()][-1]
    for number, iteration in enumerate(layer.iterations, start=1):
        distances = measures.vote_distances(layer.votes(), iteration.poses)
        means = measures.mean_distances(distances, iteration.couplings, layer.present)
        expected = means[torch.arange(len(asked.labels)), asked.labels].mean()
        assert numbers[f"{name}/{number}/mean_distance"] == pytest.approx(float(expected), rel=1e-5)
    assert {key.split("/")[0] for key in numbers} == {name}


def test_figures_are_of_the_tightest_the_middle_and_the_loosest() -> None:
    figures = votes(subject(small_network())).draw()
    assert {*figures} == {"histograms_1", "histograms_2", "histograms_3", "points"}
    assert all(isinstance(figure, Figure) for figure in figures.values())


def test_histograms_show_the_image_and_say_what_distances_are_from() -> None:
    for kind, origin in [("em_caps", "pose that they make"), ("capsnet", "mean of the votes")]:
        figure = votes(subject(small_network(kind)), shown=1).draw()["histograms_1"]
        assert figure.axes[0].images
        assert figure.axes[0].get_title().startswith("image of class ")
        assert figure.get_suptitle().endswith(f"distance from the {origin}")


def test_distances_of_dynamic_routing_are_from_the_mean_of_the_votes() -> None:
    """From the squashed sum of very many votes, the label's would be the farthest."""
    asked = subject(small_network("capsnet"))
    (layer,) = asked.traces.values()
    every, last = layer.votes(), layer.iterations[-1]
    ones = torch.ones_like(layer.present)
    means = torch.einsum("bij,bijd->bjd", last.couplings, every) / last.couplings.sum(1).unsqueeze(2)
    distances = (every - means.unsqueeze(1)).norm(dim=3)
    expected = measures.mean_distances(distances, last.couplings, ones).gather(1, asked.labels.unsqueeze(1)).mean()
    assert votes(asked).numbers["digits/3/mean_distance"] == pytest.approx(float(expected), rel=1e-5)


def test_class_capsules_without_poses() -> None:
    network = small_network("capsnet", routing=partial(SelfRouting, poses=False))
    with pytest.raises(ValueError, match="SelfRouting has no votes for the classes"):
        votes(subject(network))


def test_votes_of_capsules_that_move_with_the_image_move_together() -> None:
    """Votes that all get the same vector added move as one; the number is the median over images."""
    asked = subject(small_network())
    name, layer = [*asked.traces.items()][-1]
    found = votes(asked).numbers[f"{name}/moved_together"]
    moved_images = [batch.images.roll(2, 3) for batch in asked.batches]
    batches = [batch._replace(images=images) for batch, images in zip(asked.batches, moved_images, strict=True)]
    after = replace(asked, batches=batches).traces[name].votes()
    last, shares = layer.iterations[-1], []
    for image, label in enumerate(asked.labels.tolist()):
        delta = (after - layer.votes())[image, :, label]
        weights = (last.couplings[image, :, label] * layer.present[image]).unsqueeze(1)
        mean = (weights * delta).sum(0) / weights.sum()
        shares.append(1 - (weights * (delta - mean).square()).sum() / (weights * delta.square()).sum())
    assert found == pytest.approx(float(torch.stack(shares).median()), rel=1e-4)


def test_points_before_and_after_the_shift() -> None:
    figure = votes(subject(small_network()), shift=3).draw()["points"]
    picture, before, after, colours = figure.axes
    assert picture.images
    titles = [picture.get_title().split()[:2], before.get_title(), after.get_title()]
    assert titles == [["image", "of"], "votes for it", "the same, image moved by 3 pixels"]
    assert colours.get_ylabel() == "type of child"
    points = before.collections[0]
    assert len(points.get_offsets()) == 2 * 2 * 2  # positions by types
