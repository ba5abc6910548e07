"""Checkpoints: the record in each, and which one of a run is continued or tested."""

from __future__ import annotations

import mmap
import struct
import time
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from capsule_lab.config.compose import to_container
from capsule_lab.errors import RunError, one_line
from capsule_lab.runs.directories import find_checkpoint
from capsule_lab.runs.trust import check_record

if TYPE_CHECKING:
    from capsule_lab.types import DataSpec

FORMAT = 2
"""Of what ``embed`` returns; raised when an older one can no longer be read."""


def embed(
    config: DictConfig,
    provenance: dict[str, Any],
    spec: DataSpec,
    seconds: float,
    cpu_seconds: float,
    val: dict[str, float],
    val_step: int | None,
    curves: str,
) -> dict[str, Any]:
    """What every checkpoint has under ``"capsule_lab"``, in plain containers.

    Args:
        config: the whole configuration.
        provenance: of the data.
        spec: the ``DataSpec`` that the network was built from.
        seconds: of training so far.
        cpu_seconds: the same of the processors, summed over the threads of this process.
        val: quantities of the last validation.
        val_step: after how many steps that was.
        curves: content of ``metrics.csv``.
    """
    return {
        "format": FORMAT,
        "version": version("capsule-lab"),
        "config": to_container(config),
        "provenance": provenance,
        "spec": {
            "image_shape": list(spec.image_shape),
            "num_classes": spec.num_classes,
            "labels_per_image": spec.labels_per_image,
            "classes": list(spec.classes),
            "factors": list(spec.factors),
        },
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "val": val,
        "val_step": val_step,
        "curves": curves,
    }


_VERIFIED: set[tuple[int, ...]] = set()
_SIGNATURE = b"PK\x03\x04"  # with which the header of a file in an archive begins
_HEADER, _LENGTHS, _IS_FOLDER = 30, 26, 0x10  # bytes, bytes, a bit: of the ZIP format
_YOUNG = 2.0  # ours: seconds; a file may change again without another time stamp, which some systems round to this


def verify(path: Path) -> None:
    """Compare a checkpoint with the checksums in it, once in this process if it does not change.

    Like any zip archive it has a CRC-32 of every file in it, which are the tensors and the record. torch writes them,
    and does not read them.

    Raises:
        RunError: if it is damaged or no checkpoint.
    """
    try:
        found = path.stat()
        state = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        if state in _VERIFIED:
            return
        damaged = _first_damaged(path)
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror or one_line(error)})") from error
    except Exception as error:  # of zipfile, mmap, struct and codecs, depending on the damage
        raise not_readable(path, error) from error
    if damaged is not None:
        raise not_readable(path, f"the checksum of {damaged.partition('/')[2]} is wrong")
    if time.time() - found.st_mtime > _YOUNG:
        _VERIFIED.add(state)


def _first_damaged(path: Path) -> str | None:
    """Name of the first damaged file in an archive, as torch reads it; ``ZipFile.testzip`` is stricter and slower.

    torch finds a file by the directory at the end, and its beginning by the two lengths in the header before it. Its
    reader takes a file with the attribute of a folder as empty.
    """
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        memoryview(content) as view,
        zipfile.ZipFile(file) as archive,
        ThreadPoolExecutor() as threads,  # crc32 lets go of the GIL
    ):

        def damaged(each: zipfile.ZipInfo) -> bool:
            if view[each.header_offset : each.header_offset + len(_SIGNATURE)] != _SIGNATURE:  # read by some ways only
                return True
            start = each.header_offset + _HEADER + sum(struct.unpack_from("<HH", view, each.header_offset + _LENGTHS))
            stored = each.compress_type == zipfile.ZIP_STORED and not each.external_attr & _IS_FOLDER
            return not stored or zlib.crc32(view[start : start + each.file_size]) != each.CRC

        entries = archive.infolist()
        found = threads.map(damaged, entries)
        return next((each.filename for each, is_damaged in zip(entries, found, strict=True) if is_damaged), None)


def not_readable(path: Path, reason: Exception | str) -> RunError:
    """The error for a damaged checkpoint, with what to do instead."""
    reason = reason if isinstance(reason, str) else one_line(reason).partition(". ")[0] or type(reason).__name__
    others = [path.with_name(name) for name in ("best.ckpt", "last.ckpt")]
    other = next((str(each) for each in others if each.is_file() and each.name != path.name), None)
    instead = f"go on from ckpt={other}, or " if other else ""
    return RunError(
        f"{path} cannot be read as a checkpoint ({reason}); it is truncated or another file, or its disk is damaged: "
        f"{instead}remove it and train again"
    )


def read(path: Path) -> dict[str, Any]:
    """A checkpoint on the CPU, whose ``"capsule_lab"`` is what ``embed`` returned; no code in it is run.

    Its tensors are read from the file when they are used.

    Raises:
        RunError: if it is damaged, another version of capsule_lab wrote it, or its record is none.
    """
    import torch  # slow to import

    verify(path)
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # those of pickle and of torch's reader, depending on the damage
        raise not_readable(path, type(error).__name__) from error
    record = checkpoint.get("capsule_lab") if type(checkpoint) is dict else None  # exact types: see check_record
    if type(record) is not dict or type(record.get("format")) is not int:
        raise RunError(f"{path} was not written by capsule_lab; expected a checkpoint of `python -m capsule_lab.train`")
    if record["format"] != FORMAT:
        raise RunError(
            f"{path} was written by capsule_lab {record.get('version')} in checkpoint format {record['format']}; this "
            f"is {version('capsule-lab')}, which reads format {FORMAT}: use the capsule_lab that wrote it"
        )
    check_record(record, path)
    return checkpoint


def checkpoint_to_resume(config: DictConfig, directory: Path, provenance: dict[str, Any]) -> Path | None:
    """Where training goes on: the run's last checkpoint when resuming, else ``ckpt=``, else nowhere.

    Raises:
        RunError: if it cannot be read, or was trained on other data than is here now.
    """
    path = _last(directory) if config.train.resume else None
    if path is None and config.ckpt:
        path = find_checkpoint(config.ckpt, "last.ckpt", "best.ckpt")
    if path is None:
        return None
    record = read(path)["capsule_lab"]
    check_same_source(path, record["provenance"], provenance)
    if record["provenance"] != provenance:
        raise RunError(f"{path} was trained on another split or version of the data; restore it, or start anew")
    before, now = record["config"]["model"], to_container(config.model)
    if before != now:
        differ = [key for key in dict.fromkeys((*before, *now)) if before.get(key) != now.get(key)]
        keys = ["_target_"] if "_target_" in differ else differ  # of another class all options differ
        there, here = (", ".join(f"{key}={of.get(key)}" for key in keys) for of in (before, now))
        raise RunError(f"{path} holds another network, {there}; this configuration builds {here}: set model=… as there")
    return path


def checkpoint_to_test(which: str, directory: Path) -> Path | None:
    """The weights that ``train.test`` names, ``best``, ``last`` or ``none``; the last if there never was a best."""
    if which == "none":
        return None
    path = directory / "checkpoints" / f"{which}.ckpt"
    return path if path.is_file() else _last(directory)


def _last(directory: Path) -> Path | None:
    path = directory / "checkpoints" / "last.ckpt"
    return path if path.is_file() else None


def check_same_source(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """A network trained on real data is neither continued nor tested on a stand-in by accident, nor the reverse.

    Args:
        path: of the checkpoint.
        before: provenance of the data of training.
        now: provenance of the data that is here.

    Raises:
        RunError: if they differ in source or name.
    """
    if (before["source"], before["name"]) != (now["source"], now["name"]):
        raise RunError(
            f"{path} was trained on {before['name']}, and now there is only {now['name']}; put the data where "
            "CAPSULE_LAB_DATA says, or choose other data on purpose"
        )
