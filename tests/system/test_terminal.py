"""Output and files do not depend on the locale."""

import ast
import io
import sys
from pathlib import Path

import pytest

from capsule_lab.system.terminal import usable_streams
from tests.helpers.commands import ROOT

FILES = [
    *(ROOT / "capsule_lab").rglob("*.py"),
    *(ROOT / "toynorb").rglob("*.py"),
    *(ROOT / "hydra_plugins").rglob("*.py"),
]


@pytest.mark.parametrize(
    ("encoding", "errors", "written"),
    [
        ("ascii", "strict", rb"\xb1 \u2192 \udcff"),
        ("ascii", "surrogateescape", rb"\xb1 \u2192 \udcff"),  # of the locale POSIX
        ("latin-1", "strict", b"\xb1 \\u2192 \\udcff"),
        ("utf-8", "strict", "± → \\udcff".encode()),
        ("utf-8", "surrogateescape", "± → ".encode() + b"\xff"),  # names of files, as they are
    ],
)
def test_characters_that_an_encoding_lacks_are_escaped(
    monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str, written: bytes
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding, errors)
    monkeypatch.setattr(sys, "stdout", stream)
    with usable_streams():
        sys.stdout.write("± → \udcff")
    assert stream.buffer.getvalue() == written


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_text_files_have_an_encoding(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        # those of a Path have one argument at most; ``runs.files.write_text`` has two
        if node.func.attr in ("read_text", "write_text") and len(node.args) < 2:
            assert "encoding" in [keyword.arg for keyword in node.keywords], node.lineno
