"""Digital: contrast, elastic transform, pixelate, JPEG; and saturate."""

from __future__ import annotations

import io

import cv2
import numpy as np
from PIL import Image

from tta_panda.data.corruptions.arrays import Floats, Generators, Images, from_hsv, smooth, to_hsv, to_uint8, to_unit
from tta_panda.data.corruptions.severity import Values


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
    hue, saturation, value = to_hsv(to_unit(images))
    return to_uint8(from_hsv(hue, np.clip(saturation * factor + offset, 0, 1), value))


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
