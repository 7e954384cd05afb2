"""The embedded data: pictures of named symbols, drawn on demand, clean or corrupted."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from tta_panda.data import CLEAN
from tta_panda.data.corruptions import corrupt_batch
from tta_panda.data.dataset import ImageDataset
from tta_panda.data.glyphs.render import draw_symbol, to_uint8
from tta_panda.data.glyphs.symbols import BENCHMARK_CLASSES, VALIDATION_CLASSES
from tta_panda.data.source import DataSource

IMAGES_PER_CLASS = 100


@dataclass(frozen=True, kw_only=True)
class Glyphs(DataSource):
    """Pictures of named symbols."""

    classes: tuple[str, ...]
    seed: int  # training uses seeds of two numbers, so it never draws the same pictures

    embedded: ClassVar[bool] = True

    def load(self, root: Path | None, corruption: str, severity: int) -> ImageDataset:
        clean = draw_glyphs(self.classes, IMAGES_PER_CLASS, self.seed)
        if corruption == CLEAN:
            return clean
        return replace(clean, images=corrupt_batch(clean.images, corruption, severity, seed=self.seed))


GLYPHS_C = Glyphs(
    name="glyphs-c", about="The embedded benchmark: 1,000 pictures of ten symbols.", classes=BENCHMARK_CLASSES, seed=1
)
GLYPHS_VAL_C = Glyphs(
    name="glyphs-val-c",
    about="Embedded, for choosing settings: 1,000 pictures of ten other symbols.",
    classes=VALIDATION_CLASSES,
    seed=2,
)


@functools.lru_cache(maxsize=4)
def draw_glyphs(class_names: tuple[str, ...], images_per_class: int, seed: int) -> ImageDataset:
    """Pictures of the named symbols, the classes in turn."""
    rng = np.random.default_rng(seed)
    labels = np.tile(np.arange(len(class_names)), images_per_class)
    images = np.stack([to_uint8(draw_symbol(class_names[label], rng)) for label in labels])
    images.flags.writeable = False  # shared through the cache
    return ImageDataset(images, labels, class_names)
