"""What is run, what is kept, and what is written when."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from capsule_lab.bench.gpu import report
from capsule_lab.bench.gpu.parts import PARTS, Part
from capsule_lab.errors import InterruptError, RunError

CPU = torch.device("cpu")
FACTS = {"command": "python -m capsule_lab.gpu", "commit": None}
Run = Callable[..., tuple[dict[str, Any], list[Part]]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the parts that were run: each finds its name."""
    names: list[str] = []

    def run_part(part: Part, *_: Any) -> dict[str, Any]:
        names.append(part.name)
        return {"rows": [{"name": part.name}]}

    monkeypatch.setattr(report, "run_part", run_part)
    monkeypatch.setattr("capsule_lab.system.environment.of_this_process", lambda: FACTS)  # asks git
    return names


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def call(*names: str, resume: bool = True, limit: float = 590.0) -> tuple[dict[str, Any], list[Part]]:
        parts = [part for part in PARTS if part.name in names or not names]
        return report.run_parts(tmp_path, CPU, "small", parts, resume=resume, limit=limit)

    return call


def fail_in(monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException) -> None:
    before: Any = report.run_part

    def run_part(part: Part, *arguments: Any) -> dict[str, Any]:
        if part.name == name:
            raise error
        return dict(before(part, *arguments))

    monkeypatch.setattr(report, "run_part", run_part)


def test_all_parts_once(run: Run, calls: list[str], tmp_path: Path) -> None:
    records, left = run()
    assert calls == [part.name for part in PARTS] == list(records)
    assert left == []
    assert {record["state"] for record in records.values()} == {"done"}
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert written["parts"] == records
    assert {"key", "process", "parts", "sha256"} == set(written)
    run()
    assert len(calls) == len(PARTS)


def test_resume_false_measures_again(run: Run, calls: list[str]) -> None:
    run("device", "steps")
    run("steps", resume=False)
    assert calls == ["device", "steps", "steps"]


def test_failed_ones_are_recorded_and_run_again(
    run: Run, calls: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        fail_in(patch, "steps", RunError("was ended by SIGSEGV"))
        records, _ = run("device", "steps", "graphs")
    assert [records[name]["state"] for name in ("device", "steps", "graphs")] == ["done", "failed", "done"]
    assert records["steps"]["error"] == "steps was ended by SIGSEGV"
    assert "steps was ended by SIGSEGV" in (tmp_path / "gpu.html").read_text()
    run("device", "steps", "graphs")
    assert calls == ["device", "graphs", "steps"]


def test_what_was_proved_wrong_is_run_again(run: Run, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(report, "run_part", lambda *_: {"failures": ["em differs"]})
        assert run("correctness")[0]["correctness"]["state"] == "wrong"
    run("correctness")
    assert calls == ["correctness"]


def test_other_sources_are_measured_again_and_the_rest_is_marked(
    run: Run, calls: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run("device", "steps")
    monkeypatch.setattr(report, "sources_hash", lambda: "other")
    records, _ = run("steps")
    assert calls == ["device", "steps", "steps"]
    assert records["steps"]["key"]["sources"] == "other" != records["device"]["key"]["sources"]
    assert (tmp_path / "gpu.html").read_text().count("(of other versions or sources)") == 1


def test_an_interruption_keeps_what_is_done(run: Run, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fail_in(patch, "steps", InterruptError("stopped", 15))
        with pytest.raises(InterruptError):
            run("device", "steps")
    run("device", "steps")
    assert calls == ["device", "steps"]


def test_what_does_not_fit_is_left(run: Run, calls: list[str]) -> None:
    device, correctness = PARTS[:2]
    assert device.seconds < 60 < correctness.seconds
    records, left = run("device", "correctness", limit=60.0)
    assert (calls, left, list(records)) == (["device"], [correctness], ["device"])
    assert run("device", "correctness")[1] == []


def test_damaged_file_counts_as_missing(run: Run, calls: list[str], tmp_path: Path) -> None:
    run("device")
    (tmp_path / "gpu.json").write_text("{")
    run("device")
    assert calls == ["device", "device"]
    assert (tmp_path / "gpu.json.damaged").is_file()


def test_folder_that_cannot_be_written_ends_before_the_first_part(run: Run, calls: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot write"):
        report.run_parts(tmp_path / "file", CPU, "small", PARTS, resume=True, limit=590.0)
    assert calls == []


def test_key_tells_sources_apart() -> None:
    key = report.current_key(CPU, "small")
    assert key["torch"] == torch.__version__
    assert len(key["sources"]) == 12
    assert report.current_key(CPU, "full") != key
