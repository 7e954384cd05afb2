"""Labelled images in files, decoded when they are asked for, several at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tta_panda.data.dataset import UNLABELLED, Indices, Labels, check_labels, checked_limit
from tta_panda.data.fit import fit_picture
from tta_panda.errors import DataError
from tta_panda.framing import Framing

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})

_THREADS = min(16, os.cpu_count() or 1)  # Pillow decodes outside the interpreter's lock, so threads are enough


@dataclass(frozen=True)
class ImageFiles:
    """Images of any size in files. Only paths and labels are held in memory."""

    paths: tuple[Path, ...]
    labels: Labels
    class_names: tuple[str, ...]

    same_size: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (self.labels == UNLABELLED).all():
            check_labels(self.labels, len(self.paths), self.class_names)

    def __len__(self) -> int:
        return len(self.paths)

    def images_at(self, indices: Indices, fit: int | Framing | None = None) -> NDArray[np.uint8]:
        with ThreadPoolExecutor(min(_THREADS, max(1, len(indices)))) as pool:
            images = list(pool.map(partial(read_image, fit=fit), (self.paths[index] for index in indices)))
        sizes = {image.shape[:2] for image in images}
        if len(sizes) > 1:
            found = ", ".join(f"{height} x {width}" for height, width in sorted(sizes)[:5])
            raise DataError(
                f"Images of different sizes ({found}) make no batch as they are; give the size to fit them to, as in "
                "Stream(dataset, batch_size, seed, fit=model.image_size)."
            )
        return np.stack(images)

    def head(self, limit: int | None) -> ImageFiles:
        """`limit` images, evenly spaced: they are sorted by class, and the first ones would be of a few classes."""
        count = min(checked_limit(limit) or len(self), len(self))
        return self.select(np.arange(count) * len(self) // max(1, count))

    def select(self, indices: Indices) -> ImageFiles:
        """These images only, in this order."""
        return replace(self, paths=tuple(self.paths[index] for index in indices), labels=self.labels[indices])


def read_image(path: Path, fit: int | Framing | None = None) -> NDArray[np.uint8]:
    """One image (H, W, 3), with `fit` brought to that many pixels a side."""
    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB") if fit is None else fit_picture(picture, fit))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        # Pillow reports broken files by all of these.
        raise DataError(f"Cannot read the image {path} ({error}); fetch it again, or take it away.") from error


def image_paths(folder: Path) -> list[Path]:
    """Image files directly in a folder, sorted by name."""
    return sorted(path for path in folder.iterdir() if is_image(path))


def is_image(path: Path) -> bool:
    # Names that begin with a dot are the hidden companions that some systems leave beside pictures.
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def labelled_files(folders: Iterable[Path], class_names: tuple[str, ...]) -> ImageFiles:
    """The images of one folder per class, class after class."""
    per_class = [image_paths(folder) for folder in folders]
    labels = np.repeat(np.arange(len(per_class)), [len(paths) for paths in per_class])
    return ImageFiles(tuple(path for paths in per_class for path in paths), labels, class_names)
