"""The page of the explorer: one HTML file with scripts, weights and example pictures."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import torch
from torch import Tensor

from capsule_lab import runs
from capsule_lab.deploy.export import complete_test, published_command
from capsule_lab.errors import RunError
from capsule_lab.networks import EMCaps
from capsule_lab.networks.base import AbstractCapsuleNetwork, reconstructs
from capsule_studies.explorer import pictures
from capsule_studies.explorer.network import PackedNetwork, Precision, export, rounded
from capsule_studies.explorer.pictures import Pictures

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = (
    "engine.js",
    "fit.js",
    "pictures.js",
    "plots.js",
    "sandbox.js",
    "state.js",
    "input.js",
    "pose.js",
    "couplings.js",
    "gaussians.js",
    "changes.js",
    "start.js",
)
LARGEST = 12_000_000  # ours: bytes of a page
_TRIED = 200  # ours: images that each network has to classify


def render(opened: Sequence[runs.Run], *, precision: Precision = "f16") -> str:
    """Return the page.

    Args:
        opened: the network of the page, then at most one ``EMCaps`` and one CNN to show beside it.
        precision: of weights in tensors of 4,096 numbers and more.

    Raises:
        RunError: if a network has images that the page cannot show, other images or classes than the first, is one
            of several of its kind, or has a layer that the page cannot compute; or if the page would be larger than
            ``LARGEST``.
    """
    roles = _roles(opened)
    first = opened[0]
    entry = pictures.entry(first)
    loaded = pictures.load(first, entry["source"])
    tried = loaded.images[:_TRIED]
    networks, blocks = [], []
    for role, run in roles.items():
        _check_finite(run, tried)
        blocks.append(_block(role, export(run.network, precision)))
        rounding = _difference(run.network, rounded(run.network, precision), tried)
        networks.append({"role": role, **_record(run), "rounding": rounding})
    facts = {
        "names": list(first.spec.classes or map(str, range(first.spec.num_classes))),
        "entry": entry,
        "examples": pictures.examples(loaded),
        "ranges": _pose_ranges(first.network, loaded),
        "networks": networks,
    }
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)  # noqa: S701 - as_json escapes for scripts
    page = environment.from_string(_asset("page.html")).render(
        style=_asset("style.css"),
        facts=as_json(facts),
        models="\n".join(blocks),
        scripts="\n".join(map(_asset, SCRIPTS)),
    )
    if len(page) > LARGEST:
        raise RunError(
            f"the page would have {len(page) / 1e6:.1f} MB; expected at most {LARGEST / 1e6:.0f}: explore a smaller "
            "network, such as model=capsnet_slim or model=em_caps, smaller images, or one network beside it less"
        )
    return page


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _roles(opened: Sequence[runs.Run]) -> dict[str, runs.Run]:
    roles: dict[str, runs.Run] = {}
    for run in opened:
        run.check_classifies("explorer")
        pictures.check_pictures(run)
        _check_same(run, opened[0])
        kind = type(run.network).__name__
        has_capsules = isinstance(run.network, AbstractCapsuleNetwork)
        if not roles:
            role = "first"
        elif isinstance(run.network, EMCaps):
            role = "em"
        else:
            role = "cnn"
        if role == "first" and not has_capsules:
            raise RunError(
                f"{run.checkpoint} has a {kind}; expected a network with capsules as ckpt"
            )
        if role == "cnn" and has_capsules:
            raise RunError(f"{run.checkpoint} has a {kind}; expected an EMCaps or a CNN beside it")
        if role in roles:
            raise RunError(f"{run.checkpoint} is a second {kind} beside; expected one")
        roles[role] = run
    return roles


def _check_same(run: runs.Run, first: runs.Run) -> None:
    """Check that a network beside the first has the same images and classes."""
    if _what_it_classifies(run) != _what_it_classifies(first):
        raise RunError(
            f"{run.checkpoint} has {_described(run)}; expected those of {first.checkpoint}, {_described(first)}: "
            "networks on a page receive the same picture"
        )
    if run.spec.classes != first.spec.classes:
        raise RunError(
            f"{run.checkpoint} has the classes {_names(run)}; expected those of {first.checkpoint}, {_names(first)}: "
            "networks on a page name classes alike"
        )


def _what_it_classifies(run: runs.Run) -> tuple[Any, ...]:
    return run.spec.image_shape, run.spec.num_classes


def _described(run: runs.Run) -> str:
    shape = "x".join(map(str, run.spec.image_shape))
    return f"{run.spec.num_classes} classes of images of {shape}"


def _names(run: runs.Run) -> str:
    return ", ".join(run.spec.classes) or "without names"


def _pose_ranges(network: Any, loaded: Pictures) -> dict[str, list[list[float]]] | None:
    """Return means and standard deviations of the poses of each class over its images."""
    module: Any = network
    if not reconstructs(network) or not loaded.kind:
        return None
    with torch.no_grad():
        poses = torch.cat([module(part).capsules.poses for part in loaded.images.split(200)])
    _, classes, components = poses.shape
    own = poses[torch.arange(len(poses)), loaded.labels]  # [image component]
    means, deviations = [], []
    for label in range(classes):
        of_class = own[loaded.labels == label]
        count = len(of_class)
        means.append(of_class.mean(0).tolist() if count else [0.0] * components)
        deviations.append(of_class.std(0).tolist() if count > 1 else [0.1] * components)
    return {"mean": means, "std": deviations}


def _record(run: runs.Run) -> dict[str, Any]:
    metrics = runs.ready_weights.entry_of(run.checkpoint)  # of the index
    if metrics is None:
        metrics = runs.results.read_metrics(run.directory) or {}
        metrics["error"] = complete_test(run, metrics).get("error")
    return {
        "name": type(run.network).__name__,
        "parameters": sum(parameter.numel() for parameter in run.network.parameters()),
        "data": run.provenance["name"],
        "error": metrics.get("error"),
        "command": published_command(metrics.get("command") or "") or None,
    }


def _check_finite(run: runs.Run, images: Tensor) -> None:
    """Raise a ``RunError`` if a weight or an output is not finite, which the page could not show."""
    sums = {}
    for name, value in run.network.state_dict().items():
        sums[f"sum of {name}"] = float(value.sum())
    with torch.no_grad():
        sums["sum of scores"] = float(run.network(images).scores.sum())
    runs.results.check_finite(sums, f"the network of {run.checkpoint}")


def _difference(network: Any, other: Any, images: Tensor) -> float:
    """Return the largest difference of the scores."""
    with torch.no_grad():
        differences = network(images).scores - other(images).scores
    return float(differences.abs().max())


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
