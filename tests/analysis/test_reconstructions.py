"""Images over what one capsule decodes to."""

import numpy as np
import torch

from capsule_lab.analysis import reconstructions
from capsule_lab.analysis.reconstructions import (
    prediction_figure,
    reconstruction_figure,
    reconstruction_sheet,
)
from tests.helpers.fakes import (
    FakeCapsNet,
    captions,
    colours,
    decoded_picture,
    fake_output,
    grey_at,
    row_names,
    texts,
)

LABELS = torch.tensor([3, 1, 1, 0, 2, 3])
OUTPUT = fake_output([[3], [1], [1], [4], [0], [3]])  # images 3 and 4 are not recognised
IMAGES = torch.rand(6, 1, 5, 3, generator=torch.Generator().manual_seed(0))


def test_sheet_decodes_the_prediction() -> None:
    figure = reconstruction_sheet(FakeCapsNet(OUTPUT), OUTPUT, IMAGES, LABELS)()
    assert captions(figure) == ["3 → 3", "1 → 1", "1 → 1", "0 → 4", "2 → 0", "3 → 3"]
    assert colours(figure) == ["black"] * 3 + ["red"] * 2 + ["black"]
    assert row_names(figure) == ["input", "output"]
    for column, prediction in enumerate([3, 1, 1, 4, 0, 3]):
        np.testing.assert_allclose(grey_at(figure, 0, column), IMAGES[column, 0], atol=1e-6)
        np.testing.assert_allclose(
            grey_at(figure, 1, column), decoded_picture(OUTPUT, column, prediction), atol=1e-6
        )


def test_classes_are_called_by_their_names() -> None:
    names = ("none", "one", "two", "three", "four and more")
    sheet = reconstruction_sheet(FakeCapsNet(OUTPUT), OUTPUT, IMAGES, LABELS, names=names)()
    assert captions(sheet)[3] == "none\n→ four and\nmore"
    figure = reconstruction_figure(FakeCapsNet(OUTPUT), OUTPUT, IMAGES, LABELS, names=names)
    assert captions(figure)[2:4] == [
        "(none,\nfour and\nmore,\nnone)",
        "(none,\nfour and\nmore,\nfour and\nmore)",
    ]


def test_figure_shows_classes_once_and_failures_twice() -> None:
    figure = reconstruction_figure(FakeCapsNet(OUTPUT), OUTPUT, IMAGES, LABELS)
    assert captions(figure) == [
        "(1, 1, 1)",
        "(3, 3, 3)",
        "(0, 4, 0)",
        "(0, 4, 4)",
        "(2, 0, 2)",
        "(2, 0, 0)",
    ]
    assert colours(figure) == ["black"] * 2 + ["red"] * 4
    assert texts(figure)[:2] == ["recognised", "not recognised"]
    assert texts(figure)[2].endswith("not recognised: 2 of the 6 images looked at")
    for column, image, decoded in [
        (0, 1, 1),
        (1, 0, 3),
        (2, 3, 0),
        (3, 3, 4),
        (4, 4, 2),
        (5, 4, 0),
    ]:
        np.testing.assert_allclose(grey_at(figure, 0, column), IMAGES[image, 0], atol=1e-6)
        np.testing.assert_allclose(
            grey_at(figure, 1, column), decoded_picture(OUTPUT, image, decoded), atol=1e-6
        )


def test_figure_has_as_many_as_asked_for() -> None:
    for correct, failures, expected in [
        (1, 0, ["(3, 3, 3)"]),
        (0, 1, ["(0, 4, 0)", "(0, 4, 4)"]),
        (1, 1, ["(3, 3, 3)", "(0, 4, 0)", "(0, 4, 4)"]),
    ]:
        figure = reconstruction_figure(
            FakeCapsNet(OUTPUT), OUTPUT, IMAGES, LABELS, correct=correct, failures=failures
        )
        assert captions(figure) == expected


def test_note_when_all_or_none_is_recognised() -> None:
    for images, group, ends in [
        ([0, 1, 2, 5], "recognised", "none of the 4"),
        ([3, 4], "not recognised", "2 of the 2"),
    ]:
        output = reconstructions.select_images(OUTPUT, torch.tensor(images))
        name, note = texts(
            reconstruction_figure(FakeCapsNet(output), output, IMAGES[images], LABELS[images])
        )
        assert name == group
        assert note.endswith(f"not recognised: {ends} images looked at")


def test_predictions_stand_under_their_images() -> None:
    """Column after column: two images that are recognised, if there are so many, then others."""
    for labels, expected in [
        ([0, 1, 2, 3], ["0, 0 black", "1, 3 red", "2, 2 black", "3, 1 red", "2"]),
        (
            [[1, 0], [2, 4], [2, 1], [0, 3]],
            ["1, 0, 1, 0 black", "2, 1, 2, 4 red", "2, 4, 2, 3 red", "0, 3, 0, 1 red", "3"],
        ),
    ]:
        ranking = fake_output([[0, 1], [3, 2], [2, 4], [1, 0]]).scores
        figure = prediction_figure(ranking, IMAGES[:4], torch.tensor(labels), side=2)
        *below, failed = expected
        found = [f"{text.get_text()} {text.get_color()}" for text in figure.axes[0].texts]
        assert [text.replace("true ", "").replace("\npredicted", ",") for text in found] == below
        assert texts(figure)[-1] == f"not recognised: {failed} of the 4 images looked at"
        np.testing.assert_allclose(grey_at(figure, 0, 0), IMAGES[0, 0], atol=1e-6)
