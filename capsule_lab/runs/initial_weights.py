"""Initial weights of a run from ready weights, another run or a file: ``train.start_from``.

A tensor fits if the network has one with the same name, type and shape. Only tensors are read: nothing that the file
names is built or called. Optimizer states are not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import DictConfig

from capsule_lab.config.composition import to_container
from capsule_lab.errors import ConfigError, RunError, one_line, printable
from capsule_lab.runs import checkpoints, directories, ready_weights
from capsule_lab.runs.files import sha256
from capsule_lab.runs.results import source_of
from capsule_lab.runs.select_run import locate

if TYPE_CHECKING:
    from torch import Tensor, nn

_MOST_NAMES = 8  # ours: two lines of a terminal


class Source(NamedTuple):
    """The weights of a file.

    Attributes:
        file: the file.
        weights: tensors by their names in the network.
        step: number of training steps of these weights; ``None`` if it is unknown.
        record: the record of ``EmbedConfig``; ``None`` for the state dict of a plain PyTorch program.
    """

    file: Path
    weights: dict[str, Tensor]
    step: int | None
    record: dict[str, Any] | None


class InitialWeights(NamedTuple):
    """What a network received from a ``Source``.

    Attributes:
        record: for ``metrics.json`` and checkpoints: name of the weights, name and SHA-256 of the file, data and step
            of training, and the numbers of tensors ``loaded``, ``new`` in the network, and ``unused`` in the file. The
            source of the data is a stand-in also if that training began with weights of a stand-in.
        lines: the same for the user, with names.
    """

    record: dict[str, Any]
    lines: list[str]


def check(config: DictConfig) -> None:
    """Raise a ``ConfigError`` if ``ckpt`` is set, too, which has all weights."""
    given = config.train.start_from
    if given and config.ckpt:
        raise ConfigError(
            f"ckpt={config.ckpt} continues a run with all of its weights, and train.start_from={given} begins another "
            "one; expected one of them"
        )


def load(config: DictConfig, network: nn.Module) -> InitialWeights:
    """Load what fits of ``train.start_from`` into a network, whose other weights stay as they are.

    A file without a record may be that of torchvision, for the ``Trunk`` of the network.

    Raises:
        RunError: if the file cannot be read, has a number that is not finite, or has no parameter that fits.
    """
    given = config.train.start_from
    source = _read(given, config.get("trust"), network)
    own = network.state_dict()
    fitting = {}
    other_shape = []
    unknown = []
    for name, weight in source.weights.items():
        if name not in own:
            unknown.append(name)
        elif checkpoints.described(weight) != checkpoints.described(own[name]):
            other_shape.append(name)
        else:
            _check_values(source.file, name, weight)
            fitting[name] = weight
    parameters = dict(network.named_parameters())
    if fitting.keys().isdisjoint(parameters):
        raise _nothing_fits(source, config, own)
    network.load_state_dict(fitting, strict=False)
    absent = [name for name in own if name not in source.weights]
    data = _data(source)
    record = {
        "name": _name(str(given), source.file),
        "file": source.file.name,
        "sha256": sha256(source.file),
        "data": data,
        "step": source.step,
        "loaded": len(fitting),
        "new": len(own) - len(fitting),
        "unused": len(source.weights) - len(fitting),
    }
    trained = f", trained on {data['name']}" if data else ""
    counts = f"{len(fitting)} of the network's {len(own)} tensors are loaded"
    first = f"starting from {given}{trained}: {counts}"
    lines = [
        printable(first),
        *_listed("new, as they have another shape there", other_shape),
        *_listed("new, as they are not there", absent),
        *_listed("of the file, not used", unknown),
    ]
    return InitialWeights(record, lines)


def _read(given: str, trust: str | None, network: nn.Module) -> Source:
    file = directories.find_checkpoint(locate(given))
    checkpoints.check_pickles(file, trust)
    content = checkpoints.read_foreign(file)
    weights = checkpoints.weights_of(content, file)
    record = content.get("capsule_lab")
    if record is None:
        weights = _as_named_here(weights, network)
    step = content.get("global_step")
    if type(step) is not int:  # a file may have anything there
        step = None
    return Source(file, weights, step, record)


def _name(given: str, file: Path) -> str:
    """Return the name of ready weights, or the file and its run or folder, without other folders of this machine."""
    if given in ready_weights.index():
        return given
    return f"{directories.directory_of(file).name}/{file.name}"


def _as_named_here(weights: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """Return weights with those of a trunk by their names in the network."""
    from capsule_lab.layers.trunk import Trunk  # imports torch

    names = {}
    for trunk, module in network.named_modules():
        if isinstance(module, Trunk):
            for name in module.state_dict():
                names[name] = f"{trunk}.{name}"
    return {names.get(name, name): weight for name, weight in weights.items()}


def _check_values(file: Path, name: str, weight: Tensor) -> None:
    try:
        is_finite = bool(weight.isfinite().all())
    except Exception as error:  # of a tensor without values
        reason = one_line(error)[:200]
        raise RunError(
            f"{file} has no values for {name} ({reason}); expected tensors in memory: use another checkpoint"
        ) from error
    if not is_finite:
        raise RunError(
            f"{file} has numbers in {name} that are not finite, as after a failed training; expected finite weights: "
            "use another checkpoint"
        )


def _data(source: Source) -> dict[str, str] | None:
    """Return source and name of the data of training, with those of its own initial weights, if there were any."""
    if source.record is None:
        return None
    name = source.record["provenance"]["name"]
    start = source.record.get("start_from")
    if start:
        earlier = start["data"]["name"] if start["data"] else "unknown data"
        name = f"{name}, before that on {earlier}"
    return {"source": source_of(source.record), "name": name}


def _listed(what: str, names: Sequence[str]) -> list[str]:
    """Return a line with names of tensors; if they are many, those of modules with their numbers of tensors."""
    if not names:
        return []
    shown = list(names)
    if len(shown) > _MOST_NAMES:
        shown = _modules(names)
    text = ", ".join(shown[:_MOST_NAMES])
    more = len(shown) - _MOST_NAMES
    if more > 0:
        text += f" and {more} more"
    return [printable(f"  {what}: {text}")]


def _modules(names: Iterable[str]) -> list[str]:
    counts: dict[str, int] = {}
    for name in names:
        module, _, _ = name.partition(".")
        counts[module] = counts.get(module, 0) + 1
    return [f"{module} ({count})" for module, count in counts.items()]


def _nothing_fits(source: Source, config: DictConfig, own: Mapping[str, Tensor]) -> RunError:
    """Return the error that has the network of the file or its options, or else what its first tensor is."""
    expected = ""
    if source.record is not None:
        there = source.record["config"]["model"]
        expected = _difference(there, to_container(config.model))
    if not expected:
        name, weight = next(iter(source.weights.items()), ("", None))
        known = name if name in own else next(iter(own))
        arrived = checkpoints.described(weight)
        described = checkpoints.described(own[known])
        expected = f"{described} for {known}, but its first tensor is {arrived}, {name[:80]}"
    return RunError(printable(f"nothing in {source.file} fits this network; expected {expected}"))


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return what to change so that the network is that of the file; an empty text if it is already."""
    _, _, before = str(there.get("_target_")).rpartition(".")
    _, _, now = str(here["_target_"]).rpartition(".")
    if before != now:
        return f"a model=… that is a {before}, as in the file, instead of {now}"
    overrides = [*_differing(there, here, "model")]
    if not overrides:
        return ""
    return f"the options of its network, {' '.join(overrides)}"


def _differing(there: Mapping[str, Any], here: Mapping[str, Any], parent: str) -> Iterator[str]:
    """Yield the overrides that turn options into those of the file."""
    for key, value in there.items():
        other = here.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            yield from _differing(value, other, f"{parent}.{key}")
            continue
        if value == other:
            continue
        text = value
        if not isinstance(value, str):
            text = json.dumps(value, separators=(",", ":"))
        yield f"{parent}.{key}={text}"
