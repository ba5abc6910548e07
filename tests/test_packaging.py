"""The wheels hold every file of their source trees, and work without them, each in an environment of its own."""

import json
import re
import shutil
import subprocess
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.commands import ROOT, Ended, environment_of_a_command, interpreter

pytestmark = pytest.mark.integration

SOURCES = {
    "capsule_lab": ["capsule_lab", "conf", "hydra_plugins", "sweeps"],
    "capsule_studies": ["capsule_studies"],
    "toynorb": ["toynorb"],
}
"""Folders in each wheel; that of the same name has the ``pyproject.toml``, except for ``capsule_lab``."""
OF_THE_STUDIES = ["analyse", "attack", "explorer"]
INSTALLED = Path(sysconfig.get_path("purelib"))
FOR_TOYNORB = ["jaxtyping", "llvmlite", "numba", "numpy", "numpy.libs", "wadler_lindig"]


def sources_of(name: str) -> dict[str, Path]:
    """The sources of the files in a wheel: all but tests, caches and what builds it."""
    found = {}
    for folder in SOURCES[name]:
        for file in (ROOT / folder).rglob("*"):
            path = file.relative_to(ROOT)
            is_left_out = {"tests", "__pycache__"} & {*path.parts} or path.name == "pyproject.toml"
            is_license = path == Path(name) / "LICENSE"  # it is in the metadata
            if file.is_file() and not is_left_out and not is_license:
                found[re.sub("^(conf|sweeps)/", r"capsule_lab/\1/", path.as_posix())] = file
    return found


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels by package, built from a copy of the source tree, without network."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, source)
    target = tmp_path_factory.mktemp("wheels")
    for name, folders in SOURCES.items():
        for folder in folders:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / folder, source / folder, ignore=ignored)
        project = source if name == "capsule_lab" else source / name
        command = ["-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
        ended = interpreter(*command, cwd=project, PYTHONPATH="")
        assert ended.status == 0, ended.out + ended.err
    return {name: next(target.glob(f"{name}-*.whl")) for name in SOURCES}


Environment = Callable[..., Path]


@pytest.fixture(scope="module")
def environment(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A function that makes an environment with some wheels, and packages of this one; returns its packages' folder.

    Without ``others``, it has all packages of this one, except for those of this checkout.
    """

    def make(*names: str, others: list[str] | None = None) -> Path:
        folder = tmp_path_factory.mktemp("environment")
        venv.create(folder, with_pip=False)
        (packages,) = folder.glob("lib/*/site-packages")
        for path in INSTALLED.iterdir():
            package = path.name.partition("-")[0]
            is_of_checkout = path.suffix == ".pth" or package in SOURCES
            if not is_of_checkout if others is None else package in others:
                (packages / path.name).symlink_to(path)
        for name in names:
            with zipfile.ZipFile(wheels[name]) as archive:
                archive.extractall(packages)
        return packages

    return make


def run(packages: Path, cwd: Path, *arguments: str, **variables: str) -> Ended:
    """Run ``python *arguments`` in the environment that has this folder of packages."""
    ended = subprocess.run(
        [str(packages.parents[2] / "bin" / "python"), *arguments],
        cwd=cwd,
        env=environment_of_a_command(PYTHONPATH="", COLUMNS="160", **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def commands_of(overview: str) -> list[str]:
    """The commands in the output of ``capsule-lab``."""
    commands, _, _ = overview.partition("\nmore\n")
    return re.findall(r"^  capsule-lab (\w+) ", commands, re.MULTILINE)


@pytest.fixture(scope="module")
def core(environment: Environment) -> Path:
    """The packages of an environment with ``capsule_lab`` alone."""
    return environment("capsule_lab")


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.whole
def test_wheel_has_the_license(name: str, wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels[name]) as archive:
        (license_file,) = [
            each for each in archive.namelist() if each.endswith(".dist-info/licenses/LICENSE")
        ]
        assert b"Apache License" in archive.read(license_file)


@pytest.mark.parametrize("name", SOURCES)
def test_files_of_the_wheel_are_those_of_the_source(
    name: str, wheels: dict[str, Path], tmp_path: Path
) -> None:
    expected = {inside: file.read_bytes() for inside, file in sources_of(name).items()}
    with zipfile.ZipFile(wheels[name]) as archive:
        files = [each for each in archive.namelist() if ".dist-info/" not in each]
        found = {each: archive.read(each) for each in files}
    assert sorted(found) == sorted(expected)
    assert [each for each in found if found[each] != expected[each]] == []


def test_metadata_of_the_wheel_has_name_license_and_script(core: Path) -> None:
    (info,) = core.glob("capsule_lab-*.dist-info")
    metadata = (info / "METADATA").read_text().splitlines()
    license_line = "License-Expression: Apache-2.0 AND BSD-3-Clause AND CC-BY-4.0"
    assert {"Name: capsule-lab", "Requires-Python: >=3.11", license_line} - {*metadata} == set()
    assert "capsule-lab = capsule_lab.__main__:main" in (info / "entry_points.txt").read_text()
    (digits,) = (info / "licenses" / "capsule_lab").rglob("LICENSE")
    assert "Creative Commons Attribution 4.0" in digits.read_text()


@pytest.mark.whole
def test_core_alone_finds_its_own_commands_options_and_tables(
    environment: Environment, tmp_path: Path
) -> None:
    packages = environment("capsule_lab")
    added = packages / "capsule_lab"
    (added / "conf" / "logger" / "only_here.yaml").write_text("# Found in the wheel.\nmine: 123\n")
    (added / "sweeps" / "only_here_too.yaml").write_text("# A table of the wheel.\n")
    ended = run(packages, tmp_path, "-m", "capsule_lab")
    assert (ended.status, ended.err) == (0, "")
    names = [path.stem for path in (ROOT / "conf").glob("[!_]*.yaml")]
    assert commands_of(ended.out) == sorted(names)
    described = run(packages, tmp_path, "-m", "capsule_lab", "options", "logger", "table").out
    assert re.search(r"only_here\s+Found in the wheel", described)
    assert re.search(r"only_here_too\s+A table of the wheel", described)
    arguments = ("-m", "capsule_lab", "train", "logger=only_here", "--cfg", "job")
    ended = run(packages, tmp_path, *arguments)
    assert (ended.status, ended.err) == (0, "")
    assert "  mine: 123" in ended.out.splitlines()
    ended = run(packages, tmp_path, "-m", "capsule_lab", "attack", "ckpt=a")
    assert ended.status == 2
    assert "attack is not a command" in ended.err


@pytest.mark.whole
def test_studies_add_their_commands_and_options(environment: Environment, tmp_path: Path) -> None:
    packages = environment("capsule_lab", "capsule_studies")
    ended = run(packages, tmp_path, "-m", "capsule_lab")
    assert (ended.status, ended.err) == (0, "")
    names = [path.stem for path in (ROOT / "conf").glob("[!_]*.yaml")]
    assert commands_of(ended.out) == sorted([*names, *OF_THE_STUDIES])
    described = run(packages, tmp_path, "-m", "capsule_lab", "options", "attack").out
    assert re.search(r"^ *pgd +\w+ ", described, re.MULTILINE), "options are functions"
    for name, option in [("attack", "attack=pgd"), ("analyse", "what=votes")]:
        ended = run(packages, tmp_path, "-m", "capsule_lab", name, option, "--cfg", "job")
        assert (ended.status, ended.err) == (0, "")
        assert "_target_: capsule_studies." in ended.out


@pytest.mark.whole
def test_toynorb_alone_renders(environment: Environment, tmp_path: Path) -> None:
    packages = environment("toynorb", others=FOR_TOYNORB)
    script = (
        "import toynorb; print(toynorb.__file__);"
        "images = toynorb.render(0, 4, [0], [0], [0], [-1], size=8); print(images.shape, images.std() > 1)"
    )
    # compiling takes longer than such an image; the interpreter warns that hashes overflow
    ended = run(packages, tmp_path, "-W", "ignore", "-c", script, NUMBA_DISABLE_JIT="1")
    assert (ended.status, ended.err) == (0, "")
    file, rendered = ended.out.splitlines()
    assert file == str(packages / "toynorb" / "__init__.py")
    assert rendered == "(1, 1, 1, 1, 8, 8) True"


def test_plugins_of_the_wheel_are_discovered(core: Path, tmp_path: Path) -> None:
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
    ended = run(core, tmp_path, "-c", script)
    assert (ended.status, ended.err) == (0, "")
    file, namespace, entry_points = json.loads(ended.out)
    assert file == str(core / "capsule_lab" / "__init__.py")
    plugins = [
        f"hydra_plugins.capsule_lab_plugins.{name}" for name in ("ExtensionFolders", "GridSweeper")
    ]
    assert sorted(entry_points) == plugins
    assert sorted(name for name in namespace if "capsule_lab" in name) == plugins
