"""Records of attacks and analyses that a report cannot read count as missing."""

import json
from pathlib import Path
from typing import Any

import pytest

from capsule_lab.runs import results
from capsule_studies.commands.analyse import AnalyseResult
from capsule_studies.commands.attack import AttackResult
from tests.helpers.tables import ATTACKED, RESULT

CHANGED = [
    {"targeted": "maybe"},
    {"targeted": True},
    {"space": "outer"},
    {"split": "train"},
    {"options": "fgsm"},
    {"options": {}},
    {"test": {}},
    {"attack": {"a lot/accuracy": 3.0}},
    {"attack": {"0.1/success": 50.0}},
    {"attack": {"inf/accuracy": 1.0}},
    {"attack": {"0.1/accuracy": 1.0, "0.2/error": 1.0}},
]


@pytest.mark.parametrize("change", CHANGED, ids=json.dumps)
def test_attack_that_cannot_be_drawn_counts_as_missing(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / "a.json"
    content = {**RESULT, **ATTACKED}
    path.write_text(json.dumps(content))
    assert results.read_evaluation(path, AttackResult) == content
    path.write_text(json.dumps({**content, **change}))
    assert results.read_evaluation(path, AttackResult) is None


@pytest.mark.parametrize("field", ["source", "space", "provenance"])
def test_attack_without_a_field_counts_as_missing(tmp_path: Path, field: str) -> None:
    content = {**RESULT, **ATTACKED}
    del content[field]
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert results.read_evaluation(tmp_path / "a.json", AttackResult) is None


@pytest.mark.parametrize("numbers", [3, {"entropy": "high"}, {"entropy": 10**400}])
def test_analysis_with_other_than_numbers_counts_as_missing(tmp_path: Path, numbers: Any) -> None:
    (tmp_path / "a.json").write_text(json.dumps({**RESULT, "analyse": numbers}))
    assert results.read_evaluation(tmp_path / "a.json", AnalyseResult) is None
