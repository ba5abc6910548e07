"""The page of the explorer: one HTML file with scripts, weights and example digits."""

from __future__ import annotations

import base64
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
import torch
from torch import Tensor

from capsule_lab import runs
from capsule_lab.deploy.export import check_data_is_here
from capsule_lab.errors import CapsuleLabError, RunError, one_line
from capsule_lab.networks import EMCaps
from capsule_lab.networks.base import AbstractCapsuleNetwork, reconstructs
from capsule_studies.explorer.network import PackedNetwork, Precision, export, rounded

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("engine.js", "draw.js", "sandbox.js", "views.js")
LARGEST = 12_000_000  # ours: bytes of a page
_TRIED = 200  # ours: images that each network has to classify
_IMAGES = 2000  # ours: training images for the ranges of poses and for the examples

log = logging.getLogger(__name__)


class Digits(NamedTuple):
    """Images as network input, their labels, and what they are."""

    images: Tensor
    labels: Tensor
    kind: str


def render(opened: Sequence[runs.Run], *, precision: Precision = "f16") -> str:
    """Return the page.

    Args:
        opened: the network to draw on, then at most one ``EMCaps`` and one CNN to show beside it.
        precision: of weights in tensors of 4,096 numbers and more.

    Raises:
        RunError: if a network has other images than digits of 28x28, is one of several of its kind, or has a layer
            that the page cannot compute; or if the page would be larger than ``LARGEST``.
    """
    roles = _roles(opened)
    digits = _digits(opened[0])
    networks, blocks = [], []
    for role, run in roles.items():
        _check_finite(run, digits.images[:_TRIED])
        blocks.append(_block(role, export(run.network, precision)))
        used = rounded(run.network, precision)
        networks.append(
            {
                "role": role,
                **_record(run),
                "rounding": _difference(run.network, used, digits.images[:_TRIED]),
            }
        )
    facts = {
        "names": list(opened[0].spec.classes or map(str, range(opened[0].spec.num_classes))),
        "digits": digits.kind,
        "samples": _samples(digits),
        "ranges": _pose_ranges(opened[0].network, digits),
        "networks": networks,
    }
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)  # noqa: S701 - as_json escapes for scripts
    page = environment.from_string((ASSETS / "page.html").read_text(encoding="utf-8")).render(
        style=(ASSETS / "style.css").read_text(encoding="utf-8"),
        facts=as_json(facts),
        models="\n".join(blocks),
        scripts="\n".join((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS),
    )
    if len(page) > LARGEST:
        raise RunError(
            f"the page would have {len(page) / 1e6:.1f} MB; expected at most {LARGEST / 1e6:.0f}: explore a smaller "
            "network, such as model=capsnet_slim, or one beside it less"
        )
    return page


def _roles(opened: Sequence[runs.Run]) -> dict[str, runs.Run]:
    roles: dict[str, runs.Run] = {}
    for number, run in enumerate(opened):
        run.check_classifies("explorer")
        if run.spec.image_shape != (1, 28, 28) or run.spec.num_classes != 10:
            shape = "x".join(map(str, run.spec.image_shape))
            raise RunError(
                f"{run.checkpoint} has {run.spec.num_classes} classes of images of {shape}; expected the ten digits of "
                "1x28x28, which can be drawn: train with data=mnist"
            )
        is_capsule_network = isinstance(run.network, AbstractCapsuleNetwork)
        role = "first" if number == 0 else "em" if isinstance(run.network, EMCaps) else "cnn"
        if (role == "first" and not is_capsule_network) or (role == "cnn" and is_capsule_network):
            expected = (
                "a network with capsules as ckpt"
                if role == "first"
                else "an EMCaps or a CNN beside it"
            )
            raise RunError(
                f"{run.checkpoint} has a {type(run.network).__name__}; expected {expected}"
            )
        if role in roles:
            raise RunError(
                f"{run.checkpoint} is a second {type(run.network).__name__} beside; expected one"
            )
        roles[role] = run
    return roles


def _digits(run: runs.Run) -> Digits:
    """Return training images of the run, not augmented, or if its data set is not here, the first digits of MNIST."""
    try:
        check_data_is_here(run)
        images, labels, found = [], [], 0
        for batch in run.batches("train"):
            images.append(batch.images)
            labels.append(batch.labels)
            if (found := found + len(batch.labels)) >= _IMAGES:
                break
        return Digits(torch.cat(images), torch.cat(labels), "training images")
    except CapsuleLabError as error:
        log.info(
            "there are no training images (%s); the page has 400 training digits of MNIST",
            one_line(error),
        )
        with np.load(ASSETS / "digits.npz", allow_pickle=False) as stored:
            pixels, classes = (torch.from_numpy(stored[name]) for name in ("images", "labels"))
        return Digits(
            pixels[:, None].float() / 255,
            classes.long(),
            "first 40 training digits of its class in MNIST",
        )


def _samples(digits: Digits) -> list[list[int]]:
    """Return an image of each class as grey values."""
    chosen = [int((digits.labels == label).nonzero()[0]) for label in digits.labels.unique()]
    values: list[list[int]] = (
        (255 * digits.images[chosen]).round().to(torch.uint8).flatten(1).tolist()
    )
    return values


def _pose_ranges(network: Any, digits: Digits) -> dict[str, list[list[float]]] | None:
    """Return means and standard deviations of the poses of each class over its images."""
    module: Any = network
    if not reconstructs(network):
        return None
    with torch.no_grad():
        poses = torch.cat([module(part).capsules.poses for part in digits.images.split(200)])
    own = poses[torch.arange(len(poses)), digits.labels]  # [image component]
    by_class = [own[digits.labels == label] for label in range(poses.shape[1])]
    return {
        "mean": [each.mean(0).tolist() if len(each) else [0.0] * own.shape[1] for each in by_class],
        "std": [
            each.std(0).tolist() if len(each) > 1 else [0.1] * own.shape[1] for each in by_class
        ],
    }


def _record(run: runs.Run) -> dict[str, Any]:
    ready = runs.ready_weights.index().values()
    digest = runs.files.sha256(run.checkpoint) if run.checkpoint.suffix == ".safetensors" else None
    entry = next((each for each in ready if each["sha256"] == digest), {})
    metrics = (
        {"test": {"error": entry["error"]}, **entry}
        if entry
        else runs.results.read_metrics(run.directory) or {}
    )
    split = "test" if "error" in metrics.get("test", {}) else "val"
    return {
        "name": type(run.network).__name__,
        "parameters": sum(parameter.numel() for parameter in run.network.parameters()),
        "data": run.provenance["name"],
        "error": metrics.get(split, {}).get("error"),
        "error_of": "test images" if split == "test" else "validation images",
        "command": metrics.get("command"),
    }


def _check_finite(run: runs.Run, images: Tensor) -> None:
    """Raise a ``RunError`` if a weight or an output is not finite, which the page could not show."""
    state = {
        f"sum of {name}": float(value.sum()) for name, value in run.network.state_dict().items()
    }
    with torch.no_grad():
        state["sum of scores"] = float(run.network(images).scores.sum())
    runs.results.check_finite(state, f"the network of {run.checkpoint}")


def _difference(network: Any, other: Any, images: Tensor) -> float:
    with torch.no_grad():
        return float((network(images).scores - other(images).scores).abs().max())


def _block(role: str, exported: PackedNetwork) -> str:
    index = as_json({"network": exported.network, "tensors": exported.tensors})
    block = base64.b64encode(exported.block).decode()
    return (
        f'<script type="application/json" id="{role}-index">{index}</script>\n'
        f'<script type="text/plain" id="{role}-block">{block}</script>'
    )


def as_json(value: Any) -> str:
    """Return JSON for a script element: names of classes may contain ``</script>``."""
    text = runs.files.json_text(value, "the page", separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028")
