"""Images of frost: generated ones, or photographs from a folder."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from tta_panda.data.listing import find_images
from tta_panda.errors import DataError
from tta_panda.files import read_regular
from tta_panda.images import read_image

Images = NDArray[np.uint8]
Floats = NDArray[np.floating[Any]]

_SIDE = 768  # of a generated texture; a fifth of it is still larger than a 64 px image
_STEPS = 4


class FrostTextures:
    """Photographs of frost (uint8, H W 3); `name` identifies them in notes and records."""

    def __init__(self, photos: Sequence[Images], name: str = "generated"):
        self.name = name
        self._at_scale: dict[float, list[Images]] = {1: list(photos)}

    def crop(self, generator: np.random.Generator, size: tuple[int, ...], scale: float) -> Images:
        """Crop a random part of a random photograph, which is first resized by `scale`."""
        if scale not in self._at_scale:
            resized = (cv2.resize(photo, (0, 0), fx=scale, fy=scale) for photo in self._at_scale[1])
            self._at_scale[scale] = [np.asarray(photo, dtype=np.uint8) for photo in resized]
        photos = self._at_scale[scale]
        photo = _mirrored(photos[generator.integers(len(photos))], size)
        top, left = (int(generator.integers(photo.shape[axis] - size[axis] + 1)) for axis in (0, 1))
        return photo[top : top + size[0], left : left + size[1]]


def _mirrored(photo: Images, size: tuple[int, ...]) -> Images:
    """Extend a photograph that is smaller than the image by its reflection."""
    bottom, right = max(0, size[0] - photo.shape[0]), max(0, size[1] - photo.shape[1])
    if not bottom and not right:
        return photo
    return np.asarray(cv2.copyMakeBorder(photo, 0, bottom, 0, right, cv2.BORDER_REFLECT), dtype=np.uint8)


def load_frost_textures(folder: str | Path) -> FrostTextures:
    """Read a folder of frost photographs (those of ImageNet-C, or your own) for `corrupt(..., frost_textures=...)`."""
    paths = find_images([folder]).paths if Path(folder).is_dir() else ()
    if not paths:
        raise DataError(
            f"Frost photographs: no image files in {folder}. Expected a folder of .png or .jpg photographs."
        )
    digests = b"".join(hashlib.sha256(read_regular(path)).digest() for path in paths)
    name = f"photographs {hashlib.sha256(digests).hexdigest()[:12]}"  # independent of the folder
    return FrostTextures([read_image(path) for path in paths], name)


@functools.lru_cache(maxsize=1)
def generated_textures() -> FrostTextures:
    """Five frosted panes, always the same."""
    generator = np.random.default_rng(20190328)
    return FrostTextures([_pane(generator) for _ in range(5)])


def _pane(generator: np.random.Generator) -> Images:
    """Ice ferns of two sizes and a rime of fine grains on a dark, bluish pane."""
    cover = np.clip(1.9 * _clouds(generator, (3, 7, 15), 0.6) - 0.35, 0, 1)  # where the pane is frozen over
    rime = _clouds(generator, (24, 96, 384), 0.9)
    large = _ferns(generator, count=26, length=0.30)
    small = _ferns(generator, count=120, length=0.12)
    ice = np.maximum(large, 0.75 * small * (0.35 + 0.65 * cover)) * (0.45 + 0.95 * rime)
    glow = cv2.GaussianBlur(ice, (0, 0), 5)
    sparkle = generator.random((_SIDE, _SIDE), dtype=np.float32) ** 6
    light = 0.13 + 0.2 * cover + 0.5 * cover * rime**2 + 0.5 * ice + 0.6 * glow + 0.25 * sparkle * cover * rime
    tint = np.array([1.22, 1.06, 0.96], dtype=np.float32)  # exponents: shadows are blue, lights are white
    return np.asarray(255 * np.clip(1.2 * light, 0, 1)[..., None] ** tint).astype(np.uint8)


def _clouds(generator: np.random.Generator, cells: Sequence[int], persistence: float) -> NDArray[np.float32]:
    """Smooth noise from 0 to 1 in several octaves."""
    total = np.zeros((_SIDE, _SIDE), dtype=np.float32)
    for octave, count in enumerate(cells):
        coarse = generator.random((count, count), dtype=np.float32)
        total += persistence**octave * cv2.resize(coarse, (_SIDE, _SIDE), interpolation=cv2.INTER_CUBIC)
    total -= total.min()
    return np.asarray(total / total.max(), dtype=np.float32)


def _ferns(generator: np.random.Generator, count: int, length: float) -> NDArray[np.float32]:
    """Curved stems with curved branches and twigs, as water freezes on glass: 0 to 1."""
    canvas = np.zeros((_SIDE, _SIDE), dtype=np.uint8)
    start: Floats = generator.random((count, 2)) * _SIDE
    # Neighbouring ferns grow in similar directions, which are read from a smooth map.
    flow = _clouds(generator, (3,), 1.0)[tuple(start.astype(np.intp).T[::-1])]
    angle: Floats = 3 * np.pi * flow + generator.normal(0, 0.3, count)
    extent: Floats = length * _SIDE * generator.uniform(0.5, 1.3, count)
    for shade, twigs in ((205, 15), (150, 8), (95, 0)):
        points, headings = _curves(start, angle, extent, bend=generator.normal(0, 0.5, (len(start),)))
        lines = np.round(points * 8).astype(np.int32)
        level = np.zeros_like(canvas)
        cv2.polylines(level, list(lines), False, shade, 1, cv2.LINE_AA, 3)
        canvas = np.maximum(canvas, level)
        if twigs:
            start, angle, extent = _twigs(generator, points, headings, extent, twigs)
    return canvas.astype(np.float32) / np.float32(205)


def _curves(start: Floats, angle: Floats, extent: Floats, bend: Floats) -> tuple[Floats, Floats]:
    """Arcs as polylines: points (n, steps + 1, 2) and the heading at each of them (n, steps + 1)."""
    share = np.linspace(0, 1, _STEPS + 1)
    headings = angle[:, None] + bend[:, None] * share
    moves = np.stack([np.cos(headings), np.sin(headings)], axis=-1) * (extent / _STEPS)[:, None, None]
    points = start[:, None] + np.concatenate([np.zeros_like(moves[:, :1]), np.cumsum(moves[:, :-1], axis=1)], axis=1)
    return points, headings


def _twigs(
    generator: np.random.Generator, points: Floats, headings: Floats, extent: Floats, count: int
) -> tuple[Floats, Floats, Floats]:
    """Start, angle and extent of the twigs on both sides of each curve: at sixty degrees, shorter towards the tip."""
    share = (np.arange(count) + 0.5) / count
    position = share * _STEPS
    step, part = position.astype(np.intp), (position % 1)[:, None]
    roots = points[:, step] * (1 - part) + points[:, step + 1] * part  # n count 2
    size = (len(points), count, 2)
    angle = headings[:, step, None] + np.array([-np.pi / 3, np.pi / 3]) + generator.normal(0, 0.06, size)
    length = (extent[:, None] * (0.06 + 0.3 * (1 - share)))[..., None] * generator.uniform(0.5, 1.2, size)
    return np.repeat(roots.reshape(-1, 2), 2, axis=0), angle.ravel(), length.ravel()
