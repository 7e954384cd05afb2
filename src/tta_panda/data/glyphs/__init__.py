"""The embedded data: pictures of named symbols, drawn on demand, clean or corrupted."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tta_panda.data import CLEAN
from tta_panda.data.corruptions import corrupt_batch, expand_corruptions
from tta_panda.data.dataset import ImageDataset, Indices, Labels, checked_limit
from tta_panda.data.glyphs.render import draw_symbol, to_uint8
from tta_panda.data.glyphs.symbols import BENCHMARK_CLASSES, VALIDATION_CLASSES
from tta_panda.data.source import DataSource, Size
from tta_panda.images import Framing

IMAGES = 1000
"""Of a domain, unless a limit asks for more."""


@dataclass(frozen=True)
class GlyphPictures:
    """Pictures of one domain, drawn when they are first looked at. Picture i is the same however many there are."""

    class_names: tuple[str, ...]
    seed: int
    corruption: str
    severity: int
    count: int = IMAGES

    @functools.cached_property
    def images(self) -> NDArray[np.uint8]:
        per_class = -(-self.count // len(self.class_names))
        clean = draw_glyphs(self.class_names, per_class, self.seed).images[: self.count]
        return (
            clean if self.corruption == CLEAN else corrupt_batch(clean, self.corruption, self.severity, seed=self.seed)
        )

    @functools.cached_property
    def labels(self) -> Labels:
        return np.arange(self.count) % len(self.class_names)

    def __len__(self) -> int:
        return self.count

    def images_at(self, indices: Indices, fit: int | Framing | None = None) -> NDArray[np.uint8]:
        return ImageDataset(self.images, self.labels, self.class_names).images_at(indices, fit)

    def head(self, limit: int | None) -> GlyphPictures:
        """As many as `limit` says, also where these are more than by default."""
        return replace(self, count=checked_limit(limit) or self.count)


@dataclass(frozen=True, kw_only=True)
class Glyphs(DataSource):
    """Pictures of named symbols."""

    classes: tuple[str, ...]
    seed: int  # training uses seeds of two numbers, so it never draws the same pictures

    embedded: ClassVar[bool] = True

    def load(self, root: Path | None, corruption: str, severity: int) -> GlyphPictures:
        if corruption != CLEAN:
            expand_corruptions([corruption], [severity])  # raises for what cannot be drawn
        return GlyphPictures(self.classes, self.seed, corruption, severity)


GLYPHS_C = Glyphs(
    name="glyphs-c",
    about="The embedded benchmark: 1,000 pictures of ten symbols, or as many as a limit says.",
    size=Size(IMAGES, len(BENCHMARK_CLASSES)),
    classes=BENCHMARK_CLASSES,
    seed=1,
)
GLYPHS_VAL_C = Glyphs(
    name="glyphs-val-c",
    about="Embedded, for choosing settings: 1,000 pictures of ten other symbols, or as many as a limit says.",
    size=Size(IMAGES, len(VALIDATION_CLASSES)),
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
