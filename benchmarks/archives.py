"""Folders as archives of few and small files, which a lent machine gives back, and Triton's cache from such files."""

from __future__ import annotations

import io
import json
import math
import tarfile
from pathlib import Path

from capsule_lab.errors import ConfigError
from capsule_lab.runs.files import writing
from capsule_lab.system.files import atomically

LARGEST = 2**24  # ours: bytes of a file that a lent machine gives back
WITHOUT = (".ckpt", ".lock")  # checkpoints of a CapsNet have 100 MB


def pack(folder: Path, archive: Path) -> None:
    """Pack the files of a folder, without checkpoints, in place of an earlier archive.

    An archive of more than LARGEST bytes is written in parts ``<archive>.0``, ``<archive>.1`` and so on; their contents
    joined in this order are the archive. A file that changes meanwhile is packed as it was read.
    """
    content = packed(folder)
    count = math.ceil(len(content) / LARGEST)
    parts = [archive]
    if count > 1:
        parts = [archive.with_name(f"{archive.name}.{number}") for number in range(count)]
    with writing(archive):
        for number, part in enumerate(parts):
            start = number * LARGEST
            with atomically(part) as temporary:
                temporary.write_bytes(content[start : start + LARGEST])
        for path in archive.parent.glob(f"{archive.name}*"):
            if path not in parts:
                path.unlink()  # of an archive with another number of parts


def packed(folder: Path) -> bytes:
    """Return the files of a folder, with its name, as a compressed archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_symlink() or not path.is_file() or path.suffix in WITHOUT:
                continue
            try:
                content = path.read_bytes()
            except FileNotFoundError:  # removed meanwhile
                continue
            name = path.relative_to(folder.parent)
            member = tarfile.TarInfo(name.as_posix())
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def unpack_kernels(source: Path, cache: Path) -> None:
    """Unpack ``triton.tar.gz`` of a folder, in one file or in parts, as Triton's cache in ``cache``.

    Triton records the absolute paths of a kernel's files, which are those of another machine.
    """
    parts = sorted(source.glob("triton.tar.gz*"))
    if not parts:
        raise ConfigError(
            f"kernels is {source}, which has no triton.tar.gz; expected the folder of an earlier day"
        )
    content = b"".join(part.read_bytes() for part in parts)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(cache.parent, filter="data")
    for group in cache.glob("*/__grp__*.json"):
        names = json.loads(group.read_text(encoding="utf-8"))["child_paths"]
        paths = {name: str(group.with_name(name)) for name in names}
        group.write_text(json.dumps({"child_paths": paths}))
