"""The page as a panel of the run's dashboard."""

from pathlib import Path

import pytest

from tests.helpers.commands import Cli
from tests.helpers.messages import one_sentence
from tests.helpers.wandb_reader import read_offline


@pytest.mark.whole  # W&B starts a process
def test_page_is_a_panel_of_the_run_in_wandb(
    cli: Cli, a_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    ended = cli("explorer", f"ckpt={a_copy}", "out=page.html", "logger=wandb")
    assert ended.status == 0, ended.err
    panel = read_offline(a_copy)["summary"]["explorer"]
    assert panel["_type"] == "html-file"
    (file,) = (a_copy / "wandb").glob(f"offline-run-*/files/{panel['path']}")
    assert file.read_text() == Path("page.html").read_text()


def test_loggers_without_pages_are_refused(cli: Cli, a_copy: Path) -> None:
    ended = cli("explorer", f"ckpt={a_copy}", "logger=tensorboard")
    assert "which show no web page; expected logger=wandb" in one_sentence(ended)
