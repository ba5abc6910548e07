"""Output and files do not depend on the locale."""

import ast
import io
import sys

import pytest

from capsule_lab.system.terminal import usable_streams
from tests.helpers.commands import ROOT

FILES = [
    path
    for folder in ("capsule_lab", "toynorb", "hydra_plugins")
    for path in (ROOT / folder).rglob("*.py")
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
def test_text_files_have_an_encoding(file) -> None:
    calls = (node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.Call))
    of_paths = [
        call for call in calls if isinstance(call.func, ast.Attribute) and len(call.args) < 2
    ]
    texts = [call for call in of_paths if call.func.attr in ("read_text", "write_text")]
    assert [
        call.lineno for call in texts if "encoding" not in {each.arg for each in call.keywords}
    ] == []
