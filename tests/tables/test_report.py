"""Reports of tables: their values, their formats, and hostile text in them."""

import base64
import html
import io
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import markupsafe
import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from capsule_lab.commands.tables import read_table as read
from capsule_lab.errors import TableError
from capsule_lab.runs import directories, lock, results
from capsule_lab.tables import formats
from capsule_lab.tables.cells import TrainingCell
from capsule_lab.tables.expand import STANDIN, expand
from capsule_lab.tables.progress import Progress
from capsule_lab.tables.reader import select
from capsule_lab.tables.schema import Published, Table
from capsule_lab.tables.summary import Entry, Mean, Run, best_runs, summarise
from capsule_lab.tables.terminal_formats import Row, Sheet
from tests.helpers.commands import ROOT, Cli, python
from tests.helpers.tables import RESULT, cells_of, entries_of, write_run, write_table

AUTO = ["data.source=auto"]
ROWS = [
    {
        "name": "a",
        "label": "Capsules | a",
        "overrides": AUTO,
        "published": [2.0, 0.5],
        "note": "as it is",
    },
    {
        "name": "b",
        "label": "<b> & co",
        "overrides": [*AUTO, "data.shift=1", "routing.iterations=1"],
        "published": 3,
    },
    {"name": "c", "label": "their best", "published": 10.5},
]
THREE = [
    {"name": "a", "overrides": ["routing.iterations=1"]},
    {"name": "b", "overrides": ["routing.iterations=2"]},
    {"name": "c", "overrides": ["routing.iterations=3"]},
]


STANDIN_DATA = {"source": "standin", "name": "bundled digits"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Entry]]:
    """Row a: 1 % and 2 % on real data, 9 % on a stand-in. Row b: seed 0 failed, seed 1 is missing. Row c: reported."""
    folder = tmp_path_factory.mktemp("made")
    path = write_table(folder, rows=ROWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAPSULE_LAB_RUNS", str(folder / "runs"))
        one, two, failed, _ = cells_of(path)
        for cell, error in ((one, 1.0), (two, 2.0)):
            figures = write_run(cell, error=error) / "figures"
            figures.mkdir()
            picture = np.zeros((8, int(10 * error)))
            matplotlib.image.imsave(figures / "test_confusion.png", picture)
        (folder / "runs" / f"capsnet-mnist-{failed.fingerprint}").mkdir()
        on_standin, *_ = cells_of(path, [STANDIN])
        write_run(on_standin, error=9.0, provenance=STANDIN_DATA, training_seconds=30.0)
        return path, entries_of(path)


@pytest.fixture
def file(made: tuple[Path, list[Entry]], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAPSULE_LAB_RUNS", str(made[0].parent / "runs"))
    return made[0]


@pytest.fixture
def entries(made: tuple[Path, list[Entry]], file: Path) -> list[Entry]:
    return made[1]


def test_report_shows_results_beside_published_values(entries) -> None:
    """Values are mean and deviation over seeds. Results on a stand-in are in a column of their own."""
    entry, failed, reported = entries
    assert entry.ours == Mean(1.5, pytest.approx(0.5**0.5), 2)
    assert entry.difference == -0.5
    assert entry.standin == Mean(9.0, None, 1)
    assert entry.data == "real MNIST; bundled digits"
    assert shown(entry) == {
        "": "Capsules | a",
        "published": "2 ± 0.5",
        "ours": "1.50 ± 0.707",
        "n": "2",
        "difference": "-0.50",
        "standin": "9.00",
        "n standin": "1",
        "minutes": "1.5",
        "parameters": "1,234",
        "runs": "2 of 2",
    }
    empty = [""] * 7
    assert formats.cells_of(failed) == ["<b> & co", "3", *empty, "0 of 2, 1 failed, 1 missing"]
    assert formats.cells_of(reported) == ["their best", "10.5", *empty, "reported"]
    (best,) = best_runs(entries)
    assert best.real
    assert best.value == 1.0


def begins_with(source: str) -> dict[str, Any]:
    """The field of a record of a run that began with weights of data from ``source``."""
    data = {"source": source, "name": "other digits"}
    return {"start_from": {"name": "before/best.ckpt", "file": "best.ckpt", "data": data}}


def test_a_run_that_began_with_weights_of_a_standin_is_not_pooled_with_those_that_did_not(
    tmp_path: Path,
) -> None:
    path = write_table(tmp_path, rows=ROWS)
    one, two, *_ = cells_of(path)
    write_run(one, error=1.0, **begins_with("standin"))
    write_run(two, error=2.0, **begins_with("real"))
    on_standin, *_ = cells_of(path, [STANDIN])
    write_run(on_standin, error=9.0, provenance=STANDIN_DATA)
    table, entries = read(path), entries_of(path)
    entry, *_ = entries
    assert entry.ours == Mean(2.0, None, 1)
    assert entry.standin == Mean(1.0, None, 1), "without the run whose own data are a stand-in"
    first, second = entry.data.split("; ")
    assert first == "real MNIST, started from before/best.ckpt (stand-in)"
    assert second == "real MNIST, started from before/best.ckpt (real)"
    count = "Capsules | a: 1 of 2 runs started from before/best.ckpt"
    remarks = formats.remarks(entries)
    assert f"{count} (real)" in remarks
    noted = f"{count} (stand-in); they count as stand-in, although their own data are real"
    assert noted in remarks
    on_a_page = formats.as_markdown(table, entries, "make report")
    assert on_a_page.count("started from before/best.ckpt (stand-in)") == 2, "remark and data"
    assert "before/best.ckpt (stand-in)" in formats.as_latex(table, entries)
    frame = formats.runs_frame(entries)
    done = frame[frame["status"] == "done"]
    assert done["source"].tolist() == ["standin", "real"]
    assert done["start"].tolist() == [
        "started from before/best.ckpt (stand-in)",
        "started from before/best.ckpt (real)",
    ]


def test_a_run_that_began_with_weights_of_real_data_counts_before_one_that_did_not(
    tmp_path: Path,
) -> None:
    path = write_table(tmp_path, rows=ROWS)
    one, *_ = cells_of(path)
    write_run(one, error=1.0, **begins_with("real"))
    write_run(one, error=2.0, attempt="-2", **begins_with("standin"))
    entry, *_ = entries_of(path)
    assert entry.ours == Mean(1.0, None, 1)
    assert entry.standin is None


def test_minutes_are_those_of_runs_on_real_data_if_there_are_any(entries) -> None:
    entry, *_ = entries
    assert entry.minutes == pytest.approx(90 / 60)
    on_standin = replace(entry, runs=entry.runs[-1:])
    assert on_standin.minutes == pytest.approx(30 / 60)


def shown(entry: Entry) -> dict[str, str]:
    """The cells of a line by their headings."""
    return dict(zip(formats.HEADINGS, formats.cells_of(entry), strict=True))


def on_terminal(table: Table, entries: list[Entry], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    for part in formats.on_terminal(table, entries):
        console.print(part)
    return console.file.getvalue()


@pytest.mark.whole
def test_precisions_are_not_mixed_in_a_column(cli: Cli, table_file) -> None:
    file = table_file(rows=[{"name": "one", "overrides": ["trainer.precision=auto"]}])
    first, second = cells_of(file)
    one = write_run(first, precision="32-true")
    two = write_run(second, precision="bf16-mixed")
    ended = cli("report", f"table={file}")
    assert ended.status != 0
    (line,) = ended.err.strip().splitlines()
    of_one = f"one seed 0 ({one.name}) has precision 32-true"
    of_two = f"one seed 1 ({two.name}) bf16-mixed"
    assert f"column error: {of_one}, but {of_two}" in line
    assert cli("report", f"table={file}", "seeds=[0]").status == 0
    record = two / "metrics.json"
    text = record.read_text()
    record.write_text(text.replace('"bf16-mixed"', "null"))
    assert cli("report", f"table={file}").status == 0, "a record without a precision"


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("test/error", "1.50 (1.00 to 2.00)"),
        ("time_to_accuracy/99/seconds", ""),
    ],
)
def test_errors_on_different_hardware_are_compared_but_times_are_not(
    table_file, metric: str, expected: str
) -> None:
    columns = {"it": {"label": "it", "metric": metric, "statistic": "median"}}
    file = table_file(rows=THREE[:2], columns=columns)
    times = {"time_to_accuracy": {"99/seconds": 5.0}}
    machines = ["a machine", "a machine", "a machine", "another machine"]
    for cell, machine in zip(cells_of(file), machines, strict=True):
        write_run(cell, error=1.0 + cell.seed, hardware=machine, **times)
    entries = entries_of(file)
    for entry in entries:
        line = shown(entry)
        assert line["minutes"] == ""
        assert line["ours"] == expected
    (remark,) = [text for text in formats.remarks(entries) if "hardware" in text]
    used = r"a seed 0 \(.*\) used a machine, b seed 1 \(.*\) used another machine"
    assert re.fullmatch(rf"it: no times, .*: {used}", remark)
    hardware = formats.runs_frame(entries)["hardware"]
    assert hardware.tolist() == machines
    (alone,) = entries_of(table_file(rows=THREE[:1], columns=columns))
    assert shown(alone)["minutes"] == "1.5"


@pytest.mark.whole
def test_remarks_name_commits_uncommitted_code_and_rows_with_identical_results(table_file) -> None:
    file = table_file(rows=THREE)
    commits = {"a": "abc", "b": "abc-dirty", "c": "def"}
    errors = {"a": 1.0, "b": 1.0, "c": 2.0}
    for cell in cells_of(file):
        name = cell.row.name
        write_run(cell, error=errors[name] + cell.seed, commit=commits[name])
    entries = entries_of(file)
    several, uncommitted, same = formats.remarks(entries)
    message = "error: runs of 2 commits, so that differences may come from the code"
    assert re.fullmatch(f"{message}: b .* of abc, c .* of def", several)
    assert uncommitted.startswith("uncommitted code: 2 of 6 runs, such as b seed 0 (")
    assert uncommitted.endswith("the commit, abc-dirty")
    assert same == "error: identical test results for every seed: a; b"
    page = Page(formats.as_page(read(file), entries, ""))
    assert {*commits.values()} <= {*page.texts}


def test_a_seed_counts_once_on_a_standin(table_file) -> None:
    """A requested run without its data used the stand-in; another one was asked for it."""
    file = table_file(rows=[{"name": "a", "overrides": ["data.source=auto"]}])
    table = read(file)
    on_standin = {"source": "standin", "name": "small digits"}
    for requested in (expand(table), expand(table, standin=True)):
        for cell in requested:
            write_run(cell, provenance=on_standin)
    (entry,) = entries_of(file)
    assert entry.standin.count == len(table.seeds)


def test_a_selection_without_rows_is_refused(table_file) -> None:
    rows = [{"name": "a", "overrides": {"one": []}}]
    columns = {name: {"overrides": []} for name in ("one", "other")}
    file = table_file(rows=rows, columns=columns)
    table = select(read(file), columns=["other"])
    with pytest.raises(TableError, match="no row of mine has runs or published values"):
        summarise(table)


def test_a_column_with_a_name_of_digits_can_be_selected(table_file) -> None:
    table = read(table_file(rows=THREE, columns={"300": {"overrides": []}}))
    assert [column.name for column in select(table, columns=300).columns] == ["300"]
    assert [column.name for column in select(table, columns=[300]).columns] == ["300"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Mean(0.254, 0.0049, 3), "0.25 ± 0.005"),
        (Mean(12.345, None, 1), "12.35"),
        (Mean(0.00528, 0.000231, 3), "0.0053 ± 0.00023"),
        (Mean(0.0, 0.0, 3), "0.00 ± 0.000"),
        (Published(mean=0.25, std=0.005), "0.25 ± 0.005"),
        (Published(mean=0.34, std=0.032), "0.34 ± 0.032"),
        (Published(mean=5.8), "5.8"),
        (Published(mean=34), "34"),
    ],
)
def test_mean_and_published_values_are_formatted(value: Mean | Published, text: str) -> None:
    """Published values keep the decimals of the paper."""
    assert str(value) == text


def test_a_value_that_was_not_reached_has_no_difference_from_a_published_one(table_file) -> None:
    column = {"label": "seconds", "metric": "time_to_accuracy/99/seconds", "statistic": "median"}
    rows = [{"name": "a", "overrides": [], "published": 60}]
    file = table_file(rows=rows, seeds=[0], columns={"seconds": column})
    (cell,) = cells_of(file)
    write_run(cell, time_to_accuracy={"99/seconds": None})
    (entry,) = entries_of(file)
    assert entry.difference is None
    assert shown(entry)["ours"] == "not reached"
    assert shown(entry)["difference"] == ""


@pytest.mark.parametrize(
    ("seconds", "text", "count"),
    [
        pytest.param(
            [300.0, 290.4, 1401.0], "300 (290 to 1,401)", "3 of 3", marks=pytest.mark.whole
        ),
        ([300.0, None, 290.0], "300 (290 to not reached)", "2 of 3"),
        pytest.param(
            [None, None, 290.0],
            "not reached (290 to not reached)",
            "1 of 3",
            marks=pytest.mark.whole,
        ),
        ([None, None, None], "not reached", "0 of 3"),
        ([0.47, 0.5, 0.524], "0.50 (0.47 to 0.52)", "3 of 3"),
    ],
)
def test_median_counts_runs_that_never_did_as_longest(
    table_file, seconds: list[Any], text: str, count: str
) -> None:
    """Such a run is shown as "not reached" and is never dropped."""
    column = {"label": "seconds", "metric": "time_to_accuracy/99/seconds", "statistic": "median"}
    file = table_file(seeds=[0, 1, 2], columns={"seconds": column})
    for cell, value in zip(cells_of(file), seconds, strict=True):
        write_run(cell, time_to_accuracy={"99/seconds": value})
    entries = entries_of(file)
    (entry,) = entries
    assert shown(entry)["ours"] == text
    assert shown(entry)["n"] == count
    assert entry.state == "3 of 3"

    written = formats.as_csv(formats.as_frame(entries))
    (line,) = pd.read_csv(io.StringIO(written)).itertuples()
    never = seconds.count(None)
    values = [math.inf if value is None else value for value in seconds]
    assert line.ours_n == 3
    assert line.ours_reached == 3 - never
    assert line.ours_smallest == min(values)
    assert line.ours_largest == max(values)
    assert line.precision == "32-true"

    page = html.unescape(formats.as_page(read(file), entries, "a command"))
    assert page.count(">not reached</td>") == never + (text == "not reached")


@pytest.mark.parametrize(
    ("metric", "other"), [("test/novel/error", {"5": 2.0}), ("at_equal_error/5", {"5": None})]
)
def test_run_without_the_metric_does_not_hide_the_other_runs(
    table_file, metric: str, other: Any
) -> None:
    file = table_file(metric=metric)
    one, two = cells_of(file)
    write_run(one, at_equal_error={"5": 2.0})
    path = write_run(two, at_equal_error=other) / "metrics.json"
    path.write_text(path.read_text().replace("novel/error", "familiar/error"))
    entries = entries_of(file)
    (entry,) = entries
    assert str(entry.ours) == "2.00"
    assert entry.state == f"1 of 2, 1 without {metric}"
    assert formats.runs_frame(entries)["status"].tolist() == ["done", f"without {metric}"]


def test_best_run_is_chosen_by_the_first_column(table_file) -> None:
    columns = {"first": {"metric": "val/error"}, "beside": {"metric": "test/error"}}
    file = table_file(columns=columns, seeds=[0, 1])
    low, high, *_ = cells_of(file)
    write_run(low, val={"error": 1.0}, error=9.0)
    write_run(high, val={"error": 2.0}, error=1.0)
    (best,) = best_runs(entries_of(file))
    assert best.cell.seed == 0


@pytest.mark.parametrize("part", ["a paper", "1.50 ± 0.707", "1 failed", "reported"])
def test_report_on_the_terminal(file: Path, entries, part: str) -> None:
    assert part in on_terminal(read(file), entries, width=200)


def test_report_on_a_narrow_terminal_has_a_block_for_each_row(file: Path, entries) -> None:
    """No line is longer than the terminal, and every value is whole, beside its heading."""
    text = on_terminal(read(file), entries, width=80)
    assert max(map(len, text.splitlines())) <= 80
    for entry in entries:
        _, _, block = text.partition(f"\n{entry.row.label}\n")
        cells = shown(entry)
        del cells[""]
        for heading, value in cells.items():
            assert f"{heading}: {value or '–'}" in block
    assert text.count("published: ") == len(entries)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_columns_that_are_empty_in_every_row_are_left_out(file: Path, entries, width: int) -> None:
    table = read(file)
    without_runs = entries[1:]
    text = on_terminal(table, without_runs, width)
    page = formats.as_page(table, without_runs, "")
    assert "published" in text
    assert "runs" in text
    for heading in ("ours", "difference", "standin", "minutes", "parameters"):
        assert heading not in text
        assert f">{heading}</th>" not in page


def test_value_wider_than_the_terminal_has_lines_of_its_own(entries) -> None:
    remark = "a test that has no name of one word"
    sheet = Sheet("", ["", "n", "test"], [Row(["a", "2", remark])], ())
    console = Console(file=io.StringIO(), width=20, force_terminal=False)
    console.print(sheet)
    text = console.file.getvalue()
    _, label, count, *lines = text.splitlines()
    assert label == "a"
    assert count.rstrip() == "  n: 2"
    words = " ".join(lines).split()
    assert words == ["test:", *remark.split()]


@pytest.fixture
def training(file: Path) -> Iterator[TrainingCell]:
    """The second run of row b trains, a quarter of it is done, and ten minutes are left."""
    *_, cell = cells_of(file)
    directory = directories.root() / f"capsnet-mnist-{cell.fingerprint}"
    directory.mkdir()
    (directory / "metrics.csv").write_text("step,train/loss\n10,0.5\n30,0.25\n")
    results.write_heartbeat(directory, 30, 120, 600.2)
    with lock.cell_lock(cell.fingerprint):
        yield cell
    shutil.rmtree(directory)


@pytest.mark.whole
def test_run_that_trains_has_a_bar_with_its_steps_loss_and_time_left(
    cli: Cli, file: Path, training: TrainingCell
) -> None:
    ended = cli("report", f"table={file}")
    bar = "━" * 5 + "╌" * 15
    expected = f"{training.name}  {bar}  step 30 of 120, loss 0.25, left 0:10:00"
    assert expected in ended.out.splitlines()
    report = directories.root() / "reports" / "mine.html"
    text = report.read_text()
    assert f'{training.name} <progress max="120" value="30">' in text
    _, _, below = text.partition("<h2>Running</h2>")
    section, _, _ = below.partition("<h2>")
    first, *_ = Page(section).sources
    assert training.name.encode() in picture_of(first)


@pytest.mark.parametrize(
    ("steps", "planned", "bar"),
    [
        (0, 0, "╌" * 20),
        (500, 20, "━" * 20),
        (-3, 20, "╌" * 20),
        (3, 4, "━" * 15 + "╌" * 5),
    ],
)
def test_bar_of_any_record_has_the_same_length(
    training: TrainingCell, steps: int, planned: int, bar: str
) -> None:
    (directory,) = training.directories
    results.write_heartbeat(directory, steps, planned, 1e300)
    beat = results.read_heartbeat(directory)
    progress = Progress(training, directory, beat)
    assert progress.bar == bar
    assert "left 11574 days" in progress.text


def test_run_directories_are_links_relative_to_the_page(file: Path, entries) -> None:
    there = directories.root().parent / "a" / "b"
    text = formats.as_page(read(file), entries, "", folder=there)
    sources = Page(text).sources
    for entry in entries:
        for run in entry.runs:
            assert f"../../runs/{run.directory.name}/" in sources


def test_report_as_markdown(file: Path, entries) -> None:
    text = formats.as_markdown(read(file), entries, "make report")
    assert (
        "\n| Capsules \\| a | 2 ± 0.5 | 1.50 ± 0.707 | 2 | -0.50 | 9.00 | 1 | 1.5 | 1,234 | 2 of 2 |\n"
        in text
    )
    assert "\n- Capsules \\| a: as it is\n" in text
    assert "\n- b seed 0 failed: it ended without an error message" in text


def test_report_as_data_frame(entries) -> None:
    frame = formats.as_frame(entries)
    assert len(frame) == 3
    line = frame.iloc[0]
    assert line["published"] == 2.0
    assert line["ours"] == 1.5
    assert line["ours_n"] == 2
    assert line["standin"] == 9.0
    assert line["minutes"] == pytest.approx(1.5)
    assert line["parameters"] == "1234"


def test_runs_as_data_frame(entries) -> None:
    frame = formats.runs_frame(entries)
    status = frame["status"].tolist()
    source = frame["source"].tolist()
    assert status == ["done", "done", "done", "failed", "missing"]
    assert source[:3] == ["real", "real", "standin"]
    assert frame["command"].str.startswith("capsule-lab train ").all()
    steps = frame["steps"]
    assert steps.dtype == "Int64", "no 5.0 beside gaps"
    assert steps.dropna().tolist() == [RESULT["steps"]] * 3


def test_report_as_latex(file: Path, entries) -> None:
    table = read(file).model_copy(update={"paper": "50 % & x_y"})
    text = formats.as_latex(table, entries)
    for part in ("\\toprule", "\\bottomrule", "<b> \\& co", "1.50 $\\pm$ 6.35"):
        assert part in text
    assert "±" not in text
    means = r"Means $\pm$ half of the 95 \% interval over n runs. data: real MNIST"
    assert rf"\caption{{50 \% \& x\_y. {means}" in text


HOSTILE = [  # labels, titles and names of data sets
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }} {% include 'x' %} ${7*7}",
    "</table></body>",
    "[/b] [bold]no decoder[/] [link=https://example.org]x[/link]",
    "![x](https://example.org/x.png) [y](javascript:alert(1)) <b>bold</b> `code` | cell",
    "line\n# heading\n\n| another | row |\n",
    "\x1b]0;title\x07\x1b[31mred\u202edrawkcab",
    '=HYPERLINK("https://example.org")',
    "+1+cmd|' /C calc'!A0",
    "@SUM(1,1)",
    "-2+3",
    "\t=1+1",
    "\\input{/etc/passwd} \\write18{ls} ^^5cinput $x$ ~ # %",
]


@pytest.fixture
def hostile(file: Path, entries, monkeypatch: pytest.MonkeyPatch) -> tuple[Table, list[Entry]]:
    """A row for each hostile text, as its label, note, hardware and name of the data. The title is all of them."""
    entry = entries[0]
    run = entry.runs[0]
    made = []
    for text in HOSTILE:
        provenance = {"source": "real", "name": text}
        result = {**run.result, "provenance": provenance, "hardware": text}
        row = entry.row.model_copy(update={"label": text, "note": text})
        runs = (replace(run, result=result),)
        made.append(replace(entry, row=row, runs=runs, unfinished=()))
    title = "".join(HOSTILE)
    table = read(file).model_copy(update={"paper": title, "head": title})
    monkeypatch.setattr(formats, "failures", lambda _: HOSTILE)
    monkeypatch.setattr(formats, "_curves", lambda _: {})
    return table, made


def test_page_escapes_hostile_text(hostile: tuple[Table, list[Entry]]) -> None:
    text = formats.as_page(*hostile, HOSTILE[0])
    harmless = formats.as_page(*hostile, "a")
    for label in HOSTILE:
        escaped = str(markupsafe.escape(label))
        assert text.count(escaped) >= 5, label
        harmless = harmless.replace(escaped, "a")
    page = Page(text)
    assert page.open == []
    assert page.tags == Page(harmless).tags
    assert text.count("<script") == 1, "the page's own script"


def test_terminal_shows_hostile_text_without_control_characters(
    hostile: tuple[Table, list[Entry]],
) -> None:
    text = on_terminal(*hostile, width=400)
    assert "[/b] [bold]no decoder[/] [link=https://example.org]x[/link]" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", text)


def test_markdown_escapes_hostile_text(hostile: tuple[Table, list[Entry]]) -> None:
    text = formats.as_markdown(*hostile, "python -m `x`")
    code = "`` python -m `x` ``"
    assert text.startswith("## ")
    assert text.count("\n#") == 1, "only the heading of the column"
    assert code in text
    without_code = text.replace(code, "")
    assert not re.search(r"(?<!\\)(\\\\)*[<>\[\]`*_]", without_code)
    lines = re.findall(r"^\| .*", text, re.MULTILINE)
    assert len(lines) == 2 + len(HOSTILE)
    for line in lines:
        separators = re.findall(r"(?<!\\)\|", line)
        assert len(separators) == len(formats.HEADINGS) + 1


@pytest.mark.parametrize("frame_of", [formats.as_frame, formats.runs_frame])
def test_csv_cell_is_never_a_formula(hostile: tuple[Table, list[Entry]], frame_of) -> None:
    _, entries = hostile
    frame = frame_of(entries)
    text = formats.as_csv(frame)
    written = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    assert len(written) == len(frame)
    for cell in written.to_numpy().flatten():
        is_number = re.fullmatch(r"-?\d+(\.\d+)?", cell)
        assert is_number or not re.match(r"\s*[=+@-]", cell)


@pytest.mark.parametrize("frame_of", [formats.as_frame, formats.runs_frame])
def test_csv_has_numbers_unchanged(entries, frame_of) -> None:
    frame = frame_of(entries)
    assert formats.as_csv(frame) == frame.to_csv(index=False, float_format="%.6g")


def test_latex_escapes_commands_in_labels(hostile: tuple[Table, list[Entry]]) -> None:
    table = hostile[0].model_copy(update={"name": "a}\\input{b"})
    text = formats.as_latex(table, hostile[1])
    assert "\\input" not in text
    assert "\\write" not in text
    assert "^^" not in text
    assert r"\label{tab:a--input-b}" in text


class Page(HTMLParser):
    """Sources, links, tags and text of an HTML page; ``open`` lists elements that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        for name, value in attrs:
            if name in ("src", "href", "data", "action"):
                self.sources.append(value)
        self.tags.append(tag)
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.texts.append(data.strip())


def test_page_is_well_formed_and_loads_nothing(file: Path, entries) -> None:
    page = Page(formats.as_page(read(file), entries, "make report table=mine"))
    assert page.open == []
    assert not re.search(r"https?://|@import|url\(", " ".join(page.texts))
    dots, curves, figure = map(picture_of, page.sources)
    assert b"Capsules | a" in dots
    for part in (b"<svg", b"seed 0", b"seed 1", b"seed 0, stand-in", b"error in %"):
        assert part in curves
    of_best_run = matplotlib.image.imread(io.BytesIO(figure))
    assert of_best_run.shape[:2] == (8, 10), "with 1 %"
    texts = [
        "make report table=mine",
        "<b> & co",
        "1.50 ± 0.707",
        "2 of 2",
        "0 of 2, 1 failed, 1 missing",
        "9.00",
    ]
    commands = [cell.command for cell in cells_of(file)]
    assert {*texts, *commands} <= {*page.texts}


def picture_of(source: str) -> bytes:
    assert source.startswith("data:image/")
    _, _, content = source.partition(",")
    return base64.b64decode(content)


def test_damaged_curves_are_not_drawn(entries, tmp_path: Path) -> None:
    def curves_of(run: Run) -> dict[str, Any]:
        entry = replace(entries[0], runs=(run,))
        return formats._curves([entry])

    original = entries[0].runs[0]
    copy = shutil.copytree(original.directory, tmp_path / "copy")
    run = replace(original, directory=copy)
    damaged_result = {**run.result, "curves": "0" * 64}
    damaged = replace(run, result=damaged_result)
    assert curves_of(run)
    assert curves_of(damaged) == {}


def test_command_writes_every_format(cli: Cli, file: Path, tmp_path: Path) -> None:
    ended = cli("report", f"table={file}", "out=there")
    assert (ended.status, ended.err) == (0, "")
    there = tmp_path / "there"
    assert {path.name for path in there.iterdir()} == {
        "mine.csv",
        "mine.html",
        "mine.md",
        "mine.tex",
        "mine_runs.csv",
        "mine_runs.pdf",
        "mine_runs.png",
        "mine_runs.svg",
    }, "no figure of times of a single row"
    assert "capsule-lab report" in (there / "mine.md").read_text()
    assert len(pd.read_csv(there / "mine_runs.csv")) == 5


def test_report_with_the_overrides_of_a_sweep_shows_its_runs(cli: Cli, file: Path) -> None:
    first, *_ = cells_of(file, ["data.batch_size=4"])
    write_run(first, error=7.25)
    ended = cli("report", f"table={file}", "data.batch_size=4")
    assert "7.25" in ended.out
    assert "1.50 ± 0.707" not in ended.out


def test_report_without_runs_lists_missing_cells(cli: Cli) -> None:
    ended = cli("report", "table=smoke", "rows=[dynamic]", "seeds=[3]")
    assert (ended.status, ended.err) == (0, "")
    assert "0 of 1, 1 missing" in ended.out
    written = Path("runs/reports/smoke.csv").read_text()
    _, _, after_uniform = written.partition("uniform")
    assert "dynamic" not in after_uniform


RUNS_CODE = {
    "as an argument of the data": "+data.extra={_target_: torch.utils.collect_env.run, command: touch MARKER}",
    "as the data": "data._target_=imported_marker.Class",
    "as an attribute of a module of the data": "data._target_=capsule_lab.data.download.os.mkdir",
    "as a positional argument": "+data._args_=[{_target_: os.mkdir, path: MARKER}]",
    "in place of the directory": "data.directory={_target_: os.mkdir, path: MARKER}",
    "as a partial in a list": "+data.transform=[{_target_: os.mkdir, path: MARKER, _partial_: true}]",
    "as what the data derives from": "data._target_=capsule_lab.data.AbstractDataModule",
    "as the network": "model._target_=imported_marker.Class",
    "as a callback": "+callbacks.x={_target_: os.mkdir, path: MARKER}",
    "as a logger": "+logger.x={_target_: os.mkdir, path: MARKER}",
}
WATCH = """
import sys

def watch(event, arguments):
    watched = event in ("import", "open", "os.mkdir", "os.system", "subprocess.Popen")
    if watched and any(name in repr(arguments) for name in ("MARKER", "imported_marker")):
        sys.stderr.write(f"{event} {arguments}\\n")

sys.addaudithook(watch)
from capsule_lab.commands import report
from tests.helpers.compositions import composed_from_parts
with composed_from_parts():
    report.main()
"""


@pytest.mark.whole
@pytest.mark.integration
def test_report_runs_no_code_that_a_table_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even to ask whether the real files exist, which a result on a stand-in needs."""
    runs_folder = str(tmp_path / "runs")
    monkeypatch.setenv("CAPSULE_LAB_RUNS", runs_folder)
    (tmp_path / "imported_marker.py").write_text("class Class: pass\n")
    rows = []
    for number, (label, override) in enumerate(RUNS_CODE.items(), start=1):
        overrides = [*AUTO, f"trainer.max_steps={number}", override]
        rows.append({"name": f"r{number}", "label": label, "overrides": overrides})
    file = write_table(tmp_path, seeds=[0], rows=rows)
    for cell in cells_of(file):
        write_run(cell, error=7.25, provenance=STANDIN_DATA)
    search = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "CAPSULE_LAB_RUNS": runs_folder}
    ended = python("-c", WATCH, f"table={file}", cwd=tmp_path, **search)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.count("7.25") == len(RUNS_CODE)
    assert not (tmp_path / "MARKER").exists()


@pytest.fixture
def with_published(tmp_path: Path) -> Table:
    rows = [{"name": "one", "overrides": [], "published": 2.0}]
    return read(write_table(tmp_path, rows=rows, seeds=[0]))


def test_partial_test_is_marked_and_not_compared_with_published_values(
    with_published: Table,
) -> None:
    (cell,) = expand(with_published)
    write_run(cell, error=3.0, image_counts={"test": 32, "test_set": 10_000})
    entries = summarise(with_published)
    (entry,) = entries
    mark = "3.00 (partial test: 32 of 10000 images)"
    assert entry.difference is None
    assert shown(entry)["ours"] == mark
    assert mark in formats.as_latex(with_published, entries)
    (remark,) = formats.remarks(entries)
    assert remark.startswith("partial test: 1 of 1 runs, such as one seed 0")
    partial_test = formats.runs_frame(entries)["partial_test"]
    difference = formats.as_frame(entries)["difference"]
    assert partial_test.item() == "32 of 10000 images"
    assert pd.isna(difference.item())


WHOLE_TEST = {"image_counts": {"test": 10_000, "test_set": 10_000}}


@pytest.mark.parametrize("more", [WHOLE_TEST, {}])
def test_whole_test_is_compared_with_published_values(
    with_published: Table, more: dict[str, Any]
) -> None:
    """A record without the counts, too."""
    (cell,) = expand(with_published)
    write_run(cell, error=3.0, **more)
    entries = summarise(with_published)
    (entry,) = entries
    assert entry.difference == pytest.approx(1.0)
    assert shown(entry)["ours"] == "3.00"
    assert "partial" not in formats.as_latex(with_published, entries)
    assert formats.remarks(entries) == []
    partial_test = formats.runs_frame(entries)["partial_test"]
    difference = formats.as_frame(entries)["difference"]
    assert partial_test.item() == ""
    assert difference.item() == pytest.approx(1.0)
