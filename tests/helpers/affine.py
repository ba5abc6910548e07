import math

import numpy as np
import scipy.ndimage


def affine_by_scipy(
    image: np.ndarray,
    rotation: float,
    shear: float,
    scale_x: float,
    scale_y: float,
    right: float,
    down: float,
) -> np.ndarray:
    """Of a point x to the right and y above the middle: stretched, then sheared, then turned counter-clockwise."""
    cos, sin = math.cos(rotation), math.sin(rotation)
    forward = (
        np.array([[cos, -sin], [sin, cos]])
        @ np.array([[1, shear], [0, 1]])
        @ np.diag([scale_x, scale_y])
    )
    flip = np.array([[0, -1], [1, 0]])  # (right, up) to (down, right)
    backward = flip @ np.linalg.inv(forward) @ flip.T
    middle = (np.array(image.shape) - 1) / 2
    return scipy.ndimage.affine_transform(
        image, backward, middle - backward @ (middle + np.array([down, right])), order=1
    )
