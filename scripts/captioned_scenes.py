"""Draw the captioned pictures that `train_mini.py` trains on: single symbols, scenes, collages and patterns.

A model trained on single symbols only takes every picture for one, so other kinds of pictures have their own captions.
No picture has a corruption of the benchmark.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tta_panda.data.glyphs import (
    IMAGE_SIZE,
    Picture,
    Rng,
    draw_background,
    draw_symbol,
    photograph,
    place_symbol,
    random_pattern,
    symbols,
)


class Captioned(NamedTuple):
    picture: Picture
    caption: str
    concept: tuple[str, ...]
    """The content of the picture, whatever the wording: captions of one concept are not negatives of each other."""


TEMPLATES = ("a photo of a {}.", "a photo of a {}.", "a photo of a {}.", "a {}.", "a picture of a {}.", "a small {}.")


def draw_captioned(rng: Rng) -> Captioned:
    """Draw a training example of a random kind."""
    picture, concept = _random_kind(rng)(rng)
    subject = " and a ".join(concept)
    return Captioned(picture, TEMPLATES[rng.integers(len(TEMPLATES))].format(subject), concept)


@functools.cache
def _names() -> tuple[str, ...]:
    return tuple(symbols())


def _random_symbols(rng: Rng, count: int) -> tuple[str, ...]:
    names = _names()
    return tuple(sorted(names[i] for i in rng.choice(len(names), count, replace=False)))


def _single(rng: Rng) -> tuple[Picture, tuple[str, ...]]:
    concept = _random_symbols(rng, 1)
    return draw_symbol(concept[0], rng), concept


def _scene(rng: Rng) -> tuple[Picture, tuple[str, ...]]:
    concept = _random_symbols(rng, 2)
    canvas = draw_background(rng)
    corner = rng.choice([-0.24, 0.24], 2)
    for name, centre in zip(rng.permutation(concept), (corner, -corner), strict=True):
        place_symbol(canvas, str(name), rng, rng.uniform(0.38, 0.52), centre + rng.uniform(-0.04, 0.04, 2))
    return photograph(canvas, rng), concept


def _collage(rng: Rng) -> tuple[Picture, tuple[str, ...]]:
    """Draw pieces of several pictures in a regular or irregular grid."""
    canvas = np.empty((IMAGE_SIZE, IMAGE_SIZE, 3), np.float32)
    sources = [draw_symbol(name, rng) for name in _random_symbols(rng, 4)]
    rows, columns = _cuts(rng), _cuts(rng)
    for top, bottom in pairwise(rows):
        for left, right in pairwise(columns):
            source = sources[rng.integers(len(sources))]
            y = rng.integers(IMAGE_SIZE - (bottom - top) + 1)
            x = rng.integers(IMAGE_SIZE - (right - left) + 1)
            canvas[top:bottom, left:right] = source[y : y + bottom - top, x : x + right - left]
    return canvas, ("collage",)


def _cuts(rng: Rng) -> list[int]:
    inner = [[16], [11, 21], [8, 16, 24], sorted(rng.integers(6, 27, 1).tolist())][rng.integers(4)]
    return [0, *inner, IMAGE_SIZE]


def _close_up(rng: Rng) -> tuple[Picture, tuple[str, ...]]:
    """Draw a symbol so large that only a part of it is visible."""
    canvas = draw_background(rng)
    centre = rng.uniform(0.35, 0.8, 2) * rng.choice([-1, 1], 2)
    place_symbol(canvas, _random_symbols(rng, 1)[0], rng, rng.uniform(1.6, 2.6), centre, max_angle=180)
    return photograph(canvas, rng), ("close-up",)


def _pattern(rng: Rng) -> tuple[Picture, tuple[str, ...]]:
    kind = random_pattern(rng)
    return photograph(draw_background(rng, kind=kind), rng), (f"{kind} pattern",)


_Draw = Callable[[Rng], tuple[Picture, tuple[str, ...]]]

SHARES: tuple[tuple[float, _Draw], ...] = (
    (0.68, _single),
    (0.08, _scene),
    (0.12, _collage),
    (0.06, _close_up),
    (0.06, _pattern),
)
"""Relative frequencies of the kinds of pictures."""


def _random_kind(rng: Rng) -> _Draw:
    point = rng.uniform()
    for share, draw in SHARES:
        point -= share
        if point < 0:
            return draw
    return SHARES[0][1]
