"""Writes the page of claims, its figure and the block in README.md: ``python -m capsule_studies.claims``."""

import hashlib

from capsule_studies.claims.figure import figure
from capsule_studies.claims.page import FIGURE, PAGE, README, page, with_short_form
from capsule_studies.claims.read import read
from capsule_studies.claims.verdicts import judged

if __name__ == "__main__":
    every = judged(read())
    PAGE.write_text(page(every))
    digest = hashlib.sha256(PAGE.read_bytes()).hexdigest()
    figure(every).savefig(
        FIGURE, dpi=110, metadata={"Description": digest}
    )  # a test compares it with the page
    README.write_text(with_short_form(README.read_text(), every))
