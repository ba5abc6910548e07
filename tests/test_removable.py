"""Parts that ``docs/architecture.md`` says can be removed: without their files, the framework trains and evaluates."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.commands import NO_PICTURES, ROOT, TINY_CAPSNET, TINY_DATA, Ended, python

pytestmark = [pytest.mark.whole, pytest.mark.integration]

CORE = ("capsule_lab", "hydra_plugins", "conf", "sweeps")
GUESTS = ("capsule_studies", "toynorb", "benchmarks")
LINES = {
    "capsule_lab/runs/memory.py": ("capsule_lab/commands/training.py", r"^ +.*\bmemory\b.*\n"),
    "capsule_lab/commands/tables.py": ("capsule_lab/commands/list.py", r"^.*\bin_tables\b.*\n"),
}
"""Files from which lines that match must be removed, too."""
RUN = [
    *TINY_CAPSNET,
    *TINY_DATA,
    *NO_PICTURES,
    "trainer.max_epochs=-1",
    "trainer.max_steps=2",
    "data.train_images=80",
]
IMPORTS = """
import importlib, pathlib, sys
for file in sorted(pathlib.Path(sys.argv[1], "capsule_lab").rglob("*.py")):
    parts = file.relative_to(sys.argv[1]).with_suffix("").parts
    name = ".".join(parts).removesuffix(".__init__")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.startswith("capsule_lab"):
            raise
"""


def removable() -> dict[str, list[str]]:
    """The files of each part in the second table of "Who maintains what"."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    _, _, section = page.partition("## Who maintains what\n")
    section, _, _ = section.partition("\n## ")
    _, _, table = section.partition("| part | to remove |")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", table, re.MULTILINE)
    return {part: re.findall(r"`([^`]+)`", files) for part, files in rows if "`" in files}


PARTS = removable()
"""Parts and their files."""


def without(parts: Sequence[str], folder: Path) -> Path:
    """Return a copy of the project without these parts."""
    for name in (*CORE, *GUESTS):
        ignored = shutil.ignore_patterns("__pycache__", "tests")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for file in sorted({file for part in parts for file in PARTS[part]}):
        path = folder / file
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        if file in LINES:
            other, pattern = LINES[file]
            text, count = re.subn(pattern, "", (folder / other).read_text(), flags=re.MULTILINE)
            assert count, f"{other} does not use {file}"
            (folder / other).write_text(text)
    return folder


def run(tree: Path, *words: str) -> Ended:
    ended = python(*words, cwd=tree.parent, PYTHONPATH=str(tree))
    assert ended.status == 0, ended.out + ended.err
    return ended


EACH = [pytest.param([part], id=part, marks=pytest.mark.slow) for part in PARTS]


@pytest.mark.parametrize("parts", [pytest.param([*PARTS], id="all"), *EACH])
def test_the_framework_works_without(parts: list[str], tmp_path: Path) -> None:
    tree = without(parts, tmp_path / "tree")
    run(tree, "-c", IMPORTS, str(tree))
    run(tree, "-m", "capsule_lab", "train", *RUN)
    (directory,) = tmp_path.glob("runs/*-*")
    run(tree, "-m", "capsule_lab", "evaluate", f"ckpt={directory}")
    assert "capsule-lab train" in run(tree, "-m", "capsule_lab").out
