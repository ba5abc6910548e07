"""The network of a run under attack."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from capsule_lab.analysis.equal_couplings import equal_couplings
from capsule_lab.errors import ConfigError, RunError
from capsule_lab.networks import reconstructs
from capsule_lab.runs.open_run import Run, stored_batches
from capsule_lab.studies.attacks.evaluation import Attacked, LogitsOf
from capsule_lab.studies.attacks.pixel_space import Space, prepare, preprocessed
from capsule_lab.studies.images import StudyImages, on_device
from capsule_lab.studies.measures.reconstruction_detection import threshold, winning_reconstruction_error
from capsule_lab.types import Batch

if TYPE_CHECKING:
    from capsule_lab.lit import AbstractCapsuleModule


class AttackedRun(Attacked):
    """A run's network on a device, in evaluation mode and float32, with images.

    Args:
        run: whose network is attacked.
        images: that it is to be fooled with.
        space: of the attack.
        source: the run whose network images are made against; ``None`` is the same.
        couplings: ``"equal"`` makes them against networks whose couplings are equal.

    Attributes:
        preprocess: from the space of the attack to the network's input.
    """

    def __init__(
        self, run: Run, images: StudyImages, space: Space, *, source: Run | None = None, couplings: str = "trained"
    ) -> None:
        if source is not None:
            check_same_data(run, source)
        self.run = run
        self.preprocess: Callable[[Tensor], Tensor] = _unchanged
        if space == "grey_levels":
            self.preprocess = functools.partial(preprocessed, images.data, images.stored[0][0])
        own, other = (frozen(each.network, images.device) for each in (run, source or run))
        crafted_with = logits_of(other, self.preprocess)
        if couplings == "equal":
            crafted_with = _with_equal_couplings(other, crafted_with)
        super().__init__(prepare(images, space), logits_of(own, self.preprocess), crafted_with, self._training_loss)

    def keep_errors(self) -> None:
        """Keep reconstruction errors: the squared distance of an image and what its winning class decodes to."""

        def logits_and_errors(images: Tensor) -> tuple[Tensor, Tensor]:
            seen = self.preprocess(images)
            output = self.run.network(seen)
            errors = winning_reconstruction_error(self.run.network, seen, output=output)
            return logits_in(output, self.run.network), errors

        self.logits_and_errors = logits_and_errors

    def _training_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The loss of classification that the network was trained with, a mean over images."""
        seen = self.preprocess(images)
        module = cast("AbstractCapsuleModule", self.run.module)
        (loss,) = module.classification_term(Batch(seen, labels, labels), self.run.network(seen), {}).values()
        return loss


def logits_of(network: nn.Module, preprocess: Callable[[Tensor], Tensor]) -> LogitsOf:
    """Logits of a network in float32, of images in the space of an attack."""
    return lambda images: logits_in(network(preprocess(images)), network)


def logits_in(output: Any, network: nn.Module) -> Tensor:
    """The logits of what a network gives, in float32 at least; attacks need them, see ``losses``."""
    if output.logits is None:
        raise ConfigError(f"{type(network).__name__} gives no logits with this routing; an attack needs them")
    logits: Tensor = output.logits
    return logits if logits.dtype == torch.float64 else logits.float()


def check_same_data(run: Run, other: Run) -> None:
    """Check that two runs were trained on the same data, real or a stand-in.

    Raises:
        RunError: if not.
    """
    own, theirs = (
        {
            "image_shape": tuple(each.spec.image_shape),
            "num_classes": each.spec.num_classes,
            "data": str(each.config.data["_target_"]).rpartition(".")[2],
            "source": each.provenance["source"],
        }
        for each in (run, other)
    )
    for name, value in own.items():
        if theirs[name] != value:
            raise RunError(
                f"{other.checkpoint} has {name} {theirs[name]}, {run.checkpoint} has {value}; "
                "expected runs on the same data"
            )


def detection_threshold(run: Run, data: Any) -> float | None:
    """The reconstruction error that 5 % of the validation images exceed (Frosst, Sabour and Hinton 2018).

    Args:
        run: its network is where it is to compute.
        data: of ``run.data_with``.

    Returns:
        ``None`` for a network without a decoder, or data without validation images.
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


def frozen(network: nn.Module, device: torch.device) -> nn.Module:
    """The network on the device, in evaluation mode, whose parameters need no gradient: a third of the time."""
    return network.eval().requires_grad_(requires_grad=False).to(device)


def _unchanged(images: Tensor) -> Tensor:
    return images


def _with_equal_couplings(network: nn.Module, function: LogitsOf) -> LogitsOf:
    def logits(images: Tensor) -> Tensor:
        with equal_couplings(network):
            return function(images)

    return logits
