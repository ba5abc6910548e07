"""The wheel holds every file of the source tree, and works without the source tree."""

import json
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.helpers.commands import ROOT, Ended, interpreter

pytestmark = pytest.mark.integration

FOLDERS = ["capsule_lab", "conf", "hydra_plugins", "sweeps", "toynorb"]
PACKED = (".py", ".yaml", ".html", ".css", ".js", ".json", ".safetensors", ".npz", "py.typed")


def sources() -> dict[str, Path]:
    """Every file of the source tree by its name in the wheel."""
    found = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.name.endswith(PACKED):
                name = path.relative_to(ROOT).as_posix()
                found[re.sub("^(conf|sweeps)/", r"capsule_lab/\1/", name)] = path
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the source tree, without network."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, source)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path_factory.mktemp("wheel")
    ended = interpreter(
        "-m", "hatchling", "build", "-t", "wheel", "-d", str(target), cwd=source, PYTHONPATH=""
    )
    assert ended.status == 0, ended.out + ended.err
    (built,) = target.iterdir()
    return built


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel, which is an installation without scripts."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def installed(unpacked: Path, cwd: Path, *arguments: str) -> Ended:
    """Run ``python *arguments`` with the unpacked wheel on its path instead of the source tree."""
    return interpreter("-P", *arguments, cwd=cwd, PYTHONPATH=str(unpacked), COLUMNS="160")


def test_files_of_the_wheel_are_those_of_the_source(unpacked: Path) -> None:
    expected = sources()
    for name, source in expected.items():
        assert (unpacked / name).read_bytes() == source.read_bytes(), name
    paths = [path.relative_to(unpacked) for path in unpacked.rglob("*") if path.is_file()]
    names = {path.as_posix() for path in paths if not path.parts[0].endswith(".dist-info")}
    assert names == expected.keys()


def test_metadata_of_the_wheel_has_name_license_and_script(unpacked: Path) -> None:
    (info,) = unpacked.glob("*.dist-info")
    metadata = (info / "METADATA").read_text().splitlines()
    for line in ("Name: capsule-lab", "Requires-Python: >=3.11", "License-Expression: Apache-2.0"):
        assert line in metadata
    assert "capsule-lab = capsule_lab.__main__:main" in (info / "entry_points.txt").read_text()
    assert "Apache License" in (info / "licenses" / "LICENSE").read_text()


def test_commands_of_the_wheel_find_its_own_options_and_tables(
    unpacked: Path, tmp_path: Path
) -> None:
    added = shutil.copytree(unpacked, tmp_path / "wheel") / "capsule_lab"
    (added / "conf" / "logger" / "only_here.yaml").write_text("# Found in the wheel.\nmine: 123\n")
    (added / "sweeps" / "only_here_too.yaml").write_text("# A table of the wheel.\n")
    ended = installed(added.parent, tmp_path, "-m", "capsule_lab")
    assert (ended.status, ended.err) == (0, "")
    assert re.search(r"only_here\s+Found in the wheel", ended.out)
    assert re.search(r"only_here_too\s+A table of the wheel", ended.out)
    command = ("-m", "capsule_lab", "train", "logger=only_here", "--cfg", "job")
    ended = installed(added.parent, tmp_path, *command)
    assert (ended.status, ended.err) == (0, "")
    assert "  mine: 123" in ended.out.splitlines()


def test_plugins_of_the_wheel_are_discovered(unpacked: Path, tmp_path: Path) -> None:
    """Hydra 1.3 discovers plugins by namespace, Hydra 1.4 by entry points."""
    script = """
import json, sys
from importlib.metadata import distribution
from hydra.core.plugins import Plugins
namespace = [f"{plugin.__module__}.{plugin.__name__}" for plugin in Plugins.instance().discover()]
points = [point.load() for point in distribution("capsule-lab").entry_points if point.group == "hydra.plugins"]
file = sys.modules["capsule_lab"].__file__
print(json.dumps([file, namespace, [f"{point.__module__}.{point.__name__}" for point in points]]))
"""
    ended = installed(unpacked, tmp_path, "-c", script)
    assert (ended.status, ended.err) == (0, "")
    file, namespace, entry_points = json.loads(ended.out)
    assert file == str(unpacked / "capsule_lab" / "__init__.py")
    assert entry_points == ["hydra_plugins.capsule_lab_plugins.GridSweeper"]
    assert [name for name in namespace if "capsule_lab" in name] == entry_points
