"""The stand-in for smallNORB: toys that ``toynorb`` renders once into files of the real format."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Literal

from capsule_lab.data.formats.smallnorb import SIZE, Part, load_part
from capsule_lab.data.loader import Images
from capsule_lab.data.sources import AbstractSource
from capsule_lab.errors import DataError
from capsule_lab.system.extras import require

StandIn = Literal["full", "small"]

_SEED = 0  # ours: one set of toys for all runs
_LEVELS: dict[str, dict[str, Any]] = {
    "full": {},
    "small": {  # ours: evenly spaced views, both familiar and novel
        "elevations": (0, 4, 8),
        "azimuths": (0, 3, 6, 9, 12, 15),
        "lightings": (0, 3),
    },
}

log = logging.getLogger(__name__)


class RenderedToys(AbstractSource):
    """The stand-in for smallNORB, in ``<directory>/toynorb/48x48``; rendered when it is first needed.

    ``capsule-lab dataset name=toynorb size=48`` renders the same files. ``"full"`` is as large as smallNORB;
    ``"small"`` has 900 + 900 pairs, in ``toynorb/48x48-small``.
    """

    def __init__(self, directory: Path, standin: StandIn) -> None:
        name = f"{SIZE}x{SIZE}" if standin == "full" else f"{SIZE}x{SIZE}-{standin}"
        self.folder = directory / "toynorb" / name
        self.standin = standin
        self.record: dict[str, Any] = {}

    def find(self) -> None:
        require("the stand-in for smallNORB", "toynorb", "toynorb")
        from capsule_lab.data.standins import toynorb_files  # here, as it imports numba

        path = self.folder / "provenance.json"
        if not path.is_file():
            log.info("rendering toys into %s, once; this takes about half a minute", self.folder)
            try:
                toynorb_files.render_files(
                    self.folder, size=SIZE, seed=_SEED, **_LEVELS[self.standin]
                )
            except OSError as error:
                raise DataError(
                    f"the stand-in for smallNORB cannot be written into {self.folder} ({error.strerror}); expected a "
                    "writable folder with half a gigabyte of free space: set another with CAPSULE_LAB_DATA=…"
                ) from error
        try:
            self.record = json.loads(path.read_text(encoding="utf-8"))
            version = self.record.get("version")
        except (OSError, ValueError, AttributeError) as error:
            raise DataError(
                f"{path} cannot be read ({error}); expected the renderer's record: remove {self.folder} to render it "
                "again"
            ) from error
        if version != toynorb_files.VERSION:
            raise DataError(
                f"{self.folder} was rendered by version {version} of toynorb; this is version {toynorb_files.VERSION}: "
                "remove the folder to render it again"
            )

    def load(self, *, train: bool) -> Images:
        from capsule_lab.data.standins import toynorb_files

        part: Part = "training" if train else "testing"
        images = load_part(self.folder, part, "subsample")
        assert images.factors is not None
        is_as_rendered = toynorb_files.is_as_rendered(
            self.record,
            part,
            images.images.numpy(),
            images.labels.numpy(),
            images.factors.numpy(),
        )
        if not is_as_rendered:
            raise DataError(
                f"{self.folder} holds {part} files that do not match their SHA-256 in provenance.json; they are "
                "damaged or belong to another set: remove the folder to render it again"
            )
        return images

    def provenance(self) -> dict[str, Any]:
        from capsule_lab.data.standins import toynorb_files

        return {"name": toynorb_files.STANDIN_NAME, "generator": "toynorb", **self.record}
