"""The campaign judges with kinds of faults made up for it; the real ones are slow."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.campaign import __main__ as campaign
from tests.campaign import outcomes, small_runs
from tests.campaign.outcomes import Fault, NotHitError
from tests.campaign.processes import Process
from tests.helpers.commands import ROOT, Ended, interpreter


def cases(seed: int) -> Iterator[dict[str, Any]]:
    yield from ({"number": 3 * seed + case} for case in range(3))


def attempt_even(case: dict[str, Any]) -> None:
    if case["number"] > 3:
        raise NotHitError
    if case["number"] % 2:
        raise Fault("differs", "test error")


KINDS = {"even": campaign.Kind("every second differs", cases, attempt_even)}


def test_faults_are_counted_and_can_be_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.main(["minutes=0.001"], KINDS) == 1
    out = capsys.readouterr().out
    assert 'differs: test error: only=even seed=1 case=0 {"number": 3}\n' in out
    assert "| every second differs | 2 | 2 | " in out
    for arguments, status, said in (
        (["only=even", "seed=0", "case=0"], 0, "survived"),
        (["only=even", "seed=1", "case=0"], 1, "differs: test error"),
        (["only=even", "seed=1", "case=2"], 0, "not hit"),
        (["only=odd"], 2, "of: even"),
        (["hours=2"], 2, "minutes=<number>"),
    ):
        assert campaign.main(arguments, KINDS) == status
        assert said in "".join(capsys.readouterr())


def test_success_and_one_message_are_survived() -> None:
    for result in (Ended(0, "", ""), Ended(2, "", "a warning\ncapsule_lab: no.\n")):
        outcomes.expect_sentence(result)
    for result, verdict in (
        (Ended(2, "", "no\n"), "no sentence"),
        (Ended(2, "", "capsule_lab: no.\ncapsule_lab: no.\n"), "no sentence"),
        (Ended(1, "", "capsule_lab: no.\n"), "wrong status"),
        (Ended(0, "", f"{outcomes.TRACEBACK}:\n"), "traceback"),
    ):
        with pytest.raises(Fault, match=f"^{verdict}: "):
            outcomes.expect_sentence(result)


def test_only_own_processes_are_signalled_and_none_outlives_its_folder(tmp_path: Path) -> None:
    small_runs.TEMPORARY[:] = [tmp_path]
    with small_runs.fresh_folder() as folder:
        process = Process(lambda: os.execvp("sleep", ["sleep", "600"]), folder)
        assert process.members() == [process.pid]
        assert not process.send(os.getpid(), signal.SIGKILL)
        assert process.wait(0) is None
        assert process.remain(0) == [process.pid]
    assert process.status == -signal.SIGKILL
    assert not folder.exists()


@pytest.mark.slow
def test_five_minutes() -> None:
    ended = interpreter("-m", "tests.campaign", "minutes=5", cwd=ROOT, limit=900)
    assert ended.status == 0, ended.out + ended.err
