"""Writes the page of claims, its figures and the block in README.md: ``python -m capsule_studies.claims``."""

import sys

from capsule_lab.errors import CapsuleLabError, printable
from capsule_studies.claims import measured, page, read
from capsule_studies.claims.figure import FOLDER, figures
from capsule_studies.claims.readme import README, with_short_form
from capsule_studies.claims.verdicts import judged


def main() -> int:
    """Write all files, or none if a claim lacks something; return the status of the process."""
    try:
        for row in read.measured():
            measured.check(row)
        _write()
    except CapsuleLabError as error:
        sys.stderr.write(f"claims: {printable(str(error))}\n")
        return 2
    return 0


def _write() -> None:
    every = judged(read.read())
    texts = {
        page.PAGE: page.page(every),
        README: with_short_form(README.read_text(), every),
    }
    drawn = figures(every)
    for file, text in texts.items():
        file.write_text(text)
    FOLDER.mkdir(exist_ok=True)
    for file in FOLDER.glob("*.svg"):
        if file.name not in drawn:
            file.unlink()
    for name, text in drawn.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    sys.exit(main())
