"""Records: what is read is what was written, or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from capsule_lab.errors import RunError
from capsule_lab.runs import files
from tests.helpers.damage import damages, with_a_flipped_bit

CONTENT = {"status": "finished", "error": 3.62, "versions": {"torch": "2.11", "größe": None}, "epochs": [1, 2.5, "x"]}


class Content(BaseModel):
    status: str


SCHEMA = TypeAdapter(Content)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "record.json"
    files.write_record(path, CONTENT)
    return path


def test_record_is_read_as_it_was_written(record: Path) -> None:
    assert files.read_record(record, SCHEMA) == CONTENT
    assert json.loads(record.read_text()).keys() == {*CONTENT, "sha256"}
    assert files.read_record(record.with_name("missing.json"), SCHEMA) is None
    assert files.read_record(record / "below_a_file.json", SCHEMA) is None


def test_record_of_an_earlier_version_has_no_checksum(record: Path) -> None:
    record.write_text(json.dumps(CONTENT))
    assert files.read_record(record, SCHEMA) == CONTENT


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"status": 3}', "status: Input should be a valid string"),
        ('{"status": "finished", "error": NaN}', "NaN is no JSON"),
        ("[]", "it is no JSON object"),
        ("{" * 10_000, "damaged"),
        ("[" * 100_000, "damaged"),
    ],
    ids=["type", "NaN", "list", "cut", "deep"],
)
def test_record_that_cannot_be_is_set_aside(
    record: Path, content: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    record.write_text(content)
    assert files.read_record(record, SCHEMA) is None
    assert [path.name for path in record.parent.iterdir()] == ["record.json.damaged"]
    (message,) = caplog.messages
    assert str(record) in message
    assert reason in message


def assert_noticed(record: Path, count: int) -> None:
    for position in with_a_flipped_bit(record, count, seed=0):
        read = files.read_record(record, SCHEMA)
        assert read in (None, CONTENT), f"byte {position}"
        assert (read is None) is record.with_name("record.json.damaged").exists()
        record.with_name("record.json.damaged").unlink(missing_ok=True)


def test_flipped_bit_is_noticed_or_harmless(record: Path) -> None:
    assert_noticed(record, 30)
    assert files.read_record(record, SCHEMA) == CONTENT


@pytest.mark.slow
def test_any_flipped_bit_is_noticed_or_harmless(record: Path) -> None:
    assert_noticed(record, 20 * record.stat().st_size)


def test_damaged_record_is_noticed(record: Path) -> None:
    for name, content in list(damages(record.read_bytes())):
        record.write_bytes(content)
        assert files.read_record(record, SCHEMA) is None, name
        assert not record.exists(), name


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_number_that_is_not_finite_is_not_written(tmp_path: Path, value: float) -> None:
    path = tmp_path / "metrics.json"
    with pytest.raises(RunError, match=rf"^{path} is not written: Out of range float values"):
        files.write_record(path, {"error": value})
    assert not path.exists()


def test_error_is_the_last_line_of_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    errors: list[Any] = [RunError("no disk"), ZeroDivisionError("by 0")]
    for error in errors:
        with pytest.raises(type(error)), files.logging_to(tmp_path / "train.log"):
            raise error
    first, *others = (tmp_path / "train.log").read_text().splitlines()
    assert first.endswith("ERROR no disk")
    assert "Traceback" in others[1]
    assert files.tail(tmp_path / "train.log", 1) == ["ZeroDivisionError: by 0"]
    assert capsys.readouterr() == ("", ""), "the terminal has it when the command ends"


def test_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "figure.png"
    for write in (
        lambda: files.write_text(path, ""),
        lambda: files.check_writable(path),
        lambda: files.save_figure(None, path),
        lambda: files.logging_to(path).__enter__(),
    ):
        with pytest.raises(RunError, match=rf"^cannot write {path} \((Not a directory|File exists)\)"):
            write()
