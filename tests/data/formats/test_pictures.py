"""Pictures of drawn digits, and of photographs, as the networks receive them."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from capsule_lab import data
from capsule_lab.data.formats.pictures import as_digit, opaque
from capsule_lab.errors import DataError


def seven(paper: int = 255, ink: int = 0, size: tuple[int, int] = (200, 260)) -> Image.Image:
    """A 7 away from the middle."""
    picture = Image.new("L", size, paper)
    ImageDraw.Draw(picture).line([(40, 60), (110, 60), (70, 170)], fill=ink, width=14, joint="curve")
    return picture


def transparent(ink: int) -> Image.Image:
    mask = seven(0, 255)
    return Image.merge("LA", [Image.new("L", mask.size, ink), mask])


def shaded() -> Image.Image:
    """Dark ink; the paper is grey at the left and light at the right."""
    values = np.asarray(seven(), dtype=float) / 255
    return Image.fromarray((values * np.linspace(110, 250, values.shape[1])).astype(np.uint8))


def speckled() -> Image.Image:
    picture = seven()
    ImageDraw.Draw(picture).rectangle([180, 240, 184, 243], fill=0)
    return picture


SAME = {
    "light": seven(0, 255),
    "grey paper": seven(90, 20),
    "colour": seven().convert("RGB"),
    "palette": seven().convert("P"),
    "16 bit": Image.fromarray(np.asarray(seven(), dtype=np.uint16) * 100 + 3000),
    "transparent, dark": transparent(0),
    "transparent, light": transparent(255),
    "shaded": shaded(),
    "speckled": speckled(),
}


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]).float())[0, 1])


@pytest.mark.parametrize("kind", SAME)
def test_a_digit_is_the_same_in_every_kind_of_picture(kind: str) -> None:
    assert correlation(as_digit(SAME[kind]), as_digit(seven())) > 0.97


def test_a_digit_fills_the_box_of_mnist() -> None:
    digit = as_digit(seven())[0].double()
    rows, columns = (torch.nonzero(digit.sum(dim))[:, 0] for dim in (1, 0))
    assert max(rows[-1] - rows[0], columns[-1] - columns[0]) + 1 == 20
    positions = torch.arange(28).double()
    assert float((digit.sum(1) * positions).sum() / digit.sum()) == pytest.approx(13.5, abs=0.51)
    assert float((digit.sum(0) * positions).sum() / digit.sum()) == pytest.approx(13.5, abs=0.51)
    assert digit.max() == 255


def test_a_given_polarity_is_used() -> None:
    assert as_digit(seven(), "dark_on_light").equal(as_digit(seven()))
    with pytest.raises(DataError, match="give its polarity, dark_on_light or light_on_dark"):
        as_digit(seven(), "light_on_dark")


@pytest.mark.parametrize("paper", [0, 128, 255])
def test_a_blank_picture_is_reported(paper: int) -> None:
    with pytest.raises(DataError, match="the picture is blank, or its digit has too little contrast; expected one"):
        as_digit(Image.new("RGB", (50, 60), (paper,) * 3))


def test_transparency_and_orientation_of_a_photograph() -> None:
    picture = Image.new("RGBA", (3, 2), (255, 0, 0, 0))
    assert opaque(picture, "white").getpixel((0, 0)) == (255, 255, 255)
    picture.getexif()[0x0112] = 6  # turned by 90 degrees
    assert opaque(picture).size == (2, 3)
    assert opaque(Image.new("CMYK", (2, 2))).mode == "RGB"


def test_what_networks_receive() -> None:
    mnist, expanded = data.MNISTDataModule(), data.ExpandedMNISTDataModule()
    seen = mnist.from_picture(seven())
    assert (seen.shape, seen.dtype, seen.max()) == (mnist.spec.image_shape, torch.float32, 1)
    assert expanded.from_picture(seven())[:, 6:34, 6:34].equal(seen)
    photograph = Image.effect_noise((100, 60), 50).convert("RGB")
    standardised = data.CIFAR10DataModule().from_picture(photograph)
    assert standardised.shape == (3, 24, 24)
    assert float(standardised.mean()) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("data", [data.MNISTPairsDataModule, data.MultiMNISTDataModule, data.SmallNORBDataModule])
def test_inputs_that_are_not_one_picture(data: type) -> None:
    with pytest.raises(DataError, match="which is not made of one picture; expected a network"):
        data().from_picture(seven())
