"""The drawings of the documentation are those of the code, and its charts those of the records."""

import xml.etree.ElementTree as ET

import pytest

from docs import charts, drawings


@pytest.mark.whole
def test_files_are_those_of_the_configurations_and_records() -> None:
    made = dict(drawings.drawings()) | dict(charts.charts())
    files = {path.name: path.read_text() for path in drawings.FOLDER.glob("*.svg")}
    assert files == made, "python -m docs.drawings and python -m docs.charts write them anew"
    for text in made.values():
        ET.fromstring(text)  # ours


def test_numbers_of_the_capsnet_are_those_of_the_paper() -> None:
    text = (drawings.FOLDER / "capsnet.svg").read_text()
    for published in (
        "20x20x256",
        "each sees 9x9 pixels",
        "1,152 of 8 components",
        "10 of 16 components",
        "3 iterations",
    ):
        assert published in text
