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
PARTS = torch.zeros(7, 2, 1, 5, 3)
PARTS[:, 0, :, :, 0] = 1
PARTS[:, 1, :, :, 0] = OVERLAPS.reshape(7, 1, 1)
PARTS[:, 1, :, :, 1] = 1 - OVERLAPS.reshape(7, 1, 1)


def test_first_is_red_and_second_is_green() -> None:
    for classes in [(1, 4), (4, 1)]:
        pictures = segmentation.overlaid_reconstructions(
            fakes.FakeCapsNet(OUTPUT), OUTPUT, torch.tensor([classes] * 7)
        )
        assert pictures.shape == (7, 3, 5, 3)
        red, green = (torch.from_numpy(fakes.decoded_picture(OUTPUT, 5, each)) for each in classes)
        torch.testing.assert_close(pictures[5], torch.stack([red, green, torch.zeros(5, 3)]))


def test_overlap_is_the_ink_that_is_shared() -> None:
    for first, second, expected in [
        ([1.0, 1, 0, 0], [0.0, 0, 1, 1], 0),
        ([1.0, 1, 0, 0], [0.0, 1, 1, 1], 1 / 2),
        ([1.0, 1, 1, 0], [0.0, 1, 0, 0], 1),
        ([1.0, 0.5, 0, 0], [0.5, 1, 0, 0], 2 / 3),
        ([1.0, 0.5, 0, 0], [0.0, 0, 0, 0], 0),
    ]:
        parts = torch.tensor([first, second]).reshape(1, 2, 1, 2, 2)
        assert overlap(parts).tolist() == pytest.approx([expected])
        assert overlap(parts.flip(1)).tolist() == pytest.approx([expected])


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
    assert [*choose_cases(OUTPUT.scores, LABELS, OVERLAPS, **ALL).values()] == [*groups.values()]
    for (group, name), count in itertools.product(enumerate(groups), [0, 1]):
        counts = {**ALL, name: count}
        found = [*choose_cases(OUTPUT.scores, LABELS, OVERLAPS, **counts).values()]
        assert len(found[group]) == count * (2 if name == "failures" else 1)


def assert_decoded(picture: np.ndarray, image: int, first: int, second: int) -> None:
    """The first class is red, the second is green."""
    red, green = (fakes.decoded_picture(OUTPUT, image, label) for label in (first, second))
    expected = np.stack([red, green, np.zeros_like(red)], 2)
    np.testing.assert_allclose(picture, expected, atol=1e-6)


def test_figure_decodes_what_is_captioned() -> None:
    counts = {"correct": 1, "overlapping": 1, "controls": 1, "failures": 1}
    figure = segmentation_figure(fakes.FakeCapsNet(OUTPUT), OUTPUT, IMAGES, LABELS, PARTS, **counts)
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
    for column, image, first, second in [
        (0, 0, 0, 1),
        (1, 3, 3, 0),
        (2, 1, 1, 4),
        (3, 2, 2, 3),
        (4, 2, 2, 0),
    ]:
        composite = fakes.picture_at(figure, 0, column)
        on_black = IMAGES[image, 0, :, :, None].expand(-1, -1, 3)
        np.testing.assert_allclose(composite, on_black, atol=1e-6)
        assert_decoded(fakes.picture_at(figure, 1, column), image, first, second)


def test_note_when_all_or_none_is_recognised() -> None:
    for images, groups, ends in [
        ([0, 1, 3, 5, 6], ["recognised", "overlapping most"], "none of the 5"),
        ([2, 4], ["not recognised"], "2 of the 2"),
    ]:
        output = select_images(OUTPUT, torch.tensor(images))
        network = fakes.FakeCapsNet(output)
        drawn = segmentation_figure(network, output, IMAGES[images], LABELS[images], PARTS[images])
        *names, note = fakes.texts(drawn)
        assert names == groups
        assert note.endswith(f"not recognised: {ends} images looked at")


def test_sheet_decodes_the_predictions() -> None:
    figure = segmentation.segmentation_sheet(fakes.FakeCapsNet(OUTPUT), OUTPUT, IMAGES, LABELS)
    for column, decoded in enumerate([(0, 1), (1, 2), (2, 0), (3, 0), (0, 2), (1, 3), (2, 0)]):
        wrong = column in (2, 4)
        first, second = LABELS[column].tolist()
        caption = f"L:({first},{second})\nR:({decoded[0]},{decoded[1]})"
        assert fakes.captions(figure)[column] == caption
        assert fakes.colours(figure)[column] == ("tab:blue" if wrong else "black")
        composite = fakes.picture_at(figure, 0, column)
        np.testing.assert_allclose(composite[..., 1], IMAGES[column, 0], atol=1e-6)
        assert_decoded(fakes.picture_at(figure, 1, column), column, *decoded)
