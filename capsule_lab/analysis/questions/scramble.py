"""Does it matter where the parts of an image are? A claim about capsules: scrambled parts are no object to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.analysis.curves import COLOURS
from capsule_lab.analysis.plotting import Column, Group, picture_grid
from capsule_lab.analysis.reconstruction_detection import area_under_roc
from capsule_lab.analysis.subject import Answer, Change, Subject, error_percent
from capsule_lab.errors import check_number

_SHOWN = 5  # ours


def scramble(subject: Subject, *, tiles: int = 4, seed: int = 0, shown: int = _SHOWN) -> Answer:
    """What the network says of images whose tiles are permuted, halves are exchanged, or that are blurred as much.

    Of each change: ``kept``, the share of images still taken for their label; ``confidence``, the mean of the largest
    class probability; ``auc``, how well this tells intact images from changed ones, 0.5 not at all, and 1 what the
    claim says of capsules. Class probabilities are a softmax of the logits, so that networks of activations and of
    logits are compared alike. Blurring has about the same distance in pixels, and no part of it is in another place.

    Args:
        subject: any network that gives logits.
        tiles: the image is cut into so many rows and columns; of which 2, and then all are permuted.
        seed: of the permutations and of the images that halves come from.
        shown: images that are drawn.

    Raises:
        ValueError: for fewer than 2 tiles, or a network without logits.
    """
    check_number("tiles", tiles, 2)
    check_number("shown", shown, 0)
    side = min(subject.images.shape[2:])
    check_number("tiles", tiles, 2, side)
    changes: dict[str, Change] = {
        "two_tiles": _keyed(lambda images, generator: permuted_tiles(images, tiles, 2, generator), seed),
        "all_tiles": _keyed(lambda images, generator: permuted_tiles(images, tiles, tiles**2, generator), seed),
        "exchanged_halves": lambda images, _: torch.cat(
            [images[:, :, half(images) :], images[:, :, : half(images)]], 2
        ),
        "blur": lambda images, _: blurred(images, max(side // tiles, 3)),
    }
    clean = subject.outputs()
    confidence = _confidence(clean.logits)
    numbers = {"error": error_percent(clean, subject.labels), "confidence": 100 * float(confidence.mean())}
    for name, change in changes.items():
        batches = subject.changed(change, 0.0)
        found = subject.outputs(batches)
        changed = _confidence(found.logits)
        moved = torch.cat([batch.images for batch in batches]) - subject.images
        numbers |= {
            f"{name}/kept": 100 - error_percent(found, subject.labels),
            f"{name}/confidence": 100 * float(changed.mean()),
            f"{name}/auc": area_under_roc(-confidence, -changed),
            f"{name}/distance": float(moved.flatten(1).norm(dim=1).mean()),
        }
    return Answer(numbers, draw=partial(_figures, subject, changes, shown))


def half(images: Tensor) -> int:
    """Rows of the upper half."""
    return images.shape[2] // 2


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


def _keyed(change: Callable[[Tensor, torch.Generator], Tensor], seed: int) -> Change:
    def changed(images: Tensor, _: float) -> Tensor:
        return change(images, torch.Generator().manual_seed(seed))

    return changed


def _confidence(logits: Tensor | None) -> Float[Tensor, " image"]:
    if logits is None:
        raise ValueError("the network gives no logits with this routing; expected one that does")
    return logits.double().softmax(1).amax(1)


def _figures(subject: Subject, changes: Mapping[str, Change], shown: int) -> Mapping[str, Figure]:
    if not shown:
        return {}
    chosen = slice(0, shown)
    rows = ["intact", *(name.replace("_", " ") for name in changes)]
    every = [subject.images[chosen]]
    every += [torch.cat([batch.images for batch in subject.changed(each, 0.0)])[chosen] for each in changes.values()]
    low, high = subject.images.min(), subject.images.max()
    pictures = [((each - low) / (high - low)).cpu() for each in every]
    found = [subject.outputs(), *(subject.outputs(subject.changed(each, 0.0)) for each in changes.values())]
    columns = []
    for image in range(len(pictures[0])):
        label = int(subject.labels[image])
        colour = COLOURS[0]
        columns.append(
            Column(str(subject.classes[label] if subject.classes else label), [p[image] for p in pictures], colour)
        )
    kept = [100 * float((each.ranking.argmax(1) == subject.labels).double().mean()) for each in found]
    names = [f"{row}: {share:.0f} % as labelled" for row, share in zip(rows, kept, strict=True)]
    return {"images": picture_grid([Group("", columns)], names)}
