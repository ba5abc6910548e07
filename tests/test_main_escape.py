"""The list of commands and options shows comments as they are."""

from __future__ import annotations

import pytest

from capsule_lab.__main__ import main


def test_brackets_are_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    main()
    assert "capsule-lab[mlflow]" in capsys.readouterr().out
