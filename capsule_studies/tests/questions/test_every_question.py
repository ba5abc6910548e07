"""The contract of every option of ``what=``: each needs a row of ``ROWS``."""

import copy
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from hydra.utils import get_object
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.config.folders import options_of
from capsule_lab.config.options import function_options
from capsule_lab.networks import (
    AbstractNetwork,
    AbstractPairNetwork,
    PairAutoencoder,
    TransformingAutoencoder,
)
from capsule_lab.routing import SelfRouting
from capsule_lab.types import Batch, CapsuleOutput
from capsule_studies.meanings import MEANINGS, meanings_of
from capsule_studies.subject import OF_PAIRS, Answer, Subject
from capsule_studies.tests.subjects import CLASSES, moved, quarter_turn, small_network, subject
from tests.helpers.networks import small_capsnet
from tests.helpers.tiers import whole_but

NOTHING: Mapping[str, Any] = MappingProxyType({})


def of(kind: str) -> Subject:
    """A subject with a small network of this kind."""
    torch.manual_seed(0)
    shape = (1, 24, 24)
    if kind == "with a decoder":
        network = small_capsnet(shape, CLASSES, decoder=[8])
        return subject(network, images=40)
    if kind == "pairs":
        changes = {"translation": moved, "rotation": quarter_turn}
        pairs = TransformingAutoencoder(shape, capsules=10)
        return subject(pairs, changes, images=16)
    if kind == "code":
        auto_encoder = PairAutoencoder(shape, code=6)
        return subject(auto_encoder, {"translation": moved})
    if kind == "without poses":
        routing = partial(SelfRouting, poses=False)
        return subject(small_network("capsnet", routing=routing))
    if kind == "em_caps of 40":
        return subject(small_network("em_caps"), images=40)
    images = 24 if kind == "cnn" else 16
    return subject(small_network(kind), images=images)


def changed(kind: str, change: Callable[[Any], Any]) -> Subject:
    """The subject of this kind with every batch changed."""
    original = of(kind)
    return replace(original, batches=[change(batch) for batch in original.batches])


def views(
    toys: tuple[int, ...] = (7, 8), *, toys_of_training: tuple[int, ...] = (0, 1, 2)
) -> Subject:
    """A subject with images whose viewpoints are known."""
    elevations = (0, 4)

    def batch(toys: tuple[int, ...], elevations: tuple[int, ...]) -> Batch:
        combinations = itertools.product(toys, elevations, range(0, 36, 3), [0])
        factors = torch.tensor([*combinations])
        labels = torch.arange(len(factors)) % 2
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(len(factors), 1, 24, 24, generator=generator)
        return Batch(images, labels, labels, factors)

    seen = batch(toys_of_training, elevations if len(toys) > 1 else elevations[:1])
    return replace(
        of("cnn"),
        batches=[batch(toys, elevations)],
        training=lambda _: [seen],
        factors=("instance", "elevation", "azimuth", "lighting"),
    )


class Row(NamedTuple):
    """A question: a kind of network that it is for, options for a short test, and its results."""

    kind: str
    options: Mapping[str, Any] = NOTHING
    numbers: tuple[str, ...] = ()  # some of them
    figures: tuple[str, ...] = ()
    rows: bool = False

    def subject(self) -> Subject:
        return views() if self.kind == "views" else of(self.kind)


FEW = {
    "training_images": 24,
    "components": 4,
    "factors": 1,
    "draws": 2,
    "restarts": 2,
    "steps": 5,
    "principal": 4,
}
MAPS = (
    "translation/presence_change",
    "translation/monotony",
    "translation/linear_share",
    "translation/map_error",
    "translation/explained",
    "translation/equivariance_gain",
    "translation/group_law",
)
INVERSE = ("translation/inverse",)
TREE = (
    "classes/mass_in_tree",
    "classes/branches",
    "classes/drop_of_tree",
    "classes/drop_of_votes",
    "classes/drop_of_random",
    "classes/alike_within",
    "classes/follows_shift",
)
LOGITS = ("digits/4/logit_change",)
LIKELIHOOD = ("log_likelihood", "dimensions")
SLOPES = ("shift_1/slope_right", "shift_1/reconstruction")
KEPT = ("other_class/error", "kept_by_mean")
NEGATED = ("negated/error", "photographic_negative/mean_change_of_scores")
FIELDS = ("generative_fields", "scatter", "presence", "images")
DECODER = {"epochs": 2, "hidden": (8,), "training_images": 24}
MOVED = {"kinds": ["translation"]}
CROWDED = ("three_classes/found", "same_class/one_part", "again/single_by_image")
LABELS = ("asked/error", "drawn_2_per_class/deviation", "nearest/error", "probe/error")
PROBES = ("linear/azimuth_degrees", "network/elevation_r2", "pixels/lighting_r2")
TILES = ("two_tiles/kept", "all_tiles/auc", "halves_of_class/distance", "noise/images")
CODES = ("primary/place_slope", "classes/rate_share", "classes/domain")
SCORES = ("classes/3/t_score", "conv_capsules_1/d_score", "routing_gain")
CLUSTERS = ("classes/3/tightness", "classes/1/auc", "classes/moved_together")
REPLACED = ("own/error", "mean/error", "equal/error", "distance_of_own_from_mean")
AXES = ("explained_by_components", "axis_gain", "slant/explained_by_pose")
SHEETS = ("correlations", "slant", "thickness", "width")
ROWS: dict[str, Row] = {
    "attributes": Row("with a decoder", {"rotations": 3}, AXES, SHEETS, rows=True),
    "attributes without a decoder": Row("em_caps of 40", NOTHING, AXES, SHEETS[:1], rows=True),
    "coding": Row("em_caps", {"shift": 2}, CODES, ("layers", "first_layer"), rows=True),
    "couplings": Row("em_caps", NOTHING, SCORES, ("histograms",)),
    "couplings of dynamic routing": Row("capsnet", {"iterations": 4}, LOGITS, ("histograms",)),
    "crowding": Row("with a decoder", NOTHING, CROWDED),
    "crowding without a decoder": Row("em_caps", NOTHING, ("again/two_classes_by_routing",)),
    "decoder": Row("capsnet", DECODER, ("squared_error", "explained"), ("reconstructions",)),
    "few_labels": Row("em_caps", {**FEW, "features": "pixels"}, LABELS),
    "few_labels of a code": Row("code", {**FEW, "features": "code"}, LIKELIHOOD),
    "poses": Row("pairs", {"shifts": (1,)}, SLOPES, FIELDS),
    "poses without capsules": Row("code", {"shifts": (2,)}, ("shift_2/copying",)),
    "probe": Row("views", NOTHING, PROBES),
    "replaced_couplings": Row("em_caps", {"training": 24}, REPLACED),
    "replaced_couplings of dynamic routing": Row("capsnet", {"training": 24}, KEPT),
    "scramble": Row("cnn", {"tiles": 3}, TILES, ("images",)),
    "sign": Row("cnn", NOTHING, NEGATED),
    "transforms": Row("cnn", MOVED, MAPS, ("curves",), rows=True),
    "transforms of capsules": Row("em_caps", MOVED, INVERSE, ("curves",), rows=True),
    "tree": Row("em_caps", {"shown": 1}, TREE, ("trees",)),
    "votes": Row("em_caps", {"shown": 1}, CLUSTERS, ("histograms_1", "points")),
    "votes of dynamic routing": Row("capsnet", {"shown": 0}, ("digits/3/cosine", "digits/3/rank")),
}


def ask(name: str, questioned: Subject, **options: Any) -> Answer:
    target = function_options("what")[name.split(" ")[0]].target
    answer: Answer = get_object(target)(questioned, **options)
    return answer


def test_every_option_has_a_row() -> None:
    assert {name.split(" ")[0] for name in ROWS} == {*options_of("what")} == {*MEANINGS}


@pytest.mark.parametrize(
    "name", whole_but(ROWS, "coding", "decoder", "few_labels", "poses", "sign", "tree", "votes")
)
def test_question_gives_numbers_rows_and_figures_and_changes_nothing(
    name: str, shapes_checked_in_first: Any
) -> None:
    row = ROWS[name]
    subjects = [row.subject(), row.subject()]
    network = subjects[0].network
    weights = copy.deepcopy(network.state_dict())
    state = torch.get_rng_state()
    answer, again = (ask(name, each, **row.options) for each in shapes_checked_in_first(subjects))
    if isinstance(network, AbstractPairNetwork):
        assert name.split(" ")[0] in OF_PAIRS
    assert answer.numbers.keys() >= set(row.numbers)
    for key in answer.numbers:
        assert meanings_of(name.split(" ")[0], [key]), f"{key} has no sentence in MEANINGS"
    if name != "decoder":  # has rows of recognised classes only
        assert bool(answer.rows) is row.rows
    figures = answer.draw()
    assert figures.keys() >= set(row.figures)
    assert bool(figures) == bool(row.figures)
    for figure in figures.values():
        assert isinstance(figure, Figure)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(again.numbers, answer.numbers, equal_nan=True)
    for key, value in network.state_dict().items():
        assert torch.equal(value, weights[key])
    for parameter in network.parameters():
        assert parameter.grad is None


@pytest.mark.usefixtures("unchecked_types")
def test_no_images_are_drawn_with_shown_0() -> None:
    for name in ("scramble", "tree", "votes"):
        row = ROWS[name]
        options = {**row.options, "shown": 0}
        answer = ask(name, row.subject(), **options)
        assert not answer.draw()


def darker_than_0(batch: Batch) -> Batch:
    return batch._replace(images=batch.images - 1)


def blank(batch: Batch) -> Batch:
    return batch._replace(images=torch.zeros_like(batch.images))


def of_two_classes(batch: Batch) -> Batch:
    return batch._replace(labels=batch.labels % 2)


DARK = partial(changed, "with a decoder", darker_than_0)
TWO_CLASSES = partial(changed, "with a decoder", of_two_classes)
BLANK = partial(changed, "with a decoder", blank)
SHARED_TOY = partial(views, (2, 8))


def few_training_images() -> Subject:
    questioned = of("with a decoder")
    few = of("em_caps").batches
    return replace(questioned, training=lambda _: few)


def two_channels() -> Subject:
    network = small_capsnet((2, 24, 24), CLASSES)
    questioned = subject(network)
    batches = []
    for batch in questioned.batches:
        batches.append(batch._replace(images=batch.images.repeat(1, 2, 1, 1)))
    return replace(questioned, batches=batches)


FEW_VIEWS = partial(views, (7,), toys_of_training=(1,))
REFUSED: list[tuple[str, str | Callable[[], Subject], dict[str, Any], str]] = [
    ("attributes", "cnn", {}, "SmallCNN has no poses; expected a network of class capsules with"),
    ("attributes", "without poses", {}, "CapsNet has no poses; expected"),
    (
        "attributes",
        "em_caps",
        {},
        "4 of 16 images are of class 0; expected 10 or more, by a larger images",
    ),
    (
        "attributes",
        few_training_images,
        {},
        "4 of 16 images are of class 0; .* larger what.training_images",
    ),
    ("attributes", BLANK, {}, "image 0 is blank; expected bright strokes on black"),
    ("attributes", two_channels, {}, "images have 2 channels; expected one, of bright strokes"),
    ("attributes", "em_caps", {"rotations": 0}, "rotations is 0; expected 1 or more"),
    ("attributes", "em_caps", {"training_images": 0}, "training_images is 0; expected 1 or more"),
    ("coding", "cnn", {}, "SmallCNN has no capsules; expected a capsule network"),
    ("coding", "em_caps", {"shift": 0}, "shift is 0; expected 1 to 23"),
    ("couplings", "cnn", {}, "SmallCNN has no routing; expected a capsule network"),
    ("tree", "em_caps", {"shown": -1}, "shown is -1; expected 0 or more"),
    ("crowding", "cnn", {}, "SmallCNN has no capsules; expected a capsule network"),
    ("crowding", "with a decoder", {"shift": 24}, "shift is 24; expected 0 to 23"),
    ("crowding", DARK, {}, "pixels are not in"),
    ("crowding", TWO_CLASSES, {}, "these images are of 2 classes; expected 3 or more"),
    (
        "decoder",
        "cnn",
        {},
        "SmallCNN has no poses; expected a network of class capsules with poses",
    ),
    ("decoder", "em_caps", {"epochs": 0}, "epochs is 0"),
    ("decoder", "em_caps", {"learning_rate": 0.0}, "learning_rate is 0"),
    ("decoder", "em_caps", {"hidden": (0,)}, "what=decoder has hidden 0; expected 1 or more"),
    ("few_labels", "em_caps", {}, "EMCaps has no capsules of this kind; expected model=transf"),
    ("few_labels", "em_caps", {"features": "hidden"}, "features is 'hidden'; expected"),
    ("few_labels", "pairs", {"features": "code"}, "'code', but the network is a TransformingAuto"),
    ("few_labels", "code", {"features": "poses"}, "'poses', but the network is a PairAutoencoder"),
    ("few_labels", "em_caps", {"features": "pixels", "draws": 0}, "draws is 0; expected 1 or more"),
    ("poses", "cnn", {}, "SmallCNN takes no change of images; expected model=transforming_autoenc"),
    ("poses", "pairs", {"shifts": (0,)}, "shifts 0; expected 1 or more"),
    ("probe", "cnn", {}, "this data has no factor instance; expected smallNORB, or its stand-in"),
    ("probe", SHARED_TOY, {}, "toy 2 of class 0 is in the training images and in"),
    ("probe", FEW_VIEWS, {}, "expected 10 or more, by a larger what.training_images"),
    ("replaced_couplings", "cnn", {}, "SmallCNN has no routing; expected a capsule network"),
    ("replaced_couplings", "em_caps", {"training": 0}, "training is 0; expected 1 or more"),
    ("scramble", "cnn", {"tiles": 25}, "tiles is 25; expected 2 to 24"),
    ("transforms", "cnn", {"kinds": []}, "kinds is empty; expected some of rotation"),
    ("transforms", "cnn", {"kinds": ["bending"]}, "kinds is 'bending'; expected 'rotation'"),
    ("transforms", "cnn", {"ridge": 0.0}, "ridge is 0"),
    ("tree", "em_caps", {"silenced": 1.0}, "silenced is 1.0"),
    ("votes", "without poses", {}, "SelfRouting has no votes for the classes"),
    ("votes", "em_caps", {"longest": -1.0}, "longest is -1"),
    ("votes", "em_caps", {"shift": 24}, "shift is 24"),
]


def test_sign_changes_no_even_network_and_changes_one_with_relu() -> None:
    class Even(AbstractNetwork):
        def forward(self, images: Tensor) -> CapsuleOutput:
            return CapsuleOutput(images[:, 0, :4, 0].square())

    numbers = ask("sign", subject(Even())).numbers
    assert numbers["negated/same_predictions"] == 100
    assert numbers["negated/mean_change_of_scores"] == 0
    assert numbers["photographic_negative/mean_change_of_scores"] > 0
    assert ask("sign", of("cnn")).numbers["negated/mean_change_of_scores"] > 0


@pytest.mark.usefixtures("unchecked_types")
def test_wrong_networks_and_options_are_refused() -> None:
    for name, kind, options, message in REFUSED:
        refused = of(kind) if isinstance(kind, str) else kind()
        with pytest.raises(ValueError, match=message):
            ask(name, refused, **options)
