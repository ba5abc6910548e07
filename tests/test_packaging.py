"""The wheel holds everything that the source tree does, and works without it."""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from tests.helpers.commands import ROOT, Ended, python

IN_THE_WHEEL = sorted(
    [
        "capsule_lab/py.typed",
        *(f"capsule_lab/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "conf").rglob("*.yaml")),
        *(f"capsule_lab/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "sweeps").rglob("*.yaml")),
        *(path.relative_to(ROOT).as_posix() for path in (ROOT / "capsule_lab").rglob("*.py")),
        *(path.relative_to(ROOT).as_posix() for path in (ROOT / "capsule_lab").rglob("*.html")),
        *(path.relative_to(ROOT).as_posix() for path in (ROOT / "hydra_plugins").rglob("*.py")),
    ]
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the source tree, in which the build may leave what it likes."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("capsule_lab", "conf", "hydra_plugins", "sweeps"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    ended = python("-m", "pip", "wheel", *options, "--wheel-dir", str(target), str(source), cwd=target, PYTHONPATH="")
    assert ended.status == 0, ended.out + ended.err
    (built,) = target.iterdir()
    return built


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def installed(unpacked: Path, cwd: Path, *words: str) -> Ended:
    """``python *words`` that finds the unpacked wheel and not the source tree."""
    return python("-P", *words, cwd=cwd, PYTHONPATH=str(unpacked), COLUMNS="160")


def test_files_of_the_wheel_are_those_of_the_source(unpacked: Path) -> None:
    sources = {file: ROOT / re.sub(r"^capsule_lab/(conf|sweeps)/", r"\1/", file) for file in IN_THE_WHEEL}
    assert [f for f, source in sources.items() if (unpacked / f).read_bytes() != source.read_bytes()] == []


def test_nothing_else_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert sorted(files) == IN_THE_WHEEL


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("METADATA", "Name: capsule-lab"),
        ("METADATA", "Requires-Python: >=3.11"),
        ("entry_points.txt", "capsule-lab = capsule_lab.__main__:main"),
        ("licenses/LICENSE", "Apache License"),
    ],
)
def test_metadata_of_the_wheel(unpacked: Path, file: str, text: str) -> None:
    (info,) = unpacked.glob("*.dist-info")
    assert text in (info / file).read_text()


def test_overview_of_the_wheel_lists_its_own_options(unpacked: Path, tmp_path: Path) -> None:
    added = shutil.copytree(unpacked, tmp_path / "wheel")
    (added / "capsule_lab" / "conf" / "routing" / "only_here.yaml").write_text("# Found in the wheel.\n")
    ended = installed(added, tmp_path, "-m", "capsule_lab")
    assert (ended.status, ended.err) == (0, "")
    assert re.search(r"only_here\s+Found in the wheel\.", ended.out)
    options = {path.stem for path in (added / "capsule_lab" / "conf").glob("[!h]*/[!_]*.yaml")}
    assert options - set(ended.out.split()) == set()


def test_commands_of_the_wheel_compose_its_own_configuration(unpacked: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(unpacked, tmp_path / "wheel")
    file = changed / "capsule_lab" / "conf" / "train.yaml"
    file.write_text(file.read_text().replace("seed: 0", "seed: 123"))
    (tmp_path / "here").mkdir()
    ended = installed(changed, tmp_path / "here", "-m", "capsule_lab.train", "--cfg", "job")
    assert (ended.status, ended.err) == (0, "")
    assert "seed: 123" in ended.out.splitlines()
    assert list((tmp_path / "here").iterdir()) == []


def test_sweep_of_the_wheel_finds_its_plugins_and_tables(unpacked: Path, tmp_path: Path) -> None:
    ended = installed(unpacked, tmp_path, "-m", "capsule_lab.sweep", "table=smok", "launcher=gpus")
    assert (ended.status, ended.out) == (2, "")
    assert "table=smok does not exist; did you mean smoke? Options: hinton2018_table1, " in ended.err


def test_package_of_the_wheel_is_the_one_imported(unpacked: Path, tmp_path: Path) -> None:
    ended = installed(unpacked, tmp_path, "-c", "import capsule_lab; print(capsule_lab.__file__)")
    assert ended.out.strip() == str(unpacked / "capsule_lab" / "__init__.py"), sys.executable
