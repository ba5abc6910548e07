"""The stand-in for smallNORB: toys rendered by ``data.standins.toynorb``, once, into files of the real format."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Literal

from capsule_lab.data.formats.smallnorb import SIZE
from capsule_lab.data.standins import toynorb
from capsule_lab.errors import DataError

StandIn = Literal["full", "small"]

_SEED = 0  # ours: the toys are a data set like any other, whatever the seed of the run
_LEVELS: dict[str, dict[str, Any]] = {
    "full": {},
    "small": {  # ours: evenly spread views, familiar and novel ones among them, in seconds
        "elevations": (0, 4, 8),
        "azimuths": (0, 3, 6, 9, 12, 15),
        "lightings": (0, 3),
    },
}
_TAKES = {"full": "a minute or two", "small": "under half a minute"}  # 2 cores

log = logging.getLogger(__name__)


def standin_folder(directory: Path, standin: StandIn) -> Path:
    """Where the rendered files lie: ``toynorb/48x48``, ``python -m capsule_lab.dataset name=toynorb size=48``'s too."""
    return directory / "toynorb" / f"{SIZE}x{SIZE}{'' if standin == 'full' else f'-{standin}'}"


def standin_provenance(directory: Path, standin: StandIn) -> dict[str, Any]:
    """What the renderer says of the files, which are rendered now if they are not there yet.

    Raises:
        DataError: if they cannot be written, or another version of the renderer made them.
    """
    folder = standin_folder(directory, standin)
    record = folder / "provenance.json"
    if not record.is_file():
        _render(folder, standin)
    try:
        provenance: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        version = provenance.get("version")
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(
            f"{record} cannot be read ({error}); expected the renderer's record: remove {folder} to have it rendered "
            "again"
        ) from error
    if version != toynorb.VERSION:
        raise DataError(
            f"{folder} was rendered by version {version} of toynorb; this is version {toynorb.VERSION}: remove the "
            "folder to have it rendered again"
        )
    return provenance


def _render(folder: Path, standin: StandIn) -> None:
    log.info("rendering toys into %s, once; this takes %s", folder, _TAKES[standin])
    try:
        with toynorb.reporting() as progress:
            toynorb.render_files(folder, size=SIZE, seed=_SEED, progress=progress, **_LEVELS[standin])
    except OSError as error:
        raise DataError(
            f"the stand-in for smallNORB cannot be written into {folder} ({error.strerror}); expected a folder you may "
            "write to, with half a gigabyte to spare: name another with CAPSULE_LAB_DATA=…"
        ) from error
