"""A web page in which a trained network is drawn on, routed step by step and compared: ``explorer.show("runs/…")``."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Literal


class Page:
    """The page; a notebook shows it in a frame.

    Attributes:
        text: the HTML file.
        height: height of the frame in a notebook, in pixels.
    """

    def __init__(self, text: str, height: int) -> None:
        self.text, self.height = text, height

    def __repr__(self) -> str:
        megabytes = len(self.text) / 1e6
        return f"Page(of {megabytes:.1f} MB; a notebook shows it, and save(path) writes it)"

    def _repr_html_(self) -> str:
        content = html.escape(self.text, quote=True)
        return f'<iframe srcdoc="{content}" width="100%" height="{self.height}" style="border:0"></iframe>'

    def save(self, path: str | Path) -> None:
        """Write the file, which needs no network and no other file."""
        from capsule_lab.runs.files import write_text
        from capsule_lab.system.files import expanded

        write_text(expanded(path), self.text)


def show(
    ckpt: str | Path,
    *beside: str | Path,
    precision: Literal["f16", "f32"] = "f16",
    height: int = 900,
    trust: Sequence[str] = (),
) -> Page:
    """Return the page of trained networks, which a notebook shows in a frame.

    Args:
        ckpt: the network to draw on: a run directory, a file or the name of ready weights.
        *beside: an ``EMCaps`` for the view of EM routing, a CNN for the comparison.
        precision: of weights in tensors of 4,096 numbers and more.
        height: height of the frame, in pixels.
        trust: your own packages that the records may name.

    Raises:
        RunError: see ``page.render``.
    """
    from capsule_lab import runs
    from capsule_studies.explorer.page import render  # torch and Lightning

    opened = [runs.open(path, trust=trust) for path in (ckpt, *beside)]
    return Page(render(opened, precision=precision), height)
