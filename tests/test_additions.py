"""Parts that are added to a copy of the repository, with only the files that CONTRIBUTING names, work."""

import inspect
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.commands import (
    NO_PICTURES,
    ROOT,
    TINY_CAPSNET,
    TINY_DATA,
    Ended,
    Trained,
    python,
)
from tests.helpers.messages import one_sentence

pytestmark = [pytest.mark.whole, pytest.mark.integration]

TEMPLATES = ROOT / "tests" / "templates"
FILES = {
    "routing": {
        "capsule_lab/routing/mine.py": (TEMPLATES / "my_routing" / "mine.py").read_text()
        + '\n\n__all__ = ["MyRouting"]\n',
        "conf/routing/mine.yaml": (TEMPLATES / "my_routing" / "conf" / "routing" / "mine.yaml")
        .read_text()
        .replace("mine.My", "capsule_lab.routing.My"),
    },
    "data": {
        "capsule_lab/data/stripes.py": (TEMPLATES / "my_data" / "stripes.py").read_text(),
        "conf/data/stripes.yaml": (TEMPLATES / "my_data" / "conf" / "data" / "stripes.yaml")
        .read_text()
        .replace("stripes.Stripes", "capsule_lab.data.Stripes"),
    },
    "network": {
        "capsule_lab/networks/flat.py": """
            from math import prod

            from torch import nn

            from capsule_lab.networks.base import AbstractNetwork
            from capsule_lab.types import CapsuleOutput, ImageBatch


            class FlatNet(AbstractNetwork):
                scores_are = "logits"

                def __init__(self, image_shape: tuple[int, int, int], num_classes: int, *, width: int = 8) -> None:
                    super().__init__()
                    layers = nn.Linear(prod(image_shape), width), nn.ReLU(), nn.Linear(width, num_classes)
                    self.layers = nn.Sequential(nn.Flatten(), *layers)

                def forward(self, images: ImageBatch) -> CapsuleOutput:
                    scores = self.layers(images)
                    return CapsuleOutput(scores, logits=scores)
            """,
        "conf/model/flat.yaml": """
            # @package _global_
            # Two linear layers. 6,370 parameters at 28x28.
            defaults:
              - /module: classifier
              - override /routing: none
              - override /loss: cross_entropy
              - override /schedule: exponential

            model:
              _target_: capsule_lab.networks.FlatNet
              width: 8
            """,
    },
    "command": {
        "capsule_lab/commands/brighten.py": '''
            from capsule_lab import runs
            from capsule_lab.commands.declare import command
            from capsule_lab.config.declaration import Options, Weights


            class BrightenOptions(Options):
                ckpt: Weights
                """A .ckpt file, or the directory of a run."""
                by: float = 0.1
                """Of the range of a pixel."""


            @command("brighten", BrightenOptions)
            def main(options):
                run = runs.open(options.ckpt)
                batch = next(run.batches("val"))
                scores = run.network((batch.images + options.by).clamp(0, 1)).scores
                print(f"{(scores.argmax(1) != batch.labels).sum()} of {len(batch.labels)} wrong")


            if __name__ == "__main__":
                main()
            ''',
        "conf/brighten.yaml": """
            # Test a network on brighter images; needs ckpt=.
            #   capsule-lab brighten ckpt=last by=0.5
            defaults:
              - _command
              - brighten_options
              - _self_
            """,
    },
    "question": {
        "capsule_studies/questions/greatest.py": '''
            from capsule_studies.subject import Answer, Subject, question


            @question()
            def greatest(subject: Subject) -> Answer:
                """How large is the greatest score?"""
                return Answer({"greatest": float(subject.outputs().scores.max())})
            ''',
    },
    "attack": {
        "capsule_studies/attacks/darker.py": '''
            from capsule_studies.attacks.gradient import UNIT
            from capsule_studies.attacks.kind import attack


            @attack("darker", strengths=(0.1, 0.2), unit="of the range")
            def darker(objective, images, epsilon, key=None, box=UNIT):
                """Darker."""
                return (images - epsilon).clamp(box.low, box.high)
            ''',
    },
}
ASKED = [  # they fail until the added parts have a reference, a row and documentation
    "capsule_studies/tests/attacks/test_every_attack.py::test_every_option_has_a_row",
    "capsule_studies/tests/questions/test_every_question.py::test_every_option_has_a_row",
    "tests/networks/test_contract.py::test_every_network_has_a_row",
    "tests/routing/test_contract.py::test_every_routing_has_a_reference",
    "tests/test_docs.py::test_readme_lists_every_command_as_its_configuration_describes_it",
    "tests/test_docs.py::test_tables_of_switches_are_those_of_the_comments",
]
TESTS = [
    f"tests/{name}.py"
    for name in ("test_imports", "test_layout", "test_docs", "networks/test_contract")
]
OF_ADDED = "flat or row or reference or not test_contract"  # of the contracts only what concerns added parts
HEADLINE = "Test a network on brighter images; needs ckpt=."
STEPS = [
    "trainer.max_epochs=-1",
    "trainer.max_steps=2",
    "data.train_images=80",
    "train.test=last",
    *NO_PICTURES,
]


def test_number_of_files_of_a_part_is_that_of_the_architecture_page() -> None:
    text, kinds = (ROOT / "docs" / "architecture.md").read_text(), "|".join(FILES)
    documented = dict(re.findall(rf"^\| an? ({kinds})[a-z ]* \| (\d)", text, re.MULTILINE))
    assert documented == {kind: str(len(files)) for kind, files in FILES.items()}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with an added part of each kind."""
    copy = tmp_path_factory.mktemp("project")
    ignored = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=ignored, dirs_exist_ok=True)
    for files in FILES.values():
        for name, text in files.items():
            (copy / name).write_text(inspect.cleandoc(text) + "\n")
    (copy / "environment").mkdir()
    (copy / "environment" / ".ready").touch()
    return copy


def run(tree: Path, cwd: Path, *words: str) -> Ended:
    return python("-m", "capsule_lab", *words, cwd=cwd, PYTHONPATH=str(tree))


def test_only_tests_for_references_rows_and_documentation_fail(tree: Path) -> None:
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-W",
        "ignore:Module already imported",
    ]
    ended = python(
        "-m", "pytest", *options, "-k", OF_ADDED, *TESTS, *ASKED, cwd=tree, PYTHONPATH=str(tree)
    )
    assert sorted(re.findall(r"^FAILED ([\w./:]+)", ended.out, re.MULTILINE)) == ASKED, (
        ended.out + ended.err
    )
    assert "conf/routing has MyRouting without a slow reference" in ended.out


@pytest.mark.parametrize(
    "parts",
    [
        ["routing=mine", *TINY_CAPSNET],
        ["model=flat"],
        ["data=stripes", "data.source=real", "model=cnn_small"],
    ],
    ids=["routing", "network", "data"],
)
def test_added_parts_train(tree: Path, tmp_path: Path, parts: list[str]) -> None:
    ended = run(tree, tmp_path, "train", *TINY_DATA, *STEPS, *parts)
    assert ended.status == 0, ended.err
    assert list(tmp_path.glob("runs/*/metrics.json"))


def test_added_attack_and_question_run(tree: Path, tmp_path: Path, a_copy: Path) -> None:
    for words in (["analyse", "what=greatest"], ["attack", "attack=darker", "checks=false"]):
        ended = run(tree, tmp_path, *words, f"ckpt={a_copy}", "split=val", "images=20")
        assert ended.status == 0, ended.err
    assert list(a_copy.glob("analyses/*greatest*.json"))
    assert list(a_copy.glob("attacks/*darker*.json"))


def test_added_command_is_listed_and_has_help(tree: Path, tmp_path: Path, trained: Trained) -> None:
    listed = python("-m", "capsule_lab", cwd=tmp_path, PYTHONPATH=str(tree), COLUMNS="200").out
    assert re.search(rf"capsule-lab brighten +{re.escape(HEADLINE.removesuffix('.'))}", listed)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    make = ["make", "help", "VENV=environment"]
    made = subprocess.run(
        make, cwd=tree, env=environment, capture_output=True, text=True, check=True
    )
    assert f"  make brighten   {HEADLINE}" in made.stdout.splitlines()
    ended = run(tree, tmp_path, "brighten", f"ckpt={trained.directory}")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.endswith(" of 240 wrong\n")
    shown = run(tree, tmp_path, "brighten", "--help").out
    assert shown.startswith(f"{HEADLINE}\n  capsule-lab brighten ckpt=")
    assert "by: 0.1" in shown
    refused = one_sentence(run(tree, tmp_path, "brighten", "bye=3"))
    assert refused.startswith("bye does not exist; did you mean by? Options: by, ckpt")
