import json
from pathlib import Path

import pytest

from capsule_lab.errors import InterruptError, RunError
from capsule_lab.runs import results
from tests.helpers.tables import RESULT


def test_failure_is_recorded_in_the_directory(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("".join(f"line {number}\n" for number in range(50)))
    for error, status, message in (
        (RunError("no disk"), "failed", "no disk"),
        (ZeroDivisionError("by 0"), "failed", "ZeroDivisionError: by 0"),
        (InterruptError("stopped by SIGTERM", 15), "interrupted", "stopped by SIGTERM"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt: "),
    ):
        with pytest.raises(type(error)), results.recording_failure(tmp_path):
            raise error
        content = results.read_status(tmp_path)
        assert (content["status"], content["error"]) == (status, message)
        assert content["log"] == [f"line {number}" for number in range(30, 50)]
    (tmp_path / "file").write_text("")
    with pytest.raises(ZeroDivisionError), results.recording_failure(tmp_path / "file"):
        raise ZeroDivisionError  # although the failure cannot be recorded


def test_metrics_with_nan_are_an_error() -> None:
    results.check_finite({"loss": 0.5, "error": 90.0}, "the test")
    message = (
        r"^the test of last\.ckpt gives loss nan, error inf; expected finite numbers: .* ckpt=…"
    )
    with pytest.raises(RunError, match=message):
        results.check_finite(
            {"loss": float("nan"), "error": float("inf"), "margin": 0.5}, "the test of last.ckpt"
        )


STRANGE = {
    "test": {"error": None},
    "provenance": {},
    "val": 3,
    "steps": "x",
    "parameters": True,
    "hardware": 5,
    "commit": ["a"],
    "precision": None,
    "evaluation_seconds": "x",
    "training_seconds": 10**400,
    "curves": 3,
    "checks": [{"name": "a"}],
    "time_to_accuracy": {"99/seconds": "soon"},
    "weights_tested": 5,
    "couplings": None,
    "training_cpu_seconds": "x",
    "device": 1,
}
"""By field, a value that would break a report."""


def test_record_that_a_report_cannot_read_counts_as_missing(tmp_path: Path) -> None:
    content = {**RESULT, "config_hash": "0123abcd"}
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps(content))
    assert results.read_result(tmp_path, "0123abcd") == results.read_evaluation(path) == content
    strange = [{**content, field: value} for field, value in STRANGE.items()]
    for field in ("steps", "hardware", "commit"):
        strange.append({name: value for name, value in content.items() if name != field})
    strange.append({**content, "steps": 2**63})
    for record in strange:
        path.write_text(json.dumps(record))
        assert results.read_metrics(tmp_path) is None, record
