"""Messages as a terminal gets them."""

from __future__ import annotations

from capsule_lab.errors import printable


def test_text_of_others_does_nothing_to_the_terminal() -> None:
    assert printable("\x1b]0;title\x07 \x9b31mred \u202edrawkcab\r\n\0") == " ]0;title   31mred  drawkcab "
    assert printable("π ± 日本 [/b] \\ <b>") == "π ± 日本 [/b] \\ <b>"
