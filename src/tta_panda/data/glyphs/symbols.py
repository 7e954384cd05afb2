"""The symbols of the embedded data: pictographs of DejaVu Sans, with their Unicode names.

The font ships with matplotlib, so nothing has to be downloaded. Characters that differ only in how they are drawn
("BLACK STAR", "WHITE STAR", "HEAVY CHECK MARK", ...) share one name and become variants of one symbol.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

ATLAS_SIZE = 96
"""Side of the square alpha mask that every character is drawn into, several times the size of an image."""

BLOCKS = (range(0x2600, 0x27C0), range(0x1F300, 0x1F700))
"""Miscellaneous Symbols and Dingbats; then the pictographs and emoticons."""

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


def symbol_name(character: str) -> str:
    """The name of a character in captions: its Unicode name without the words that describe the drawing."""
    name = _STYLE_WORDS.sub("", unicodedata.name(character).lower())
    return _KIND_WORDS.sub("", " ".join(name.split()))


@functools.cache
def symbols() -> dict[str, tuple[str, ...]]:
    """Every symbol name with the characters that draw it, in code point order."""
    missing = _draw("\U0010fffd")
    variants: dict[str, list[str]] = {}
    for character in (chr(code) for block in BLOCKS for code in block):
        if unicodedata.name(character, "") and not np.array_equal(_draw(character), missing):
            variants.setdefault(symbol_name(character), []).append(character)
    return {name: tuple(characters) for name, characters in variants.items()}


@functools.cache
def masks(name: str) -> NDArray[np.uint8]:
    """The alpha masks (variants, ATLAS_SIZE, ATLAS_SIZE) of a symbol, each scaled to its square's longer side."""
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
