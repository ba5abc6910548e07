"""A run that is interrupted anywhere and resumed ends exactly like an uninterrupted one."""

import itertools
import shutil
import signal
from pathlib import Path

import pytest

from capsule_lab.commands import compose
from capsule_lab.commands.train import train
from capsule_lab.errors import InterruptError
from capsule_lab.system.signals import SIGNALS
from tests.helpers.commands import NO_PICTURES, TINY_CAPSNET, TINY_CNN, TINY_DATA
from tests.helpers.interruptions import (
    Counting,
    differences,
    killed_at_writes,
    resumed,
    stopped_and_resumed,
)
from tests.helpers.training import SignalAt, checkpoint, run

BY_STEPS = ["trainer.max_epochs=-1", "trainer.max_steps=16", "trainer.val_check_interval=6"]
BY_STEPS += ["trainer.check_val_every_n_epoch=null"]


def test_run_interrupted_several_times_equals_an_uninterrupted_run(tmp_path: Path) -> None:
    """An epoch has four steps, 256 images in batches of 64."""
    config = compose("train", [*TINY_DATA, *BY_STEPS, *TINY_CNN, *NO_PICTURES])
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    expected = train(config, whole)
    signals = itertools.cycle([signal.SIGTERM, signal.SIGUSR1])
    for step, saved_at in {
        1: 1,
        4: 4,
        6: 7,
        10: 10,
    }.items():  # after 6 comes a validation, which would be left out
        with pytest.raises(
            InterruptError, match=r"to continue exactly: .*train\.resume=true"
        ) as caught:
            run(config, cut, SignalAt(step, signum := next(signals)))
        assert checkpoint(cut)["global_step"] == saved_at
        (cut / "metrics.csv").unlink(
            missing_ok=True
        )  # its rows are in the checkpoint, that of the epoch included
        assert caught.value.signum == signum
        config = resumed(config)
    assert differences(train(config, cut), cut, expected, whole) == []


SHORT = [
    *TINY_DATA,
    *NO_PICTURES,
    "data.train_images=128",
    "data.batch_size=32",
]  # four steps an epoch
SHORT += ["trainer.limit_test_batches=1"]
KINDS = {
    "epochs": ["trainer.max_epochs=2"],
    "steps": [
        "trainer.max_steps=6"
    ],  # the last ends neither an epoch nor an interval: a validation follows it
    "validation every three steps": [
        *BY_STEPS,
        "trainer.val_check_interval=3",
        "trainer.max_steps=7",
    ],
    "validation every other epoch": ["trainer.max_steps=10", "trainer.check_val_every_n_epoch=2"],
    "two batches a step": ["trainer.max_steps=3", "trainer.accumulate_grad_batches=2"],
    "validation within epochs": ["trainer.max_epochs=2", "trainer.val_check_interval=2"],
    "capsules": ["trainer.max_steps=6"],
    "never an old checkpoint": ["trainer.max_steps=6", "callbacks.last.every_minutes=0"],
}


@pytest.mark.parametrize(
    ("kind", "every"),
    [
        pytest.param("steps", 5, marks=pytest.mark.whole),
        *(pytest.param(kind, 1, marks=pytest.mark.slow) for kind in KINDS),
    ],
)
def test_run_interrupted_at_any_point_equals_an_uninterrupted_run(
    tmp_path: Path, kind: str, every: int
) -> None:
    """By each signal in every ``every``-th hook, and by kill -9 before every ``every``-th change of a file."""
    config = compose(
        "train", [*SHORT, *(TINY_CAPSNET if kind == "capsules" else TINY_CNN), *KINDS[kind]]
    )
    count = Counting()
    expected = run(config, tmp_path / "whole", count)
    wrong = {}
    for at, signum in zip(range(len(count.seen))[::-every], itertools.cycle(SIGNALS), strict=False):
        directory = tmp_path / "stopped"
        result = stopped_and_resumed(config, directory, at, signum)
        wrong[at, count.seen[at], signum.name] = differences(
            result, directory, expected, tmp_path / "whole"
        )
        shutil.rmtree(directory)
    config.callbacks.last.every_minutes = 0
    for copy in killed_at_writes(config, tmp_path / "often", tmp_path, every):
        result = train(resumed(config), copy)
        wrong[copy.name, "kill", ""] = differences(result, copy, expected, tmp_path / "whole")
    assert {point: names for point, names in wrong.items() if names} == {}
