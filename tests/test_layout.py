"""Tests share code only through ``tests/helpers``."""

import re

from tests.helpers.commands import ROOT

OF_TESTS = re.compile(r"^(?:from|import) tests\.(?:\w+\.)*(?:test_\w+|conftest)\b", re.MULTILINE)


def test_no_module_imports_from_a_test_or_a_conftest() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    wrong = [
        file.relative_to(ROOT).as_posix() for file in files if OF_TESTS.search(file.read_text())
    ]
    assert wrong == [], "move what they need to tests/helpers/"
