"""Predictions of a trained network for pictures: ``capsule_lab.load("runs/…")("a.png")``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from capsule_lab import runs
from capsule_lab.errors import DataError, printable

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from capsule_lab.data.formats.pictures import Polarity
    from capsule_lab.networks.base import AbstractNetwork
    from capsule_lab.types import DataSpec

    Picture = str | Path | Image.Image

_BATCH = 100  # ours: pictures at a time, so that a large folder need not fit into memory


class Prediction(NamedTuple):
    """The prediction of a network for one picture.

    Attributes:
        name: name of the class, or its number if classes have no names.
        score: score of this class: a length or an activation in [0, 1], or a logit of a CNN.
        scores: scores by name of the class, the most probable first.
        pose: pose of the capsule of this class, ``(dim,)``; ``None`` for a network without capsules.
        reconstruction: the decoder's reconstruction from it, ``(channel, height, width)``; ``None`` without a decoder.
        labels: names of the classes with a score above ``metrics.HAS_LABEL``, of a logit after the logistic function,
            the most probable first; ``None`` for a network of one label per picture.
    """

    name: str
    score: float
    scores: dict[str, float]
    pose: Tensor | None
    reconstruction: Tensor | None
    labels: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        _, *others = [f"{name} {score:.3g}" for name, score in self.scores.items()]
        return printable(f"Prediction({self.name} {self.score:.3g}; then {', '.join(others[:2])})")


class Predictor:
    """A trained network that predicts pictures; see ``load``.

    Attributes:
        run: the run that it belongs to, see ``runs.Run``.
        input_form: how a picture becomes the network's input, see ``AbstractDataModule.input_form``.
        classes: names of the classes, or their numbers.
    """

    def __init__(self, run: runs.Run) -> None:
        run.check_classifies("a prediction")
        self.run = run
        self._data = run.build_data()
        self.input_form: dict[str, Any] = self._data.input_form
        self.classes = run.spec.class_names

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.network.parameters())
        shape = "x".join(map(str, self.spec.image_shape))
        names = ", ".join(self.classes[:10])
        more = ", …" if len(self.classes) > 10 else ""
        return printable(
            f"Predictor({self.run.checkpoint}: {type(self.network).__name__} of {parameters:,} parameters, trained on "
            f"{self.run.provenance['name']}; input {self.input_form['kind']} {shape}; classes {names}{more})"
        )

    @property
    def network(self) -> AbstractNetwork:
        """The plain ``nn.Module``, in eval mode on the CPU."""
        return self.run.network

    @property
    def spec(self) -> DataSpec:
        """Image shape and classes."""
        return self.run.spec

    def prepare(self, picture: Picture, *, polarity: Polarity = "auto") -> Tensor:
        """Return what the network receives for a picture or the path of one: float32 ``(channel, height, width)``.

        Args:
            picture: of any size and mode.
            polarity: of a drawn digit, ``"auto"``, ``"dark_on_light"`` or ``"light_on_dark"``.

        Raises:
            DataError: if the file is not a picture, the picture is blank, or the network does not classify one picture.
        """
        from capsule_lab.data.formats.pictures import open_picture

        if not isinstance(picture, str | Path):
            _check_picture(picture)
            prepared: Tensor = self._data.from_picture(picture, polarity=polarity)
            return prepared
        form = self.input_form
        is_photograph = form["kind"] == "photograph"
        size = max(form["size"]) if is_photograph else None  # read as in the training
        with warnings.catch_warnings(action="ignore"):  # of Pillow, about metadata and size
            opened = open_picture(picture, size)
        try:
            return self.prepare(opened, polarity=polarity)
        except DataError as error:
            raise DataError(f"{picture}: {error}") from error

    def prepare_arrays(self, path: str | Path) -> Tensor:
        """Return what the network receives for the images in a ``.npz``, ``.npy`` or ``.mat`` file.

        Returns:
            float32 ``(n, channel, height, width)``, in the order of the file.

        Raises:
            DataError: if the file cannot be read, or if its images are not of the network's shape.
        """
        return self._data.from_arrays(Path(path))

    def __call__(
        self, pictures: Picture | Iterable[Picture] | Tensor, *, polarity: Polarity = "auto"
    ) -> list[Prediction]:
        """Return a ``Prediction`` for each picture.

        Args:
            pictures: one picture or several, as PIL images or paths; or a batch of ``prepare``, ``(batch, channel,
                height, width)``.
            polarity: see ``prepare``.

        Raises:
            DataError: see ``prepare``.
            RunError: if an output of the network is not finite.
        """
        import torch

        if isinstance(pictures, torch.Tensor):
            batches = pictures.split(_BATCH)
        else:
            is_single = isinstance(pictures, str | Path) or not isinstance(pictures, Iterable)
            several = cast("Iterable[Picture]", [pictures] if is_single else pictures)
            prepared = [self.prepare(picture, polarity=polarity) for picture in several]
            batches = torch.stack(prepared).split(_BATCH) if prepared else ()
        predictions = []
        for batch in batches:
            predictions += self._predict(batch)
        return predictions

    def _predict(self, images: Tensor) -> list[Prediction]:
        import torch

        from capsule_lab.metrics import HAS_LABEL
        from capsule_lab.networks.base import reconstructs

        with torch.no_grad():
            output = self.network(images)
            order = output.ranking.argsort(dim=1, descending=True, stable=True)
            best = order[:, 0]
            drawn = self.network.reconstruct(output, best) if reconstructs(self.network) else None
        poses = None if output.capsules is None else output.capsules.poses
        self._check_finite("scores", output.scores)
        if poses is not None:
            self._check_finite("poses", poses)
        threshold = HAS_LABEL
        if self.network.scores_are == "logits":
            threshold = math.log(HAS_LABEL / (1 - HAS_LABEL))
        predictions = []
        for number, labels in enumerate(order.tolist()):
            scores = {self.classes[label]: float(output.scores[number, label]) for label in labels}
            name = self.classes[labels[0]]
            pose = None if poses is None else poses[number, labels[0]]
            reconstruction = None if drawn is None else drawn[number]
            present = None
            if self.spec.labels_per_image == 0:
                present = tuple(name for name, score in scores.items() if score > threshold)
            predictions.append(
                Prediction(name, scores[name], scores, pose, reconstruction, present)
            )
        return predictions

    def _check_finite(self, name: str, values: Tensor) -> None:
        sums = {f"sum of {name}": float(values.sum())}
        runs.results.check_finite(sums, f"the network of {self.run.checkpoint}")


def _check_picture(picture: Any) -> None:
    """Raise a ``DataError`` if this is no picture of Pillow."""
    from PIL import Image

    if not isinstance(picture, Image.Image):
        raise DataError(
            f"the picture is a {type(picture).__name__}; expected a file, a PIL image, or a batch of prepare() or "
            "prepare_arrays()"
        )


def load(path: str | Path, *, trust: Sequence[str] | str | None = ()) -> Predictor:
    """Load a trained network for predictions. No code in the file is run, see ``runs.open``.

    Args:
        path: the name of ready weights, see ``capsule_lab.weights()``; a run directory; or a ``.ckpt`` or
            ``.safetensors`` file.
        trust: your own packages that the record in the file may name.

    Raises:
        RunError: if there is no such file, or if it is damaged, was changed, or does not classify images.
    """
    return Predictor(runs.open(path, trust=trust))
