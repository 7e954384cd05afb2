"""The protocol of data sets, and data sets whose images are in one array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from tta_panda.errors import DataError, InvalidInputError
from tta_panda.images import Framing

UNLABELLED = -1
"""The label of an image of unknown class: the class can be predicted, but not evaluated."""

Labels = NDArray[Any]  # (N,) integers
Indices = NDArray[np.int64]


class Dataset(Protocol):
    """N images of one domain (one corruption at one severity, or none), read on demand."""

    @property
    def labels(self) -> Labels: ...

    @property
    def class_names(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...

    def images_at(self, indices: Indices, fit: int | Framing | None = None) -> NDArray[np.uint8]:
        """Images (B, H, W, 3); with `fit`, each resized and cropped by Pillow. Images of several sizes need `fit`."""

    def head(self, limit: int | None) -> Self:
        """At most `limit` images, always the same ones; None for all."""


@dataclass(frozen=True)
class ImageDataset:
    """Labelled images of one size, as an array in memory or memory-mapped."""

    images: NDArray[np.uint8]  # (N, H, W, 3)
    labels: Labels
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.shape[3] != 3 or self.images.dtype != np.uint8:
            found = f"{self.images.dtype} {self.images.shape}"
            raise DataError(f"Images must be a uint8 array of shape (N, H, W, 3), found {found}.")
        check_labels(self.labels, len(self.images), self.class_names)

    def __len__(self) -> int:
        return len(self.images)

    def images_at(self, indices: Indices, fit: int | Framing | None = None) -> NDArray[np.uint8]:
        images = np.ascontiguousarray(self.images[indices])
        if fit is None:
            return images
        from PIL import Image

        from tta_panda.images import fit_picture

        return np.stack([np.asarray(fit_picture(Image.fromarray(image), fit)) for image in images])

    def head(self, limit: int | None) -> ImageDataset:
        chosen = slice(checked_limit(limit))
        return replace(self, images=self.images[chosen], labels=self.labels[chosen])


def check_labels(labels: Labels, images: int, class_names: Sequence[str]) -> None:
    """Raise `DataError` unless every image has a label, and every label a class."""
    if labels.shape != (images,):
        raise DataError(f"{images} images need as many labels, found the shape {labels.shape}.")
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(class_names):
        raise DataError(
            f"Labels must lie in 0..{len(class_names) - 1} for {len(class_names)} classes, "
            f"found {labels.min()}..{labels.max()}."
        )


def checked_limit(limit: int | None) -> int | None:
    if limit is not None and limit < 1:
        raise InvalidInputError(f"limit must be at least 1 image, got {limit}.")
    return limit
