"""Blur: defocus, glass, motion, zoom, gaussian."""

from __future__ import annotations

import functools
import math

import cv2
import numpy as np
from numpy.typing import NDArray

from tta_panda.data.corruptions.arrays import Floats, Generators, Images, clipped_zoom, smooth, to_uint8, to_unit
from tta_panda.data.corruptions.severity import Values


def gaussian_blur(images: Images, generators: Generators, values: Values) -> Images:
    (sigma,) = values
    return to_uint8(np.stack([smooth(image, sigma) for image in to_unit(images)]))


@functools.lru_cache(maxsize=16)
def disk_kernel(radius: float, rim: float) -> NDArray[np.float32]:
    """A disk with a softened rim, cut to the part that is not zero."""
    reach = np.arange(-8, 9) if radius <= 8 else np.arange(-radius, radius + 1)
    size = 3 if radius <= 8 else 5
    inside = (reach[:, None] ** 2 + reach**2 <= radius**2).astype(np.float32)
    inside /= inside.sum()
    kernel = np.asarray(cv2.GaussianBlur(inside, (size, size), rim), dtype=np.float32)
    used = np.flatnonzero(kernel.any(axis=0))
    return kernel[used[0] : used[-1] + 1, used[0] : used[-1] + 1].copy()  # symmetric, so the centre stays the centre


def defocus_blur(images: Images, generators: Generators, values: Values) -> Images:
    kernel = disk_kernel(*values)
    return to_uint8(np.stack([cv2.filter2D(image, -1, kernel) for image in to_unit(images)]))


def _copied_from(shape: tuple[int, int], reach: int, generator: np.random.Generator) -> NDArray[np.intp]:
    """Where each pixel of one pass over the glass comes from.

    The published loop starts at the lower right corner and should swap each pixel with a random neighbour, but both
    sides of its assignment are views of one array, so the neighbour's value is copied and nothing is swapped. A
    neighbour that was visited before passes on the value it received itself; following these chains replaces the loop.
    """
    height, width = shape
    rows = np.arange(reach + 1, height - reach + 1)
    columns = np.arange(reach + 1, width - reach + 1)
    dx, dy = generator.integers(-reach, reach, size=(2, rows.size, columns.size))
    here = rows[:, None] * width + columns  # visited from the highest to the lowest
    there = here + dy * width + dx
    walked = np.zeros(height * width, dtype=bool)
    walked[here] = True
    source = np.arange(height * width)
    source[here] = there
    # Only neighbours with a higher number were visited before; all others still have their old value.
    follow = np.zeros(height * width, dtype=bool)
    follow[here] = (there > here) & walked[there]
    while True:
        pixels = np.flatnonzero(follow)
        if pixels.size == 0:
            return source
        parents = source[pixels]
        source[pixels], follow[pixels] = source[parents], follow[parents]


def glass_blur(images: Images, generators: Generators, values: Values) -> Images:
    sigma, reach, iterations = values
    count, height, width, channels = images.shape
    blurred = np.stack([to_uint8(smooth(image, sigma)) for image in to_unit(images)])
    pixels = blurred.reshape(count, height * width, channels)
    for index, generator in enumerate(generators):
        for _ in range(int(iterations)):
            pixels[index] = pixels[index][_copied_from((height, width), int(reach), generator)]
    return to_uint8(np.stack([smooth(image, sigma) for image in to_unit(blurred)]))


def motion_blurred(image: Images, radius: float, sigma: float, angle: float) -> Images:
    """Smear along a line at `angle` degrees: half a Gaussian, the pixel itself being the strongest (as ImageMagick)."""
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    across = np.ceil(steps * math.cos(math.radians(angle)) - 0.5).astype(np.intp)
    down = np.ceil(steps * math.sin(math.radians(angle)) - 0.5).astype(np.intp)
    left, top = int(across.min()), int(down.min())
    kernel = np.zeros((int(down.max()) - top + 1, int(across.max()) - left + 1))
    np.add.at(kernel, (down - top, across - left), weights)
    blurred = cv2.filter2D(image, -1, kernel, anchor=(-left, -top), borderType=cv2.BORDER_REPLICATE)
    return np.asarray(blurred, dtype=np.uint8)


def motion_blur(images: Images, generators: Generators, values: Values) -> Images:
    radius, sigma = values
    pairs = zip(images, generators, strict=True)
    return np.stack([motion_blurred(image, radius, sigma, generator.uniform(-45, 45)) for image, generator in pairs])


def zoom_blur(images: Images, generators: Generators, values: Values) -> Images:
    """The mean of the image and its enlargements."""
    stop, step = values
    factors = np.arange(1, stop, step)
    unit: Floats = to_unit(images).astype(np.float32)
    total = np.zeros_like(unit)
    for factor in factors:
        total += clipped_zoom(unit, float(factor))
    return to_uint8((unit + total) / (len(factors) + 1))
