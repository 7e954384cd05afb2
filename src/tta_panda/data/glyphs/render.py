"""Draw small pictures: symbols on patterned backgrounds, in varying light.

Everything takes an explicit `numpy.random.Generator` and works on float RGB arrays (H, W, 3) in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from tta_panda.data.glyphs.symbols import ATLAS_SIZE, masks

Picture = NDArray[np.float32]
Rng = np.random.Generator

IMAGE_SIZE = 32
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
_SUPERSAMPLING = 2
_LEAST_CONTRAST = 0.25


def draw_symbol(name: str, rng: Rng, size: int = IMAGE_SIZE) -> Picture:
    """One symbol, large in the picture, on a patterned background."""
    background = draw_background(rng, size)
    place_symbol(background, name, rng, scale=rng.uniform(0.65, 1.0), centre=rng.uniform(-0.08, 0.08, 2))
    return photograph(background, rng)


def place_symbol(
    canvas: Picture, name: str, rng: Rng, scale: float, centre: NDArray[np.float64], max_angle: float = 15.0
) -> None:
    """Paint a symbol on `canvas` in place; `scale` and `centre` (from the middle) are shares of the picture's side."""
    size = canvas.shape[0]
    variants = masks(name)
    fine = size * _SUPERSAMPLING
    matrix = cv2.getRotationMatrix2D(
        (ATLAS_SIZE / 2, ATLAS_SIZE / 2), rng.uniform(-max_angle, max_angle), scale * fine / ATLAS_SIZE
    )
    matrix[:, 2] += fine / 2 - ATLAS_SIZE / 2 + centre * fine
    mask = cv2.warpAffine(variants[rng.integers(len(variants))], matrix, (fine, fine), flags=cv2.INTER_LINEAR)
    alpha = cv2.resize(mask, (size, size), interpolation=cv2.INTER_AREA).astype(np.float32)[..., None] / 255
    ink = _contrasting_colour(float((canvas @ _LUMA).mean()), rng)
    canvas *= 1 - alpha
    canvas += alpha * ink


def photograph(picture: Picture, rng: Rng) -> Picture:
    """The variation of ordinary photographs: exposure, contrast, white balance and gamma, all mild."""
    gain = (rng.uniform(0.8, 1.15) * rng.uniform(0.92, 1.08, 3)).astype(np.float32)
    contrast = np.float32(rng.uniform(0.7, 1.15))
    mean = picture.mean()
    shot = ((picture - mean) * contrast + mean) * gain
    return np.asarray(cv2.pow(np.clip(shot, 0, 1), rng.uniform(0.8, 1.25)))


def to_uint8(picture: Picture) -> NDArray[np.uint8]:
    return (picture * 255 + 0.5).astype(np.uint8)


def draw_background(rng: Rng, size: int = IMAGE_SIZE, kind: str | None = None) -> Picture:
    """Two colours of moderate difference in a pattern; `kind` is one of `PATTERNS`, random by default."""
    kind = kind or random_pattern(rng)
    first = rng.uniform(0, 1, 3).astype(np.float32)
    second = np.clip(first + rng.uniform(-0.35, 0.35, 3), 0, 1).astype(np.float32)
    blend = PATTERNS[kind](rng, size).astype(np.float32)[..., None]
    return first + (second - first) * blend


def random_pattern(rng: Rng) -> str:
    return tuple(PATTERNS)[rng.integers(len(PATTERNS))]


def _contrasting_colour(background_luma: float, rng: Rng) -> NDArray[Any]:
    for _ in range(16):
        colour = rng.uniform(0, 1, 3)
        if abs(float(colour @ _LUMA) - background_luma) > _LEAST_CONTRAST:
            return colour
    return np.full(3, 0.0 if background_luma > 0.5 else 1.0)


def _coordinates(size: int, angle: float) -> tuple[NDArray[Any], NDArray[Any]]:
    x = np.arange(size, dtype=np.float32) / size
    y = x[:, None]
    cosine, sine = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    return x * cosine + y * sine, y * cosine - x * sine


def plain(rng: Rng, size: int) -> NDArray[Any]:
    return np.zeros((size, size))


def gradient(rng: Rng, size: int) -> NDArray[Any]:
    along, _ = _coordinates(size, rng.uniform(0, 2 * np.pi))
    return np.asarray((along - along.min()) / np.ptp(along))


def striped(rng: Rng, size: int) -> NDArray[Any]:
    along, _ = _coordinates(size, rng.uniform(0, np.pi))
    return _soft_step(np.sin(2 * np.pi * (along * rng.uniform(2, 6) + rng.uniform())))


def checkered(rng: Rng, size: int) -> NDArray[Any]:
    along, across = _coordinates(size, rng.uniform(0, np.pi))
    frequency = rng.uniform(1.5, 5) * np.pi
    return _soft_step(np.sin(frequency * (along + rng.uniform())) * np.sin(frequency * (across + rng.uniform())))


def dotted(rng: Rng, size: int) -> NDArray[Any]:
    along, across = _coordinates(size, rng.uniform(0, np.pi))
    frequency = 2 * np.pi * rng.uniform(2, 5)
    return _soft_step(np.cos(frequency * along) + np.cos(frequency * across) - rng.uniform(0.4, 1.2))


def cloudy(rng: Rng, size: int) -> NDArray[Any]:
    cells = int(rng.integers(3, 9))
    field = cv2.resize(rng.uniform(0, 1, (cells, cells)), (size, size), interpolation=cv2.INTER_CUBIC)
    return np.clip(field, 0, 1)


def _soft_step(field: NDArray[Any]) -> NDArray[Any]:
    return np.clip(field * 2 + 0.5, 0, 1)


PATTERNS: dict[str, Callable[[Rng, int], NDArray[Any]]] = {
    pattern.__name__: pattern for pattern in (plain, gradient, striped, checkered, dotted, cloudy)
}
