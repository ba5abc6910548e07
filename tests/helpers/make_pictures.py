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
    paper, ink = ([draw.randint(0, 255) for _ in range(3)] for _ in range(2))
    while sum(abs(one - other) for one, other in zip(paper, ink, strict=True)) < 150:
        ink = [draw.randint(0, 255) for _ in range(3)]
    picture = Image.new("RGB", size, tuple(paper))
    canvas, side = ImageDraw.Draw(picture), min(size)
    radius = draw.uniform(0.22, 0.4) * side
    x, y = (length / 2 + draw.uniform(-0.1, 0.1) * side for length in size)
    box = (x - radius, y - radius, x + radius, y + radius)
    if kind == "disc":
        canvas.ellipse(box, fill=tuple(ink))
    elif kind == "square":
        canvas.rectangle(box, fill=tuple(ink))
    else:
        for ends in (box, (box[0], box[3], box[2], box[1])):
            canvas.line(ends, fill=tuple(ink), width=max(1, int(radius / 2)))
    return picture


if __name__ == "__main__":
    make_pictures(Path(sys.argv[1]))
