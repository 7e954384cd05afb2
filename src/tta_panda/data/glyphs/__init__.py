"""The embedded data: pictures of named symbols, drawn on demand, clean or corrupted."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from tta_panda.data.corruptions import corrupt_batch
from tta_panda.data.dataset import CLEAN, ImageDataset
from tta_panda.data.glyphs.render import draw_symbol, to_uint8
from tta_panda.data.glyphs.symbols import BENCHMARK_CLASSES, VALIDATION_CLASSES

IMAGES_PER_CLASS = 100
_BENCHMARK_SEED, _VALIDATION_SEED = 1, 2  # of the pictures; training draws from seeds of two numbers


def load_glyphs(root: Path | None, corruption: str, severity: int) -> ImageDataset:
    """The benchmark: 1,000 pictures of ten symbols."""
    return _load(BENCHMARK_CLASSES, _BENCHMARK_SEED, corruption, severity)


def load_validation_glyphs(root: Path | None, corruption: str, severity: int) -> ImageDataset:
    """1,000 pictures of ten other symbols, to choose recipes and defaults on."""
    return _load(VALIDATION_CLASSES, _VALIDATION_SEED, corruption, severity)


def _load(class_names: tuple[str, ...], seed: int, corruption: str, severity: int) -> ImageDataset:
    clean = draw_glyphs(class_names, IMAGES_PER_CLASS, seed)
    if corruption == CLEAN:
        return clean
    return ImageDataset(corrupt_batch(clean.images, corruption, severity, seed=seed), clean.labels, clean.class_names)


@functools.lru_cache(maxsize=4)
def draw_glyphs(class_names: tuple[str, ...], images_per_class: int, seed: int) -> ImageDataset:
    """Pictures of the named symbols, class after class in turn."""
    rng = np.random.default_rng(seed)
    labels = np.tile(np.arange(len(class_names)), images_per_class)
    images = np.stack([to_uint8(draw_symbol(class_names[label], rng)) for label in labels])
    images.flags.writeable = False  # shared through the cache
    return ImageDataset(images, labels, class_names)
