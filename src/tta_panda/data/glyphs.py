"""The embedded data sets: pictures of named symbols on patterned backgrounds, drawn on demand, clean or corrupted.

The symbols are pictographs of DejaVu Sans, with their Unicode names. The font ships with matplotlib, so nothing has to
be downloaded. Characters that differ only in how they are drawn ("BLACK STAR", "WHITE STAR", "HEAVY CHECK MARK", ...)
share one name and become variants of one symbol. Drawing functions take an explicit `numpy.random.Generator` and work
on float RGB arrays (H, W, 3) in [0, 1].
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from tta_panda.data import CLEAN
from tta_panda.data.corruptions import corrupt, expand_corruptions
from tta_panda.data.dataset import Dataset, ImageDataset, Indices, Labels, checked_limit
from tta_panda.data.source import DataSource
from tta_panda.images import Framing

Picture = NDArray[np.float32]
Rng = np.random.Generator

IMAGES = 1000
"""Default number of images in a domain."""

IMAGE_SIZE = 32
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
_SUPERSAMPLING = 2
_MIN_CONTRAST = 0.25
ATLAS_SIZE = 96
"""Side of the square alpha mask of each character, several times the size of an image."""

BLOCKS = (range(0x2600, 0x27C0), range(0x1F300, 0x1F700))
"""Unicode blocks: Miscellaneous Symbols and Dingbats; then pictographs and emoticons."""

_STYLE_WORDS = re.compile(
    r"\b(black|white|heavy|medium|light|small|outlined|shadowed|dingbat|negative|circled sans-serif|ornament)\b"
)
_KIND_WORDS = re.compile(r" (sign|symbol|suit)$")

BENCHMARK_CLASSES = (
    "airplane", "umbrella", "snowman", "scissors", "anchor",
    "telephone", "heart", "chess knight", "snowflake", "envelope",
)  # fmt: skip
"""The classes of `glyphs-c`. Results on these are never used to choose anything."""

VALIDATION_CLASSES = (
    "cloud", "star", "skull and crossbones", "chess rook", "hot beverage",
    "yin yang", "cat face", "writing hand", "gear", "peace",
)  # fmt: skip
"""The classes of `glyphs-val-c`, for choosing recipes and defaults; none is in the benchmark."""


@dataclass(frozen=True)
class GlyphPictures(Dataset):
    """Pictures of one domain, drawn on first use. Picture i does not depend on the number of pictures."""

    class_names: tuple[str, ...]
    seed: int
    corruption: str
    severity: int
    count: int = IMAGES

    @functools.cached_property
    def images(self) -> NDArray[np.uint8]:
        per_class = -(-self.count // len(self.class_names))
        clean = draw_glyphs(self.class_names, per_class, self.seed).images[: self.count]
        return clean if self.corruption == CLEAN else corrupt(clean, self.corruption, self.severity, seed=self.seed)

    @functools.cached_property
    def labels(self) -> Labels:  # type: ignore[override]  # computed instead of a field
        return np.arange(self.count) % len(self.class_names)

    def images_at(self, indices: Indices, fit: int | Framing | None = None) -> NDArray[np.uint8]:
        return ImageDataset(self.images, self.labels, self.class_names).images_at(indices, fit)

    def head(self, limit: int | None) -> GlyphPictures:
        """Draw exactly `limit` pictures, which may be more than the default; None keeps the number."""
        return replace(self, count=checked_limit(limit) or self.count)


@dataclass(frozen=True, kw_only=True)
class Glyphs(DataSource):
    """Pictures of named symbols."""

    classes: tuple[str, ...]
    seed: int  # training uses pairs of numbers as seeds, so it never draws the same pictures

    embedded: ClassVar[bool] = True

    def load(self, root: Path | None, corruption: str, severity: int) -> GlyphPictures:
        if corruption != CLEAN:
            expand_corruptions([corruption], [severity])  # raises if unknown
        return GlyphPictures(self.classes, self.seed, corruption, severity)


GLYPHS_C = Glyphs(
    name="glyphs-c",
    about="The embedded benchmark: 1,000 pictures of ten symbols, or any other number as a limit.",
    size=(IMAGES, len(BENCHMARK_CLASSES)),
    classes=BENCHMARK_CLASSES,
    seed=1,
)
GLYPHS_VAL_C = Glyphs(
    name="glyphs-val-c",
    about="Embedded, for choosing settings: 1,000 pictures of ten other symbols, or any other number as a limit.",
    size=(IMAGES, len(VALIDATION_CLASSES)),
    classes=VALIDATION_CLASSES,
    seed=2,
)


@functools.lru_cache(maxsize=4)
def draw_glyphs(class_names: tuple[str, ...], images_per_class: int, seed: int) -> ImageDataset:
    """Draw pictures of the named symbols, with the classes in turn."""
    rng = np.random.default_rng(seed)
    labels = np.tile(np.arange(len(class_names)), images_per_class)
    images = np.stack([to_uint8(draw_symbol(class_names[label], rng)) for label in labels])
    images.flags.writeable = False  # shared through the cache
    return ImageDataset(images, labels, class_names)


def draw_symbol(name: str, rng: Rng, size: int = IMAGE_SIZE) -> Picture:
    """Draw one large symbol on a patterned background."""
    background = draw_background(rng, size)
    place_symbol(background, name, rng, scale=rng.uniform(0.65, 1.0), centre=rng.uniform(-0.08, 0.08, 2))
    return photograph(background, rng)


def place_symbol(
    canvas: Picture, name: str, rng: Rng, scale: float, centre: NDArray[np.float64], max_angle: float = 15.0
) -> None:
    """Paint a symbol on `canvas` in place; `scale` and `centre` (from the middle) are fractions of its side."""
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
    """Vary exposure, contrast, white balance and gamma mildly, as in ordinary photographs."""
    gain = (rng.uniform(0.8, 1.15) * rng.uniform(0.92, 1.08, 3)).astype(np.float32)
    contrast = np.float32(rng.uniform(0.7, 1.15))
    mean = picture.mean()
    shot = ((picture - mean) * contrast + mean) * gain
    return np.asarray(cv2.pow(np.clip(shot, 0, 1), rng.uniform(0.8, 1.25)))


def to_uint8(picture: Picture) -> NDArray[np.uint8]:
    return (picture * 255 + 0.5).astype(np.uint8)


def draw_background(rng: Rng, size: int = IMAGE_SIZE, kind: str | None = None) -> Picture:
    """Draw a pattern of two moderately different colours; `kind` is one of `PATTERNS`, random by default."""
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
        if abs(float(colour @ _LUMA) - background_luma) > _MIN_CONTRAST:
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


def symbol_name(character: str) -> str:
    """The name of a character in captions: its Unicode name without the words that describe its style."""
    name = _STYLE_WORDS.sub("", unicodedata.name(character).lower())
    return _KIND_WORDS.sub("", " ".join(name.split()))


@functools.cache
def symbols() -> dict[str, tuple[str, ...]]:
    """Characters of each symbol by its name, in code point order."""
    missing = _draw("\U0010fffd")
    variants: dict[str, list[str]] = {}
    for character in (chr(code) for block in BLOCKS for code in block):
        if unicodedata.name(character, "") and not np.array_equal(_draw(character), missing):
            variants.setdefault(symbol_name(character), []).append(character)
    return {name: tuple(characters) for name, characters in variants.items()}


@functools.cache
def masks(name: str) -> NDArray[np.uint8]:
    """The alpha masks (variants, ATLAS_SIZE, ATLAS_SIZE) of a symbol, each scaled to fill the square."""
    return np.stack([_fit(_draw(character)) for character in symbols()[name]])


@functools.cache
def _font() -> ImageFont.FreeTypeFont:
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    # The basic layout engine is part of every Pillow build; the other one would change glyph positions where installed.
    return ImageFont.truetype(str(path), ATLAS_SIZE, layout_engine=ImageFont.Layout.BASIC)


def _draw(character: str) -> NDArray[np.uint8]:
    font = _font()
    left, top, right, bottom = font.getbbox(character)
    canvas = Image.new("L", (max(1, int(right - left)), max(1, int(bottom - top))))
    ImageDraw.Draw(canvas).text((-left, -top), character, fill=255, font=font)
    return np.asarray(canvas)


def _fit(mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
    height, width = mask.shape
    scale = ATLAS_SIZE / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    square = Image.new("L", (ATLAS_SIZE, ATLAS_SIZE))
    resized = Image.fromarray(mask).resize(size, Image.Resampling.BICUBIC)
    square.paste(resized, ((ATLAS_SIZE - size[0]) // 2, (ATLAS_SIZE - size[1]) // 2))
    return np.asarray(square)
