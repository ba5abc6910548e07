"""What a run directory says about how its run ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capsule_lab.errors import InterruptError, RunError
from capsule_lab.runs import results
from tests.helpers.commands import Trained
from tests.helpers.damage import damages, with_a_flipped_bit
from tests.helpers.tables import RESULT


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (RunError("no disk"), "failed", "no disk"),
        (ZeroDivisionError("by 0"), "failed", "ZeroDivisionError: by 0"),
        (InterruptError("stopped by SIGTERM", 15), "interrupted", "stopped by SIGTERM"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt: "),
    ],
    ids=str,
)
def test_failure_is_in_the_directory(tmp_path: Path, error: BaseException, status: str, message: str) -> None:
    (tmp_path / "train.log").write_text("".join(f"line {number}\n" for number in range(50)))
    with pytest.raises(type(error)), results.recording_failure(tmp_path):
        raise error
    found = json.loads((tmp_path / "status.json").read_text())
    assert (found["status"], found["error"]) == (status, message)
    assert found["log"] == [f"line {number}" for number in range(30, 50)]
    assert results.read_status(tmp_path)["error"] == message


def test_failure_that_cannot_be_recorded_does_not_hide_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ZeroDivisionError), results.recording_failure(tmp_path / "file"):
        raise ZeroDivisionError


def test_other_processes_of_a_run_record_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ZeroDivisionError), results.recording_failure(tmp_path):
        raise ZeroDivisionError
    assert not (tmp_path / "status.json").exists()


def test_metrics_that_are_not_finite_are_no_result() -> None:
    results.check_finite({"loss": 0.5, "error": 90.0}, "the test")
    message = r"^the test of last\.ckpt gives loss nan, error inf; expected finite numbers: .* ckpt=…"
    with pytest.raises(RunError, match=message):
        results.check_finite({"loss": float("nan"), "error": float("inf"), "margin": 0.5}, "the test of last.ckpt")


def test_flipped_bit_in_metrics_json_is_noticed_or_harmless(a_copy: Path, trained: Trained) -> None:
    fingerprint = trained.result["config_hash"]
    for position in with_a_flipped_bit(a_copy / "metrics.json", 30, seed=0):
        assert results.read_result(a_copy, fingerprint) in (None, trained.result), position
    assert results.read_result(a_copy, fingerprint) == trained.result


ATTACKED = {
    "attack": {"0.1/accuracy": 50.0}, "targeted": False, "space": "input", "couplings": "trained", "source": None,
    "options": {"_target_": "a.fgsm"}, "split": "test", "checks": [{"name": "a", "passed": None}],
}  # fmt: skip
STRANGE = {
    "test": {"error": None}, "provenance": {}, "val": 3, "steps": "x", "parameters": True, "hardware": 5,
    "commit": ["a"], "precision": None, "evaluation_seconds": "x", "training_seconds": 10**400, "curves": 3,
    "checks": [{"name": "a"}], "time_to_accuracy": {"99/seconds": "soon"}, "analyse": 3, "weights_tested": 5,
    "targeted": "maybe", "space": "outer", "split": "train", "options": "fgsm", "couplings": None,
    "training_cpu_seconds": "x", "attack": {"a lot/accuracy": 3.0},
}  # fmt: skip
"""By field, a value with which a report could not be made."""


@pytest.mark.parametrize("attacked", [{}, ATTACKED], ids=["trained", "attacked"])
def test_record_that_a_report_cannot_read_is_set_aside(tmp_path: Path, attacked: dict[str, Any]) -> None:
    content = {**RESULT, "config_hash": "0123abcd", **attacked}
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps(content))
    assert results.read_result(tmp_path, "0123abcd") == results.read_evaluation(path) == content
    strange = [{**content, field: value} for field, value in STRANGE.items() if attacked or field != "attack"]
    needed = ("steps", "hardware", "commit")
    strange += [{name: value for name, value in content.items() if name != field} for field in needed]
    if attacked:
        more = {"0.1/success": 50.0}, {"inf/accuracy": 1.0}, {"0.1/accuracy": 1.0, "0.2/error": 1.0}
        strange += [{**content, "attack": each} for each in more]
        strange += [{**content, "targeted": True}, {**content, "test": {}}, {**content, "options": {}}]
        strange += [{name: value for name, value in content.items() if name != field} for field in ("source", "space")]
    strange.append({**content, "steps": 2**63})
    for each in strange:
        path.write_text(json.dumps(each))
        assert results.read_metrics(tmp_path) is None, each
        assert not path.exists()


def test_damaged_metrics_json_is_not_finished(tmp_path: Path) -> None:
    content = {**RESULT, "config_hash": "0123abcd"}
    changed = [{**content, "test": {"error": None}}, {**content, "provenance": {}}, {**content, "val": 3}]
    damaged = [damage for _, damage in damages(json.dumps(content).encode())]
    for damage in [*damaged, *(json.dumps(each).encode() for each in changed), b'{"status": "finished"}']:
        (tmp_path / "metrics.json").write_bytes(damage)
        assert results.read_result(tmp_path, "0123abcd") is None, damage
        assert (tmp_path / "metrics.json.damaged").read_bytes() == damage
