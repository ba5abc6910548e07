"""Two digits in one image, each in another colour."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from capsule_lab.analysis import segmentation
from capsule_lab.analysis.reconstructions import select_images
from capsule_lab.analysis.segmentation import Case, choose_cases, overlap, segmentation_figure
from tests.helpers import fakes

LABELS = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [4, 1], [1, 3], [2, 0]])
# images 2 and 4 are not recognised
OUTPUT = fakes.fake_output([[1, 0], [2, 1], [0, 2], [0, 3], [0, 2], [3, 1], [0, 2]])
OVERLAPS = torch.tensor([0.1, 0.2, 0.99, 0.9, 0.99, 0.3, 0.8])
IMAGES = torch.rand(7, 1, 5, 3, generator=torch.Generator().manual_seed(0))
# the first digit is in the first column only, the second is there as far as they overlap
SHARED = OVERLAPS.view(7, 1, 1)
PARTS = torch.zeros(7, 2, 1, 5, 3)
PARTS[:, 0, :, :, 0] = 1
PARTS[:, 1, :, :, 0] = SHARED
PARTS[:, 1, :, :, 1] = 1 - SHARED


@pytest.fixture
def network() -> fakes.FakeCapsNet:
    return fakes.FakeCapsNet(OUTPUT)


@pytest.mark.parametrize("classes", [(1, 4), (4, 1)])
def test_first_is_red_and_second_is_green(
    classes: tuple[int, int], network: fakes.FakeCapsNet
) -> None:
    of_every_image = torch.tensor([classes] * 7)
    pictures = segmentation.overlaid_reconstructions(network, OUTPUT, of_every_image)
    assert pictures.shape == (7, 3, 5, 3)
    assert_decoded(pictures[5].movedim(0, 2).numpy(), 5, *classes)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1.0, 1, 0, 0], [0.0, 0, 1, 1], 0),
        ([1.0, 1, 0, 0], [0.0, 1, 1, 1], 1 / 2),
        ([1.0, 1, 1, 0], [0.0, 1, 0, 0], 1),
        ([1.0, 0.5, 0, 0], [0.5, 1, 0, 0], 2 / 3),
        ([1.0, 0.5, 0, 0], [0.0, 0, 0, 0], 0),
    ],
)
def test_overlap_is_the_ink_that_is_shared(
    first: list[float], second: list[float], expected: float
) -> None:
    parts = torch.tensor([first, second]).view(1, 2, 1, 2, 2)
    exchanged = parts.flip(1)
    assert overlap(parts).tolist() == pytest.approx([expected])
    assert overlap(exchanged).tolist() == pytest.approx([expected])


ALL: dict[str, Any] = {"correct": 2, "overlapping": 2, "controls": 1, "failures": 2}


def test_cases_of_each_group_are_as_many_as_asked_for() -> None:
    groups = {
        "correct": [Case(0, (0, 1)), Case(1, (1, 2))],
        "overlapping": [Case(3, (3, 0)), Case(6, (2, 0))],
        "controls": [Case(5, (1, 4), "*")],
        "failures": [
            Case(2, (2, 3)),
            Case(2, (2, 0), "(P)"),
            Case(4, (4, 1)),
            Case(4, (0, 2), "(P)"),
        ],
    }
    found = choose_cases(OUTPUT.scores, LABELS, OVERLAPS, **ALL)
    assert [*found.values()] == [*groups.values()]
    for (group, name), count in itertools.product(enumerate(groups), [0, 1]):
        counts = {**ALL, name: count}
        found = choose_cases(OUTPUT.scores, LABELS, OVERLAPS, **counts)
        cases = [*found.values()][group]
        cases_of_one = 2 if name == "failures" else 1
        assert len(cases) == count * cases_of_one


def assert_decoded(picture: np.ndarray, image: int, first: int, second: int) -> None:
    """The first class is red, the second is green."""
    red = fakes.decoded_picture(OUTPUT, image, first)
    green = fakes.decoded_picture(OUTPUT, image, second)
    expected = np.stack([red, green, np.zeros_like(red)], 2)
    np.testing.assert_allclose(picture, expected, atol=1e-6)


def test_figure_decodes_what_is_captioned(network: fakes.FakeCapsNet) -> None:
    counts = {"correct": 1, "overlapping": 1, "controls": 1, "failures": 1}
    figure = segmentation_figure(network, OUTPUT, IMAGES, LABELS, PARTS, **counts)
    assert fakes.captions(figure) == [
        "L:(0,1)\nR:(0,1)",
        "L:(3,0)\nR:(3,0)",
        "L:(1,2)\nR:(1,4)*",
        "L:(2,3)\nR:(2,3)",
        "L:(2,3)\nR:(2,0)(P)",
    ]
    assert fakes.colours(figure) == ["black"] * 4 + ["tab:blue"]
    assert fakes.row_names(figure) == ["input", "output"]
    assert fakes.texts(figure)[:4] == [
        "recognised",
        "overlapping most",
        "wrong class *",
        "not recognised",
    ]
    assert fakes.texts(figure)[4].endswith("not recognised: 2 of the 7 images looked at")
    image_and_classes = [
        (0, 0, 1),
        (3, 3, 0),
        (1, 1, 4),
        (2, 2, 3),
        (2, 2, 0),
    ]
    for column, (image, first, second) in enumerate(image_and_classes):
        composite = fakes.picture_at(figure, 0, column)
        on_black = IMAGES[image, 0, :, :, None].expand(-1, -1, 3)
        np.testing.assert_allclose(composite, on_black, atol=1e-6)
        decoded = fakes.picture_at(figure, 1, column)
        assert_decoded(decoded, image, first, second)


@pytest.mark.parametrize(
    ("images", "groups", "failures"),
    [
        ([0, 1, 3, 5, 6], ["recognised", "overlapping most"], "none of the 5"),
        ([2, 4], ["not recognised"], "2 of the 2"),
    ],
)
def test_note_when_all_or_none_is_recognised(
    images: list[int], groups: list[str], failures: str
) -> None:
    output = select_images(OUTPUT, torch.tensor(images))
    network = fakes.FakeCapsNet(output)
    given = IMAGES[images], LABELS[images], PARTS[images]
    drawn = segmentation_figure(network, output, *given)
    *names, note = fakes.texts(drawn)
    assert names == groups
    assert note.endswith(f"not recognised: {failures} images looked at")


def test_sheet_decodes_the_predictions(network: fakes.FakeCapsNet) -> None:
    figure = segmentation.segmentation_sheet(network, OUTPUT, IMAGES, LABELS)()
    decoded_classes = [(0, 1), (1, 2), (2, 0), (3, 0), (0, 2), (1, 3), (2, 0)]
    for column, decoded in enumerate(decoded_classes):
        wrong = column in (2, 4)
        first, second = LABELS[column].tolist()
        caption = f"L:({first},{second})\nR:({decoded[0]},{decoded[1]})"
        colour = "tab:blue" if wrong else "black"
        assert fakes.captions(figure)[column] == caption
        assert fakes.colours(figure)[column] == colour
        composite = fakes.picture_at(figure, 0, column)
        np.testing.assert_allclose(composite[..., 1], IMAGES[column, 0], atol=1e-6)
        reconstruction = fakes.picture_at(figure, 1, column)
        assert_decoded(reconstruction, column, *decoded)
