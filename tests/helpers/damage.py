"""Files with one flipped bit, and other damaged files."""

import random
from collections.abc import Iterator
from pathlib import Path


def with_a_flipped_bit(path: Path, count: int, *, seed: int) -> Iterator[int]:
    """Flip one bit of the original file, ``count`` times; yield the position of the byte."""
    content = path.read_bytes()
    places = random.Random(seed)
    for _ in range(count):
        position, bit = places.randrange(len(content)), places.randrange(8)
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        yield position
    path.write_bytes(content)


def damages(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents of damaged files, as after a crash, a full disk or an editor."""
    yield "empty", b""
    yield "cut in half", content[: len(content) // 2]
    yield "zeros", bytes(len(content))
    yield "zeros in the middle", content[: len(content) // 3] + bytes(64) + content[len(content) // 3 + 64 :]
    yield "not text", b"\xff\xfe" + content
    yield "another type", b"[1, 2]"
    yield "null", b"null"
    yield "twice", content + content
