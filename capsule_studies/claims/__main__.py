"""Writes the page of claims, its figures and the block in README.md: ``python -m capsule_studies.claims``."""

from capsule_studies.claims.figure import FOLDER, figures
from capsule_studies.claims.page import PAGE, page
from capsule_studies.claims.read import read
from capsule_studies.claims.readme import README, with_short_form
from capsule_studies.claims.verdicts import judged

if __name__ == "__main__":
    every = judged(read())
    PAGE.write_text(page(every))
    README.write_text(with_short_form(README.read_text(), every))
    drawn = figures(every)
    FOLDER.mkdir(exist_ok=True)
    for file in FOLDER.glob("*.svg"):
        if file.name not in drawn:
            file.unlink()
    for name, text in drawn.items():
        (FOLDER / name).write_text(text)
