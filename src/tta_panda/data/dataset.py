"""Labelled images in memory or memory-mapped, and what a loader of them looks like."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tta_panda.errors import DataError, InvalidInputError

CLEAN = "clean"
"""The domain without corruption; its severity is 0."""


@dataclass(frozen=True)
class ImageDataset:
    """N labelled images of one domain: one corruption at one severity, or none."""

    images: NDArray[np.uint8]  # (N, H, W, 3), possibly a memory map
    labels: NDArray[Any]  # (N,) integers
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.shape[3] != 3 or self.images.dtype != np.uint8:
            found = f"{self.images.dtype} {self.images.shape}"
            raise DataError(f"Images must be a uint8 array of shape (N, H, W, 3), found {found}.")
        if self.labels.shape != (len(self.images),):
            raise DataError(f"{len(self.images)} images need as many labels, found the shape {self.labels.shape}.")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(self.class_names):
            raise DataError(
                f"Labels must lie in 0..{len(self.class_names) - 1} for {len(self.class_names)} classes, "
                f"found {self.labels.min()}..{self.labels.max()}."
            )

    def __len__(self) -> int:
        return len(self.images)

    def head(self, limit: int | None) -> ImageDataset:
        """The first `limit` images; all of them for None."""
        if limit is None:
            return self
        if limit < 1:
            raise InvalidInputError(f"limit must be at least 1 image, got {limit}.")
        return replace(self, images=self.images[:limit], labels=self.labels[:limit])
