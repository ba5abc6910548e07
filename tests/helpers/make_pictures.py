"""Pictures of discs, squares and crosses of many sizes, modes and formats: ``python make_pictures.py FOLDER``."""

import random
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

KINDS = ("cross", "disc", "square")


def make_pictures(folder: Path, per_class: int = 100, largest: int = 400) -> Path:
    """Write pictures of each kind into ``folder/<kind>``; some are transparent, grey, turned or of 16 bits."""
    draw = random.Random(0)
    for kind in KINDS:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for number in range(per_class):
            picture = _picture(kind, draw, largest)
            name = folder / kind / f"{number:03}.png"
            if number % 20 == 3:
                picture.putalpha(255)
                picture.save(name)
            elif number % 20 == 5:
                picture.convert("L").save(name)
            elif number == 6:
                Image.fromarray(np.asarray(picture.convert("L"), dtype=np.uint16) * 200).save(name)
            elif number % 3:
                picture.save(name)
            else:
                turned = Image.Exif()
                turned[0x0112] = 6 if number % 2 else 1
                picture.save(name.with_suffix(".jpg"), exif=turned)
    return folder


def _picture(kind: str, draw: random.Random, largest: int) -> Image.Image:
    size = draw.randint(largest // 6, largest), draw.randint(largest // 6, largest)
    paper = _colour(draw)
    ink = _colour(draw)
    while _contrast(paper, ink) < 150:
        ink = _colour(draw)
    picture = Image.new("RGB", size, paper)
    canvas = ImageDraw.Draw(picture)
    side = min(size)
    radius = draw.uniform(0.22, 0.4) * side
    x = size[0] / 2 + draw.uniform(-0.1, 0.1) * side
    y = size[1] / 2 + draw.uniform(-0.1, 0.1) * side
    left, top, right, bottom = box = (x - radius, y - radius, x + radius, y + radius)
    if kind == "disc":
        canvas.ellipse(box, fill=ink)
    elif kind == "square":
        canvas.rectangle(box, fill=ink)
    else:
        width = max(1, int(radius / 2))
        canvas.line(box, fill=ink, width=width)
        canvas.line((left, bottom, right, top), fill=ink, width=width)
    return picture


def _colour(draw: random.Random) -> tuple[int, int, int]:
    return draw.randint(0, 255), draw.randint(0, 255), draw.randint(0, 255)


def _contrast(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return sum(abs(first - second) for first, second in zip(one, other, strict=True))


if __name__ == "__main__":
    make_pictures(Path(sys.argv[1]))
