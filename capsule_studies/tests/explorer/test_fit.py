"""The pictures that the page fits equal those of the data module, in node."""

import itertools
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from capsule_lab.data.formats import pictures

FIT = Path(__file__).parents[2] / "explorer" / "assets" / "fit.js"
RUN = Path(__file__).with_name("run_fit.js")
SIZES = [
    (61, 40),
    (40, 61),
    (9, 14),
    (32, 32),
]  # width and height: oblong, small, of the input's size
SHAPES = [(3, 32, 32), (1, 20, 44)]


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_chosen_pictures_are_fitted_as_training_pictures() -> None:
    draw = np.random.default_rng(0)
    given, expected = [], []
    for size, shape, fit in itertools.product(SIZES, SHAPES, ("crop", "pad", "stretch")):
        width, height = size
        levels = draw.integers(0, 256, (height, width, 3), dtype=np.uint8)
        fitted = pictures.fitted(Image.fromarray(levels), shape[:0:-1], fit, "#ff8000")
        expected.append(pictures.as_pixels(fitted, shape[0]))
        picture = {"pixels": levels.flatten().tolist(), "width": width, "height": height}
        options = {"fit": fit, "background": [255, 128, 0]}
        given.append({"picture": picture, "shape": shape, "options": options})
    command = ["node", RUN, FIT]
    ended = subprocess.run(
        command, input=json.dumps(given), capture_output=True, text=True, check=True
    )
    for values, pixels in zip(json.loads(ended.stdout), expected, strict=True):
        found = 255 * torch.tensor(values).view(pixels.shape)
        difference = (found - pixels).abs()
        assert difference.max() < 1.5, "one of 255 levels, by rounding"
        assert difference.mean() < 0.3
