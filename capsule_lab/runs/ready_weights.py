"""Trained weights by name: those of ``ready/index.json``, which are in this package or are downloaded when first used.

An entry has ``file``, ``bytes``, ``sha256``, ``parameters``, ``data``, ``error`` on test images in %, the term
``reconstruction`` of the loss on test images, ``seconds`` of training, ``command``, ``commit``, and ``url``, which is
``null`` for a file in this package. ``capsule-lab export to=safetensors`` prints an entry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capsule_lab.errors import RunError, one_line
from capsule_lab.runs.files import sha256
from capsule_lab.system.extras import require

INDEX = Path(__file__).with_name("ready") / "index.json"


def index() -> dict[str, dict[str, Any]]:
    """Return the entry of each name."""
    entries: dict[str, dict[str, Any]] = json.loads(INDEX.read_text(encoding="utf-8"))["weights"]
    return entries


def weights() -> list[str]:
    """Return the names that ``capsule_lab.load`` knows, sorted."""
    return sorted(index())


def entry_of(file: Path) -> dict[str, Any] | None:
    """Return the entry of a file of ready weights, told by its SHA-256; ``None`` for other files."""
    if file.suffix != ".safetensors":
        return None
    digest = sha256(file)
    for entry in index().values():
        if entry["sha256"] == digest:
            return entry
    return None


def file_of(name: str) -> Path:
    """Return the file of ready weights with this name; ``RunError`` if it is not that of the index."""
    entry = index()[name]
    path = INDEX.with_name(entry["file"])
    if not path.is_file():
        path = _download(name, entry)
    size = path.stat().st_size
    if size != entry["bytes"]:
        raise _another_file(path, name, f"{size} bytes", f"{entry['bytes']} bytes")
    digest = sha256(path)
    if digest != entry["sha256"]:
        raise _another_file(path, name, f"SHA-256 {digest}", entry["sha256"])
    return path


def _another_file(path: Path, name: str, has: str, wanted: str) -> RunError:
    return RunError(
        f"{path} has {has}, but the index expects {wanted} for {name}: remove the file and fetch it again"
    )


def _download(name: str, entry: Mapping[str, Any]) -> Path:
    """Return the file in the user's cache, downloaded if it is not there; pooch compares its SHA-256."""
    require(f"the download of the weights {name}", "weights", "pooch")
    import pooch  # here, since other runs need no HTTP

    from capsule_lab.data.download import download_file  # imports Lightning

    url = str(entry["url"])
    if not url.startswith("https://"):
        raise RunError(
            f"the weights {name} have the address {url}; expected one with https://: use another name"
        )
    server, slash, file = url.rpartition("/")
    folder = Path(pooch.os_cache("capsule_lab")) / "weights"
    try:
        return download_file(file, f"sha256:{entry['sha256']}", [server + slash], folder)
    except OSError as error:
        raise RunError(
            f"the weights {name} cannot be downloaded ({one_line(error)[:300]}); expected {url}: fetch it on another "
            f"machine, and load the file by its path"
        ) from error
