"""Methods of a run for notebooks: ``run.analyse("votes")`` and ``run.explore()``."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from capsule_lab import runs
from capsule_lab.analysis.axes import as_png
from capsule_lab.commands import compose
from capsule_lab.config.overrides import as_argument
from capsule_studies import explorer
from capsule_studies.commands import analyse as command

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 140  # ours: characters of a table in a cell
_DPI = 100  # ours: matplotlib's default


class Answer(NamedTuple):
    """What ``analyse`` found; a notebook shows the table and the figures.

    Attributes:
        record: what the command writes to the run as JSON; the numbers are in ``record["analyse"]``.
        figures: by name.
    """

    record: Mapping[str, Any]
    figures: Mapping[str, Figure]

    @property
    def numbers(self) -> Mapping[str, float | None]:
        """The measured quantities by name; those of the untrained network begin with ``untrained/``."""
        numbers: Mapping[str, float | None] = self.record["analyse"]
        return numbers

    def __repr__(self) -> str:
        return f"Answer({len(self.numbers)} numbers, figures: {', '.join(self.figures) or 'none'})"

    def _repr_html_(self) -> str:
        console = Console(file=io.StringIO(), record=True, width=_WIDTH)
        console.print(command.table(self.record), command.explanation(self.record))
        table = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
        return "".join([table, *map(_as_image, self.figures.values())])


def analyse(run: runs.Run, what: str, *overrides: str) -> Answer:
    """Answer a question about a run's network, as ``capsule-lab analyse`` does; nothing is written.

    Args:
        run: the run.
        what: the question, such as ``"votes"``.
        *overrides: further options of the command, such as ``"images=100"``.

    Raises:
        ConfigError, DataError, RunError: as the command.
    """
    given = [as_argument("ckpt", run.checkpoint), f"what={what}", *overrides]
    config = compose("analyse", given)
    command.main.check(config)
    output = command.analyse(command.AnalyseOptions.read(config))
    prefix = f"{output.path.stem}_"
    figures = {name.removeprefix(prefix): figure for name, figure in output.figures()}
    return Answer(output.result, figures)


def explore(run: runs.Run, *beside: str, **options: Any) -> explorer.Page:
    """Return the page of a run, which a notebook shows in a frame; the arguments are those of ``explorer.show``."""
    return explorer.show(run.checkpoint, *beside, **options)


def _as_image(figure: Figure) -> str:
    encoded = base64.b64encode(as_png(figure, _DPI)).decode()
    return f'<img src="data:image/png;base64,{encoded}">'
