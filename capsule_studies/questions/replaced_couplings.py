"""Is routing a computation or a constant: what happens if the couplings of an image are replaced by others?"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from capsule_lab.analysis.equal_couplings import EqualCouplings, routings_with_shares
from capsule_lab.errors import check_number
from capsule_lab.networks import AbstractCapsuleNetwork
from capsule_lab.routing import AbstractRouting, Normaliser
from capsule_lab.types import Batch
from capsule_studies.images import count_images
from capsule_studies.subject import Answer, Subject, question

Couplings = Tensor
"""Couplings of a layer, ``(row, parent, child)``; the sizes differ between layers."""
Source = Couplings | Literal["own", "equal"]
"""Couplings to use in a routing: its own ones, equal shares, or given ones."""
Replacement = Callable[[Sequence[Couplings], Int64[Tensor, " image"]], Sequence[Source]]
"""Function from the own couplings of each routing for a batch, and the labels of the images, to their replacements."""


@question()
def replaced_couplings(subject: Subject, *, training: int = 5000) -> Answer:
    """Measure the error with the network's couplings of the last iteration, and with others, in all iterations.

    - ``own/error``: with the network's own couplings, computed in every iteration;
    - ``mean``: with their mean over ``training`` images, the same for every image; ``exchanged``: with this mean, but
      each parent has the couplings of the next parent;
    - ``same_class``, ``other_class``: with those of another image in the batch that has the same label, or another; for
      another label, without batches of a single class;
    - ``equal``: with equal shares for the parents that compete for a child;
    - ``<…>/error_reestimated``: the same after the running statistics of batch normalisations within the routings were
      estimated again, on the training images with the replaced couplings; only if there are such normalisations;
    - ``kept_by_mean``: share of the gain by routing that the mean keeps, ``(equal - mean) / (equal - own)``;
      ``kept_by_mean_reestimated``: with new statistics in all three;
    - ``distance_of_own_from_mean``, ``distance_of_mean_from_equal``: total variation, a mean over images and children.

    Routings whose couplings do not come from the normaliser that they receive keep their own couplings.
    """
    check_number("training", training, 1)
    subject.check_network(AbstractCapsuleNetwork, "has no routing; expected a capsule network")
    routings_with_shares(subject.network)
    images = subject.training(training)
    original = copy.deepcopy(subject.network)  # statistics of the subject's network change
    means = _means(original, images)
    of_next_parent = [mean.roll(1, 1) for mean in means]
    replacements: dict[str, Replacement] = {
        "own": lambda *_: ["own"] * len(means),
        "mean": lambda _, labels: _repeated(means, len(labels)),
        "exchanged": lambda _, labels: _repeated(of_next_parent, len(labels)),
        "same_class": partial(_of_others, same=True),
        "other_class": partial(_of_others, same=False),
        "equal": lambda *_: ["equal"] * len(means),
    }
    norms = _norms(subject.network)
    numbers: dict[str, float] = {}
    for name, replacement in replacements.items():

        def ranking(batch: Batch, replacement: Replacement = replacement) -> Tensor:
            _, own = _forward(original, batch.images)
            sources = replacement(own, batch.labels)
            ranking, _ = _forward(subject.network, batch.images, sources)
            return ranking

        batches, estimated_on = subject.batches, images
        if name == "other_class":
            batches, estimated_on = _of_several_classes(batches), _of_several_classes(images)
        numbers[f"{name}/error"] = _error(batches, ranking)
        if norms:
            with _reestimating(norms) as finish:
                for batch in estimated_on:
                    ranking(batch)
                finish()
                numbers[f"{name}/error_reestimated"] = _error(batches, ranking)
    endings = ["", "_reestimated"] if norms else [""]
    for ending in endings:
        equal = numbers[f"equal/error{ending}"]
        gain = equal - numbers[f"own/error{ending}"]
        gain_by_mean = equal - numbers[f"mean/error{ending}"]
        numbers[f"kept_by_mean{ending}"] = gain_by_mean / gain if gain else math.nan
    return Answer({**numbers, **_distances(original, means, subject.batches)})


class _Replaced(EqualCouplings):
    """Normaliser that returns other couplings, and keeps those of the last iteration."""

    def __init__(self, normaliser: Normaliser, source: Source, rows: int) -> None:
        super().__init__(normaliser)
        self.source = source
        self.last = torch.empty(0)
        self.rows_per_image = rows  # so that `kernels.run_routing.route` does not split the batch

    def __call__(self, log_couplings: Tensor) -> Tensor:
        if isinstance(self.source, Tensor):
            self.last = self.source.to(log_couplings.dtype)
        elif self.source == "own":
            self.last = self.normaliser(log_couplings)
        else:
            self.last = super().__call__(log_couplings)
        return self.last


def _routings(network: nn.Module) -> list[AbstractRouting]:
    return [module for module in network.modules() if isinstance(module, AbstractRouting)]


def _norms(network: nn.Module) -> list[nn.Module]:
    """Return the batch normalisations within routings."""
    norms: list[nn.Module] = []
    for routing in _routings(network):
        for module in routing.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                norms.append(module)
    return norms


@torch.no_grad()
def _forward(
    network: Any, images: Tensor, sources: Sequence[Source] = ()
) -> tuple[Tensor, list[Couplings]]:
    """Return the ranking, and the couplings of the last iteration of each routing; by default with its own ones."""
    made: dict[AbstractRouting, _Replaced] = {}

    def hook(
        source: Source, routing: AbstractRouting, inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        votes = inputs[0]
        rows = len(votes if isinstance(votes, Tensor) else votes.poses)
        normaliser = options.get("normalise") or Normaliser()
        made[routing] = _Replaced(normaliser, source, rows)
        return inputs, {**options, "normalise": made[routing]}

    routings = _routings(network)
    with ExitStack() as stack:
        for index, routing in enumerate(routings):
            source = sources[index] if sources else "own"
            own: Any = partial(hook, source)
            stack.enter_context(routing.register_forward_pre_hook(own, with_kwargs=True))
        ranking = network.forward(images).ranking
    return ranking, [made[routing].last for routing in routings]


def _means(network: Any, images: Sequence[Batch]) -> list[Couplings]:
    """Return the mean couplings of each routing over images; a convolutional layer has a row for each position."""
    total = count_images(images)
    sums: list[Any] = [0.0] * len(_routings(network))
    for batch in images:
        _, couplings = _forward(network, batch.images)
        for layer, of_layer in enumerate(couplings):
            by_image = of_layer.double().unflatten(0, (len(batch.labels), -1))
            sums[layer] = sums[layer] + by_image.sum(0)
    return [of_layer / total for of_layer in sums]


def _repeated(means: Sequence[Couplings], images: int) -> list[Couplings]:
    """Return the mean couplings ``(position, parent, child)`` of each routing, once for each image."""
    return [mean.repeat(images, 1, 1) for mean in means]


def _of_others(
    own: Sequence[Couplings], labels: Int64[Tensor, " image"], *, same: bool
) -> Sequence[Couplings]:
    """Return the couplings of another image with the same label (its own if there is none), or with another label.

    For another label, not all labels may be equal.
    """
    order = labels.argsort(stable=True)
    ordered = labels[order]
    source = torch.empty_like(order)
    for label in labels.unique():
        of_class = order[ordered == label]
        if same:
            source[of_class] = of_class.roll(1)
            continue
        # from the next class on, so that every image is used about as often
        others = torch.cat([order[ordered > label], order[ordered < label]])
        place = torch.arange(len(of_class), device=labels.device)
        source[of_class] = others[place % len(others)]
    replacements = []
    for couplings in own:
        by_image = couplings.unflatten(0, (len(labels), -1))
        replacements.append(by_image[source].flatten(0, 1))
    return replacements


@contextmanager
def _reestimating(norms: Sequence[Any]) -> Iterator[Callable[[], None]]:
    """Estimate running statistics anew, until the yielded function is called; restore the former ones at the end."""
    before = [(norm, copy.deepcopy(norm.state_dict()), norm.momentum) for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
        norm.train()

    def finish() -> None:
        for norm in norms:
            norm.eval()

    try:
        yield finish
    finally:
        finish()
        for norm, state, momentum in before:
            norm.load_state_dict(state)
            norm.momentum = momentum


def _of_several_classes(batches: Sequence[Batch]) -> list[Batch]:
    return [batch for batch in batches if len(batch.labels.unique()) > 1]


def _error(batches: Sequence[Batch], ranking: Callable[[Batch], Tensor]) -> float:
    """Return the percentage of wrong images; NaN without images."""
    if not batches:
        return math.nan
    wrong = 0
    for batch in batches:
        predicted = ranking(batch).argmax(1)
        wrong += int((predicted != batch.labels).sum())
    return 100 * wrong / count_images(batches)


def _distances(
    network: Any, means: Sequence[Couplings], batches: Sequence[Batch]
) -> Mapping[str, float]:
    """Return distances between couplings; those of a child sum to one."""
    children = sum(float(mean.sum()) for mean in means)
    own_from_mean = 0.0
    for batch in batches:
        _, own = _forward(network, batch.images)
        repeated = _repeated(means, len(batch.labels))
        own_from_mean += sum(map(_total_variation, own, repeated))
    first_image = batches[0].images[:1]
    _, equal = _forward(network, first_image, ["equal"] * len(means))
    mean_from_equal = sum(map(_total_variation, means, equal))
    return {
        "distance_of_own_from_mean": own_from_mean / count_images(batches) / children,
        "distance_of_mean_from_equal": mean_from_equal / children,
    }


def _total_variation(couplings: Couplings, others: Couplings) -> float:
    """Return half the absolute differences, summed over rows and children."""
    differences = (couplings - others).abs()
    return float(differences.sum()) / 2
