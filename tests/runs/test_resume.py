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

BY_STEPS = [
    "trainer.max_epochs=-1",
    "trainer.max_steps=16",
    "trainer.val_check_interval=6",
    "trainer.check_val_every_n_epoch=null",
]


def test_run_interrupted_several_times_equals_an_uninterrupted_run(tmp_path: Path) -> None:
    """An epoch has four steps, 256 images in batches of 64."""
    config = compose("train", [*TINY_DATA, *BY_STEPS, *TINY_CNN, *NO_PICTURES])
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    expected = train(config, whole)
    for step, saved_at, signum in (
        (1, 1, signal.SIGTERM),
        (4, 4, signal.SIGUSR1),
        (6, 7, signal.SIGTERM),  # after 6 comes a validation, which would be left out
        (10, 10, signal.SIGUSR1),
    ):
        message = r"to continue exactly: .*train\.resume=true"
        with pytest.raises(InterruptError, match=message) as caught:
            run(config, cut, SignalAt(step, signum))
        assert caught.value.signum == signum
        assert checkpoint(cut)["global_step"] == saved_at
        # its rows are in the checkpoint, that of the epoch included
        (cut / "metrics.csv").unlink(missing_ok=True)
        config = resumed(config)
    assert differences(train(config, cut), cut, expected, whole) == []


# four steps an epoch
SHORT = [
    *TINY_DATA,
    *NO_PICTURES,
    "data.train_images=128",
    "data.batch_size=32",
    "trainer.limit_test_batches=1",
]
KINDS = {
    "epochs": ["trainer.max_epochs=2"],
    # the last step ends neither an epoch nor an interval: a validation follows it
    "steps": ["trainer.max_steps=6"],
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
    model = TINY_CAPSNET if kind == "capsules" else TINY_CNN
    config = compose("train", [*SHORT, *model, *KINDS[kind]])
    count = Counting()
    whole, directory = tmp_path / "whole", tmp_path / "stopped"
    expected = run(config, whole, count)
    wrong = []
    points = range(len(count.seen))[::-every]
    for point, signum in zip(points, itertools.cycle(SIGNALS), strict=False):
        result = stopped_and_resumed(config, directory, point, signum)
        found = differences(result, directory, expected, whole)
        if found:
            wrong.append((point, count.seen[point], signum.name, found))
        shutil.rmtree(directory)
    config.callbacks.last.every_minutes = 0
    for copy in killed_at_writes(config, tmp_path / "often", tmp_path, every):
        result = train(resumed(config), copy)
        found = differences(result, copy, expected, whole)
        if found:
            wrong.append((copy.name, "kill", found))
    assert wrong == []
