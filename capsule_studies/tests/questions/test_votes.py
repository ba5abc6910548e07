from dataclasses import replace

import pytest
import torch

from capsule_studies.measures import votes as measures
from capsule_studies.measures.features import of_label
from capsule_studies.questions.votes import votes
from capsule_studies.tests.subjects import small_network, subject


def test_numbers_are_of_the_class_layer() -> None:
    """``moved_together`` compares votes before and after a shift of the image; it is the median over images."""
    asked = subject(small_network())
    numbers = votes(asked).numbers
    *_, (name, layer) = asked.traces.items()
    before = layer.votes()
    for number, iteration in enumerate(layer.iterations, start=1):
        distances = measures.vote_distances(before, iteration.poses)
        means = measures.mean_distances(distances, iteration.couplings, layer.present)
        expected = of_label(means, asked.labels).mean().item()
        found = numbers[f"{name}/{number}/mean_distance"]
        assert found == pytest.approx(expected, rel=1e-5)
    for key in numbers:
        assert key.startswith(f"{name}/")
    shifted = asked.with_images(asked.images.roll(2, 3))
    moved = replace(asked, batches=shifted)
    after = moved.traces[name].votes()
    weights = layer.iterations[-1].couplings * layer.present.unsqueeze(2)
    shares = []
    for image, label in enumerate(asked.labels):
        of_image = image, slice(None), label
        share = measures.common_displacement(before[of_image], after[of_image], weights[of_image])
        shares.append(share)
    median = torch.tensor(shares).median().item()
    assert numbers[f"{name}/moved_together"] == pytest.approx(median, rel=1e-4)


def test_distances_of_dynamic_routing_are_from_the_mean_of_the_votes() -> None:
    """The squashed sum of very many votes is far from each of them."""
    asked = subject(small_network("capsnet"))
    (layer,) = asked.traces.values()
    every = layer.votes()
    couplings = layer.iterations[-1].couplings
    sums = torch.einsum("bij,bijd->bjd", couplings, every)
    means = sums / couplings.sum(1).unsqueeze(2)
    distances = (every - means.unsqueeze(1)).norm(dim=3)
    equal_weights = torch.ones_like(layer.present)
    of_parents = measures.mean_distances(distances, couplings, equal_weights)
    expected = of_label(of_parents, asked.labels).mean()
    numbers = votes(asked).numbers
    assert numbers["digits/3/mean_distance"] == pytest.approx(float(expected), rel=1e-5)


def test_figures_are_of_three_images_and_of_the_shift_of_one() -> None:
    figures = votes(subject(small_network()), shift=3).draw()
    assert set(figures) == {"histograms_1", "histograms_2", "histograms_3", "points"}
    heading = figures["histograms_1"].get_suptitle()
    assert heading.endswith("distance from the pose of the class")
    picture, before, after, colours = figures["points"].axes
    assert picture.images
    assert picture.get_title().startswith("image of ")
    assert before.get_title() == "votes"
    assert after.get_title() == "votes after moving the image by 3 pixels"
    assert colours.get_ylabel() == "type of child"
    points = before.collections[0]
    assert len(points.get_offsets()) == 2 * 2 * 2  # positions by types
