"""Pictures of drawn digits, and of photographs, as the networks receive them."""

import logging
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from scipy import ndimage

from capsule_lab import data
from capsule_lab.data.folder import read_pixels
from capsule_lab.data.formats import pictures
from capsule_lab.data.formats.pictures import as_digit, connected, dilated, opaque, open_picture
from capsule_lab.errors import DataError


def seven(paper: int = 255, ink: int = 0, size: tuple[int, int] = (200, 260)) -> Image.Image:
    """A 7 away from the middle."""
    picture = Image.new("L", size, paper)
    ImageDraw.Draw(picture).line(
        [(40, 60), (110, 60), (70, 170)], fill=ink, width=14, joint="curve"
    )
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
    with pytest.raises(
        DataError, match="the picture is blank, or its digit has too little contrast; expected one"
    ):
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


@pytest.mark.parametrize(
    "data", [data.MNISTPairsDataModule, data.MultiMNISTDataModule, data.SmallNORBDataModule]
)
def test_inputs_that_are_not_one_picture(data: type) -> None:
    with pytest.raises(DataError, match="which is not made of one picture; expected a network"):
        data().from_picture(seven())


def tiff(numbers: np.ndarray, sample_format: int) -> bytes:
    """A grey picture without compression; ``sample_format`` is 1 for unsigned, 2 for signed, 3 for floating point."""
    height, width = numbers.shape
    content = numbers.tobytes()
    bits, end = 8 * numbers.itemsize, 8 + len(content)
    tags = {
        256: width,
        257: height,
        258: bits,
        259: 1,
        262: 1,
        273: 8,
        277: 1,
        278: height,
        279: len(content),
    }
    entries = {**tags, 339: sample_format}
    packed = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries.items())
    return (
        b"II*\0"
        + struct.pack("<I", end)
        + content
        + struct.pack("<H", len(entries))
        + packed
        + bytes(4)
    )


def png(width: int, height: int, depth: int = 16) -> bytes:
    """A black grey picture of any size in a small file."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    rows = zlib.compress(bytes((1 + width * depth // 8) * height), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


FLOATS = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
WRONG = {
    "NaN": (tiff(np.where(FLOATS == 0, np.nan, FLOATS), 3), "pixels that are not finite numbers"),
    "infinite": (
        tiff(np.where(FLOATS == 1, np.inf, FLOATS), 3),
        "pixels that are not finite numbers",
    ),
    "negative infinite": (
        tiff(np.where(FLOATS == 1, -np.inf, FLOATS), 3),
        "pixels that are not finite numbers",
    ),
    "signed of 8 bits": (
        tiff(np.arange(64, dtype=np.int8).reshape(8, 8) - 9, 2),
        "signed numbers of 8 bits",
    ),
    "unsigned of 32 bits": (
        tiff(np.full((8, 8), 2**32 - 1, np.uint32), 1),
        "numbers of 32 bits above 2147483647",
    ),
    "169 million pixels": (
        png(13_000, 13_000),
        "it has 169 million pixels; expected at most 50 million",
    ),
    "60 million pixels": (
        png(60_000_000, 1),
        "it has 60 million pixels; expected at most 50 million",
    ),
}


@pytest.mark.filterwarnings(
    "ignore::PIL.Image.DecompressionBombWarning"
)  # both callers ignore warnings
@pytest.mark.parametrize("name", WRONG)
def test_picture_that_would_be_changed_silently_is_refused_by_name(
    tmp_path: Path, name: str
) -> None:
    content, message = WRONG[name]
    file = tmp_path / "a.tif"
    file.write_bytes(content)
    answer = read_pixels(file, size=8, channels=1, fit="crop", background="white")
    assert isinstance(answer, str)
    assert message in answer
    data_module = data.MNISTDataModule()
    with pytest.raises(DataError, match=message):
        data_module.from_picture(open_picture(file))


RIGHT = {
    "float": tiff(FLOATS, 3),
    "float below zero": tiff(FLOATS - 5, 3),
    "signed of 32 bits": tiff(np.arange(64, dtype=np.int32).reshape(8, 8) - 9, 2),
    "signed of 16 bits": tiff(np.arange(64, dtype=np.int16).reshape(8, 8) - 9, 2),
    "unsigned of 16 bits": tiff(np.arange(64, dtype=np.uint16).reshape(8, 8) + 65_000, 1),
    "unsigned of 32 bits": tiff(np.arange(64, dtype=np.uint32).reshape(8, 8) + 2**30, 1),
}


@pytest.mark.parametrize("name", RIGHT)
def test_numbers_of_16_bits_and_more_are_scaled_by_their_range(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.tif").write_bytes(RIGHT[name])
    values = np.asarray(opaque(open_picture(tmp_path / "a.tif"))).ravel()
    assert np.abs(values - np.linspace(0, 255, 64)).max() <= 1


def test_transparent_value_of_16_bits_is_refused(tmp_path: Path) -> None:
    Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8)).save(
        tmp_path / "a.png", transparency=3
    )
    with pytest.raises(DataError, match="it has 16 bits and a transparent value; expected 8 bits"):
        opaque(open_picture(tmp_path / "a.png"))


@pytest.mark.parametrize(
    "mode",
    ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB", "F", "I"],
)
def test_every_mode_is_converted(mode: str) -> None:
    assert opaque(Image.new(mode, (4, 4))).mode in ("L", "RGB")


def test_mode_that_pillow_cannot_convert_is_one_sentence() -> None:
    with pytest.raises(DataError, match="conversion from La to L not supported"):
        opaque(Image.new("La", (4, 4)))


@pytest.mark.parametrize("ending", ["gif", "tiff", "webp", "png"])
def test_first_of_several_frames_is_used_with_a_warning(
    tmp_path: Path, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, *others = [Image.new("L", (8, 8), value) for value in (40, 120, 200)]
    first.save(tmp_path / f"a.{ending}", save_all=True, append_images=others)
    pictures._warn_of_frames.cache_clear()
    with caplog.at_level(logging.WARNING):
        picture = opaque(open_picture(tmp_path / f"a.{ending}")).convert("L")
    assert picture.getpixel((4, 4)) == pytest.approx(40, abs=2)
    assert "of pictures with several frames or pages, the first one is used" in caplog.text


def test_picture_of_one_frame_gives_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seven().save(tmp_path / "a.tiff")
    pictures._warn_of_frames.cache_clear()
    open_picture(tmp_path / "a.tiff")
    assert caplog.text == ""


def test_large_jpeg_is_reduced_while_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seven(size=(400, 400)).save(tmp_path / "a.jpg")
    monkeypatch.setattr(pictures, "MOST_PIXELS", 50_000)
    assert open_picture(tmp_path / "a.jpg", 28).size == (100, 100)
    with pytest.raises(DataError, match="expected at most 0 million"):
        open_picture(tmp_path / "a.jpg")


def snake(size: int) -> np.ndarray:
    """One stroke that fills every other row."""
    mask = np.zeros((size, size), dtype=bool)
    mask[::2] = True
    mask[1::4, -1] = mask[3::4, 0] = True
    return mask


@pytest.mark.parametrize(
    "mask",
    [np.random.default_rng(seed).random((25, 40)) < seed / 10 for seed in range(1, 10)]
    + [snake(60), np.zeros((3, 4), dtype=bool)],
)
def test_strokes_are_those_of_scipy(mask: np.ndarray) -> None:
    strokes, expected = connected(mask), ndimage.label(mask, np.ones((3, 3)))[0]
    pairs = np.unique([strokes.ravel(), expected.ravel()], axis=1)
    assert [len(np.unique(numbers)) for numbers in pairs] == [pairs.shape[1]] * 2
    assert np.array_equal(strokes > 0, mask)
    assert np.array_equal(dilated(mask), ndimage.binary_dilation(mask))
