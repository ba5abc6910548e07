"""The runner of the campaign with kinds of faults made up for it; the real ones are slow."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.campaign import outcomes, runner, small_runs
from tests.campaign.outcomes import Fault, NotHitError
from tests.campaign.processes import Process
from tests.campaign.runner import Kind
from tests.helpers.commands import ROOT, Ended, python

TITLES = {"fine": "nothing happens", "even": "every second differs", "gone": "too late"}


def kinds(tried: list[tuple[str, int]]) -> dict[str, Kind]:
    """Three cases for each seed; those tried are in the list, by their numbers."""

    def cases(seed: int) -> Iterator[dict[str, Any]]:
        yield from ({"number": 3 * seed + case} for case in range(3))

    def attempt(name: str) -> Any:
        def try_(case: dict[str, Any]) -> None:
            tried.append((name, case["number"]))
            if name == "gone":
                raise NotHitError
            if name == "even" and case["number"] % 2:
                raise Fault("differs", "test error")

        return try_

    return {name: Kind(title, cases, attempt(name)) for name, title in TITLES.items()}


def numbers(tried: list[tuple[str, int]], name: str) -> list[int]:
    return [number for kind, number in tried if kind == name]


def test_time_is_dealt_out_fairly_and_a_record_is_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tried: list[tuple[str, int]] = []
    arguments = ["minutes=0.002", f"record={tmp_path / 'record.json'}"]
    assert [runner.main(arguments, kinds(tried)) for _ in range(2)] == [1, 1]
    counts = [len(numbers(tried, name)) for name in TITLES]
    assert min(counts) > 4
    assert numbers(tried, "even") == list(range(counts[1])), "a case was left out or repeated"
    out = capsys.readouterr().out
    found = f"even seed=1 case=2 {json.dumps({'number': 5})}"
    assert f"differs: test error: only={found}\n" in out
    assert f"| every second differs | {counts[1]} | {(counts[1] + 1) // 2} | 0 |" in out
    assert f"| too late | 0 | 0 | {counts[2]} |" in out


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["only=even", "seed=2", "case=0"], 0, "survived"),
        (["only=even", "seed=2", "case=1"], 1, "differs: test error"),
        (["only=gone", "case=1"], 0, "not hit"),
        (["only=odd"], 2, "of: fine, even, gone"),
        (["hours=2"], 2, "minutes=<number>"),
    ],
)
def test_one_case_again(arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    tried: list[tuple[str, int]] = []
    assert runner.main(arguments, kinds(tried)) == status
    assert said in "".join(capsys.readouterr())
    assert len(tried) == (status != 2)


@pytest.mark.parametrize("result", [Ended(0, "", ""), Ended(2, "", "a warning\ncapsule_lab: no.\n")])
def test_success_and_a_sentence_are_survived(result: Ended) -> None:
    outcomes.expect_sentence(result)


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (Ended(2, "", "no\n"), "no sentence"),
        (Ended(2, "", "capsule_lab: no.\ncapsule_lab: no.\n"), "no sentence"),
        (Ended(1, "", "capsule_lab: no.\n"), "wrong status"),
        (Ended(0, "", f"{outcomes.TRACEBACK}:\n"), "traceback"),
    ],
)
def test_all_else_is_not(result: Ended, verdict: str) -> None:
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
def test_five_minutes(tmp_path: Path) -> None:
    ended = python("-m", "tests.campaign", "minutes=5", f"record={tmp_path / 'record.json'}", cwd=ROOT, limit=900)
    assert ended.status == 0, ended.out + ended.err
