"""Array types, and operations that several corruptions share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]  # B H W 3, or H W 3
Floats = NDArray[np.floating[Any]]
Generators = Sequence[np.random.Generator]  # one for each image, so that images do not depend on each other
Corruption = Callable[..., Images]  # called with images, generators, values


def to_unit(images: Images) -> NDArray[np.float64]:
    """Values from 0 to 1, in the precision of the published code: results are truncated, so the last bit counts."""
    return images / 255.0


def to_uint8(unit: Floats) -> Images:
    """Back to bytes. Truncates, because the published data sets were made with `np.uint8(...)`."""
    scaled = np.clip(unit, 0, 1)
    scaled *= 255
    return scaled.astype(np.uint8)


def draw(generators: Generators, sample: Callable[[np.random.Generator], Floats]) -> Floats:
    """One sample of each generator, stacked."""
    return np.stack([sample(generator) for generator in generators])


def smooth(image: Floats, sigma: float, truncate: float = 4.0, border: int = cv2.BORDER_REPLICATE) -> Floats:
    """Gaussian filter over H and W, with the support and the border of `skimage.filters.gaussian`."""
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return image
    size = (2 * radius + 1, 2 * radius + 1)
    return np.asarray(cv2.GaussianBlur(image, size, sigma, borderType=border), dtype=image.dtype)


def _zoom_axis(length: int, factor: float) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
    """For each pixel of a zoomed, centre-cropped axis: left neighbour, right neighbour, weight of the right one."""
    crop = math.ceil(length / factor)
    zoomed = round(crop * factor)
    start, trim = (length - crop) // 2, (zoomed - length) // 2
    position = (np.arange(length) + trim) * ((crop - 1) / (zoomed - 1))
    left = np.minimum(position.astype(np.intp), crop - 1)
    right = np.minimum(left + 1, crop - 1)
    return left + start, right + start, position - left


def clipped_zoom(images: Floats, factor: float) -> Floats:
    """Magnify around the centre, keeping the size: B H W C. Linear interpolation between aligned corners."""
    top, bottom, down = _zoom_axis(images.shape[1], factor)
    left, right, across = _zoom_axis(images.shape[2], factor)
    down, across = down.astype(images.dtype)[:, None, None], across.astype(images.dtype)[:, None]
    rows = images[:, bottom]
    rows -= images[:, top]
    rows *= down
    rows += images[:, top]
    out = rows[:, :, right]
    base = rows[:, :, left]
    out -= base
    out *= across
    out += base
    return out


def to_hsv(unit: Floats) -> tuple[Floats, Floats, Floats]:
    """Hue, saturation and value, each from 0 to 1. Hue is 0 for greys."""
    red, green, blue = unit[..., 0], unit[..., 1], unit[..., 2]
    value = unit.max(axis=-1)
    spread = value - unit.min(axis=-1)
    safe = np.where(spread == 0, 1, spread)
    sextant = np.where(
        blue == value,
        4 + (red - green) / safe,
        np.where(green == value, 2 + (blue - red) / safe, (green - blue) / safe),
    )
    hue = np.where(spread == 0, 0, sextant / 6 % 1)
    return hue, spread / np.where(value == 0, 1, value), value


def from_hsv(hue: Floats, saturation: Floats, value: Floats) -> Floats:
    """Back to red, green, blue on a last axis."""
    sextant = np.floor(hue * 6)
    part = hue * 6 - sextant
    low = value * (1 - saturation)
    falling = value * (1 - part * saturation)
    rising = value * (1 - (1 - part) * saturation)
    which = sextant.astype(np.intp) % 6
    red = np.choose(which, [value, falling, low, low, rising, value])
    green = np.choose(which, [rising, value, value, falling, low, low])
    blue = np.choose(which, [low, low, rising, value, value, falling])
    return np.stack([red, green, blue], axis=-1)
