"""The methods of a run that this package adds for notebooks."""

from typing import Any

import pytest
from matplotlib.figure import Figure

from capsule_lab import runs
from capsule_lab.errors import ConfigError
from capsule_studies.explorer import Page
from tests.helpers.commands import Trained


def test_an_answer_is_that_of_the_command(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.open(trained.directory)
    answer = run.analyse("votes", "images=20", "untrained=false")
    assert answer.record["images"] == 20
    assert {*answer.numbers} == {*answer.record["analyse"]}
    assert "points" in answer.figures
    assert not (trained.directory / "analyses").exists(), "nothing is written"
    # those of votes take seconds to draw
    small = {name: Figure(figsize=(1, 1), layout="constrained") for name in ("one", "another")}
    drawn = []
    draw = Figure.draw

    def count(self: Figure, renderer: Any) -> None:
        drawn.append(self)
        draw(self, renderer)

    monkeypatch.setattr(Figure, "draw", count)
    shown = answer._replace(figures=small)._repr_html_()
    assert "20 images" in shown
    assert shown.count("data:image/png;base64,") == 2
    assert drawn == [*small.values()], "each is drawn once"


def test_options_of_a_question_are_checked_as_those_of_the_command(trained: Trained) -> None:
    run = runs.open(trained.directory)
    with pytest.raises(ConfigError, match="what=vote does not exist; did you mean votes"):
        run.analyse("vote")
    with pytest.raises(ConfigError, match="devices"):
        run.analyse("votes", "trainer.devices=2")


def test_a_run_shows_its_page(trained: Trained) -> None:
    assert isinstance(runs.open(trained.directory).explore(height=1200), Page)
