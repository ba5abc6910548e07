from pathlib import Path
from typing import Any

import pytest

from capsule_lab.commands.tables import read_table as read
from capsule_lab.tables.summary import summarise
from tests.helpers.commands import Cli
from tests.helpers.tables import contents

COLUMNS = {
    "clean": {"label": "clean, error %"},
    "t_score": {"label": "T-score", "metric": "analyse/digits/3/t_score"},
    "untrained": {
        "label": "T-score before training",
        "metric": "analyse/untrained/digits/3/t_score",
    },
    "static": {"label": "static share", "metric": "analyse/digits/1/static_share"},
}
ROWS: list[dict[str, Any]] = [
    {"name": "one", "overrides": []},
    {
        "name": "inside",
        "of": "one",
        "by": "analyse",
        "evaluate": ["what=couplings", "images=20", "split=test"],
    },
]


@pytest.mark.whole
@pytest.mark.usefixtures("runs_here")
def test_table_with_analyses_is_swept_and_reported(cli: Cli, table_file, tmp_path: Path) -> None:
    file = table_file(rows=ROWS, columns=COLUMNS, seeds=[0])
    ended = cli("sweep", f"table={file}")
    assert (ended.status, ended.out.splitlines()[-2]) == (0, "mine: 2 done"), ended.err
    before = contents(tmp_path)
    assert cli("sweep", f"table={file}").status == 0
    assert contents(tmp_path) == before, "no analysis is repeated"

    entries = {}
    for entry in summarise(read(file)):
        if entry.row.name == "inside":
            entries[entry.column.name] = entry
    (run,) = entries["t_score"].runs
    assert 0 <= run.value <= 1
    assert run.result["images"] == 20
    (untrained,) = entries["untrained"].runs
    assert untrained.value == run.result["analyse"]["untrained/digits/3/t_score"]
    assert not entries["static"].runs, "equal couplings have no static share"

    ended = cli("report", f"table={file}", "out=.")
    assert ended.status == 0, ended.err
