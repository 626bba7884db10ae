"""Pixels of a PNG."""

import io

import numpy as np
from PIL import Image


def read_pixels(png: bytes) -> np.ndarray:
    """[Y, X, 3] of 0..255."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), dtype=int)


def find_colour(pixels: np.ndarray, colour: tuple[int, ...] | str) -> np.ndarray:
    """[Y, X]: which pixels are nearly of a colour, perhaps one such as #0072B2."""
    if isinstance(colour, str):
        colour = tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return np.abs(pixels - np.array(colour)).max(axis=2) < 8
