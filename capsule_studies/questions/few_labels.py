"""How well do about 25 labels name clusters of a network's features? (last slide of a talk by Hinton)"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int64
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from capsule_lab.errors import check_choice, check_number
from capsule_lab.networks import AbstractPairNetwork
from capsule_lab.types import Batch
from capsule_studies.images import joined_images, joined_labels, percent
from capsule_studies.measures.factor_analysers import (
    FactorAnalysers,
    Fit,
    fit_factor_analysers,
    posterior,
)
from capsule_studies.subject import Answer, Subject, question

Features = Literal["capsules", "presences", "poses", "code", "pixels"]
_LEAST_VARIANCE = 1e-4  # ours: dimensions with a smaller variance are uninformative
_CHUNK = 1000  # ours: images at a time
_STRATIFIED = (2, 3)  # ours: labels of each class, 20 and 30 for ten classes


@question(of_pairs=True)
def few_labels(
    subject: Subject,
    *,
    features: Features = "capsules",
    training_images: int = 50000,
    principal: int = 90,
    components: int = 25,
    factors: int = 5,
    labels: int = 25,
    draws: int = 5,
    restarts: int = 10,
    steps: int = 50,
    neighbours: bool = True,
    probe: bool = True,
    seed: int = 0,
) -> Answer:
    """Measure the error in percent of classifying held-out images by a mixture of factor analysers and few labels.

    The mixture is fitted to training images without labels. Each component then gets a class in one of three ways; an
    image gets the class of its components, weighted by their responsibilities:

    - ``asked``: one label per component: that of the training image with the highest density under the component;
    - ``drawn``: ``labels`` random training images: a component gets the class with the highest responsibility; a
      component that is not the most responsible one for any of them gets the class of the nearest one that is;
    - ``drawn_<n>_per_class``: the same with ``n`` images of each class.

    ``<way>/error`` is the mean over draws, each with a new mixture; ``<way>/deviation`` is the standard deviation. For
    comparison, with the labels of ``drawn``: ``nearest/error``, of the class of the labelled image with the nearest
    pixels; and ``probe/error``, of a logistic regression of the features on all labels: what the features allow.
    ``log_likelihood`` is the mean over training images.

    Args:
        subject: a network whose input includes a change of its images; with ``features="pixels"`` any network.
        features: input of the mixture: ``"capsules"``, presences and poses times presences; ``"presences"`` or
            ``"poses"`` alone; ``"code"``, of an auto-encoder without capsules; ``"pixels"``, principal components.
        training_images: largest number of training images.
        principal: number of principal components of the pixels.
        components, factors, restarts, steps: see ``fit_factor_analysers``.
        labels: number of labels of ``drawn``.
        draws: number of draws of labels and mixtures.
        neighbours, probe: whether ``nearest`` and ``probe`` are computed.
        seed: seed of the draws.
    """
    check_number("draws", draws, 1)
    check_number("labels", labels, 1)
    sets = _sets(subject, features, training_images, principal)
    seeds = range(seed * draws, (seed + 1) * draws)
    fit = partial(
        fit_factor_analysers, sets.fitted, components, factors, restarts=restarts, steps=steps
    )
    fits = {own_seed: fit(seed=own_seed) for own_seed in seeds}
    likelihoods = [fitted.log_likelihoods[-1] for fitted in fits.values()]
    numbers = {
        "log_likelihood": statistics.fmean(likelihoods),
        "dimensions": float(sets.fitted.shape[1]),
        **_means(_errors(sets, fits, labels, neighbours=neighbours)),
    }
    if probe:
        numbers["probe/error"] = percent(_regression(sets) != sets.truth)
    return Answer(numbers)


class _Sets(NamedTuple):
    """Features, pixels and labels of training images and of held-out images, and the number of classes."""

    fitted: Float[Tensor, "fitted dim"]  # features
    training_pixels: Float[Tensor, "fitted pixel"]
    known: Int64[Tensor, " fitted"]
    held_out: Float[Tensor, "image dim"]  # features
    pixels: Float[Tensor, "image pixel"]
    truth: Int64[Tensor, " image"]
    classes: int


def _sets(subject: Subject, features: Features, training_images: int, principal: int) -> _Sets:
    check_choice("features", features, get_args(Features))
    check_number("training_images", training_images, 1)
    training = subject.training(training_images)
    fitted, held_out = _standardised(*_features(subject, features, training, principal))
    return _Sets(
        fitted=fitted,
        training_pixels=_pixels(training),
        known=joined_labels(training).cpu(),
        held_out=held_out,
        pixels=_pixels(subject.batches),
        truth=subject.labels.cpu(),
        classes=subject.num_classes,
    )


def _errors(
    sets: _Sets, fits: Mapping[int, Fit], labels: int, *, neighbours: bool
) -> Mapping[str, list[float]]:
    """Return the errors in percent of each way, one for each draw; ``fits`` are by the seed of their draw."""
    errors: dict[str, list[float]] = defaultdict(list)
    for seed, fit in fits.items():
        predicted = _predicted(sets, fit.mixture, labels, seed, neighbours=neighbours)
        for way, classes in predicted.items():
            errors[way].append(percent(classes != sets.truth))
    return errors


def _predicted(
    sets: _Sets, mixture: FactorAnalysers, labels: int, seed: int, *, neighbours: bool
) -> dict[str, Int64[Tensor, " image"]]:
    """Return the classes of held-out images by each way, with one draw of labels."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(sets.known), generator=generator)
    shares = _log_joint(sets.held_out, mixture).softmax(1)
    predicted = {}
    for way, named in _named_by_way(sets, mixture, order, labels).items():
        predicted[way] = _strongest(shares, named, sets.classes)
    if neighbours:
        drawn = order[:labels]
        nearest = _nearest(sets.pixels, sets.training_pixels[drawn])
        predicted["nearest"] = sets.known[drawn[nearest]]
    return predicted


def _means(errors: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return mean and, of several draws, standard deviation of each way's errors."""
    numbers = {}
    for way, values in errors.items():
        numbers[f"{way}/error"] = statistics.fmean(values)
        if len(values) > 1:
            numbers[f"{way}/deviation"] = statistics.stdev(values)
    return numbers


def _regression(sets: _Sets) -> Int64[Tensor, " image"]:
    """Return the classes of held-out images by a logistic regression on all labels."""
    regression = LogisticRegression(max_iter=200)
    regression.fit(sets.fitted.cpu().numpy(), sets.known.numpy())
    predicted = regression.predict(sets.held_out.cpu().numpy())
    return torch.from_numpy(predicted)


def _strongest(
    shares: Float[Tensor, "image component"], named: Int64[Tensor, " component"], classes: int
) -> Int64[Tensor, " image"]:
    """Return the class with the largest sum of responsibilities of its components."""
    votes = torch.zeros(len(shares), classes).index_add(1, named, shares)
    return votes.argmax(1)


def _pixels(batches: Sequence[Batch]) -> Float[Tensor, "image pixel"]:
    return joined_images(batches).flatten(1).cpu()


def _nearest(
    points: Float[Tensor, "point dim"], others: Float[Tensor, "other dim"]
) -> Int64[Tensor, " point"]:
    chunks = points.split(_CHUNK)
    return torch.cat([torch.cdist(chunk, others).argmin(1) for chunk in chunks])


def _features(
    subject: Subject, features: Features, training: Sequence[Batch], principal: int
) -> tuple[Float[Tensor, "fitted dim"], Float[Tensor, "image dim"]]:
    if features == "pixels":
        pixels = _pixels(training).numpy()
        pca = PCA(min(principal, *pixels.shape), random_state=0).fit(pixels)

        def components(batches: Sequence[Batch]) -> Float[Tensor, "image dim"]:
            projected = pca.transform(_pixels(batches).numpy())
            return torch.from_numpy(projected).to(subject.images)

        return components(training), components(subject.batches)
    network = subject.network
    instead = "expected model=transforming_autoencoder, or what.features=pixels"
    subject.check_network(AbstractPairNetwork, f"has no {features} of this kind; {instead}")
    if (features == "code") == bool(network.capsules):
        expected = "capsules, presences or poses" if network.capsules else "code"
        kind = type(network).__name__
        raise ValueError(
            f"features is {features!r}, but the network is a {kind}; expected {expected}, or pixels"
        )
    return _of_network(network, features, training), _of_network(network, features, subject.batches)


@torch.no_grad()
def _of_network(
    network: AbstractPairNetwork, features: Features, batches: Sequence[Batch]
) -> Tensor:
    """Return features; poses are multiplied by presences, since the pose of an absent capsule is meaningless."""
    features_of_batches = []
    for batch in batches:
        poses, presences = network.recognise(batch.images)
        there = presences.unsqueeze(2)
        parts = {
            "capsules": [there, there * poses],
            "presences": [there],
            "poses": [poses],
            "code": [poses],
        }[features]
        features_of_batches.append(torch.cat(parts, 2).flatten(1))
    return torch.cat(features_of_batches).float()


def _standardised(
    fitted: Float[Tensor, "fitted dim"], held_out: Float[Tensor, "image dim"]
) -> tuple[Float[Tensor, "fitted kept"], Float[Tensor, "image kept"]]:
    """Standardise by mean and deviation of the training images; drop dimensions that hardly vary."""
    deviation, mean = torch.std_mean(fitted, dim=0, correction=0)
    kept: Bool[Tensor, " dim"] = deviation.square() >= _LEAST_VARIANCE
    if not kept.any():
        raise ValueError("no feature varies over the training images; expected a trained network")

    def standardised(features: Tensor) -> Tensor:
        return (features[:, kept] - mean[kept]) / deviation[kept]

    return standardised(fitted), standardised(held_out)


def _log_joint(
    points: Float[Tensor, "point dim"], mixture: FactorAnalysers
) -> Float[Tensor, "point component"]:
    chunks = points.split(4 * _CHUNK)
    return torch.cat([posterior(chunk, mixture).log_joint for chunk in chunks]).cpu()


def _named_by_way(
    sets: _Sets, mixture: FactorAnalysers, order: Int64[Tensor, " fitted"], labels: int
) -> dict[str, Int64[Tensor, " component"]]:
    """Return the class of each component in each way of ``few_labels``, with the first images in ``order``."""
    known = sets.known
    log_joint = _log_joint(sets.fitted, mixture)
    drawn = {"drawn": order[:labels]}
    by_class = [order[known[order] == label] for label in range(sets.classes)]
    for count in _STRATIFIED:
        first = [images[:count] for images in by_class]
        drawn[f"drawn_{count}_per_class"] = torch.cat(first)
    named = {"asked": known[log_joint.argmax(0)]}
    for way, chosen in drawn.items():
        shares = log_joint[chosen].softmax(1)
        named[way] = _named(shares, known[chosen], mixture, sets.classes)
    return named


def _named(
    shares: Float[Tensor, "labelled component"],
    labels: Int64[Tensor, " labelled"],
    mixture: FactorAnalysers,
    classes: int,
) -> Int64[Tensor, " component"]:
    """Return the class of each component: the class of the labelled images for which it is responsible."""
    components = shares.shape[1]
    votes = torch.zeros(classes, components).index_add(0, labels, shares)
    named = votes.argmax(0)
    is_responsible = torch.zeros(components, dtype=torch.bool)
    is_responsible[shares.argmax(1)] = True
    responsible = is_responsible.nonzero()[:, 0]
    means = mixture.means.cpu()
    nearest = torch.cdist(means, means[responsible]).argmin(1)
    return torch.where(is_responsible, named, named[responsible[nearest]])
