"""Weather: snow, frost, fog, brightness; and spatter."""

from __future__ import annotations

import cv2
import numpy as np

from tta_panda.data.corruptions.arrays import (
    Floats,
    Generators,
    Images,
    clipped_zoom,
    draw,
    from_hsv,
    smooth,
    to_hsv,
    to_uint8,
    to_unit,
)
from tta_panda.data.corruptions.blur import motion_blurred
from tta_panda.data.corruptions.frost import FrostTextures, generated_textures
from tta_panda.data.corruptions.severity import Values


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
    hue, saturation, value = to_hsv(to_unit(images))
    return to_uint8(from_hsv(hue, saturation, np.clip(value + amount, 0, 1)))


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
