"""Records are read as they were written, or count as missing."""

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from pydantic import BaseModel, TypeAdapter

from capsule_lab.errors import RunError
from capsule_lab.runs import files
from tests.helpers.damage import damages

CONTENT = {
    "status": "finished",
    "error": 3.62,
    "versions": {"torch": "2.11", "größe": None},
    "epochs": [1, 2.5, "x"],
}


class Content(BaseModel, allow_inf_nan=False):
    status: str
    error: float


SCHEMA = TypeAdapter(Content)


def test_damaged_record_counts_as_missing_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = tmp_path / "runs" / "record.json"
    files.write_record(record, CONTENT)
    assert files.read_record(record, SCHEMA, tmp_path) == json.loads(record.read_text()) == CONTENT
    assert files.read_record(record.with_name("missing.json"), SCHEMA, tmp_path) is None
    assert files.read_record(record / "below_a_file.json", SCHEMA, tmp_path) is None
    assert caplog.messages == []
    wrong = [
        ("type", b'{"status": 3, "error": 1}', "status: Input should be a valid string"),
        ("NaN", b'{"status": "finished", "error": NaN}', "error: Input should be a finite number"),
        ("deep", b"[" * 100_000, "recursion"),
    ]
    wrong += [(name, content, "") for name, content in damages(record.read_bytes())]
    for name, content, reason in wrong:
        caplog.clear()
        files._warn_once.cache_clear()
        record.write_bytes(content)
        for _ in range(2):
            assert files.read_record(record, SCHEMA, tmp_path) is None, name
        (message,) = caplog.messages
        assert message.startswith(f"{record} is damaged ("), name
        assert message.endswith("and is treated as missing"), name
        assert reason in message, name


def test_record_with_nan_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    with pytest.raises(RunError, match=rf"^{path} cannot be written: Out of range float values"):
        files.write_record(path, {"error": float("nan")})
    assert not path.exists()


def test_error_is_the_last_line_of_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    errors: list[Any] = [RunError("no disk"), ZeroDivisionError("by 0")]
    for error in errors:
        with pytest.raises(type(error)), files.logging_to(tmp_path / "train.log"):
            raise error
    first, *others = (tmp_path / "train.log").read_text().splitlines()
    assert first.endswith("ERROR no disk")
    assert "Traceback" in others[1]
    assert files.tail(tmp_path / "train.log", 1) == ["ZeroDivisionError: by 0"]
    assert capsys.readouterr() == ("", ""), "the command prints the error later"


def test_path_that_is_not_writable_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "figure.png"
    for write in (
        lambda: files.write_text(path, ""),
        lambda: files.save_figure(None, path),
        lambda: files.logging_to(path).__enter__(),
    ):
        message = rf"^cannot write {path} \((Not a directory|File exists)\)"
        with pytest.raises(RunError, match=message):
            write()


def test_text_that_cannot_be_encoded_is_cleaned_where_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    content = {
        "status": "a\udcff",
        "error": 1.0,
        "log": ["tab\tand\nline", "\x1b[31m\0", {"\ud800": 1}],
    }
    path.write_text(json.dumps(content))
    found = files.read_record(path, SCHEMA, tmp_path)
    assert found == {
        "status": "a\ufffd",
        "error": 1.0,
        "log": ["tab\tand\nline", "\ufffd[31m\ufffd", {"\ufffd": 1}],
    }


@pytest.mark.parametrize("text", ["$\\frac{$", "a $ b $", "$x$", "$", r"\$"])
def test_dollar_signs_in_figures_are_drawn(tmp_path: Path, text: str) -> None:
    figure = Figure()
    axis = figure.add_subplot(title=text, xscale="log")
    axis.plot([1, 1000], [1, 2], label=text)
    axis.set_yticks([1, 2], [text, "b"])
    axis.legend()
    files.save_figure(figure, tmp_path / "a.svg")
    assert not axis.title.get_parse_math() or "$" not in text
