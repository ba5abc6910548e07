"""``capsule_lab.train`` and the methods of a run, as a notebook uses them."""

import copy
import pickle
from pathlib import Path

import pytest
import torch

import capsule_lab
from capsule_lab import runs
from capsule_lab.commands import train as training
from capsule_lab.errors import ConfigError
from tests.helpers.commands import TINY, Trained


def test_training_in_one_line_is_the_command(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPSULE_LAB_RUNS", str(tmp_path / "runs"))
    run = capsule_lab.train(*TINY)
    assert run.directory.parent == tmp_path / "runs"
    assert run.directory.name.startswith("capsnet-mnist-")
    expected = runs.open(trained.directory).network.state_dict()
    for name, weight in run.network.state_dict().items():
        assert torch.equal(weight, expected[name]), name

    monkeypatch.setattr(training, "train", None)  # a finished run is opened, not trained
    with pytest.raises(ValueError, match="split is 'all'; expected 'train', 'val' or 'test'"):
        next(run.batches("all"))
    again = capsule_lab.train(*TINY, "train.resume=true")
    assert again.checkpoint == run.checkpoint


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("data.batch_size=0", "^data: batch sizes are 0 and 500; expected 1 or more$"),
        ("data.mixup=-1.0", "^data.mixup is -1.0; expected more than 0"),
        ("callbacks.best.mode=up", "^callbacks.best: .*mode"),
        ("+data.nonsense=1", r"^data\.nonsense does not exist"),
    ],
)
def test_mistake_is_a_config_error(wrong: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        capsule_lab.train(*TINY, wrong)


def test_overrides_are_texts() -> None:
    with pytest.raises(
        ConfigError, match=r"^an override is \['seed=1'\]; expected a text key=value"
    ):
        capsule_lab.train(["seed=1"])  # type: ignore[arg-type] # the mistake
    for wrong in ("seed=1", {"seed": 1}, 3):
        with pytest.raises(ConfigError, match=r"^overrides are .*; expected a list of texts"):
            capsule_lab.compose("train", wrong)  # type: ignore[arg-type] # the mistake


def test_a_word_is_an_experiment() -> None:
    with pytest.raises(
        ConfigError, match="experiment=quickstrt does not exist; did you mean quickstart"
    ):
        capsule_lab.train("quickstrt", "routing=uniform")


def test_a_run_has_methods_that_commands_declare(trained: Trained) -> None:
    run = runs.open(trained.directory)
    assert {"figure", "analyse", "explore"} <= {*dir(run)}
    assert run.figure("curves").axes
    with pytest.raises(AttributeError, match="a Run has no 'figur'; did you mean figure"):
        run.figur("curves")
    assert not hasattr(run, "_ipython_display_")
    assert pickle.loads(pickle.dumps(run)).step == copy.copy(run).step == run.step


def test_a_notebook_shows_facts_of_a_run(trained: Trained) -> None:
    shown = runs.open(trained.directory)._repr_html_()
    assert "CapsNet" in shown
    assert "test error" in shown
    assert "scikit-learn&#x27;s" in shown, "names of data are escaped"
    assert "run.figure()" in shown
