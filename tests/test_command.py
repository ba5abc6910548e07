"""A new command is one file and one configuration: it is listed, explained and refused like the others."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import hydra
import pytest
from hydra.errors import ConfigCompositionException, InstantiationException

from capsule_lab import command
from capsule_lab.config.build import build_trainer
from capsule_lab.config.compose import _key_in_text, _node_in_text, compose
from capsule_lab.errors import ConfigError
from tests.helpers.commands import ROOT, Trained, python
from tests.helpers.messages import one_sentence

MODULE = """
from capsule_lab import runs
from capsule_lab.command import command


@command("brighten")
def main(config):
    run = runs.open(config.ckpt)
    batch = next(run.batches("val"))
    scores = run.network((batch.images + config.by).clamp(0, 1)).scores
    print(f"{(scores.argmax(1) != batch.labels).sum()} of {len(batch.labels)} wrong")


if __name__ == "__main__":
    main()
"""
CONFIGURATION = """
# Test a network on brighter images; needs ckpt=.
#   python -m capsule_lab.brighten ckpt=runs/capsnet-mnist-2f4c01ab by=0.5
defaults:
  - _command
  - _self_

ckpt: ??? # a .ckpt file, or the directory of a run
by: 0.1 # of the range of a pixel
"""
HEADLINE = "Test a network on brighter images; needs ckpt=."


@pytest.mark.integration
@pytest.mark.parametrize("name", ["train", "list"])
def test_current_directory_that_is_gone_is_one_sentence(tmp_path: Path, name: str) -> None:
    """Before torch is imported, whose libraries cannot be loaded there."""
    run = f"import runpy; runpy.run_module('capsule_lab.{name}', run_name='__main__')"
    ended = python("-c", f"import os; os.mkdir('x'); os.chdir('x'); os.rmdir('../x'); {run}", cwd=tmp_path)
    assert one_sentence(ended) == "the current directory has been removed; change to one that is there"


def test_variables_of_slurm_that_lightning_refuses_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "3", "SLURM_JOB_NAME": "job"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE", raising=False)
    with pytest.raises(ConfigError, match=r"^trainer: You set `--ntasks=3` .* Use `--ntasks-per-node=3` instead\.$"):
        build_trainer(compose("train", ["trainer.accelerator=cpu"]), None)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with one command more."""
    copy = tmp_path_factory.mktemp("project")
    for name in ("capsule_lab", "conf", "hydra_plugins", "sweeps"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Makefile", copy)
    (copy / "capsule_lab" / "brighten.py").write_text(MODULE.lstrip())
    (copy / "conf" / "brighten.yaml").write_text(CONFIGURATION.lstrip())
    return copy


def test_new_command_is_listed(tree: Path, tmp_path: Path) -> None:
    ended = python("-m", "capsule_lab", cwd=tmp_path, PYTHONPATH=str(tree), COLUMNS="200")
    (line,) = [line for line in ended.out.splitlines() if "brighten" in line]
    assert line.split(maxsplit=3)[:3] == ["python", "-m", "capsule_lab.brighten"]
    assert line.split(maxsplit=3)[3].strip() == HEADLINE.removesuffix(".")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("help", f"  make brighten   {HEADLINE}"),
        ("brighten", "set -f; environment/bin/python -m capsule_lab brighten  by=0.5"),
    ],
)
def test_make_knows_a_new_command(tree: Path, target: str, expected: str) -> None:
    (tree / "environment").mkdir(exist_ok=True)
    (tree / "environment" / ".ready").touch()
    (tree / "pyproject.toml").touch()
    words = ["make", "--old-file=pyproject.toml", *(["--dry-run"] if target != "help" else [])]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    ended = subprocess.run(
        [*words, target, "VENV=environment", "by=0.5"],
        cwd=tree, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert expected in ended.stdout.splitlines()


def test_new_command_runs(tree: Path, tmp_path: Path, trained: Trained) -> None:
    ended = python("-m", "capsule_lab.brighten", f"ckpt={trained.directory}", cwd=tmp_path, PYTHONPATH=str(tree))
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.endswith(" of 240 wrong\n")
    assert list(tmp_path.iterdir()) == []


def test_new_command_has_help_and_messages(tree: Path, tmp_path: Path) -> None:
    shown = python("-m", "capsule_lab.brighten", "--help", cwd=tmp_path, PYTHONPATH=str(tree))
    assert shown.out.startswith(f"{HEADLINE}\n  python -m capsule_lab.brighten ckpt=")
    assert "by: 0.1" in shown.out
    misspelt = python("-m", "capsule_lab.brighten", "bye=3", cwd=tmp_path, PYTHONPATH=str(tree))
    assert one_sentence(misspelt).startswith("bye does not exist; did you mean by? Options: by, ckpt")


# --- what config.py reads out of the texts of Hydra 1.3.8 ------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("trainer.foo=1", "trainer.foo"),
        ("foo=1", "foo"),
        ("trainer/foo=1", "trainer/foo"),
        ("~trainer.foo", "trainer.foo"),
        ("~foo", "foo"),
        ("~routing=uniform", "routing"),
        ("~seed=7", None),
        ("+seed=7", None),
    ],
)
def test_key_in_the_text_of_hydra(override: str, key: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        compose("train", [override])
    assert isinstance(caught.value.__cause__, ConfigCompositionException)
    assert _key_in_text(caught.value.__cause__) == key, hydra.__version__


def test_node_in_the_text_of_hydra() -> None:
    config = compose("train", ["logger.csv._target_=builtins.int"])
    with pytest.raises(InstantiationException) as caught:
        build_trainer(config, Path("run"))
    assert _node_in_text(caught.value) == "logger.csv", hydra.__version__


def test_no_memory_for_a_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def user_message(*_: object) -> str:
        raise MemoryError

    monkeypatch.setattr(command, "user_message", user_message)
    with pytest.raises(SystemExit, match="2"):
        command._exit_if_user_error(MemoryError(), "train")
    assert capsys.readouterr().err.startswith("capsule_lab: not enough memory; ")
