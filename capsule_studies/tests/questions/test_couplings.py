import importlib
import math
from functools import partial
from statistics import fmean

import pytest
import torch

from capsule_lab.analysis.equal_couplings import equal_couplings
from capsule_lab.layers import PrimaryCapsules
from capsule_lab.networks import CapsNet, SelfRoutingNet
from capsule_lab.routing import AttentionOverChildren, EMRouting, UniformRouting
from capsule_studies.measures import couplings as measures
from capsule_studies.questions.couplings import couplings
from capsule_studies.subject import error_percent
from capsule_studies.tests.subjects import small_network, subject


def test_numbers_of_every_layer_and_iteration_and_over_layers() -> None:
    asked = subject(small_network())
    numbers = couplings(asked).numbers
    for name, layer in asked.traces.items():
        for number in (1, 2, 3):
            of_iteration = layer.couplings(number - 1)
            score = measures.t_score(of_iteration, layer.seen())
            found = numbers[f"{name}/{number}/t_score"]
            assert found == pytest.approx(float(score))
        assert f"{name}/1/argmax_changes" not in numbers
        assert math.isnan(numbers[f"{name}/2/argmax_changes"]), "couplings of the first are equal"
        assert 0 <= numbers[f"{name}/3/argmax_changes"] <= 1
    t_scores = [
        numbers["conv_capsules_1/3/t_score"],
        numbers["conv_capsules_2/3/t_score"],
        numbers["classes/3/t_score"],
    ]
    assert numbers["t_score"] == pytest.approx(fmean(t_scores))
    d_scores = [
        numbers["conv_capsules_1/d_score"],
        numbers["conv_capsules_2/d_score"],
    ]
    assert numbers["d_score"] == pytest.approx(fmean(d_scores))
    error = error_percent(asked.outputs(), asked.labels)
    with equal_couplings(asked.network):
        output = asked.outputs()
    equal = error_percent(output, asked.labels)
    assert numbers["routing_gain"] == equal - error


def test_gradient_norms_are_of_the_cross_entropy() -> None:
    asked = subject(small_network())
    numbers = couplings(asked).numbers
    batch = asked.batches[0]
    ranking = asked.network(batch.images).ranking
    torch.nn.functional.cross_entropy(ranking, batch.labels).backward()
    for name, layer in asked.network.capsule_layers().items():
        gradients = [weight.grad for weight in layer.parameters() if weight.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        found = numbers[f"{name}/gradient_norm"]
        assert found == pytest.approx(float(norm), rel=1e-4)


def test_some_of_very_many_children(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = subject(small_network("capsnet"))
    of_all = couplings(asked).numbers
    # importlib, because the module has the name of its function
    module = importlib.import_module("capsule_studies.questions.couplings")
    monkeypatch.setattr(module, "_ENTRIES", 24 * 4 * 10)  # ten children
    (layer,) = asked.traces.values()
    children = module._children(layer)
    assert len(children.unique()) == 10
    of_ten = couplings(asked).numbers
    entropy = of_all["digits/3/entropy"]
    assert of_ten["digits/3/entropy"] == pytest.approx(entropy, abs=0.05)


def test_more_iterations_than_in_training() -> None:
    for kind, layer in [("em_caps", "classes"), ("capsnet", "digits")]:
        asked = subject(small_network(kind))
        numbers = couplings(asked, iterations=5).numbers
        assert f"{layer}/5/entropy" in numbers
        assert f"{layer}/6/entropy" not in numbers
        afterwards = subject(asked.network).traces[layer]
        assert len(afterwards.iterations) == 3
    without_iterations = subject(small_network("capsnet", routing=UniformRouting))
    with pytest.raises(ValueError, match="iterations is 2, but UniformRouting has none"):
        couplings(without_iterations, iterations=2)


def test_histograms_are_over_the_couplings_that_there_are() -> None:
    """The couplings of a CapsNet are near 0.1, which would be a few of fifty bins from 0 to 1."""
    asked = subject(small_network("capsnet"))
    figures = couplings(asked, iterations=10).draw()
    (axis,) = figures["histograms"].axes
    colours = {patch.get_edgecolor() for patch in axis.patches}
    assert len(colours) == 10
    last = axis.patches[-1].get_data()
    assert last.edges[0] > 0.01
    assert last.edges[-1] < 0.99
    full_bins = last.values > 0
    assert full_bins.sum() > 10
    assert last.values.sum() == pytest.approx(1)


def test_equal_couplings_of_a_convolutional_layer_are_no_tree() -> None:
    """Few of the parents at all positions see a child, and fewer see a child at the edge."""
    for normalisation in ["all_parents", "window"]:
        routing = partial(EMRouting, normalisation=normalisation, iterations=1)
        network = small_network(routing=routing)
        numbers = couplings(subject(network)).numbers
        assert numbers["conv_capsules_1/1/t_score"] == pytest.approx(0, abs=1e-5)
        assert numbers["conv_capsules_1/1/entropy"] == pytest.approx(1, abs=1e-5)
        assert numbers["conv_capsules_1/1/routing_std"] == pytest.approx(0, abs=1e-6)


def test_a_routing_over_children_has_no_trees() -> None:
    network = small_network("capsnet", routing=AttentionOverChildren)
    numbers = couplings(subject(network)).numbers
    assert math.isnan(numbers["digits/1/t_score"])
    assert math.isnan(numbers["routing_gain"])


def test_layers_with_padding() -> None:
    torch.manual_seed(0)
    options = {"trunk": "convnet", "planes": 4, "types": 2, "dim": 4, "conv_strides": (1, 2)}
    network = SelfRoutingNet((1, 24, 24), 4, **options)
    numbers = couplings(subject(network)).numbers
    assert math.isfinite(numbers["conv_capsules_1/1/t_score"])
    assert math.isfinite(numbers["conv_capsules_2/1/t_score"])


def test_a_layer_without_transformations() -> None:
    primary = partial(PrimaryCapsules, types=4, dim=16)
    options = {"channels": 4, "decoder": None, "transformation": "none", "primary": primary}
    network = CapsNet((1, 24, 24), 4, **options)
    numbers = couplings(subject(network)).numbers
    assert math.isfinite(numbers["digits/3/weighted_entropy"])
