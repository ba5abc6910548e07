"""What holds for every option of ``what=``; a row for each, and those without a row fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from hydra.utils import get_object
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.config.compose import conf_dir, options_of
from capsule_lab.config.functions import function_options
from capsule_lab.networks import AbstractPairNetwork, PairAutoencoder, TransformingAutoencoder
from capsule_lab.studies.subject import OF_PAIRS, Answer, Subject
from tests.helpers.networks import small_capsnet
from tests.helpers.subjects import CLASSES, moved, small_network, subject

NOTHING: Mapping[str, Any] = MappingProxyType({})


def with_decoder() -> Subject:
    torch.manual_seed(0)
    return subject(small_capsnet((1, 24, 24), CLASSES, decoder=[8]))


def em_caps() -> Subject:
    return subject(small_network())


def capsnet() -> Subject:
    return subject(small_network("capsnet"))


def cnn() -> Subject:
    return subject(small_network("cnn"))


def quarter_turn(images: Tensor, degrees: float) -> Tensor:
    return images.rot90(1 if degrees > 0 else 3, (2, 3))


def pairs() -> Subject:
    torch.manual_seed(0)
    network = TransformingAutoencoder((1, 24, 24), capsules=10)
    return subject(network, {"translation": moved, "rotation": quarter_turn})


def autoencoder() -> Subject:
    torch.manual_seed(0)
    return subject(PairAutoencoder((1, 24, 24), code=6), {"translation": moved})


def views(toys: tuple[int, ...] = (7, 8), *, toys_of_training: tuple[int, ...] = (0, 1, 2)) -> Subject:
    """Of images that say from where they were taken."""
    asked = cnn()
    rows = [(toy, elevation, azimuth, 0) for toy in toys for elevation in (0, 4) for azimuth in range(0, 36, 3)]
    seen = [(toy, *rest) for toy in toys_of_training for _, *rest in rows[: 24 if len(toys) > 1 else 12]]

    def batch(rows: list[tuple[int, ...]]) -> Any:
        labels = torch.arange(len(rows)) % 2
        images = torch.rand(len(rows), 1, 24, 24, generator=torch.Generator().manual_seed(0))
        return asked.batches[0]._replace(images=images, labels=labels, key=labels, factors=torch.tensor(rows))

    factors = ("instance", "elevation", "azimuth", "lighting")
    return replace(asked, batches=[batch(rows)], training=lambda _: [batch(seen)], factors=factors)


class Row(NamedTuple):
    """A question to a network that it is for.

    Attributes:
        asked: what it is put to.
        options: for a short test.
        numbers: some names of them.
        figures: names of all.
        rows: whether there are some.
    """

    asked: Callable[[], Subject]
    options: Mapping[str, Any] = NOTHING
    numbers: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    rows: bool = False


FEW = {"training_images": 24, "components": 4, "factors": 1, "draws": 2, "restarts": 2, "steps": 5, "principal": 4}
MAPS = ("presence_change", "monotony", "linear_share", "map_error", "identity_error", "equivariance_gain", "group_law")
TREE = ("mass_in_tree", "branches", "drop_of_tree", "drop_of_votes", "drop_of_random", "alike_within", "follows_shift")
ROWS: dict[str, Row] = {
    "coding": Row(
        em_caps,
        {"shift": 2},
        ("primary/place_slope", "classes/rate_share", "classes/domain"),
        ("layers", "first_layer"),
        rows=True,
    ),
    "couplings": Row(
        em_caps, NOTHING, ("classes/3/t_score", "conv_capsules_1/d_score", "routing_gain"), ("histograms",)
    ),
    "couplings of dynamic routing": Row(
        capsnet, {"iterations": 4}, ("digits/4/logit_change",), ("histograms", "logit_changes", "maps")
    ),
    "crowding": Row(
        with_decoder, NOTHING, ("three_classes/found", "same_class/one_part", "again/single_by_image"), ("pairs",)
    ),
    "crowding without a decoder": Row(em_caps, NOTHING, ("again/two_classes_by_routing",)),
    "decoder": Row(
        capsnet,
        {"epochs": 2, "hidden": (8,), "training_images": 24},
        ("squared_error", "explained"),
        ("reconstructions",),
    ),
    "few_labels": Row(
        em_caps,
        {**FEW, "features": "pixels"},
        ("asked/error", "drawn_2_per_class/deviation", "nearest/error", "probe/error"),
    ),
    "few_labels of a code": Row(autoencoder, {**FEW, "features": "code"}, ("log_likelihood", "dimensions")),
    "poses": Row(
        pairs,
        {"shifts": (1,)},
        ("shift_1/slope_right", "shift_1/reconstruction"),
        ("generative_fields", "scatter", "presence", "images"),
    ),
    "poses without capsules": Row(autoencoder, {"shifts": (2,)}, ("shift_2/copying",)),
    "probe": Row(views, NOTHING, ("linear/azimuth_degrees", "network/elevation_r2", "pixels/lighting_r2")),
    "scramble": Row(
        cnn, {"tiles": 3}, ("two_tiles/kept", "all_tiles/auc", "halves_of_class/distance", "noise/images"), ("images",)
    ),
    "sign": Row(cnn, NOTHING, ("negated/error", "photographic_negative/mean_change_of_scores")),
    "transforms": Row(
        cnn, {"kinds": ["translation"]}, tuple(f"translation/{each}" for each in MAPS), ("curves",), rows=True
    ),
    "transforms of capsules": Row(
        em_caps, {"kinds": ["translation"]}, ("translation/inverse",), ("curves",), rows=True
    ),
    "tree": Row(em_caps, {"shown": 1}, tuple(f"classes/{each}" for each in TREE), ("trees",)),
    "votes": Row(
        em_caps,
        {"shown": 1},
        ("classes/3/tightness", "classes/1/auc", "classes/moved_together"),
        ("histograms_1", "points"),
    ),
    "votes of dynamic routing": Row(capsnet, {"shown": 0}, ("digits/3/cosine", "digits/3/rank")),
}


def ask(name: str, asked: Subject, **options: Any) -> Answer:
    target = function_options(conf_dir() / "what")[name.split(" ")[0]].target
    answer: Answer = get_object(target)(asked, **options)
    return answer


def test_every_option_has_a_row() -> None:
    assert {name.split(" ")[0] for name in ROWS} == {*options_of("what")}


@pytest.mark.parametrize("name", ROWS)
def test_numbers_rows_and_figures_and_nothing_else_changes(name: str) -> None:
    row = ROWS[name]
    asked = row.asked()
    weights = {key: value.clone() for key, value in asked.network.state_dict().items()}
    state = torch.get_rng_state()
    answer = ask(name, asked, **row.options)
    assert answer.numbers.keys() >= {*row.numbers}
    assert bool(answer.rows) is row.rows or name == "decoder", "only of classes that are recognised"
    figures = answer.draw()
    assert {*row.figures} <= {*figures}
    assert bool(figures) == bool(row.figures)
    assert all(isinstance(figure, Figure) for figure in figures.values())
    torch.testing.assert_close(ask(name, row.asked(), **row.options).numbers, answer.numbers, equal_nan=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, weights[key]) for key, value in asked.network.state_dict().items())
    assert all(each.grad is None for each in asked.network.parameters())


def test_no_figures_are_drawn_of_no_images() -> None:
    for name in ("couplings", "crowding", "scramble", "tree", "votes"):
        figures = ask(name, ROWS[name].asked(), **{**ROWS[name].options, "shown": 0}).draw()
        assert {*figures} <= {"histograms"}


@pytest.mark.usefixtures("unchecked_types")
def test_wrong_networks_and_options() -> None:
    for name, asked, options, message in [
        ("coding", cnn, {}, "SmallCNN has no capsules; expected a network of capsules"),
        ("coding", em_caps, {"shift": 0}, "shift is 0; expected 1 to 23"),
        ("couplings", cnn, {}, "SmallCNN has no routing to look at; expected a network of capsules"),
        ("couplings", em_caps, {"shown": -1}, "shown is -1; expected 0 or more"),
        ("crowding", cnn, {}, "SmallCNN has no capsules that could be crowded; expected a network of capsules"),
        ("crowding", with_decoder, {"shift": 24}, "shift is 24; expected 0 to 23"),
        ("decoder", cnn, {}, "SmallCNN has no poses to decode; expected a network of class capsules with poses"),
        ("decoder", em_caps, {"training_images": 0}, "training_images is 0"),
        ("decoder", em_caps, {"epochs": 0}, "epochs is 0"),
        ("decoder", em_caps, {"learning_rate": 0.0}, "learning_rate is 0"),
        ("decoder", em_caps, {"hidden": (0,)}, "what=decoder has hidden 0; expected 1 or more"),
        ("few_labels", em_caps, {}, "EMCaps has no capsules of this kind; expected model=transforming_autoencoder"),
        ("few_labels", em_caps, {"features": "hidden"}, "features is 'hidden'; expected"),
        ("few_labels", pairs, {"features": "code"}, "features is 'code', and this is a TransformingAutoencoder"),
        ("few_labels", autoencoder, {"features": "poses"}, "features is 'poses', and this is a PairAutoencoder"),
        ("few_labels", em_caps, {"features": "pixels", "draws": 0}, "draws is 0; expected 1 or more"),
        ("few_labels", em_caps, {"features": "pixels", "labels": 0}, "labels is 0; expected 1 or more"),
        ("poses", cnn, {}, "SmallCNN is told no change of its images; expected model=transforming_autoencoder"),
        ("poses", pairs, {"shifts": (0,)}, "shifts 0; expected 1 or more"),
        ("probe", cnn, {}, "this data does not say instance of its images; expected smallNORB, or its stand-in"),
        ("probe", lambda: views((2, 8)), {}, "toy 2 of class 0 is in training and among"),
        ("probe", lambda: views((7,), toys_of_training=(1,)), {}, "expected 10 or more: what.training_images"),
        ("scramble", cnn, {"tiles": 1}, "tiles is 1; expected 2 to 24"),
        ("scramble", cnn, {"tiles": 25}, "tiles is 25; expected 2 to 24"),
        ("transforms", cnn, {"kinds": []}, "kinds is empty; expected some of rotation"),
        ("transforms", cnn, {"kinds": ["bending"]}, "kinds is 'bending'; expected 'rotation'"),
        ("transforms", cnn, {"ridge": 0.0}, "ridge is 0"),
        ("tree", cnn, {}, "SmallCNN has no routing to look at"),
        ("tree", em_caps, {"silenced": 1.0}, "silenced is 1.0"),
        ("votes", cnn, {}, "SmallCNN has no routing to look at"),
        ("votes", em_caps, {"longest": -1.0}, "longest is -1"),
        ("votes", em_caps, {"shift": 24}, "shift is 24"),
    ]:
        with pytest.raises(ValueError, match=message):
            ask(name, asked(), **options)


def test_questions_about_pairs_say_so() -> None:
    for name, row in ROWS.items():
        if isinstance(row.asked().network, AbstractPairNetwork):
            ask(name, row.asked(), **row.options)
            assert name.split(" ")[0] in OF_PAIRS
