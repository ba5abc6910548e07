"""Twenty digits drawn with strokes, as people draw them: two of each, six of odd polarity, size or place."""

import math

from PIL import Image, ImageDraw

Points = list[tuple[float, float]]


def arc(x: float, y: float, across: float, down: float, start: float, end: float) -> Points:
    """Points of an ellipse with half axes ``across`` and ``down``; angles in degrees, clockwise from the right."""
    turns = [math.radians(start + (end - start) * step / 24) for step in range(25)]
    return [(x + across * math.cos(turn), y + down * math.sin(turn)) for turn in turns]


STROKES: list[tuple[int, list[Points]]] = [  # in a square of side 1, y downwards
    (0, [arc(0.5, 0.5, 0.24, 0.36, -90, 270)]),
    (0, [arc(0.5, 0.5, 0.32, 0.34, -60, 310)]),
    (1, [[(0.5, 0.12), (0.5, 0.88)]]),
    (1, [[(0.36, 0.28), (0.54, 0.12), (0.48, 0.88)]]),
    (2, [[*arc(0.48, 0.32, 0.22, 0.2, -170, 40), (0.26, 0.86), (0.76, 0.86)]]),
    (2, [[*arc(0.5, 0.34, 0.24, 0.22, -180, 50), (0.3, 0.82), (0.5, 0.78), (0.8, 0.86)]]),
    (3, [arc(0.46, 0.31, 0.22, 0.19, -150, 90), arc(0.46, 0.69, 0.26, 0.19, -90, 150)]),
    (3, [[*arc(0.44, 0.3, 0.24, 0.18, -160, 80), *arc(0.44, 0.68, 0.24, 0.21, -80, 160)]]),
    (4, [[(0.36, 0.14), (0.24, 0.54), (0.76, 0.54)], [(0.66, 0.2), (0.62, 0.88)]]),
    (4, [[(0.56, 0.12), (0.22, 0.6), (0.8, 0.6)], [(0.6, 0.36), (0.6, 0.9)]]),
    (5, [[(0.72, 0.14), (0.34, 0.14), (0.31, 0.46), *arc(0.46, 0.64, 0.24, 0.22, -120, 150)]]),
    (
        5,
        [
            [(0.34, 0.16), (0.3, 0.46), *arc(0.46, 0.66, 0.22, 0.2, -110, 140)],
            [(0.34, 0.16), (0.74, 0.14)],
        ],
    ),
    (6, [[(0.6, 0.12), (0.38, 0.4), *arc(0.48, 0.68, 0.18, 0.18, 180, 540)]]),
    (6, [[(0.66, 0.14), (0.42, 0.3), (0.3, 0.6), *arc(0.49, 0.68, 0.19, 0.19, 170, 520)]]),
    (7, [[(0.24, 0.16), (0.74, 0.16), (0.44, 0.88)]]),
    (7, [[(0.26, 0.2), (0.5, 0.17), (0.76, 0.16), (0.6, 0.46), (0.5, 0.88)]]),
    (8, [arc(0.5, 0.31, 0.17, 0.18, 90, 450), arc(0.5, 0.69, 0.21, 0.2, -90, 270)]),
    (
        8,
        [
            [
                *arc(0.5, 0.32, 0.18, 0.18, -45, -270),
                *arc(0.5, 0.68, 0.2, 0.18, -90, 225),
                (0.63, 0.19),
            ]
        ],
    ),
    (9, [[*arc(0.48, 0.34, 0.18, 0.19, 0, -360), (0.66, 0.34), (0.62, 0.88)]]),
    (9, [[*arc(0.5, 0.32, 0.2, 0.18, -20, -340), (0.7, 0.3), (0.68, 0.56), (0.54, 0.88)]]),
]
ODD = {  # number of the drawing: size, part of the paper that the digit takes, its corner, paper, ink
    3: ((200, 200), 0.5, (0.4, 0.1), 10, 240),  # light on dark, small and in a corner
    6: ((300, 420), 0.9, (0.0, 0.1), 255, 20),  # on a page that is taller than wide
    9: ((64, 64), 1.0, (0.0, 0.0), 0, 255),
    12: ((500, 300), 0.5, (0.05, 0.2), 230, 90),  # grey ink at the left
    15: ((90, 90), 0.8, (0.1, 0.1), 120, 250),  # light on grey
    18: ((400, 400), 0.35, (0.6, 0.6), 250, 0),  # in the lower right corner
}


USUAL = ((128, 128), 1.0, (0.0, 0.0), 255, 0)


def drawn_digits() -> list[tuple[int, Image.Image]]:
    """Label and picture of each."""
    drawn = []
    for number, (label, strokes) in enumerate(STROKES):
        drawn.append((label, _drawn(strokes, *ODD.get(number, USUAL))))
    return drawn


def _drawn(
    strokes: list[Points],
    size: tuple[int, int],
    part: float,
    corner: tuple[float, float],
    paper: int,
    ink: int,
) -> Image.Image:
    picture = Image.new("L", size, paper)
    canvas = ImageDraw.Draw(picture)
    side = part * min(size)
    left, top = corner[0] * size[0], corner[1] * size[1]
    width = round(0.09 * side)
    half = width / 2
    for stroke in strokes:
        points = [(left + x * side, top + y * side) for x, y in stroke]
        canvas.line(points, fill=ink, width=width, joint="curve")
        for x, y in (points[0], points[-1]):
            canvas.ellipse((x - half, y - half, x + half, y + half), fill=ink)
    return picture
