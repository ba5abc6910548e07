"""The network of a run under attack, in the space of its input or of grey levels before preprocessing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from capsule_lab.analysis.equal_couplings import equal_couplings
from capsule_lab.errors import ConfigError, RunError
from capsule_lab.networks import reconstructs
from capsule_lab.runs.open_run import Run, stored_batches
from capsule_lab.types import Batch
from capsule_studies.attacks.evaluation import Attacked, LogitsOf, Prepared
from capsule_studies.attacks.gradient import GREY_LEVELS, UNIT, Box
from capsule_studies.images import StudyImages, on_device
from capsule_studies.measures.reconstruction_detection import (
    threshold,
    winning_reconstruction_error,
)
from capsule_studies.names import name_of

if TYPE_CHECKING:
    from capsule_lab.lit import AbstractClassifierModule


Space = Literal["input", "grey_levels"]


class AttackedRun(Attacked):
    """A run's network in evaluation mode on a device, with images.

    Gradients are computed for images only; those of parameters would take a third of the time.

    Args:
        source: the run whose network is used to craft the images; ``None`` is the same run.
        couplings: ``"equal"`` crafts the images on the network with equal couplings.

    Attributes:
        preprocess: maps the space of the attack to the network's input.
        keeps_errors: whether reconstruction errors are measured; the network needs a decoder.
    """

    keeps_errors = False

    def __init__(
        self,
        run: Run,
        images: StudyImages,
        space: Space,
        *,
        source: Run | None = None,
        couplings: str = "trained",
    ) -> None:
        self.run = run
        self.preprocess = (lambda pixels: pixels) if space == "input" else images.preprocessed
        evaluated = _frozen(run, images.device)
        crafting = _frozen(source or run, images.device)
        crafted_with = logits_of(crafting, self.preprocess)
        if couplings == "equal":
            crafted_with = equal_couplings(crafting)(crafted_with)
        super().__init__(
            prepare(images, space),
            logits_of(evaluated, self.preprocess),
            crafted_with,
            self._training_loss,
        )

    def logits_and_errors(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and, if ``keeps_errors``, the squared reconstruction errors of the winning class."""
        if not self.keeps_errors:
            return super().logits_and_errors(images)
        inputs = self.preprocess(images)
        output = self.run.network(inputs)
        return output.logits, winning_reconstruction_error(self.run.network, inputs, output=output)

    def _training_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Compute the classification loss that the network was trained with, a mean over images."""
        inputs = self.preprocess(images)
        module = cast("AbstractClassifierModule", self.run.module)
        batch = Batch(inputs, labels, labels)
        terms = module.classification_term(batch, self.run.network(inputs), {})
        (loss,) = terms.values()
        return loss


def _frozen(run: Run, device: torch.device) -> nn.Module:
    """Return the network in evaluation mode, without gradients of its parameters."""
    return run.network.eval().requires_grad_(requires_grad=False).to(device)


def logits_of(network: nn.Module, preprocess: Callable[[Tensor], Tensor]) -> LogitsOf:
    """Return a function from images in the space of an attack to the network's logits."""

    def logits(images: Tensor) -> Tensor:
        values: Tensor | None = network(preprocess(images)).logits
        if values is None:
            raise ConfigError(
                f"{type(network).__name__} gives no logits with this routing; an attack needs them"
            )
        return values

    return logits


def check_same_data(run: Run, other: Run) -> None:
    """Check that two runs were trained on the same data, from the same source (real or stand-in)."""
    own_data, other_data = _facts_of_data(run), _facts_of_data(other)
    if own_data != other_data:
        raise RunError(
            f"{other.checkpoint} was trained on {other_data}, {run.checkpoint} on {own_data}; "
            "expected runs on the same data"
        )


def check_same_input(images: StudyImages, other: Run, options: Mapping[str, Any]) -> None:
    """Check that the network of another run was trained on images that are preprocessed like ``images``.

    ``options`` are those of the data that differ from the training of the attacked run.
    """
    if "_target_" in options:  # data that neither network was trained on
        return
    data: Any = other.build_data(options)
    name, stored = images.stored[0]
    seen = data.unpaired_batch(stored, name).images
    if not torch.equal(seen, images.seen[0].images):
        raise RunError(
            f"{other.checkpoint} was trained on {type(data).__name__} with other preprocessing than the attacked run; "
            "expected runs with the same data options"
        )


def _facts_of_data(run: Run) -> dict[str, Any]:
    return {
        "image_shape": tuple(run.spec.image_shape),
        "num_classes": run.spec.num_classes,
        "classes": run.spec.classes,
        "data": name_of(run.config.data),
        "source": run.provenance["source"],
    }


def detection_threshold(run: Run, data: Any) -> float | None:
    """Return the reconstruction error that 5 % of the validation images exceed (Frosst, Sabour and Hinton 2018).

    It is ``None`` for a network without a decoder, or data without validation images.
    """
    network: Any = run.network
    if not reconstructs(run.network):
        return None
    device = next(network.parameters()).device
    errors = []
    for name, stored in stored_batches(data, "val"):
        with torch.no_grad():
            seen = data.transform_batch(on_device(stored, device), name).images
            errors.append(winning_reconstruction_error(network, seen))
    return threshold(torch.cat(errors)) if errors else None


def prepare(images: StudyImages, space: Space) -> list[Prepared]:
    """Return the batches in the space of an attack.

    In ``"input"``, pixels are those of the network's input: bounded by [0, 1] if all images are in this range, because
    preprocessing divides by 255; unbounded if it standardises, as in Hinton 2018. In ``"grey_levels"``, pixels are
    those of the stored image, 0 to 255, and preprocessing is part of the attacked function.
    """
    if space == "grey_levels":
        images.check_preprocessing("space=input")
        in_grey_levels = []
        for _, batch in images.stored:
            per_unit = torch.ones(len(batch.labels))
            pixels = batch.images.float()
            in_grey_levels.append(Prepared(pixels, batch.labels, batch.key, GREY_LEVELS, per_unit))
        return in_grey_levels
    pixels_of_batches = [batch.images for batch in images.seen]
    is_unit = all(pixels.min() >= 0 and pixels.max() <= 1 for pixels in pixels_of_batches)
    box = UNIT if is_unit else Box()
    prepared = []
    for (_, stored), seen in zip(images.stored, images.seen, strict=True):
        if is_unit:
            per_unit = torch.full((len(stored.labels),), 255.0)
        else:
            per_unit = grey_levels_per_unit(stored.images, seen.images)
        prepared.append(Prepared(seen.images, stored.labels, stored.key, box, per_unit))
    return prepared


def grey_levels_per_unit(
    stored: Shaped[Tensor, "batch channel height width"],
    seen: Float[Tensor, "batch channel rows columns"],
) -> Float[Tensor, " batch"]:
    """Return the grey levels per unit of the network's input: for standardised images, their standard deviation.

    The inverse is the slope of the line from the stored image's central pixels to the pixels of the network's input;
    ``nan`` if they are on no line, as for composed or moved images.
    """
    height, width = seen.shape[2:]
    # as transforms.centre_corner
    top = (stored.shape[2] - height) // 2
    left = (stored.shape[3] - width) // 2
    centre = stored[:, :, top : top + height, left : left + width]
    if centre.shape != seen.shape:
        return seen.new_full((len(seen),), torch.nan)
    grey, values = _centred(centre), _centred(seen)
    variation = grey.square().sum(1).clamp(min=1e-9)
    slope = (grey * values).sum(1) / variation
    off = (values - slope[:, None] * grey).abs().amax(1)
    is_line = (off < 1e-3) & (slope > 0)
    return torch.where(is_line, 1 / slope, torch.nan).to(seen)


def _centred(images: Shaped[Tensor, "batch channel height width"]) -> Float[Tensor, "batch pixel"]:
    pixels = images.flatten(1).double()
    return pixels - pixels.mean(1, keepdim=True)
