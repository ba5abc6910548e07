"""Does the arrangement of an image's parts matter? Capsules are claimed not to recognise scrambled parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.analysis.plotting import Column, Group, name_of_class, picture_grid
from capsule_lab.errors import check_number
from capsule_studies.images import percent
from capsule_studies.measures.reconstruction_detection import area_under_roc
from capsule_studies.names import prefixed
from capsule_studies.subject import Answer, Subject, error_percent, question

_OF_SEED = 2654435761  # ours: odd, so that each seed gives different draws
_LEAST = 0.1  # ours: squared distance after exchanging two tiles, over the image's squared deviations from its mean


Images = Float[Tensor, "image channel height width"]


class Changed(NamedTuple):
    """All images after a change, and which of them count."""

    images: Images
    counted: Bool[Tensor, " image"]


@question()
def scramble(subject: Subject, *, tiles: int = 4, seed: int = 0, shown: int = 5) -> Answer:
    """Evaluate the network on images with permuted tiles, exchanged halves, blur or noise.

    For each change: ``images``, the number that count; ``kept``, the share of them still classified as their label;
    ``confidence``, the mean of the largest softmax probability; ``auc``, how well the confidence separates intact from
    changed images: 0.5 not at all, 1 is the claim about capsules; ``distance``, mean Euclidean distance from the image.
    Changes apply to preprocessed images:

    - ``two_tiles``: two tiles are exchanged, chosen from pairs that differ: the squared distance from the image after
      the exchange is a tenth or more of the image's squared deviations from its mean;
    - ``all_tiles``: each tile moves to the place of another tile;
    - ``swapped_halves``: the lower half is above the upper half;
    - ``halves_of_class``, ``halves_of_classes``: the lower half is from another image of the same class, or of another
      class, if there is one;
    - ``blur``: the control of ``two_tiles``: no part moves, and every image has the same distance from the original.
      Images that cannot be blurred as far count neither here nor in ``two_tiles``;
    - ``noise``: the control of ``all_tiles``, whose distance blur cannot reach: every pixel becomes brighter or darker,
      at random, by the amount that gives the same distance. Grey levels may leave their range.

    ``without_pair`` and ``too_far_for_blur`` are the numbers of images that do not count in ``two_tiles`` and ``blur``.
    The draws for an image depend on its key and ``seed``; the choice of its half also on the set of images.

    Args:
        subject: any network that returns logits.
        tiles: number of rows and of columns that the image is cut into.
        seed: seed of the permutations, the exchanged halves and the noise.
        shown: number of images drawn, the first that count in every change.
    """
    check_number("shown", shown, 0)
    check_number("tiles", tiles, 2, min(subject.images.shape[2:]))
    changed, left_out = changes(subject, tiles, seed)
    clean = subject.outputs()
    confidence = _confidence(clean.logits)
    error = error_percent(clean, subject.labels)
    numbers = {"error": error, "confidence": 100 * float(confidence.mean()), **left_out}
    kept = {"intact": 100 - error}
    for name, change in changed.items():
        measured = _measured(subject, change, confidence)
        kept[name] = measured["kept"]
        numbers |= prefixed(name, measured)
    return Answer(numbers, draw=partial(_figures, subject, changed, kept, shown))


def _measured(
    subject: Subject, change: Changed, confidence: Float[Tensor, " image"]
) -> dict[str, float]:
    """Return the measures of one change; ``confidence`` is that in the intact images."""
    images, counted = change
    output = subject.outputs(subject.with_images(images))
    unsure = -_confidence(output.logits)[counted]
    right = output.ranking.argmax(1) == subject.labels
    distances = _distances(images, subject.images)
    auc = float("nan")
    if len(unsure):
        auc = area_under_roc(-confidence[counted], unsure)
    return {
        "images": float(counted.sum()),
        "kept": percent(right[counted]),
        "confidence": -100 * float(unsure.mean()),
        "auc": auc,
        "distance": float(distances[counted].mean()),
    }


def changes(subject: Subject, tiles: int, seed: int) -> tuple[dict[str, Changed], dict[str, float]]:
    """Return all images after each change by name, and the numbers of images that do not count, by reason."""
    images, labels = subject.images, subject.labels.cpu()
    keys = torch.cat([batch.key for batch in subject.batches]).cpu()
    generators = []
    for key in keys.tolist():
        seed_of_image = (key + _OF_SEED * seed) % 2**32
        generators.append(torch.Generator().manual_seed(seed_of_image))
    every = torch.ones(len(images), dtype=torch.bool, device=images.device)
    order = _exchanges(_differences(images, tiles), generators)
    is_moved = order != torch.arange(tiles**2)  # [image tile]
    differ = is_moved.any(1).to(every.device)
    two = permuted_tiles(images, tiles, order)
    circles = torch.stack([_circle(tiles**2, generator) for generator in generators])
    everywhere = permuted_tiles(images, tiles, circles)
    blur, reached = blurred_as_far(images, _distances(two, images))
    half = images.shape[2] // 2
    upper, lower = images[:, :, :half], images[:, :, half:]
    changed = {
        "two_tiles": Changed(two, differ & reached),
        "all_tiles": Changed(everywhere, every),
        "swapped_halves": Changed(torch.cat([lower, upper], 2), every),
    }
    itself = torch.arange(len(images), device=images.device)
    for name, same in (("halves_of_class", True), ("halves_of_classes", False)):
        partner = _partners(labels, keys, generators, same_class=same).to(images.device)
        joined = torch.cat([upper, lower[partner]], 2)
        changed[name] = Changed(joined, partner != itself)
    changed["blur"] = Changed(blur, differ & reached)
    noise = _noise(images, _distances(everywhere, images), generators)
    changed["noise"] = Changed(images + noise, every)
    left_out = {
        "without_pair": float((~differ).sum()),
        "too_far_for_blur": float((differ & ~reached).sum()),
    }
    return changed, left_out


def _distances(images: Tensor, others: Tensor) -> Float[Tensor, " image"]:
    return (images - others).flatten(1).norm(dim=1)


def _noise(
    images: Images, distances: Float[Tensor, " image"], generators: Sequence[torch.Generator]
) -> Images:
    """Draw for each pixel a sign; all pixels of an image have the amount that gives the distance."""
    signs = []
    for generator in generators:
        bits = torch.randint(2, images.shape[1:], generator=generator)
        signs.append(2 * bits - 1)
    amounts = distances / images[0].numel() ** 0.5
    return torch.stack(signs).to(images) * amounts.view(-1, 1, 1, 1)


def _differences(images: Tensor, tiles: int) -> Float[Tensor, "image tile tile"]:
    """Return the squared distance after exchanging two tiles, over the image's squared deviations from its mean."""
    cut = _cut(images, tiles).flatten(2).double().cpu()
    pixels = images.flatten(1).double().cpu()
    centred = pixels - pixels.mean(1, keepdim=True)
    deviations = centred.square().sum(1).clamp_min(1e-12)
    distances = 2 * torch.cdist(cut, cut).square()  # 2: both places change
    return distances / deviations.view(-1, 1, 1)


def _exchanges(
    differences: Float[Tensor, "image tile tile"], generators: Sequence[torch.Generator]
) -> Int64[Tensor, "image tile"]:
    """Return the tile for each place: one random pair that differs by ``_LEAST`` or more is exchanged, if any."""
    orders = torch.arange(differences.shape[1]).repeat(len(differences), 1)
    for order, of_image, generator in zip(orders, differences, generators, strict=True):
        pairs = (of_image.triu(1) >= _LEAST).nonzero()
        if len(pairs):
            drawn = int(torch.randint(len(pairs), (1,), generator=generator))
            pair = pairs[drawn]
            order[pair] = pair.flip(0)
    return orders


def _circle(tiles: int, generator: torch.Generator) -> Int64[Tensor, " tile"]:
    """Return the tile for each place: a random cyclic permutation, which moves every tile."""
    places = torch.randperm(tiles, generator=generator)
    return torch.empty_like(places).scatter(0, places, places.roll(1))


def _partners(
    labels: Int64[Tensor, " image"],
    keys: Tensor,
    generators: Sequence[torch.Generator],
    *,
    same_class: bool,
) -> Int64[Tensor, " image"]:
    """Return another image for each image; the image itself if there is none."""
    partners = torch.arange(len(labels))
    in_order = keys.argsort()
    for image, generator in enumerate(generators):
        is_same = labels[in_order] == labels[image]
        fits = is_same if same_class else ~is_same
        others = in_order[fits & (in_order != image)]
        if len(others):
            drawn = int(torch.randint(len(others), (1,), generator=generator))
            partners[image] = others[drawn]
    return partners


def _cut(images: Images, tiles: int) -> Float[Tensor, "image tile channel rows columns"]:
    """Cut into ``tiles * tiles`` tiles, row by row; drop pixels at the right and the bottom that fill no whole tile."""
    height, width = images.shape[2:]
    rows, columns = height // tiles, width // tiles
    inner = images[:, :, : rows * tiles, : columns * tiles]
    in_rows = inner.unflatten(2, (tiles, rows))
    cut = in_rows.unflatten(4, (tiles, columns))  # [b c i rows j columns]
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def permuted_tiles(images: Images, tiles: int, order: Int64[Tensor, "image tile"]) -> Images:
    """Permute the tiles of images: ``order`` contains the tile for each place, counted row by row.

    Pixels at the right and the bottom that do not fill a whole tile stay in place.
    """
    cut = _cut(images, tiles)
    rows, columns = cut.shape[3:]
    index = order.to(images.device)[:, :, None, None, None]
    moved = cut.gather(1, index.expand_as(cut))
    moved = moved.unflatten(1, (tiles, tiles))  # [b i j c rows columns]
    together = moved.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    permuted = images.clone()
    permuted[:, :, : rows * tiles, : columns * tiles] = together
    return permuted


def blurred_as_far(
    images: Images, distances: Float[Tensor, " image"]
) -> tuple[Images, Bool[Tensor, " image"]]:
    """Blur images until their distance from the original is ``distances``; also return which images can reach it.

    The mean over the narrowest square, of 3, 5, 7, ... pixels, that reaches the distance is mixed with the image. If no
    square reaches it, the image is blurred by the widest square, of about the image's width.
    """
    blurry = images
    reached = torch.zeros_like(distances, dtype=torch.bool)
    for width in range(3, max(images.shape[2:]) + 1, 2):
        step = blurred(images, width) - images
        possible = step.flatten(1).norm(dim=1)
        share = distances / possible.clamp_min(1e-9)
        share = share.clamp_max(1).view(-1, 1, 1, 1)
        mixed = images + share * step
        blurry = torch.where(reached.view(-1, 1, 1, 1), blurry, mixed)
        reached = reached | (possible >= distances)
    return blurry, reached


def blurred(images: Images, width: int) -> Tensor:
    """Return the mean over a square of ``width`` pixels, an odd number; edges are repeated."""
    padded = torch.nn.functional.pad(images, 4 * [width // 2], mode="replicate")
    along = torch.nn.functional.avg_pool2d(padded, (1, width), 1)
    return torch.nn.functional.avg_pool2d(along, (width, 1), 1)


def _confidence(logits: Tensor | None) -> Float[Tensor, " image"]:
    if logits is None:
        raise ValueError(
            "the network returns no logits with this routing; expected a routing with logits"
        )
    return logits.double().softmax(1).amax(1)


def _figures(
    subject: Subject, changed: Mapping[str, Changed], kept: Mapping[str, float], shown: int
) -> Mapping[str, Figure]:
    counted = torch.stack([change.counted for change in changed.values()]).all(0)
    images = counted.nonzero().squeeze(1)[:shown].tolist()
    if not images:
        return {}
    low, high = subject.images.min(), subject.images.max()
    versions = [subject.images]
    versions += [change.images for change in changed.values()]
    columns = []
    for image in images:
        pictures = []
        for version in versions:
            grey = (version[image] - low) / (high - low)
            pictures.append(grey.clamp(0, 1))
        name = name_of_class(subject.classes, int(subject.labels[image]))
        columns.append(Column(name, pictures))
    shares = []
    for name, share in kept.items():
        words = name.replace("_", " ")
        shares.append(f"{words}: {share:.0f} %")
    title = (
        "images after each change; left: the share of all images still classified as their label"
    )
    pairs = int(changed["two_tiles"].counted.sum())
    total = len(subject.labels)
    note = (
        f"blur has the distance of two tiles, noise that of all tiles; {pairs} of {total} images have two tiles that "
        "differ enough and can be blurred as far"
    )
    return {"images": picture_grid([Group("", columns)], shares, title=title, note=note)}
