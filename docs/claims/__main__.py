"""Writes the page of claims, its figure and the block in README.md: ``python -m docs.claims``."""

import hashlib

from docs.claims.figure import figure
from docs.claims.page import FIGURE, PAGE, README, page, with_short_form
from docs.claims.read import read
from docs.claims.verdicts import judged

if __name__ == "__main__":
    every = judged(read())
    PAGE.write_text(page(every))
    digest = hashlib.sha256(PAGE.read_bytes()).hexdigest()
    figure(every).savefig(
        FIGURE, dpi=110, metadata={"Description": digest}
    )  # a test compares it with the page
    README.write_text(with_short_form(README.read_text(), every))
