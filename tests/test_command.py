"""A new command and a new data set are two files each: they are listed, explained and refused like the others."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from capsule_lab.config.build import build_trainer
from capsule_lab.config.compose import compose
from capsule_lab.errors import ConfigError
from tests.helpers.commands import NO_PICTURES, ROOT, TINY_CAPSNET, Ended, Trained, python
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
def test_current_directory_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    """Before torch is imported, whose libraries cannot be loaded there."""
    run = "import runpy; runpy.run_module('capsule_lab.train', run_name='__main__')"
    ended = python("-c", f"import os; os.mkdir('x'); os.chdir('x'); os.rmdir('../x'); {run}", cwd=tmp_path)
    assert one_sentence(ended) == "the current directory has been removed; change to one that is there"


def test_variables_of_slurm_that_lightning_refuses_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "3", "SLURM_JOB_NAME": "job"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE", raising=False)
    with pytest.raises(ConfigError, match=r"^trainer: You set `--ntasks=3` .* Use `--ntasks-per-node=3` instead\.$"):
        build_trainer(compose("train", ["trainer.accelerator=cpu"]), None)


DATA = ROOT / "tests" / "templates" / "my_data"
ADDED = {
    "a command": {"capsule_lab/brighten.py": MODULE.lstrip(), "conf/brighten.yaml": CONFIGURATION.lstrip()},
    "a data set": {
        "capsule_lab/data/stripes.py": (DATA / "stripes.py").read_text(),
        "conf/data/stripes.yaml": (DATA / "conf" / "data" / "stripes.yaml")
        .read_text()
        .replace(" stripes.", " capsule_lab.data.stripes."),
    },
}
"""The files that each of these needs."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with what is added."""
    copy = tmp_path_factory.mktemp("project")
    for name in ("capsule_lab", "conf", "sweeps"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "tested-versions.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, copy)
    for files in ADDED.values():
        for name, text in files.items():
            (copy / name).write_text(text)
    (copy / "environment").mkdir()
    (copy / "environment" / ".ready").touch()
    return copy


def test_documented_counts_of_files_are_those_of_the_toys() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    counts = dict(re.findall(r"^\| (an? [\w ]+) \| (\d+) ", text, re.MULTILINE))
    assert {kind: counts[kind] for kind in ADDED} == {kind: str(len(files)) for kind, files in ADDED.items()}


def test_what_is_added_is_listed_and_found_by_make(tree: Path, tmp_path: Path) -> None:
    listed = python("-m", "capsule_lab", cwd=tmp_path, PYTHONPATH=str(tree), COLUMNS="200").out
    assert re.search(rf"python -m capsule_lab\.brighten +{re.escape(HEADLINE.removesuffix('.'))}", listed)
    assert re.search(r"stripes +Stripes: images of four classes, told apart by direction", listed)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    for words, expected in {
        "help": f"  make brighten   {HEADLINE}",
        "--dry-run brighten by=0.5": "set -f; environment/bin/python -m capsule_lab brighten  by=0.5",
    }.items():
        made = subprocess.run(
            ["make", *words.split(), "VENV=environment"],
            cwd=tree, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert expected in made.stdout.splitlines()


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


def test_added_data_set_trains(tree: Path, tmp_path: Path) -> None:
    words = ["data=stripes", "data.source=real", "debug=smoke", *TINY_CAPSNET, *NO_PICTURES, "trainer.accelerator=cpu"]
    words += ["model.kernel_size=5"]  # of images of 16 pixels
    ended = python("-m", "capsule_lab", "train", *words, cwd=tmp_path, PYTHONPATH=str(tree))
    assert (ended.status, ended.err) == (0, "")
    assert "test error" in ended.out
