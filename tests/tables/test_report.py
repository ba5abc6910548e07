"""Reports of tables: their values, their formats, and hostile text in them."""

import base64
import html
import io
import re
import shutil
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
from capsule_lab.tables import formats
from capsule_lab.tables.expand import STANDIN, expand
from capsule_lab.tables.schema import Published, Table
from capsule_lab.tables.summary import Entry, Mean, best_runs, summarise
from tests.helpers.commands import ROOT, Cli, python
from tests.helpers.tables import RESULT, write_run, write_table

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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Entry]]:
    """Row a: 1 % and 2 % on real data, 9 % on a stand-in. Row b: seed 0 failed, seed 1 is missing. Row c: reported."""
    folder = tmp_path_factory.mktemp("made")
    path = write_table(folder, rows=ROWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAPSULE_LAB_RUNS", str(folder / "runs"))
        one, two, failed, _ = expand(read(path))
        for cell, error in ((one, 1.0), (two, 2.0)):
            directory = write_run(cell, error=error)
            (directory / "figures").mkdir()
            matplotlib.image.imsave(
                directory / "figures" / "test_confusion.png", np.zeros((8, int(10 * error)))
            )
        (folder / "runs" / f"capsnet-mnist-{failed.fingerprint}").mkdir()
        standin = {"source": "standin", "name": "bundled digits"}
        write_run(
            expand(read(path), [STANDIN])[0], error=9.0, provenance=standin, training_seconds=30.0
        )
        return path, summarise(read(path))


@pytest.fixture
def file(made: tuple[Path, list[Entry]], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAPSULE_LAB_RUNS", str(made[0].parent / "runs"))
    return made[0]


@pytest.fixture
def entries(made: tuple[Path, list[Entry]], file: Path) -> list[Entry]:
    return made[1]


def test_report_shows_results_beside_published_values(entries) -> None:
    """Values are mean and deviation over seeds. Results on a stand-in are in a column of their own."""
    ours, standin = entries[0].ours, entries[0].standin
    assert (ours.center, ours.count) == (1.5, 2)
    assert ours.std == pytest.approx(0.5**0.5)
    assert entries[0].difference == -0.5
    assert (standin.center, standin.std, standin.count) == (9.0, None, 1)
    assert entries[0].data == "real MNIST; bundled digits"
    lines = [
        [
            "Capsules | a",
            "2 ± 0.5",
            "1.50 ± 0.707",
            "2",
            "-0.50",
            "9.00",
            "1",
            "1.5",
            "1,234",
            "2 of 2",
        ],
        ["<b> & co", "3", "", "", "", "", "", "", "", "0 of 2, 1 failed, 1 missing"],
        ["their best", "10.5", "", "", "", "", "", "", "", "reported"],
    ]
    assert [formats.cells_of(entry) for entry in entries] == lines
    assert len(lines[0]) == len(formats.HEADINGS)
    assert entries[0].minutes == pytest.approx(90 / 60), "of runs on real data"
    assert replace(entries[0], runs=entries[0].runs[-1:]).minutes == pytest.approx(30 / 60), (
        "only on a stand-in"
    )
    assert [(run.value, run.real) for run in best_runs(entries)] == [(1.0, True)]


# --- precision and hardware -------------------------------------------------------------------------------------------


def test_precisions_are_not_mixed_in_a_column(cli: Cli, table_file) -> None:
    file = table_file(rows=[{"name": "one", "overrides": ["trainer.precision=auto"]}])
    one, two = expand(read(file))
    here = [
        write_run(cell, precision=given) for cell, given in ((one, "32-true"), (two, "bf16-mixed"))
    ]
    ended = cli("report", f"table={file}")
    assert ended.status != 0
    one, two = (directory.name for directory in here)
    assert len(ended.err.strip().splitlines()) == 1
    assert (
        f"column error: one seed 0 ({one}) has precision 32-true, but one seed 1 ({two}) bf16-mixed"
        in ended.err
    )
    assert cli("report", f"table={file}", "seeds=[0]").status == 0
    (here[1] / "metrics.json").write_text(
        (here[1] / "metrics.json").read_text().replace('"bf16-mixed"', "null")
    )
    assert cli("report", f"table={file}").status == 0, "a record without a precision"


@pytest.mark.parametrize("metric", ["test/error", "time_to_accuracy/99/seconds"])
def test_errors_on_different_hardware_are_compared_but_times_are_not(
    table_file, metric: str
) -> None:
    column = {"label": "it", "metric": metric, "statistic": "median"}
    rows = [
        {"name": name, "overrides": [f"routing.iterations={n}"]}
        for n, name in enumerate(["a", "b"], 1)
    ]
    file = table_file(rows=rows, columns={"it": column})
    times = {"time_to_accuracy": {"99/seconds": 5.0}}
    for cell in expand(read(file)):
        where = "another machine" if cell.row.name == "b" and cell.seed else "a machine"
        write_run(cell, error=1.0 + cell.seed, hardware=where, **times)
    entries = summarise(read(file))
    shown = [dict(zip(formats.HEADINGS, formats.cells_of(entry), strict=True)) for entry in entries]
    assert [line["minutes"] for line in shown] == ["", ""]
    ours = "1.50 (1.00 to 2.00)" if metric == "test/error" else ""
    assert [line["ours"] for line in shown] == [ours] * 2
    (remark,) = [text for text in formats.remarks(entries) if "hardware" in text]
    assert re.match(
        r"it: no times, .*: a seed 0 \(.*\) used a machine, b seed 1 \(.*\) used another machine$",
        remark,
    )
    assert formats.runs_frame(entries)["hardware"].tolist() == ["a machine"] * 3 + [
        "another machine"
    ]
    alone = summarise(read(table_file(rows=rows[:1], columns={"it": column})))
    assert formats.cells_of(alone[0])[formats.HEADINGS.index("minutes")] == "1.5"


def test_remarks_name_commits_uncommitted_code_and_rows_with_identical_results(table_file) -> None:
    rows = [
        {"name": name, "overrides": [f"routing.iterations={n}"]}
        for n, name in enumerate(["a", "b", "c"], 1)
    ]
    file = table_file(rows=rows)
    for cell in expand(read(file)):
        commit = {"a": "abc", "b": "abc-dirty", "c": "def"}[cell.row.name]
        write_run(cell, error=1.0 + cell.seed + (cell.row.name == "c"), commit=commit)
    several, uncommitted, same = formats.remarks(entries := summarise(read(file)))
    message = r"error: runs of 2 commits, so that differences may come from the code: b .* of abc, c .* of def$"
    assert re.match(message, several)
    assert {"abc", "abc-dirty", "def"} <= {*Page(formats.as_page(read(file), entries, "")).texts}
    assert uncommitted.startswith("uncommitted code: 2 of 6 runs, such as b seed 0 (")
    assert uncommitted.endswith("the commit, abc-dirty")
    assert same == "error: identical test results for every seed: a; b"


def test_mean_and_published_values_are_formatted() -> None:
    """Published values keep the decimals of the paper."""
    for value, text in (
        (Mean(0.254, 0.0049, 3), "0.25 ± 0.005"),
        (Mean(12.345, None, 1), "12.35"),
        (Published(mean=0.25, std=0.005), "0.25 ± 0.005"),
        (Published(mean=0.34, std=0.032), "0.34 ± 0.032"),
        (Published(mean=5.8), "5.8"),
        (Published(mean=34), "34"),
    ):
        assert str(value) == text


@pytest.mark.parametrize(
    ("seconds", "text", "count"),
    [
        ([300.0, 290.4, 1401.0], "300 (290 to 1,401)", "3 of 3"),
        ([300.0, None, 290.0], "300 (290 to not reached)", "2 of 3"),
        ([None, None, 290.0], "not reached (290 to not reached)", "1 of 3"),
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
    for cell, value in zip(expand(read(file)), seconds, strict=True):
        write_run(cell, time_to_accuracy={"99/seconds": value})
    (entry,) = entries = summarise(read(file))
    assert formats.cells_of(entry)[2:4] == [text, count]
    assert entry.state == "3 of 3"
    frame = pd.read_csv(io.StringIO(formats.as_csv(formats.as_frame(entries))))
    assert [frame.loc[0, name] for name in ("ours_n", "ours_reached")] == [
        3,
        3 - seconds.count(None),
    ]
    shown = [float("inf") if value is None else value for value in seconds]
    assert [frame.loc[0, "ours_smallest"], frame.loc[0, "ours_largest"]] == [min(shown), max(shown)]
    assert frame.loc[0, "precision"] == "32-true"
    page = html.unescape(formats.as_page(read(file), entries, "a command"))
    assert page.count(">not reached</td>") == seconds.count(None) + (text == "not reached")


@pytest.mark.parametrize(
    ("metric", "other"), [("test/novel/error", {"5": 2.0}), ("at_equal_error/5", {"5": None})]
)
def test_run_without_the_metric_does_not_hide_the_other_runs(
    table_file, metric: str, other: Any
) -> None:
    file = table_file(metric=metric)
    one, two = expand(read(file))
    write_run(one, at_equal_error={"5": 2.0})
    path = write_run(two, at_equal_error=other) / "metrics.json"
    path.write_text(path.read_text().replace("novel/error", "familiar/error"))
    (entry,) = entries = summarise(read(file))
    assert (str(entry.ours), entry.state) == ("2.00", f"1 of 2, 1 without {metric}")
    assert formats.runs_frame(entries)["status"].tolist() == ["done", f"without {metric}"]


def test_best_run_is_chosen_by_the_first_column(table_file) -> None:
    file = table_file(
        columns={"first": {"metric": "val/error"}, "beside": {"metric": "test/error"}}, seeds=[0, 1]
    )
    low, high, *_ = expand(read(file))
    write_run(low, val={"error": 1.0}, error=9.0)
    write_run(high, val={"error": 2.0}, error=1.0)
    assert [run.cell.seed for run in best_runs(summarise(read(file)))] == [0]


def test_report_in_every_format(file: Path, entries) -> None:
    console = Console(file=io.StringIO(), width=200)
    for table in formats.on_terminal(read(file), entries):
        console.print(table)
    text = console.file.getvalue()
    assert all(part in text for part in ("a paper", "1.50 ± 0.707", "1 failed", "reported"))

    lines = formats.as_markdown(read(file), entries, "make report").splitlines()
    assert (
        "| Capsules \\| a | 2 ± 0.5 | 1.50 ± 0.707 | 2 | -0.50 | 9.00 | 1 | 1.5 | 1,234 | 2 of 2 |"
        in lines
    )
    assert "- Capsules \\| a: as it is" in lines
    assert [
        line
        for line in lines
        if line.startswith("- b seed 0 failed: it ended without an error message")
    ]

    frame = formats.as_frame(entries)
    assert frame.shape[0] == 3
    assert frame.loc[0, ["published", "ours", "ours_n", "standin", "minutes", "parameters"]].tolist() == [
        2.0, 1.5, 2, 9.0, pytest.approx(90 / 60), "1234",
    ]  # fmt: skip
    frame = formats.runs_frame(entries)
    assert frame["status"].tolist() == ["done", "done", "done", "failed", "missing"]
    assert frame["command"].str.startswith("capsule-lab train ").all()
    assert frame["source"].tolist()[:3] == ["real", "real", "standin"]
    assert [str(steps) for steps in frame["steps"]] == [str(RESULT["steps"])] * 3 + ["<NA>"] * 2

    text = formats.as_latex(read(file), entries)
    assert all(
        part in text for part in ("\\toprule", "\\bottomrule", "<b> \\& co", "1.50 $\\pm$ 6.35")
    )
    assert "±" not in text
    title = read(file).model_copy(update={"paper": "50 % & x_y"})
    assert (
        r"\caption{50 \% \& x\_y. Means $\pm$ half of the 95 \% interval over n runs. data: real MNIST"
        in formats.as_latex(title, entries)
    )


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
    made = []
    for text in HOSTILE:
        run = entries[0].runs[0]
        result = {**run.result, "provenance": {"source": "real", "name": text}, "hardware": text}
        row = entries[0].row.model_copy(update={"label": text, "note": text})
        made.append(
            replace(entries[0], row=row, runs=(replace(run, result=result),), unfinished=())
        )
    table = read(file).model_copy(update={"paper": "".join(HOSTILE), "head": "".join(HOSTILE)})
    monkeypatch.setattr(formats, "failures", lambda _: HOSTILE)
    monkeypatch.setattr(formats, "_curves", lambda _: {})
    return table, made


def test_page_escapes_hostile_text(hostile: tuple[Table, list[Entry]]) -> None:
    text = formats.as_page(*hostile, HOSTILE[0])
    harmless = formats.as_page(*hostile, "a")
    for label in HOSTILE:
        harmless = harmless.replace(str(markupsafe.escape(label)), "a")
    page = Page(text)
    assert page.open == []
    assert page.tags == Page(harmless).tags
    assert text.count("<script") == 1, "the page's own script"
    for label in HOSTILE:
        assert text.count(str(markupsafe.escape(label))) >= 5, label


def test_terminal_shows_hostile_text_without_control_characters(
    hostile: tuple[Table, list[Entry]],
) -> None:
    console = Console(file=io.StringIO(), width=400, force_terminal=False)
    for shown in formats.on_terminal(*hostile):
        console.print(shown)
    text = console.file.getvalue()
    assert "[/b] [bold]no decoder[/] [link=https://example.org]x[/link]" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", text)


def test_markdown_escapes_hostile_text(hostile: tuple[Table, list[Entry]]) -> None:
    text = formats.as_markdown(*hostile, "python -m `x`")
    assert text.startswith("## ")
    assert text.count("\n#") == 1, "only the heading of the column"
    assert "`` python -m `x` ``" in text
    assert not re.search(r"(?<!\\)(\\\\)*[<>\[\]`*_]", text.replace("`` python -m `x` ``", ""))
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(table) == 2 + len(HOSTILE)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {len(formats.HEADINGS) + 1}


def test_csv_cell_is_never_a_formula(hostile: tuple[Table, list[Entry]], entries) -> None:
    for frame in (formats.as_frame(hostile[1]), formats.runs_frame(hostile[1])):
        written = pd.read_csv(io.StringIO(formats.as_csv(frame)), dtype=str, keep_default_na=False)
        assert len(written) == len(frame)
        for column in written:
            texts = [text for text in written[column] if not re.fullmatch(r"-?\d+(\.\d+)?", text)]
            assert [text for text in texts if re.match(r"\s*[=+@-]", text)] == [], column
    for frame in (formats.as_frame(entries), formats.runs_frame(entries)):
        assert formats.as_csv(frame) == frame.to_csv(index=False, float_format="%.6g"), (
            "numbers are unchanged"
        )


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
        self.sources += [
            value for name, value in attrs if name in ("src", "href", "data", "action")
        ]
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
    assert len(page.sources) == 3
    assert all(source.startswith("data:image/") for source in page.sources)
    assert not re.search(r"https?://|@import|url\(", " ".join(page.texts))
    dots, curves, figure = (base64.b64decode(source.partition(",")[2]) for source in page.sources)
    assert all(
        part in curves
        for part in (b"<svg", b"seed 0", b"seed 1", b"seed 0, stand-in", b"error in %")
    )
    assert b"Capsules | a" in dots
    assert matplotlib.image.imread(io.BytesIO(figure)).shape[:2] == (8, 10), (
        "the figure of the best run, with 1 %"
    )
    shown = [
        "make report table=mine",
        "<b> & co",
        "1.50 ± 0.707",
        "2 of 2",
        "0 of 2, 1 failed, 1 missing",
        "9.00",
    ]
    commands = [cell.command for cell in expand(read(file))]
    assert [text for text in (*shown, *commands) if text not in page.texts] == []


def test_damaged_curves_are_not_drawn(entries, tmp_path: Path) -> None:
    run = entries[0].runs[0]
    run = replace(run, directory=Path(shutil.copytree(run.directory, tmp_path / "copy")))
    damaged = replace(run, result={**run.result, "curves": "0" * 64})
    assert formats._curves([replace(entries[0], runs=(run,))])
    assert formats._curves([replace(entries[0], runs=(damaged,))]) == {}


def test_command_writes_every_format(cli: Cli, file: Path, tmp_path: Path) -> None:
    ended = cli("report", f"table={file}", "out=there")
    assert (ended.status, ended.err) == (0, "")
    names = ["mine.csv", "mine.html", "mine.md", "mine.tex"]  # no figure of times of a single row
    names += ["mine_runs.csv", "mine_runs.pdf", "mine_runs.png", "mine_runs.svg"]
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == names
    assert "capsule-lab report" in (tmp_path / "there" / "mine.md").read_text()
    assert len(pd.read_csv(tmp_path / "there" / "mine_runs.csv")) == 5


def test_report_with_the_overrides_of_a_sweep_shows_its_runs(cli: Cli, file: Path) -> None:
    write_run(expand(read(file), ["data.batch_size=4"])[0], error=7.25)
    ended = cli("report", f"table={file}", "data.batch_size=4")
    assert "7.25" in ended.out
    assert "1.50 ± 0.707" not in ended.out


def test_report_without_runs_lists_missing_cells(cli: Cli) -> None:
    ended = cli("report", "table=smoke", "rows=[dynamic]", "seeds=[3]")
    assert (ended.status, ended.err) == (0, "")
    assert "0 of 1, 1 missing" in ended.out
    assert "dynamic" not in " ".join(
        Path("runs/reports/smoke.csv").read_text().split("uniform")[1:]
    )


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
    monkeypatch.setenv("CAPSULE_LAB_RUNS", str(tmp_path / "runs"))
    (tmp_path / "imported_marker.py").write_text("class Class: pass\n")
    rows = [
        {
            "name": f"r{n}",
            "label": label,
            "overrides": [*AUTO, f"trainer.max_steps={n + 1}", override],
        }
        for n, (label, override) in enumerate(RUNS_CODE.items())
    ]
    file = write_table(tmp_path, seeds=[0], rows=rows)
    for cell in expand(read(file)):
        write_run(cell, error=7.25, provenance={"source": "standin", "name": "bundled digits"})
    search = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "CAPSULE_LAB_RUNS": str(tmp_path / "runs")}
    ended = python("-c", WATCH, f"table={file}", cwd=tmp_path, **search)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.count("7.25") == len(RUNS_CODE)
    assert not (tmp_path / "MARKER").exists()


@pytest.mark.parametrize(
    "counts", [{"test": 32, "test_set": 10_000}, {"test": 10_000, "test_set": 10_000}, None]
)
def test_partial_test_is_marked_and_not_compared_with_published_values(
    tmp_path: Path, counts: dict[str, int] | None
) -> None:
    rows = [{"name": "one", "overrides": [], "published": 2.0}]
    table = read(write_table(tmp_path, rows=rows, seeds=[0]))
    write_run(expand(table)[0], error=3.0, **({"image_counts": counts} if counts else {}))
    (entry,) = entries = summarise(table)
    is_partial = counts is not None and counts["test"] < counts["test_set"]
    assert entry.difference == (None if is_partial else pytest.approx(1.0))
    mark, remark = (
        "3.00 (partial test: 32 of 10000 images)",
        "partial test: 1 of 1 runs, such as one seed 0",
    )
    outputs = [" ".join(formats.cells_of(entry)), formats.as_latex(table, entries)]
    assert [mark in text for text in outputs] == [is_partial] * 2
    assert any(text.startswith(remark) for text in formats.remarks(entries)) is is_partial
    assert formats.runs_frame(entries)["partial_test"].tolist() == [
        "32 of 10000 images" if is_partial else ""
    ]
    assert pd.isna(formats.as_frame(entries)["difference"].item()) is is_partial
