"""Folders as archives of few and small files, which a lent machine gives back, and Triton's cache from such files."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import suppress
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
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as packed:
        for path in sorted(folder.rglob("*")):
            for content in content_of(path):
                member = tarfile.TarInfo(path.relative_to(folder.parent).as_posix())
                member.size = len(content)
                packed.addfile(member, io.BytesIO(content))
    content = buffer.getvalue()
    pieces = [content[start : start + LARGEST] for start in range(0, len(content), LARGEST)]
    names = [archive.name] if len(pieces) == 1 else [f"{archive.name}.{number}" for number in range(len(pieces))]
    with writing(archive):
        for name, piece in zip(names, pieces, strict=True):
            with atomically(archive.with_name(name)) as temporary:
                temporary.write_bytes(piece)
        for path in archive.parent.glob(f"{archive.name}*"):
            if path.name not in names:
                path.unlink()  # of an archive with another number of parts


def content_of(path: Path) -> Iterator[bytes]:
    """Yield the content of a regular file that is to be packed; nothing if it has been removed meanwhile."""
    if path.suffix not in WITHOUT and path.is_file() and not path.is_symlink():
        with suppress(FileNotFoundError):
            yield path.read_bytes()


def unpack_kernels(source: Path, cache: Path) -> None:
    """Unpack ``triton.tar.gz`` of a folder, in one file or in parts, as Triton's cache in ``cache``.

    Triton records the absolute paths of a kernel's files, which are those of another machine.
    """
    parts = sorted(source.glob("triton.tar.gz*"))
    if not parts:
        raise ConfigError(f"kernels is {source}, which has no triton.tar.gz; expected the folder of an earlier day")
    content = b"".join(part.read_bytes() for part in parts)
    with tarfile.open(fileobj=io.BytesIO(content)) as packed:
        packed.extractall(cache.parent, filter="data")
    for group in cache.glob("*/__grp__*.json"):
        names = json.loads(group.read_text(encoding="utf-8"))["child_paths"]
        group.write_text(json.dumps({"child_paths": {name: str(group.with_name(name)) for name in names}}))
