from collections.abc import Iterator


def damages(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents of damaged files, as after a crash, a full disk or an editor."""
    third = len(content) // 3
    yield "empty", b""
    yield "cut in half", content[: len(content) // 2]
    yield "zeros", bytes(len(content))
    yield "zeros in the middle", content[:third] + bytes(64) + content[third + 64 :]
    yield "not text", b"\xff\xfe" + content
    yield "another type", b"[1, 2]"
    yield "null", b"null"
    yield "twice", content + content
