"""The corruptions: each takes an image (H W 3, uint8), its random generator, and its published strength."""

from __future__ import annotations

import functools
import io
import math
from typing import Any

import cv2
import numpy as np
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from numpy.typing import NDArray
from PIL import Image

from tta_panda.data.corruptions.frost import FrostTextures, generated_textures

Pixels = NDArray[np.uint8]  # H W 3
Floats = NDArray[np.floating[Any]]
Rng = np.random.Generator


# Noise


def gaussian_noise(image: Pixels, rng: Rng, sigma: float) -> Pixels:
    return to_uint8(to_unit(image) + sigma * rng.standard_normal(image.shape))


def speckle_noise(image: Pixels, rng: Rng, sigma: float) -> Pixels:
    """Gaussian noise proportional to the signal."""
    return to_uint8(to_unit(image) * (1 + sigma * rng.standard_normal(image.shape)))


def shot_noise(image: Pixels, rng: Rng, photons: float) -> Pixels:
    """Poisson noise of photon counts, coarser with fewer photons at full brightness."""
    return to_uint8(rng.poisson(to_unit(image) * photons) / photons)


def impulse_noise(image: Pixels, rng: Rng, amount: float) -> Pixels:
    """Salt and pepper, for each channel separately and in equal parts."""
    chance = rng.random(image.shape, dtype=np.float32)
    out = image.copy()
    out[chance < amount] = 255
    out[chance < amount / 2] = 0
    return out


# Blur


def gaussian_blur(image: Pixels, rng: Rng, sigma: float) -> Pixels:
    return to_uint8(smooth(to_unit(image), sigma))


@functools.lru_cache(maxsize=16)
def disk_kernel(radius: float, rim: float) -> NDArray[np.float32]:
    """A disk with a softened rim, cropped to its non-zero part."""
    reach = np.arange(-8, 9) if radius <= 8 else np.arange(-radius, radius + 1)
    size = 3 if radius <= 8 else 5
    inside = (reach[:, None] ** 2 + reach**2 <= radius**2).astype(np.float32)
    inside /= inside.sum()
    kernel = np.asarray(cv2.GaussianBlur(inside, (size, size), rim), dtype=np.float32)
    used = np.flatnonzero(kernel.any(axis=0))
    return kernel[used[0] : used[-1] + 1, used[0] : used[-1] + 1].copy()  # symmetric, so the centre stays the centre


def defocus_blur(image: Pixels, rng: Rng, radius: float, rim: float) -> Pixels:
    return to_uint8(np.asarray(cv2.filter2D(to_unit(image), -1, disk_kernel(radius, rim)), dtype=np.float64))


def _source_indices(shape: tuple[int, int], reach: int, rng: Rng) -> NDArray[np.intp]:
    """For each pixel, the index of the pixel that one pass of the glass corruption copies into it.

    The published loop starts at the lower right corner and should swap each pixel with a random neighbour, but both
    sides of its assignment are views of one array, so the neighbour's value is copied and nothing is swapped. A
    neighbour that was visited before passes on the value it received itself; following these chains replaces the loop.
    """
    height, width = shape
    rows = np.arange(reach + 1, height - reach + 1)
    columns = np.arange(reach + 1, width - reach + 1)
    dx, dy = rng.integers(-reach, reach, size=(2, rows.size, columns.size))
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


def glass_blur(image: Pixels, rng: Rng, sigma: float, reach: int, iterations: int) -> Pixels:
    blurred = to_uint8(smooth(to_unit(image), sigma))
    pixels = blurred.reshape(-1, 3)
    for _ in range(iterations):
        pixels = pixels[_source_indices(image.shape[:2], reach, rng)]
    return to_uint8(smooth(to_unit(pixels.reshape(image.shape)), sigma))


def motion_blurred(image: Pixels, radius: float, sigma: float, angle: float) -> Pixels:
    """Smear along a line at `angle` degrees: half a Gaussian, strongest at the pixel itself (as in ImageMagick)."""
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


def motion_blur(image: Pixels, rng: Rng, radius: float, sigma: float) -> Pixels:
    return motion_blurred(image, radius, sigma, rng.uniform(-45, 45))


def zoom_blur(image: Pixels, rng: Rng, stop: float, step: float) -> Pixels:
    """The mean of the image and its enlargements."""
    factors = np.arange(1, stop, step)
    unit: Floats = to_unit(image).astype(np.float32)
    total = np.zeros_like(unit)
    for factor in factors:
        total += clipped_zoom(unit, float(factor))
    return to_uint8((unit + total) / (len(factors) + 1))


# Weather


def snow(
    image: Pixels,
    rng: Rng,
    mean: float,
    sigma: float,
    zoom: float,
    threshold: float,
    radius: float,
    blur: float,
    weight: float,
) -> Pixels:
    flakes = clipped_zoom(rng.normal(mean, sigma, image.shape[:2])[..., None], zoom)[..., 0]
    flakes[flakes < threshold] = 0
    layer = to_unit(motion_blurred(to_uint8(flakes), radius, blur, rng.uniform(-135, -45)))
    unit = to_unit(image)
    grey = 0.299 * unit[..., 0] + 0.587 * unit[..., 1] + 0.114 * unit[..., 2]
    whitened = np.maximum(unit, grey[..., None] * 1.5 + 0.5)
    return to_uint8(weight * unit + (1 - weight) * whitened + (layer + layer[::-1, ::-1])[..., None])


def frost(
    image: Pixels,
    rng: Rng,
    weight: float,
    frost_weight: float,
    scale: float,
    textures: FrostTextures | None = None,
) -> Pixels:
    crop = (textures or generated_textures()).crop(rng, image.shape[:2], scale)
    return np.minimum(weight * image + frost_weight * crop, 255).astype(np.uint8)


def plasma(rng: Rng, size: int, decay: float) -> Floats:
    """Diamond-square clouds from 0 to 1, size x size, that wrap around; `size` is a power of two."""
    noise = rng.uniform(-1, 1, size * size - 1)
    clouds = np.zeros((size, size))
    used, step, wibble = 0, size, 100.0
    while step >= 2:
        half, cells = step // 2, size // step
        # The wibble is squared as published, where it is both the range and a factor.
        bumps = wibble**2 * noise[used : used + 3 * cells**2].reshape(3, cells, cells)
        corners = clouds[::step, ::step]
        before, after = np.arange(-1, cells - 1), np.arange(1 - cells, 1)  # neighbours; negative indices wrap around
        square = corners + corners[after]
        centres = (square + square[:, after]) / 4 + bumps[0]
        top = corners + corners[:, after] + centres + centres[before]
        left = corners + corners[after] + centres + centres[:, before]
        clouds[half::step, half::step] = centres
        clouds[::step, half::step] = top / 4 + bumps[1]
        clouds[half::step, ::step] = left / 4 + bumps[2]
        used, step, wibble = used + 3 * cells**2, half, wibble / decay
    clouds -= clouds.min()
    clouds /= clouds.max()
    return clouds


def fog(image: Pixels, rng: Rng, amount: float, decay: float) -> Pixels:
    height, width = image.shape[:2]
    size = 1 << (max(height, width) - 1).bit_length()
    unit = to_unit(image)
    brightest = unit.max()
    unit += amount * plasma(rng, size, decay)[:height, :width, None]
    return to_uint8(unit * brightest / (brightest + amount))


def brightness(image: Pixels, rng: Rng, amount: float) -> Pixels:
    hsv = rgb_to_hsv(to_unit(image))
    hsv[..., 2] = np.clip(hsv[..., 2] + amount, 0, 1)
    return to_uint8(hsv_to_rgb(hsv))


_WATER = np.array([175, 238, 238], dtype=np.float32) / 255  # pale turquoise
_MUD = np.array([63, 42, 20], dtype=np.float32) / 255


def spatter(
    image: Pixels,
    rng: Rng,
    mean: float,
    sigma: float,
    smoothness: float,
    threshold: float,
    strength: float,
    mud: float,
) -> Pixels:
    """Drops on the lens: water at the lower severities, mud at the higher ones."""
    unit = to_unit(image).astype(np.float32)
    liquid = smooth(rng.normal(mean, sigma, image.shape[:2]), smoothness)
    if mud:
        cover = smooth((liquid > threshold).astype(np.float32), strength)[..., None]
        cover = np.where(cover < 0.8, 0, cover)
        return to_uint8(unit * (1 - cover) + cover * _MUD)
    return to_uint8(unit + strength * _refraction(np.where(liquid < threshold, 0, liquid))[..., None] * _WATER)


def _refraction(liquid: Floats) -> Floats:
    """Light and shade of water drops, at most 1: a relief that rises from their outlines."""
    drops = to_uint8(liquid)
    relief = cv2.distanceTransform(255 - cv2.Canny(drops, 50, 150), cv2.DIST_L2, 5)
    relief = cv2.equalizeHist(cv2.blur(np.minimum(relief, 20), (3, 3)).astype(np.uint8))
    relief = cv2.filter2D(relief, cv2.CV_8U, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]))
    light = drops * cv2.blur(relief, (3, 3)).astype(np.float32)
    return np.asarray(light / max(light.max(), 1), dtype=np.float32)


# Digital


def contrast(image: Pixels, rng: Rng, factor: float) -> Pixels:
    unit = to_unit(image)
    means = image.sum(axis=(0, 1), dtype=np.int64) / (255 * image.shape[0] * image.shape[1])
    return to_uint8((unit - means) * factor + means)


def saturate(image: Pixels, rng: Rng, factor: float, offset: float) -> Pixels:
    hsv = rgb_to_hsv(to_unit(image))
    hsv[..., 1] = np.clip(hsv[..., 1] * factor + offset, 0, 1)
    return to_uint8(hsv_to_rgb(hsv))


def pixelate(image: Pixels, rng: Rng, scale: float) -> Pixels:
    height, width = image.shape[:2]
    box = Image.Resampling.BOX
    small = Image.fromarray(image).resize((int(width * scale), int(height * scale)), box)
    return np.array(small.resize((width, height), box))


def jpeg_compression(image: Pixels, rng: Rng, quality: int) -> Pixels:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return np.array(Image.open(buffer))


def _jittered(image: Floats, jitter: float, rng: Rng) -> Floats:
    """Apply a small affine map: three points around the centre each move by up to `jitter` pixels."""
    height, width = image.shape[:2]
    centre = np.array([width // 2, height // 2], dtype=np.float32)
    arm = min(height, width) // 3
    points = centre + arm * np.array([[1, 1], [1, -1], [-1, -1]], dtype=np.float32)
    moved = points + rng.uniform(-jitter, jitter, points.shape).astype(np.float32)
    matrix = cv2.getAffineTransform(points, moved)
    sheared = cv2.warpAffine(image, matrix, (width, height), borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(sheared, dtype=image.dtype)


def displacement(shape: tuple[int, ...], strength: float, smoothness: float, rng: Rng) -> Floats:
    """One axis of the elastic field, in pixels."""
    field = rng.uniform(-1, 1, shape)
    return smooth(field, smoothness, truncate=3.0, border=cv2.BORDER_REFLECT) * strength


def _resampled(image: Floats, dx: Floats, dy: Floats) -> Floats:
    """Sample the image at x + dx, y + dy with linear interpolation; it is mirrored at its edges."""
    height, width = image.shape[:2]
    margin = int(max(np.abs(dx).max(), np.abs(dy).max())) + 2
    padded = cv2.copyMakeBorder(image, margin, margin, margin, margin, cv2.BORDER_REFLECT)
    x = np.arange(margin, width + margin) + dx
    y = np.arange(margin, height + margin)[:, None] + dy
    left, top = np.floor(x).astype(np.intp), np.floor(y).astype(np.intp)
    across, down = (x - left)[..., None].astype(np.float32), (y - top)[..., None].astype(np.float32)
    stride = width + 2 * margin
    pixels, corner = np.asarray(padded, dtype=np.float32).reshape(-1, 3), top * stride + left
    upper: Floats = pixels[corner]
    lower: Floats = pixels[corner + stride]
    upper += (pixels[corner + 1] - upper) * across  # in this form, uniform areas stay exactly as they are
    lower += (pixels[corner + stride + 1] - lower) * across
    upper += (lower - upper) * down
    return upper


def elastic_transform(image: Pixels, rng: Rng, strength: float, smoothness: float, jitter: float) -> Pixels:
    sheared = _jittered(to_unit(image).astype(np.float32), jitter, rng)
    dx, dy = (displacement(image.shape[:2], strength, smoothness, rng) for _ in "xy")
    return to_uint8(_resampled(sheared, dx, dy))


# Shared helpers


def to_unit(image: Pixels) -> NDArray[np.float64]:
    """Scale to [0, 1] in the precision of the published code: results are truncated, so the last bit counts."""
    return image / 255.0


def to_uint8(unit: Floats) -> Pixels:
    """Convert to bytes by truncation, because the published data sets were made with `np.uint8(...)`."""
    return (np.clip(unit, 0, 1) * 255).astype(np.uint8)


def smooth(image: Floats, sigma: float, truncate: float = 4.0, border: int = cv2.BORDER_REPLICATE) -> Floats:
    """Gaussian filter over H and W, with the support and the border of `skimage.filters.gaussian`."""
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return image
    size = (2 * radius + 1, 2 * radius + 1)
    return np.asarray(cv2.GaussianBlur(image, size, sigma, borderType=border), dtype=image.dtype)


@functools.lru_cache(maxsize=128)
def _zoom_axis(length: int, factor: float) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
    """For each pixel of a zoomed, centre-cropped axis: left neighbour, right neighbour, weight of the right one."""
    crop = math.ceil(length / factor)
    zoomed = round(crop * factor)
    start, trim = (length - crop) // 2, (zoomed - length) // 2
    position = (np.arange(length) + trim) * ((crop - 1) / (zoomed - 1))
    left = np.minimum(position.astype(np.intp), crop - 1)
    right = np.minimum(left + 1, crop - 1)
    return left + start, right + start, position - left


def clipped_zoom(image: Floats, factor: float) -> Floats:
    """Magnify around the centre, keeping the size: H W C. Linear interpolation between aligned corners."""
    top, bottom, down = _zoom_axis(image.shape[0], factor)
    left, right, across = _zoom_axis(image.shape[1], factor)
    down, across = down.astype(image.dtype)[:, None, None], across.astype(image.dtype)[:, None]
    rows = (image[bottom] - image[top]) * down + image[top]
    base = rows[:, left]
    zoomed: Floats = (rows[:, right] - base) * across + base
    return zoomed
