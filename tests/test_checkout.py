"""A clone works without being installed: with ``PYTHONPATH`` only, and without the metadata of ``capsule-lab``."""

import json
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import capsule_lab
from capsule_lab.system import environment
from tests.helpers.commands import ROOT, Ended, interpreter

NOT_ON_A_LENT_MACHINE = ("capsule_lab", "tensorboard", "wandb")
SCRIPT = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from hydra.core.plugins import Plugins
try:
    metadata = version("capsule-lab")
except PackageNotFoundError:
    metadata = None
import capsule_lab
from capsule_lab.system.environment import of_this_process
plugins = [plugin.__module__ for plugin in Plugins.instance().discover() if "capsule_lab" in plugin.__module__]
print(json.dumps([capsule_lab.__file__, metadata, of_this_process()["versions"]["capsule-lab"], plugins]))
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The installed packages, without this project and without loggers."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.suffix != ".pth" and not path.name.startswith(NOT_ON_A_LENT_MACHINE):
            (folder / path.name).symlink_to(path)
    return folder


def from_checkout(packages: Path, *arguments: str) -> Ended:
    """Run ``python *arguments`` without the packages of the environment, and with those in a folder."""
    path = f"{ROOT}:{packages}"
    return interpreter("-S", *arguments, cwd=packages.parent, PYTHONPATH=path, COLUMNS="160")


def test_version_needs_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_ours(name: str) -> str:
        if name == "capsule-lab":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(environment, "version", without_ours)
    assert environment.of_this_process()["versions"]["capsule-lab"] == capsule_lab.__version__


@pytest.mark.integration
def test_sweeper_and_version_are_found_without_installation(packages: Path) -> None:
    ended = from_checkout(packages, "-c", SCRIPT)
    assert (ended.status, ended.err) == (0, "")
    expected = [
        f"{ROOT}/capsule_lab/__init__.py",
        None,
        capsule_lab.__version__,
        ["hydra_plugins.capsule_lab_plugins"] * 2,
    ]
    assert json.loads(ended.out) == expected


@pytest.mark.whole
@pytest.mark.integration
def test_a_run_needs_no_installation(packages: Path) -> None:
    overrides = ["debug=smoke", "trainer.accelerator=cpu", "name=here"]
    ended = from_checkout(packages, "-m", "capsule_lab", "train", *overrides)
    assert ended.status == 0, ended.out + ended.err
    (directory,) = (packages.parent / "runs").glob("here*")
    result = json.loads((directory / "metrics.json").read_text())
    assert result["versions"]["capsule-lab"] == capsule_lab.__version__
