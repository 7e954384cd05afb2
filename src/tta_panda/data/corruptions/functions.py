"""The corruptions: each takes images (B H W 3, uint8), a generator for each image, and its published strength."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from numpy.typing import NDArray
from PIL import Image

from tta_panda.data.corruptions.frost import FrostTextures, generated_textures
from tta_panda.data.corruptions.severity import Values

Images = NDArray[np.uint8]  # B H W 3, or H W 3
Floats = NDArray[np.floating[Any]]
Generators = Sequence[np.random.Generator]  # one for each image, so that images do not depend on each other


# Noise


def gaussian_noise(images: Images, generators: Generators, values: Values) -> Images:
    (sigma,) = values
    noise = draw(generators, lambda generator: generator.standard_normal(images.shape[1:]))
    noise *= sigma
    noise += to_unit(images)
    return to_uint8(noise)


def speckle_noise(images: Images, generators: Generators, values: Values) -> Images:
    """Gaussian noise in proportion to the signal."""
    (sigma,) = values
    noise = draw(generators, lambda generator: generator.standard_normal(images.shape[1:]))
    noise *= sigma
    noise += 1
    noise *= to_unit(images)
    return to_uint8(noise)


def shot_noise(images: Images, generators: Generators, values: Values) -> Images:
    """Photon counts: the fewer photons at full brightness, the coarser."""
    (photons,) = values
    expected = to_unit(images) * photons
    for mean, generator in zip(expected, generators, strict=True):
        mean[:] = generator.poisson(mean)
    return to_uint8(expected / photons)


def impulse_noise(images: Images, generators: Generators, values: Values) -> Images:
    """Salt and pepper, for each channel separately and in equal parts."""
    (amount,) = values
    chance = draw(generators, lambda generator: generator.random(images.shape[1:], dtype=np.float32))
    out = images.copy()
    out[chance < amount] = 255
    out[chance < amount / 2] = 0
    return out


# Blur


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


# Weather


def snow(images: Images, generators: Generators, values: Values) -> Images:
    mean, sigma, zoom, threshold, radius, blur, weight = values
    flakes = draw(generators, lambda generator: generator.normal(mean, sigma, images.shape[1:3]))
    flakes = clipped_zoom(flakes[..., None], zoom)[..., 0]
    flakes[flakes < threshold] = 0
    angles = [generator.uniform(-135, -45) for generator in generators]
    fallen = [motion_blurred(layer, radius, blur, angle) for layer, angle in zip(to_uint8(flakes), angles, strict=True)]
    layer = to_unit(np.stack(fallen))
    unit = to_unit(images)
    grey = 0.299 * unit[..., 0] + 0.587 * unit[..., 1] + 0.114 * unit[..., 2]
    whitened = np.maximum(unit, grey[..., None] * 1.5 + 0.5)
    unit *= weight
    whitened *= 1 - weight
    unit += whitened
    unit += (layer + layer[:, ::-1, ::-1])[..., None]
    return to_uint8(unit)


def frost(images: Images, generators: Generators, values: Values, textures: FrostTextures | None = None) -> Images:
    weight, frost_weight, scale = values
    photos = textures or generated_textures()
    crops = [photos.crop(generator, images.shape[1:3], scale) for generator in generators]
    return np.minimum(weight * images + frost_weight * np.stack(crops), 255).astype(np.uint8)


def plasma(generators: Generators, size: int, decay: float) -> Floats:
    """Diamond-square clouds from 0 to 1, B size size, that wrap around; `size` is a power of two."""
    noise = draw(generators, lambda generator: generator.uniform(-1, 1, size * size - 1))
    clouds = np.zeros((len(generators), size, size))
    used, step, wibble = 0, size, 100.0
    while step >= 2:
        half, cells = step // 2, size // step
        bumps = noise[:, used : used + 3 * cells**2].reshape(-1, 3, cells, cells)
        bumps *= wibble**2  # squared as published, where the wibble is both the range and a factor
        corners = clouds[:, ::step, ::step]
        square = corners + np.roll(corners, -1, axis=1)
        square += np.roll(square, -1, axis=2)
        centres = square / 4 + bumps[:, 0]
        top = corners + np.roll(corners, -1, axis=2) + centres + np.roll(centres, 1, axis=1)
        left = corners + np.roll(corners, -1, axis=1) + centres + np.roll(centres, 1, axis=2)
        clouds[:, half::step, half::step] = centres
        clouds[:, ::step, half::step] = top / 4 + bumps[:, 1]
        clouds[:, half::step, ::step] = left / 4 + bumps[:, 2]
        used, step, wibble = used + 3 * cells**2, half, wibble / decay
    clouds -= clouds.min(axis=(1, 2), keepdims=True)
    clouds /= clouds.max(axis=(1, 2), keepdims=True)
    return clouds


def fog(images: Images, generators: Generators, values: Values) -> Images:
    amount, decay = values
    height, width = images.shape[1:3]
    size = 1 << (max(height, width) - 1).bit_length()
    unit = to_unit(images)
    brightest = unit.max(axis=(1, 2, 3), keepdims=True)
    unit += amount * plasma(generators, size, decay)[:, :height, :width, None]
    return to_uint8(unit * brightest / (brightest + amount))


def brightness(images: Images, generators: Generators, values: Values) -> Images:
    (amount,) = values
    hsv = rgb_to_hsv(to_unit(images))
    hsv[..., 2] = np.clip(hsv[..., 2] + amount, 0, 1)
    return to_uint8(hsv_to_rgb(hsv))


_WATER = np.array([175, 238, 238], dtype=np.float32) / 255  # pale turquoise
_MUD = np.array([63, 42, 20], dtype=np.float32) / 255


def spatter(images: Images, generators: Generators, values: Values) -> Images:
    """Drops on the lens: water at the lower severities, mud at the higher ones."""
    mean, sigma, smoothness, threshold, strength, mud = values
    unit = to_unit(images).astype(np.float32)
    for image, generator in zip(unit, generators, strict=True):
        liquid = smooth(generator.normal(mean, sigma, image.shape[:2]), smoothness)
        if mud:
            cover = smooth((liquid > threshold).astype(np.float32), strength)[..., None]
            cover = np.where(cover < 0.8, 0, cover)
            image *= 1 - cover
            image += cover * _MUD
        else:
            image += strength * _refraction(np.where(liquid < threshold, 0, liquid))[..., None] * _WATER
    return to_uint8(unit)


def _refraction(liquid: Floats) -> Floats:
    """Light and shade of water drops, at most 1: a relief that rises from their outlines."""
    drops = to_uint8(liquid)
    relief = cv2.distanceTransform(255 - cv2.Canny(drops, 50, 150), cv2.DIST_L2, 5)
    relief = cv2.equalizeHist(cv2.blur(np.minimum(relief, 20), (3, 3)).astype(np.uint8))
    relief = cv2.filter2D(relief, cv2.CV_8U, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]))
    light = drops * cv2.blur(relief, (3, 3)).astype(np.float32)
    return np.asarray(light / max(light.max(), 1), dtype=np.float32)


# Digital


def contrast(images: Images, generators: Generators, values: Values) -> Images:
    (factor,) = values
    unit = to_unit(images)
    # Summed as integers: a sum of floats would depend on the size of the batch in its last bit.
    means = images.sum(axis=(1, 2), keepdims=True, dtype=np.int64) / (255 * images.shape[1] * images.shape[2])
    unit -= means
    unit *= factor
    unit += means
    return to_uint8(unit)


def saturate(images: Images, generators: Generators, values: Values) -> Images:
    factor, offset = values
    hsv = rgb_to_hsv(to_unit(images))
    hsv[..., 1] = np.clip(hsv[..., 1] * factor + offset, 0, 1)
    return to_uint8(hsv_to_rgb(hsv))


def pixelate(images: Images, generators: Generators, values: Values) -> Images:
    (scale,) = values
    height, width = images.shape[1:3]
    small = (int(width * scale), int(height * scale))
    box = Image.Resampling.BOX
    return np.stack(
        [np.asarray(Image.fromarray(image).resize(small, box).resize((width, height), box)) for image in images]
    )


def _recompressed(image: Images, quality: int) -> Images:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer))


def jpeg_compression(images: Images, generators: Generators, values: Values) -> Images:
    (quality,) = values
    return np.stack([_recompressed(image, int(quality)) for image in images])


def _jittered(image: Floats, jitter: float, generator: np.random.Generator) -> Floats:
    """A small affine map, given by three points around the centre that each move by up to `jitter` pixels."""
    height, width = image.shape[:2]
    centre = np.array([width // 2, height // 2], dtype=np.float32)
    arm = min(height, width) // 3
    points = centre + arm * np.array([[1, 1], [1, -1], [-1, -1]], dtype=np.float32)
    moved = points + generator.uniform(-jitter, jitter, points.shape).astype(np.float32)
    matrix = cv2.getAffineTransform(points, moved)
    sheared = cv2.warpAffine(image, matrix, (width, height), borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(sheared, dtype=image.dtype)


def displacement(shape: tuple[int, ...], strength: float, smoothness: float, generator: np.random.Generator) -> Floats:
    """One axis of the elastic field, in pixels."""
    field = generator.uniform(-1, 1, shape)
    return smooth(field, smoothness, truncate=3.0, border=cv2.BORDER_REFLECT) * strength


def _moved(image: Floats, dx: Floats, dy: Floats) -> Floats:
    """Linear interpolation of the image at x + dx, y + dy; it is mirrored at its edges."""
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


def elastic_transform(images: Images, generators: Generators, values: Values) -> Images:
    strength, smoothness, jitter = values
    unit = to_unit(images).astype(np.float32)
    for image, generator in zip(unit, generators, strict=True):
        sheared = _jittered(image, jitter, generator)
        dx, dy = (displacement(image.shape[:2], strength, smoothness, generator) for _ in "xy")
        image[:] = _moved(sheared, dx, dy)
    return to_uint8(unit)


# What several of them share


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
