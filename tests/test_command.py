"""A new command is two files: it is listed, explained and refused like the others."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from capsule_lab.config.build import build_trainer
from capsule_lab.config.compose import compose
from capsule_lab.errors import ConfigError
from tests.helpers.commands import ROOT, Ended, Trained, python
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


def test_variables_of_slurm_that_lightning_refuses_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "3", "SLURM_JOB_NAME": "job"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE", raising=False)
    with pytest.raises(ConfigError, match=r"^trainer: You set `--ntasks=3` .* Use `--ntasks-per-node=3` instead\.$"):
        build_trainer(compose("train", ["trainer.accelerator=cpu"]), None)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with what is added."""
    copy = tmp_path_factory.mktemp("project")
    for name in ("capsule_lab", "conf", "sweeps"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "tested-versions.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, copy)
    (copy / "capsule_lab" / "brighten.py").write_text(MODULE.lstrip())
    (copy / "conf" / "brighten.yaml").write_text(CONFIGURATION.lstrip())
    (copy / "environment").mkdir()
    (copy / "environment" / ".ready").touch()
    return copy


def test_what_is_added_is_listed_and_found_by_make(tree: Path, tmp_path: Path) -> None:
    listed = python("-m", "capsule_lab", cwd=tmp_path, PYTHONPATH=str(tree), COLUMNS="200").out
    assert re.search(rf"python -m capsule_lab\.brighten +{re.escape(HEADLINE.removesuffix('.'))}", listed)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    make = ["make", "help", "VENV=environment"]
    made = subprocess.run(make, cwd=tree, env=environment, capture_output=True, text=True, check=True)
    assert f"  make brighten   {HEADLINE}" in made.stdout.splitlines()


def test_added_command_runs_and_explains_itself(tree: Path, tmp_path: Path, trained: Trained) -> None:
    def brighten(*words: str) -> Ended:
        return python("-m", "capsule_lab", "brighten", *words, cwd=tmp_path, PYTHONPATH=str(tree))

    ended = brighten(f"ckpt={trained.directory}")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.endswith(" of 240 wrong\n")
    shown = brighten("--help").out
    assert shown.startswith(f"{HEADLINE}\n  python -m capsule_lab.brighten ckpt=")
    assert "by: 0.1" in shown
    assert one_sentence(brighten("bye=3")).startswith("bye does not exist; did you mean by? Options: by, ckpt")
    assert list(tmp_path.iterdir()) == []
