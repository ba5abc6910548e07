"""Does it matter where the parts of an image are? A claim about capsules: scrambled parts are no object to them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.analysis.plotting import Column, Group, name_of_class, picture_grid
from capsule_lab.analysis.reconstruction_detection import area_under_roc
from capsule_lab.analysis.subject import Answer, Subject, error_percent
from capsule_lab.errors import check_number

_SHOWN = 5  # ours


def scramble(subject: Subject, *, tiles: int = 4, seed: int = 0, shown: int = _SHOWN) -> Answer:
    """The output for images whose tiles are permuted, whose halves are others', or that are blurred as much.

    Of each change: ``kept``, the share of images still taken for their label; ``confidence``, the mean of the largest
    class probability; ``auc``, how well this tells intact images from changed ones, 0.5 not at all, and 1 what the
    claim says of capsules; ``distance``, mean Euclidean distance from the image. Class probabilities are a softmax of
    the logits, so that networks of activations and of logits are compared alike. Changes are of what the network sees:

    - ``two_tiles``, ``all_tiles``: so many tiles in each other's places;
    - ``swapped_halves``: the lower half above the upper one;
    - ``halves_of_class``, ``halves_of_classes``: the lower half is that of another image, of the same class, or of
      another one;
    - ``blur``: no part is anywhere else, as far from the image as ``two_tiles``, or as far as blurring goes.

    Args:
        subject: any network that gives logits.
        tiles: the image is cut into so many rows and columns.
        seed: of the permutations and of whose halves images get.
        shown: images that are drawn.

    Raises:
        ValueError: for fewer than 2 tiles or more than pixels, or a network without logits.
    """
    check_number("shown", shown, 0)
    check_number("tiles", tiles, 2, min(subject.images.shape[2:]))
    changed = changes(subject, tiles, seed)
    clean = subject.outputs()
    confidence = _confidence(clean.logits)
    numbers = {"error": error_percent(clean, subject.labels), "confidence": 100 * float(confidence.mean())}
    kept = {"intact": 100 - numbers["error"]}
    for name, images in changed.items():
        found = subject.outputs(subject.with_images(images))
        changed_confidence = _confidence(found.logits)
        kept[name] = 100 - error_percent(found, subject.labels)
        numbers |= {
            f"{name}/kept": kept[name],
            f"{name}/confidence": 100 * float(changed_confidence.mean()),
            f"{name}/auc": area_under_roc(-confidence, -changed_confidence),
            f"{name}/distance": float((images - subject.images).flatten(1).norm(dim=1).mean()),
        }
    return Answer(numbers, draw=partial(_figures, subject, changed, kept, shown))


def changes(subject: Subject, tiles: int, seed: int) -> dict[str, Float[Tensor, "image channel height width"]]:
    """All images after each change, by name."""
    images, labels = subject.images, subject.labels.cpu()
    half = images.shape[2] // 2
    generator = torch.Generator().manual_seed(seed)
    found = {
        "two_tiles": permuted_tiles(images, tiles, 2, generator),
        "all_tiles": permuted_tiles(images, tiles, tiles**2, generator),
        "swapped_halves": torch.cat([images[:, :, half:], images[:, :, :half]], 2),
    }
    for name, same in (("halves_of_class", True), ("halves_of_classes", False)):
        partner = _partners(labels, generator, same_class=same).to(images.device)
        found[name] = torch.cat([images[:, :, :half], images[partner, :, half:]], 2)
    blur = blurred(images, max(min(images.shape[2:]) // tiles, 3)) - images
    wanted, possible = ((each).flatten(1).norm(dim=1) for each in (found["two_tiles"] - images, blur))
    share = (wanted / possible.clamp_min(1e-9)).clamp_max(1)
    return {**found, "blur": images + share.view(-1, 1, 1, 1) * blur}


def _partners(labels: Int64[Tensor, " image"], generator: torch.Generator, *, same_class: bool) -> Tensor:
    """For each image another one; itself where there is none."""
    found = torch.arange(len(labels))
    for image, label in enumerate(labels.tolist()):
        fits = (labels == label) == same_class
        fits[image] = False
        others = fits.nonzero().squeeze(1)
        if len(others):
            found[image] = others[int(torch.randint(len(others), (1,), generator=generator))]
    return found


def permuted_tiles(
    images: Float[Tensor, "batch channel height width"], tiles: int, moved: int, generator: torch.Generator
) -> Float[Tensor, "batch channel height width"]:
    """Images of which ``moved`` of ``tiles * tiles`` tiles are in each other's places.

    Pixels that do not fill a whole tile, at the right and at the bottom, stay. The tiles that are moved differ from
    image to image; each is in another place than before, as they are passed on in a circle.

    Args:
        images: any.
        tiles: in a row, and in a column.
        moved: how many change places, 2 or more.
        generator: of the choice.
    """
    batch, _, height, width = images.shape
    rows, columns = height // tiles, width // tiles
    inner = images[:, :, : rows * tiles, : columns * tiles]
    cut = inner.unflatten(2, (tiles, rows)).unflatten(4, (tiles, columns))  # [b c i rows j columns]
    cut = cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # [b tile c rows columns]
    order = torch.arange(tiles**2).repeat(batch, 1)
    for image in range(batch):
        places: Int64[Tensor, " moved"] = torch.randperm(tiles**2, generator=generator)[:moved]
        order[image, places] = order[image, places.roll(1)]
    index = order.to(images.device).view(batch, -1, 1, 1, 1).expand_as(cut)
    together = cut.gather(1, index).unflatten(1, (tiles, tiles)).permute(0, 3, 1, 4, 2, 5)  # [b c i rows j columns]
    found = images.clone()
    found[:, :, : rows * tiles, : columns * tiles] = together.flatten(4, 5).flatten(2, 3)
    return found


def blurred(images: Float[Tensor, "batch channel height width"], width: int) -> Tensor:
    """The mean over a square of ``width`` pixels, an odd number, or one more; edges are repeated."""
    reach = width // 2
    padded = torch.nn.functional.pad(images, (reach, reach, reach, reach), mode="replicate")
    return torch.nn.functional.avg_pool2d(padded, 2 * reach + 1, 1)


def _confidence(logits: Tensor | None) -> Float[Tensor, " image"]:
    if logits is None:
        raise ValueError("the network gives no logits with this routing; expected one that does")
    return logits.double().softmax(1).amax(1)


def _figures(
    subject: Subject, changed: Mapping[str, Tensor], kept: Mapping[str, float], shown: int
) -> Mapping[str, Figure]:
    if not shown:
        return {}
    low, high = subject.images.min(), subject.images.max()
    every = [subject.images, *changed.values()]
    pictures = [((each[:shown] - low) / (high - low)).clamp(0, 1).cpu() for each in every]
    columns = [
        Column(name_of_class(subject.classes, int(subject.labels[image])), [each[image] for each in pictures])
        for image in range(len(pictures[0]))
    ]
    names = [f"{name.replace('_', ' ')}: {share:.0f} % as labelled" for name, share in kept.items()]
    return {"images": picture_grid([Group("", columns)], names)}
