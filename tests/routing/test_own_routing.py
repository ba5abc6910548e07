"""A routing in a user's package: the template ``tests/templates/my_routing``, quoted in CONTRIBUTING, works."""

import importlib
import json
import shutil
from pathlib import Path

import pytest
import torch

from capsule_lab.types import RoutingTrace, Votes
from tests.helpers.commands import NO_PICTURES, ROOT, TINY_CAPSNET, TINY_DATA, Cli

pytestmark = pytest.mark.usefixtures("isolated")

TEMPLATE = ROOT / "tests" / "templates" / "my_routing"
EM_CAPS = [
    "model=em_caps_small",
    "model.channels=4",
    "model.primary.types=2",
    "model.conv.types=[2,2]",
]
STEPS = ["trainer.max_epochs=-1", "trainer.max_steps=2", "data.train_images=80", "train.test=last"]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the template in a folder outside the repository that is on Python's path."""
    folder = Path(
        shutil.copytree(TEMPLATE, tmp_path / "own", ignore=shutil.ignore_patterns("__pycache__"))
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(importlib.sys.modules, "mine", raising=False)
    importlib.invalidate_caches()
    return folder


CONFIG_DIR, SEARCH_PATH = "--config-dir={}", "hydra.searchpath=[file://{}]"
OPTIONS = ("bias", "learned_gain", "leaky", "squash", "backend")
DELETED = [f"~routing.{option}" for option in OPTIONS]


@pytest.mark.parametrize(
    "arguments",
    [
        [CONFIG_DIR, *TINY_CAPSNET, "routing=mine", "routing.iterations=2"],
        pytest.param(
            [SEARCH_PATH, *EM_CAPS, "routing=mine", "routing.iterations=2"], marks=pytest.mark.whole
        ),
        # without a configuration folder: the options are those that both take
        pytest.param(
            [*TINY_CAPSNET, "routing=uniform", "routing._target_=mine.MyRouting", *DELETED],
            marks=pytest.mark.whole,
        ),
    ],
    ids=["config-dir", "searchpath", "target"],
)
def test_own_routing_trains(own: Path, cli: Cli, arguments: list[str]) -> None:
    given = [argument.format(own / "conf") for argument in arguments]
    ended = cli("train", *given, *TINY_DATA, *STEPS, *NO_PICTURES)
    assert ended.status == 0, ended.err
    proposed = ended.out.partition("try next")[2].strip().splitlines()
    analyse = [line for line in proposed if "analyse" in line]
    assert [line.endswith("'trust=[mine]'") for line in analyse] == [True]
    (result,) = [json.loads(file.read_text()) for file in Path("runs").glob("*/metrics.json")]
    assert result["steps"] == 2


def test_errors_in_an_own_routing_are_explained(own: Path, cli: Cli) -> None:
    for option, arguments, message in [
        (CONFIG_DIR, ["routing=mine", "routing.iteration=2"], "did you mean routing.iterations?"),
        (SEARCH_PATH, ["routing=mine", "+routing.iteration=2"], "did you mean routing.iterations?"),
        (
            CONFIG_DIR,
            ["routing=mine", "routing._target_=mine.Yours"],
            "is mine.Yours, which cannot be imported",
        ),
        (
            SEARCH_PATH,
            ["routing=thine"],
            "thine does not exist; did you mean mine? Options: attention_over_children,",
        ),
    ]:
        ended = cli(
            "train", option.format(own / "conf"), *TINY_CAPSNET, *arguments, *TINY_DATA, *STEPS
        )
        assert ended.status == 2
        assert message in ended.err


@pytest.mark.usefixtures("own")
def test_template_returns_parents() -> None:
    routing = importlib.import_module("mine").MyRouting(parents=3, dim=8).double()
    votes = Votes(torch.rand(2, 5, 4).double(), torch.rand(5, 4, 3, 8).double())
    traces: list[RoutingTrace] = []
    parents = routing(votes, on_iteration=traces.append)
    assert parents.poses.shape == (2, 3, 8)
    assert [trace.iteration for trace in traces] == [0, 1, 2]
    for trace in traces:
        torch.testing.assert_close(trace.couplings.sum(2), torch.ones(2, 5).double())
    parents.poses.sum().backward()
    assert routing.sharpness.grad.abs().min() > 0
