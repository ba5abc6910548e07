"""Checkpoints: the record in each, and the choice of the one to continue or to test."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from capsule_lab.config.composition import to_container
from capsule_lab.config.identity import ABSENT, config_hash, effective_differences, flat
from capsule_lab.config.overrides import as_argument
from capsule_lab.errors import RunError, one_line
from capsule_lab.runs.directories import directory_of, find_checkpoint
from capsule_lab.runs.files import json_text
from capsule_lab.runs.results import read_metrics
from capsule_lab.runs.trust import check_record, refuses_pickles
from capsule_lab.system.environment import package_version
from capsule_lab.system.extras import require
from capsule_lab.system.files import atomically, open_regular

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST_HEADER = 2**20  # ours: bytes; names, shapes and record of our networks have at most 50 kB
_MOST_OPTIONS = 6  # ours: in a message of two lines
_SIZE_OF_LENGTH = 8  # bytes; safetensors' format

FORMAT = 2
"""Version of the record that ``callbacks.EmbedConfig`` adds; increased when old records become unreadable."""


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint on the CPU, with the record of ``EmbedConfig`` under ``"capsule_lab"``; run no code in it.

    The file is mapped into memory, so that tensors are read when they are used.
    """
    checkpoint = _unpickled(path)
    check(checkpoint.get("capsule_lab") if type(checkpoint) is dict else None, path)
    return checkpoint


def _unpickled(path: Path) -> Any:
    import torch  # slow to import

    try:
        _check_file(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # from pickle or torch's reader, depending on the damage
        reason = one_line(error).partition(". ")[0] or type(error).__name__
        if not _begins_as_archive(path):  # torch would explain how files are mapped
            reason = "it does not begin as files of torch.save do"
        other = _other_checkpoint(path)
        instead = "" if other is None else f"continue from ckpt={other}, or "
        raise RunError(
            f"{path} cannot be read as a checkpoint ({reason[:200]}); it is truncated, damaged or another kind of "
            f"file: {instead}give a file that `capsule-lab train` wrote, or remove it and train again"
        ) from error


def _other_checkpoint(path: Path) -> Path | None:
    for name in ("best.ckpt", "last.ckpt"):
        other = path.with_name(name)
        if other != path and other.is_file():
            return other
    return None


def _begins_as_archive(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"PK"  # of a ZIP archive
    except OSError:
        return True


def _check_file(path: Path) -> None:
    """Raise an ``OSError`` unless it is a regular file, which may be a link, and inside of the run if it is of one."""
    directory = directory_of(path)
    inside = directory if path.absolute().parent != directory else None
    open_regular(path, inside=inside).close()


def check(record: Any, path: Path) -> None:
    """Check the record in a file, which has exact types, see ``check_record``."""
    if type(record) is not dict or type(record.get("format")) is not int:
        raise RunError(
            f"{path} was not written by capsule_lab; expected a checkpoint of `capsule-lab train`"
        )
    if record["format"] != FORMAT:
        raise RunError(
            f"{path} was written by capsule_lab {record.get('version')} in checkpoint format {record['format']}; this "
            f"is {package_version()}, which reads format {FORMAT}: use the version that wrote it"
        )
    check_record(record, path)


def check_pickles(path: Path, trust: Sequence[str] | str | None) -> None:
    """Raise a ``RunError`` if a file must be unpickled, and ``trust`` refuses that."""
    if refuses_pickles(trust) and path.suffix != ".safetensors":
        raise RunError(
            f"{path} is a pickle, which trust=safetensors refuses; expected a .safetensors file: convert it on a "
            f"machine that trusts it, by capsule-lab export {as_argument('ckpt', path)} to=safetensors"
        )


def read_any(path: Path) -> dict[str, Any]:
    """Read a checkpoint, or a file of ``write_safetensors`` in the form of a checkpoint; run no code in it."""
    return read_safetensors(path) if path.suffix == ".safetensors" else read(path)


def read_foreign(path: Path) -> dict[str, Any]:
    """Read a file as ``read_any`` does, or a state dict of another program, ``.safetensors`` too, without a record."""
    if path.suffix == ".safetensors":
        record, weights = _read_safetensors(path)
        return {"state_dict": weights} if record is None else _as_checkpoint(record, weights, path)
    content = _unpickled(path)
    if type(content) is dict and "capsule_lab" in content:
        check(content["capsule_lab"], path)
        return content
    return {"state_dict": content}


def weights_of(checkpoint: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
    """Return the weights of the network in a checkpoint by their names in it.

    Raises:
        RunError: if they are not a dict of tensors, or larger than the file.
    """
    from torch import Tensor, nn  # slow to import

    stored = checkpoint["state_dict"]
    if type(stored) not in (dict, OrderedDict):
        raise RunError(
            f"{path} has weights of type {type(stored).__name__}; expected a dict: use another checkpoint"
        )
    weights = {}
    for name, value in dict.items(stored):
        if type(name) is not str or type(value) not in (Tensor, nn.Parameter):
            kind = type(value).__name__
            shown = str(name)[:80]
            raise RunError(
                f"{path} has {kind} for {shown!a} among its weights; expected tensors by name, as "
                "network.state_dict() returns them"
            )
        weights[name.removeprefix("network.")] = value
    size = sum(value.nbytes for value in weights.values())
    if size > path.stat().st_size:  # a tensor can repeat one number
        raise RunError(
            f"{path} is smaller than its weights, so it was changed: use another checkpoint"
        )
    return weights


def described(weight: Tensor | None) -> str:
    """Return type and shape of a tensor for an error message."""
    if weight is None:
        return "nothing"
    dtype = str(weight.dtype).removeprefix("torch.")
    return f"{dtype} of shape {tuple(weight.shape)}"


def write_safetensors(path: Path, weights: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Write the weights of a network with its record, in plain containers, as JSON in the metadata."""
    require(f"writing {path.name}", "weights", "safetensors")
    from safetensors.torch import save  # imports torch

    # copies: weights in another memory order or with shared memory cannot be written
    state = {name: weight.contiguous().clone() for name, weight in weights.items()}
    content = save(state, {"capsule_lab": json_text(record, path)})
    try:
        _check_header(content[:_SIZE_OF_LENGTH])
    except ValueError as error:
        raise RunError(f"{path} cannot be written: {error}") from error
    with atomically(path) as temporary:
        temporary.write_bytes(content)  # save_file: only its owner may read


def read_safetensors(path: Path) -> dict[str, Any]:
    """Read a file of ``write_safetensors`` in the form of a checkpoint.

    Raise a ``RunError`` if it is damaged, has a header of more than 1 MB, or was not written by ``write_safetensors``.
    """
    return _as_checkpoint(*_read_safetensors(path), path)


def _as_checkpoint(record: Any, weights: dict[str, Tensor], path: Path) -> dict[str, Any]:
    """Return the weights of a file with its checked record in the form of a checkpoint."""
    check(record, path)
    state = {f"network.{name}": weight for name, weight in weights.items()}
    return {"capsule_lab": record, "state_dict": state, "global_step": record.get("step")}


def _read_safetensors(path: Path) -> tuple[Any, dict[str, Tensor]]:
    """Return the record in a file of safetensors, ``None`` if it has none, and the weights by name."""
    require(f"reading {path.name}", "weights", "safetensors")
    from safetensors import safe_open

    try:
        _check_file(path)
        with path.open("rb") as file:
            _check_header(file.read(_SIZE_OF_LENGTH))
        with safe_open(path, framework="pt") as opened:
            metadata = opened.metadata() or {}
            record = json.loads(metadata.get("capsule_lab", "null"))
            names = opened.keys()
            return record, {name: opened.get_tensor(name) for name in names}
    except Exception as error:  # from safetensors or json, depending on the damage
        raise RunError(
            f"{path} cannot be read as weights ({one_line(error)[:200]}); it is truncated, damaged or another kind of "
            "file: fetch or export it again"
        ) from error


def _check_header(length: bytes) -> None:
    """Check the length of a header, with which a file of safetensors begins."""
    header = int.from_bytes(length, "little")
    if header > _LARGEST_HEADER:
        raise ValueError(f"its header has {header} bytes; expected at most {_LARGEST_HEADER}")


def checkpoint_to_resume(
    config: DictConfig, directory: Path, provenance: dict[str, Any]
) -> Path | None:
    """Return the checkpoint to continue: when resuming, the run's last one; else ``ckpt=``; else ``None``."""
    path = find_to_resume(config, directory)
    if path is None:
        _check_no_other_result(directory, config)
        return None
    if refuses_pickles(config.get("trust")):
        raise RunError(
            f"{path} is a pickle, which trust=safetensors refuses; expected a new run, or a file you trust"
        )
    checkpoint = read(path)
    record = checkpoint["capsule_lab"]
    new_run = f"start a new run on these data without ckpt=, from these weights by train.start_from={path}"
    check_same_source(path, record["provenance"], provenance, new_run)
    if record["provenance"] != provenance:
        raise RunError(
            f"{path} was trained on another split or version of the data; restore it, or start a new run"
        )
    check_same_network(path, record["config"], config)
    options = record["config"].get("train", {})
    frozen = options.get("freeze") or []
    if frozen != [*(config.train.freeze or ())]:  # the optimizer has the state of other weights
        raise RunError(
            f"{path} was trained with train.freeze=[{','.join(frozen)}]; expected the same, or a new run by "
            f"train.start_from={path}"
        )
    _check_same_optimizer(path, record["config"], config)
    if directory_of(path) == directory:
        _check_same_configuration(directory, record["config"], config)
    else:
        _check_steps_left(path, checkpoint, config)
    return path


def _check_no_other_result(directory: Path, config: DictConfig) -> None:
    """Check that a finished run without checkpoints has this configuration: it would be replaced."""
    result = read_metrics(directory) if config.train.resume else None
    if result is not None and result["config_hash"] != config_hash(config):
        raise RunError(
            f"{directory} has the finished run of another configuration; expected the options in its config.yaml, or "
            "another train.directory=…"
        )


def _check_same_configuration(
    directory: Path, before: Mapping[str, Any], config: DictConfig
) -> None:
    """Check that the run in ``directory`` has this configuration: all of it would be recorded as its."""
    found = _changed(before, config)
    found.pop("data.path", None)  # the provenance has the hash of its files, which may have moved
    if found:
        there, here = _in_both(found)
        raise RunError(
            f"{directory} has a run of another configuration, {there} instead of {here}; expected the same options, or "
            "another train.directory=…"
        )


def _changed(before: Mapping[str, Any], config: DictConfig) -> dict[str, tuple[Any, Any]]:
    """Return both values of each option that differs, without those that the version of ``before`` did not have."""
    found = effective_differences(before, to_container(config))
    objects = {
        key.removesuffix("._target_") for key, _ in flat(before) if key.endswith("._target_")
    }
    for key, (value, _) in [*found.items()]:
        parent = key.rpartition(".")[0]
        if value is ABSENT and parent in {*objects, "train"} and f"{parent}._target_" not in found:
            del found[key]
    return found


def check_same_network(path: Path, before: Mapping[str, Any], config: DictConfig) -> None:
    """Check all options of the network; one that the record lacks may only have its value without effect."""
    groups = {"model", *before["model"], *config.model}  # model.routing repeats routing
    found = {
        key: values
        for key, values in effective_differences(before, to_container(config)).items()
        if key.split(".")[0] in groups and {*values} != {ABSENT, None}
    }
    if found:
        there, here = _in_both(found)
        raise RunError(
            f"{path} has another network, {there} instead of {here}; expected the same model=… and routing=…"
        )


def _check_same_optimizer(path: Path, before: Mapping[str, Any], config: DictConfig) -> None:
    """Check the options that a checkpoint's state of the optimizer contains: it would replace those of ``config``."""
    found = {
        key: values
        for key, values in _changed(before, config).items()
        if key.startswith("optimizer.") or key == "module.decay_all"
    }
    if found:
        there, here = _in_both(found)
        raise RunError(
            f"{path} has the state of another optimizer, {there} instead of {here}; expected the same options, or a "
            f"new run by train.start_from={path}"
        )


def _check_steps_left(path: Path, checkpoint: Mapping[str, Any], config: DictConfig) -> None:
    """Check that a checkpoint of another run is not as far as this run goes."""
    option, reached = "max_steps", checkpoint["global_step"]
    if (config.trainer.get(option) or -1) < 0:  # else epochs are no limit
        option = "max_epochs"
        reached = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["completed"]
    limit = config.trainer[option]
    if reached >= limit:
        raise RunError(
            f"{path} has {reached} of trainer.{option}={limit}, so there is nothing to train; expected a larger "
            f"trainer.{option}, or capsule-lab evaluate {as_argument('ckpt', path)}, which only tests"
        )


def _in_both(differences: Mapping[str, tuple[Any, Any]]) -> tuple[str, str]:
    """Return the options of both sides for a message."""
    keys = [*_without_options_of_others(differences)]
    there: list[str] = []
    here: list[str] = []
    for key in keys[:_MOST_OPTIONS]:
        for side, value in zip((there, here), differences[key], strict=True):
            text = "null" if value is None else value
            side.append(f"no {key}" if value is ABSENT else f"{key}={text}")
    left_out = len(keys) - len(here)
    more = f" and {left_out} more" if left_out > 0 else ""
    return ", ".join(there), ", ".join(here) + more


def _without_options_of_others(keys: Collection[str]) -> Iterator[str]:
    """Yield the keys, without those of objects of another class, which differ in all options."""
    others = [key.removesuffix("._target_") for key in keys if key.endswith("._target_")]
    for key in keys:
        is_option = key in others or key.startswith(tuple(f"{other}." for other in others))
        if key.endswith("._target_") or not is_option:
            yield key


def find_to_resume(config: DictConfig, directory: Path) -> Path | None:
    """Return the checkpoint of ``checkpoint_to_resume``, which is not read."""
    path = _last(directory) if config.train.resume else None
    if path is None and config.ckpt:
        path = find_checkpoint(config.ckpt, "last.ckpt", "best.ckpt")
    return path


def checkpoint_to_test(which: str, directory: Path) -> Path | None:
    """Return the checkpoint for ``train.test``, ``best``, ``last`` or ``none``; the last one if there is no best."""
    if which == "none":
        return None
    path = directory / "checkpoints" / f"{which}.ckpt"
    return path if path.is_file() else _last(directory)


def _last(directory: Path) -> Path | None:
    path = directory / "checkpoints" / "last.ckpt"
    return path if path.is_file() else None


def check_same_source(
    path: Path, before: dict[str, Any], now: dict[str, Any], instead: str
) -> None:
    """Check that the data is the same as in training, since real data and stand-in data must not be mixed.

    The message offers to restore the data of training, or ``instead``.
    """
    if (before["source"], before["name"]) != (now["source"], now["name"]):
        raise RunError(
            f"{path} was trained on {before['name']}, but the data here is {now['name']}; put the data of training "
            f"into its place (CAPSULE_LAB_DATA, data.path), or {instead}"
        )
