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
from capsule_lab.data.folder_packing import read_pixels
from capsule_lab.data.formats import pictures
from capsule_lab.data.formats.pictures import as_digit, connected, dilated, opaque, open_picture
from capsule_lab.errors import DataError


def seven(paper: int = 255, ink: int = 0, size: tuple[int, int] = (200, 260)) -> Image.Image:
    """A 7 away from the middle."""
    picture = Image.new("L", size, paper)
    corners = [(40, 60), (110, 60), (70, 170)]
    ImageDraw.Draw(picture).line(corners, fill=ink, width=14, joint="curve")
    return picture


def transparent(ink: int) -> Image.Image:
    mask = seven(0, 255)
    brightness = Image.new("L", mask.size, ink)
    return Image.merge("LA", [brightness, mask])


def shaded() -> Image.Image:
    """Dark ink; the paper is grey at the left and light at the right."""
    values = np.asarray(seven(), dtype=float) / 255
    _, width = values.shape
    paper = np.linspace(110, 250, width)
    pixels = values * paper
    return Image.fromarray(pixels.astype(np.uint8))


def of_sixteen_bits() -> Image.Image:
    pixels = np.asarray(seven(), dtype=np.uint16)
    return Image.fromarray(100 * pixels + 3000)


def speckled() -> Image.Image:
    picture = seven()
    ImageDraw.Draw(picture).rectangle([180, 240, 184, 243], fill=0)
    return picture


SAME = {
    "light": seven(0, 255),
    "grey paper": seven(90, 20),
    "colour": seven().convert("RGB"),
    "palette": seven().convert("P"),
    "16 bit": of_sixteen_bits(),
    "transparent, dark": transparent(0),
    "transparent, light": transparent(255),
    "shaded": shaded(),
    "speckled": speckled(),
}


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    pixels = torch.stack([one.flatten(), other.flatten()])
    correlations = torch.corrcoef(pixels.float())
    return correlations[0, 1].item()


@pytest.mark.parametrize("kind", SAME)
def test_a_digit_is_the_same_in_every_kind_of_picture(kind: str) -> None:
    found = as_digit(SAME[kind])
    expected = as_digit(seven())
    assert correlation(found, expected) > 0.97


def test_a_digit_fills_the_box_of_mnist() -> None:
    (digit,) = as_digit(seven()).double()
    rows, columns = digit.nonzero().T
    height = rows.max() - rows.min() + 1
    width = columns.max() - columns.min() + 1
    assert max(height, width) == 20
    assert digit.max() == 255
    positions = torch.arange(28).double()
    shares = digit / digit.sum()
    centre_down = shares.sum(1) @ positions
    centre_right = shares.sum(0) @ positions
    assert centre_down.item() == pytest.approx(13.5, abs=0.51)
    assert centre_right.item() == pytest.approx(13.5, abs=0.51)


def test_a_given_polarity_is_used() -> None:
    found = as_digit(seven(), "dark_on_light")
    assert found.equal(as_digit(seven()))
    with pytest.raises(DataError, match="give its polarity, dark_on_light or light_on_dark"):
        as_digit(seven(), "light_on_dark")


@pytest.mark.parametrize("paper", [0, 128, 255])
def test_a_blank_picture_is_reported(paper: int) -> None:
    picture = Image.new("RGB", (50, 60), (paper, paper, paper))
    with pytest.raises(DataError, match="the picture is blank, or its digit has too little contr"):
        as_digit(picture)


def test_transparency_and_orientation_of_a_photograph() -> None:
    picture = Image.new("RGBA", (3, 2), (255, 0, 0, 0))
    on_white = opaque(picture, "white")
    assert on_white.getpixel((0, 0)) == (255, 255, 255)
    picture.getexif()[0x0112] = 6  # turned by 90 degrees
    assert opaque(picture).size == (2, 3)
    of_print = Image.new("CMYK", (2, 2))
    assert opaque(of_print).mode == "RGB"


def test_what_networks_receive() -> None:
    mnist = data.MNISTDataModule()
    digit = mnist.from_picture(seven())
    assert digit.shape == mnist.spec.image_shape
    assert digit.dtype == torch.float32
    assert digit.max() == 1
    expanded = data.ExpandedMNISTDataModule()
    on_canvas = expanded.from_picture(seven())
    assert on_canvas[:, 6:34, 6:34].equal(digit)
    photograph = Image.effect_noise((100, 60), 50).convert("RGB")
    standardised = data.CIFAR10DataModule().from_picture(photograph)
    assert standardised.shape == (3, 24, 24)
    mean = float(standardised.mean())
    assert mean == pytest.approx(0, abs=1e-5)


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
    entries = {
        256: width,
        257: height,
        258: 8 * numbers.itemsize,  # bits
        259: 1,
        262: 1,
        273: 8,
        277: 1,
        278: height,
        279: len(content),
        339: sample_format,
    }
    head = b"II*\0" + struct.pack("<I", 8 + len(content))
    directory = struct.pack("<H", len(entries))
    for tag, value in entries.items():
        directory += struct.pack("<HHII", tag, 4, 1, value)
    return head + content + directory + bytes(4)


def png_chunk(kind: bytes, content: bytes) -> bytes:
    length = struct.pack(">I", len(content))
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return length + kind + content + checksum


def png(width: int, height: int, depth: int = 16) -> bytes:
    """A black grey picture of any size in a small file, which ends after the first row."""
    head = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    bytes_in_row = 1 + width * depth // 8
    chunks = [
        png_chunk(b"IHDR", head),
        png_chunk(b"IDAT", zlib.compress(bytes(bytes_in_row))),
        png_chunk(b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def grey(kind: type) -> np.ndarray:
    """64 numbers, 0 to 63."""
    return np.arange(64, dtype=kind).reshape(8, 8)


def with_first(value: float) -> np.ndarray:
    numbers = grey(np.float32)
    numbers[0, 0] = value
    return numbers


UNSIGNED, SIGNED, FLOATING = 1, 2, 3
LARGE = np.full((8, 8), 2**32 - 1, np.uint32)
WRONG = {
    "NaN": (tiff(with_first(np.nan), FLOATING), "pixels that are not finite numbers"),
    "infinite": (tiff(with_first(np.inf), FLOATING), "pixels that are not finite numbers"),
    "negative infinite": (tiff(with_first(-np.inf), FLOATING), "pixels that are not finite"),
    "signed of 8 bits": (tiff(grey(np.int8) - 9, SIGNED), "signed numbers of 8 bits"),
    "unsigned of 32 bits": (tiff(LARGE, UNSIGNED), "numbers of 32 bits above 2147483647"),
    "169 million pixels": (png(13_000, 13_000), "169 million pixels; expected at most 50 million"),
    "60 million pixels": (png(60_000_000, 1), "60 million pixels; expected at most 50 million"),
}


# both callers ignore warnings
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
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
    "float": tiff(grey(np.float32) / 63, FLOATING),
    "float below zero": tiff(grey(np.float32) - 500, FLOATING),
    "signed of 32 bits": tiff(grey(np.int32) - 9, SIGNED),
    "signed of 16 bits": tiff(grey(np.int16) - 9, SIGNED),
    "unsigned of 16 bits": tiff(grey(np.uint16) + 65_000, UNSIGNED),
    "unsigned of 32 bits": tiff(grey(np.uint32) + 2**30, UNSIGNED),
}


@pytest.mark.parametrize("name", RIGHT)
def test_numbers_of_16_bits_and_more_are_scaled_by_their_range(tmp_path: Path, name: str) -> None:
    file = tmp_path / "a.tif"
    file.write_bytes(RIGHT[name])
    picture = opaque(open_picture(file))
    values = np.asarray(picture).ravel()
    expected = np.linspace(0, 255, 64)
    np.testing.assert_allclose(values, expected, atol=1, rtol=0)


def test_transparent_value_of_16_bits_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.fromarray(grey(np.uint16)).save(file, transparency=3)
    picture = open_picture(file)
    with pytest.raises(DataError, match="it has 16 bits and a transparent value; expected 8 bits"):
        opaque(picture)


@pytest.mark.parametrize(
    "mode",
    ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB", "F", "I"],
)
def test_every_mode_is_converted(mode: str) -> None:
    picture = Image.new(mode, (4, 4))
    assert opaque(picture).mode in ("L", "RGB")


def test_mode_that_pillow_cannot_convert_is_one_sentence() -> None:
    picture = Image.new("La", (4, 4))
    with pytest.raises(DataError, match="conversion from La to L not supported"):
        opaque(picture)


@pytest.mark.parametrize("ending", ["gif", "tiff", "webp", "png"])
def test_first_of_several_frames_is_used_with_a_warning(
    tmp_path: Path, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / f"a.{ending}"
    first, *others = [Image.new("L", (8, 8), value) for value in (40, 120, 200)]
    first.save(file, save_all=True, append_images=others)
    pictures._warn_of_frames.cache_clear()
    with caplog.at_level(logging.WARNING):
        picture = opaque(open_picture(file))
    pixel = picture.convert("L").getpixel((4, 4))
    assert pixel == pytest.approx(40, abs=2)
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
    file = tmp_path / "a.jpg"
    large = seven(size=(400, 400))
    large.save(file)
    monkeypatch.setattr(pictures, "MOST_PIXELS", 50_000)
    assert open_picture(file, 28).size == (100, 100)
    with pytest.raises(DataError, match="expected at most 0 million"):
        open_picture(file)


def snake(size: int) -> np.ndarray:
    """One stroke that fills every other row."""
    mask = np.zeros((size, size), dtype=bool)
    mask[::2] = True
    mask[1::4, -1] = mask[3::4, 0] = True
    return mask


def masks() -> list[np.ndarray]:
    """Random pixels, of which more and more are set; a long stroke; an empty picture."""
    drawn = []
    for seed in range(1, 10):
        generator = np.random.default_rng(seed)
        numbers = generator.random((25, 40))
        drawn.append(numbers < seed / 10)
    return [*drawn, snake(60), np.zeros((3, 4), dtype=bool)]


@pytest.mark.parametrize("mask", masks())
def test_strokes_are_those_of_scipy(mask: np.ndarray) -> None:
    neighbours = np.ones((3, 3))
    strokes = connected(mask)
    expected, _ = ndimage.label(mask, neighbours)
    pairs = np.unique([strokes.ravel(), expected.ravel()], axis=1)
    for numbers in pairs:
        assert len(np.unique(numbers)) == len(numbers), "each stroke is one of scipy's"
    assert np.array_equal(strokes > 0, mask)
    expected_dilation = ndimage.binary_dilation(mask)
    assert np.array_equal(dilated(mask), expected_dilation)
