"""Run directories of others: commands read regular files inside of them, and end with a result or one sentence."""

import base64
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from capsule_lab import runs
from capsule_lab.analysis.curves import figures
from capsule_lab.commands.tables import read_table as read
from capsule_lab.errors import CapsuleLabError
from capsule_lab.tables import formats
from capsule_lab.tables.comparisons import compared
from capsule_lab.tables.expand import expand
from capsule_lab.tables.summary import summarise
from tests.helpers.commands import Cli, Trained
from tests.helpers.extensions import needs_studies
from tests.helpers.tables import (
    ATTACKED,
    RESULT,
    shared_compositions,
    write_evaluation,
    write_table,
)
from tests.helpers.tiers import whole_but

pytestmark = needs_studies  # the table has an attack

SECRET = "TOPSECRET-0123456789"
IN_BASE64 = base64.b64encode(SECRET.encode()).decode()[:16]
ROWS = [
    {"name": "one", "overrides": []},
    {"name": "two", "overrides": ["routing.iterations=1"]},
    {"name": "fgsm", "of": "one", "by": "attack", "evaluate": ["attack=fgsm"]},
]
COLUMNS = {
    "test_error": {"metric": "test/error"},
    "train_error": {"metric": "train/error"},
    "attack_0.1_accuracy": {"metric": "attack/0.1/accuracy"},
}
COMPARISON = {
    "name": "c",
    "rows": ["one"],
    "against": "two",
    "columns": ["test_error"],
    "unit": "images",
}


@pytest.fixture(autouse=True)
def _ended_in_time() -> Iterator[None]:
    """What waits for a FIFO would wait forever."""

    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module", autouse=True)
def _shared_compositions() -> Iterator[None]:
    with shared_compositions():
        yield


@pytest.fixture(scope="module")
def original(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, and two finished runs in ``runs``."""
    folder = tmp_path_factory.mktemp("original")
    comparisons = [COMPARISON]
    table = write_table(folder, seeds=[0], rows=ROWS, columns=COLUMNS, comparisons=comparisons)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAPSULE_LAB_RUNS", str(folder / "runs"))
        cells = expand(read(table))
        for fingerprint in {cell.fingerprint for cell in cells if not cell.row.of}:
            directory = folder / "runs" / f"capsnet-mnist-{fingerprint}"
            shutil.copytree(trained.directory, directory)
            record = trained.result | {"config_hash": fingerprint}
            (directory / "metrics.json").write_text(json.dumps(record))
            (directory / "heartbeat.json").write_text("{}")
            (directory / ".lock").touch()
            for name in ("mlflow_run", "status.json"):
                (directory / name).write_text("{}")
        evaluation = next(cell for cell in expand(read(table)) if cell.row.of)
        write_evaluation(evaluation, error=1.0, **ATTACKED)
    return folder


@pytest.fixture
def world(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of ``original``, for changes, with a private file beside it."""
    (tmp_path / "secret").write_text(SECRET)
    monkeypatch.setenv("CAPSULE_LAB_RUNS", str(tmp_path / "world" / "runs"))
    runs.files._warn_once.cache_clear()
    return Path(shutil.copytree(original, tmp_path / "world"))


@pytest.fixture
def run(world: Path) -> Path:
    """The directory of the first run, which has evaluations, too."""
    return next(path.parents[1] for path in world.glob("runs/*/evaluations/*.json"))


def texts(world: Path) -> list[str]:
    """The report in every format, without figures of matplotlib."""
    table = read(world / "mine.yaml")
    entries = summarise(table)
    answers = compared(table, entries)
    frames = [
        formats.as_csv(formats.as_frame(entries)),
        formats.as_csv(formats.runs_frame(entries)),
    ]
    lines = [*formats.remarks(entries), *formats.failures(entries)]
    best = [repr(formats._figures(run)) for entry in entries for run in entry.runs]
    markdown = formats.as_markdown(table, entries, "", answers)
    latex = formats.as_latex(table, entries, answers)
    return [markdown, latex, *frames, *lines, *best]


def to_socket(path: Path) -> None:
    os.chdir(path.parent)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as created:
        created.bind(path.name)


def link_out(path: Path) -> None:
    path.symlink_to(Path(os.environ["CAPSULE_LAB_RUNS"]).parents[1] / "secret")


KINDS: dict[str, Callable[[Path], Any]] = {
    "nothing": lambda _: None,
    "an empty file": lambda path: path.touch(),
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 20),
    "a folder": lambda path: path.mkdir(),
    "a FIFO": lambda path: os.mkfifo(path),
    "a socket": to_socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link out": link_out,
    "a loop": lambda path: path.symlink_to(path),
    "a long line": lambda path: path.write_bytes(b"# overrides: " + b"x" * 10**7),
    "deep": lambda path: path.write_bytes(b"[" * 100_000),
    "a huge number": lambda path: path.write_bytes(b"9" * 10_000),
    "quotes": lambda path: path.write_bytes(b"# overrides: 'a\n"),
}


def replace_file(path: Path, kind: str) -> None:
    path.unlink()
    KINDS[kind](path)


def ends_well(cli: Cli, *arguments: str) -> None:
    ended = cli(*arguments)
    assert ended.status in (0, 2)
    assert "Traceback" not in ended.out + ended.err
    assert ended.err.count("\n") == (ended.status == 2)
    assert SECRET not in ended.out + ended.err


@pytest.mark.parametrize("kind", whole_but(KINDS, "nothing", "noise", "a FIFO", "a link out"))
@pytest.mark.parametrize("result", [True, False], ids=["result", "others"])
def test_every_file_may_be_anything(
    cli: Cli, world: Path, run: Path, kind: str, result: bool
) -> None:
    files = [path for path in run.rglob("*") if path.is_file()]
    for file in files:
        if (file.name == "metrics.json") is result:
            replace_file(file, kind)
    written = texts(world)
    assert SECRET not in "".join(written)
    assert IN_BASE64 not in "".join(written)
    ends_well(cli, "list")
    ends_well(cli, "compare", f"runs=[{run},{run}]")
    assert [*figures(run / "metrics.csv")] == [] or result
    if not result:
        with pytest.raises(CapsuleLabError, match=r"^[^\n]+$"):
            runs.open(run)
        with pytest.raises(CapsuleLabError, match=r"^[^\n]+$"):
            runs.open(run / "checkpoints" / "best.ckpt")


@pytest.mark.parametrize("name", ["figures", "checkpoints", "evaluations"])
def test_linked_folders_are_not_followed(world: Path, run: Path, name: str, tmp_path: Path) -> None:
    (run / name).rename(tmp_path / "elsewhere")
    shutil.copy(tmp_path / "secret", tmp_path / "elsewhere" / "secret.png")
    (run / name).symlink_to(tmp_path / "elsewhere")
    assert IN_BASE64 not in "".join(texts(world))
    message = rf"{name} is a link out of the run directory; expected"
    with pytest.raises(CapsuleLabError, match=message):
        runs.open(run)


def test_report_shows_no_private_file_in_the_place_of_a_figure(
    cli: Cli, world: Path, run: Path
) -> None:
    (run / "figures" / "leaked.png").symlink_to(world.parent / "secret")
    shutil.copy(world.parent / "secret", run / "figures" / "hard_linked.png")
    (run / "figures" / "inside.png").symlink_to("test_confusion.png")
    ended = cli("report", f"table={world / 'mine.yaml'}", "rows=[one]", "columns=[test_error]")
    assert ended.status == 0
    assert "leaked.png is not shown: a link to a file outside of" in ended.out
    assert "hard_linked.png is not shown: it is not a PNG" in ended.out
    page = (world / "runs" / "reports" / "mine.html").read_text()
    assert "inside" in page
    assert "leaked" not in page
    assert IN_BASE64 not in page


def test_linked_run_directories_and_roots_are_used(
    world: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.rename(world / "moved")
    run.symlink_to(world / "moved")
    (world / "other_root").symlink_to(world / "runs")
    monkeypatch.setenv("CAPSULE_LAB_RUNS", str(world / "other_root"))
    (world / "latest").symlink_to(run)
    (run / "checkpoints" / "linked.ckpt").symlink_to("best.ckpt")
    entries = summarise(read(world / "mine.yaml"))
    assert [len(entry.runs) for entry in entries] == [1, 1, 1, 1, 1]
    latest = world / "latest"
    assert runs.open(latest).checkpoint.name == "best.ckpt"
    assert runs.open(latest / "checkpoints" / "linked.ckpt").directory == latest


VALUES = [
    None,
    True,
    -1,
    2**63,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\ud800",
    "a\0\x1b[31m",
    "$\\frac{$",
    "../../secret",
    [],
    {},
    [[[]]],
    {"a": {"b": {}}},
    {"x": 1.0},
    "9" * 5000,
]
PLACES = [
    *RESULT,
    "curves",
    "predictions",
    "versions",
    "overrides",
    "name",
    "provenance.name",
    "provenance.source",
    "provenance.test_images",
    "test.error",
    "predictions.file",
    "predictions.sha256",
    "val.error",
    "versions.torch",
]


def cases() -> Iterator[Any]:
    """Every value at every place; ``make test`` tries one value at each place."""
    for number, (place, value) in enumerate(product(PLACES, VALUES)):
        is_short = number % (len(VALUES) + 1) == 0
        name = f"{place}-{ascii(value)[:20]}"
        yield pytest.param(place, value, id=name, marks=[] if is_short else pytest.mark.slow)


@pytest.mark.parametrize(("place", "value"), [*cases()])
def test_a_record_may_have_anything_anywhere(
    world: Path, run: Path, place: str, value: Any
) -> None:
    record = json.loads((run / "metrics.json").read_text())
    parent, _, key = place.rpartition(".")
    node = record[parent] if parent else record
    node[key] = value
    (run / "metrics.json").write_text(json.dumps(record))
    try:
        written = texts(world)
    except CapsuleLabError as error:  # another precision in one column
        written = [str(error)]
    "".join(written).encode()
    assert SECRET not in "".join(written)
