"""The campaign of faults: outcomes are counted, and only its own processes are signalled."""

import itertools
import os
import random
import signal
from pathlib import Path

import pytest

from tests.campaign import __main__ as campaign
from tests.campaign import faults
from tests.campaign.outcomes import Fault, NotHitError
from tests.helpers.commands import ROOT, interpreter


def test_outcome_of_a_fault_is_printed_and_decides_the_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    numbers = itertools.count()

    def fault(_: random.Random) -> None:
        number = next(numbers)
        if number % 3:
            raise Fault("differs", "test error") if number % 3 == 1 else NotHitError

    kinds = {"every": ("of every outcome", fault)}
    for options, status, text in (
        (["case=0"], 0, "survived\n"),
        (["case=1"], 1, "differs: test error\n"),
        (["case=2"], 0, "not hit\n"),
        (["minutes=0.001"], 1, "differs: test error: only=every seed=0 case=1\n"),
        (["only=odd"], 2, "of: every"),
        (["hours=2"], 2, "minutes=<number>"),
    ):
        assert campaign.main(options, kinds) == status
        assert text in "".join(capsys.readouterr())


def test_only_own_processes_are_signalled_and_all_end_with_their_folder(tmp_path: Path) -> None:
    faults.TEMPORARY[:] = [tmp_path]
    with faults.fresh_folder() as place:
        process = faults.Case(place, "").do(lambda: os.execvp("sleep", ["sleep", "600"]))
        assert process.members() == [process.pid]
        assert not process.send(os.getpid(), signal.SIGKILL)
        assert process.wait(0) is None
    assert process.child.exitcode == -signal.SIGKILL
    assert not place[0].exists()


@pytest.mark.slow
def test_campaign_of_five_minutes_survives() -> None:
    ended = interpreter("-m", "tests.campaign", "minutes=5", cwd=ROOT, limit=900)
    assert ended.status == 0, ended.out + ended.err
