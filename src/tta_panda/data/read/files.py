"""Labelled images in files, decoded on demand by several threads, resized and cropped by Pillow."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tta_panda.data.dataset import UNLABELLED, Indices, Labels, check_labels, checked_limit
from tta_panda.errors import DataError
from tta_panda.framing import Framing, as_framing, centre_offset
from tta_panda.workers import available_cores

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})

_MOST_THREADS = 16  # Pillow and hashlib release the interpreter's lock, so threads are enough
_FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


@dataclass(frozen=True)
class ImageFiles:
    """Images of any size in files. Only paths and labels are held in memory."""

    paths: tuple[Path, ...]
    labels: Labels
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not (self.labels == UNLABELLED).all():
            check_labels(self.labels, len(self.paths), self.class_names)

    def __len__(self) -> int:
        return len(self.paths)

    def images_at(self, indices: Indices, fit: int | Framing | None = None) -> NDArray[np.uint8]:
        with reading_threads() as pool:
            images = list(pool.map(partial(read_image, fit=fit), (self.paths[index] for index in indices)))
        sizes = {image.shape[:2] for image in images}
        if len(sizes) > 1:
            found = ", ".join(f"{height} x {width}" for height, width in sorted(sizes)[:5])
            raise DataError(
                f"Images of different sizes ({found}) cannot be stacked; give the size to fit them to, as in "
                "Stream(dataset, batch_size, seed, fit=model.image_size)."
            )
        return np.stack(images)

    def head(self, limit: int | None) -> ImageFiles:
        """At most `limit` images, evenly spaced: images are sorted by class, so the first ones cover few classes."""
        count = min(checked_limit(limit) or len(self), len(self))
        return self.select(np.arange(count) * len(self) // max(1, count))

    def select(self, indices: Indices) -> ImageFiles:
        """These images only, in this order."""
        return replace(self, paths=tuple(self.paths[index] for index in indices), labels=self.labels[indices])


def read_image(path: Path, fit: int | Framing | None = None) -> NDArray[np.uint8]:
    """One image (H, W, 3); with `fit`, resized and cropped."""
    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB") if fit is None else fit_picture(picture, fit))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        # Pillow reports broken files by all of these.
        raise DataError(f"Cannot read the image {path} ({error}); fetch it again, or remove it.") from error


def fit_picture(picture: Image.Image, fit: int | Framing) -> Image.Image:
    """RGB, resized and cropped by Pillow, as published results were: with a model's framing, or CLIP's for a number."""
    framing = as_framing(fit)
    size, resized = framing.size, framing.resized(*picture.size)
    if resized != picture.size:
        picture = picture.resize(resized, _FILTERS[framing.interpolation])
    if resized != (size, size):
        left, top = (centre_offset(side, size) for side in resized)
        picture = picture.crop((left, top, left + size, top + size))
    # open_clip converts last; for palette and grey images, the order makes a difference.
    return picture.convert("RGB")


def reading_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_MOST_THREADS, available_cores()))


def image_paths(folder: Path) -> list[Path]:
    """Image files directly in a folder, sorted by name."""
    return [folder / entry.name for entry in image_entries(folder)]


def image_entries(folder: Path) -> list[os.DirEntry[str]]:
    """Image files directly in a folder, sorted by name; `os.DirEntry` is faster than `Path` for many files."""
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if is_image(entry)), key=lambda entry: entry.name)


def is_image(entry: Path | os.DirEntry[str]) -> bool:
    """Whether this is a file with the suffix of an image, and not hidden: some systems add hidden copies."""
    stem, dot, suffix = entry.name.rpartition(".")
    return f"{dot}{suffix}".lower() in SUFFIXES and bool(stem) and not stem.startswith(".") and entry.is_file()


def labelled_files(folders: Iterable[Path], class_names: tuple[str, ...]) -> ImageFiles:
    """The images of one folder per class, sorted by class."""
    per_class = [image_paths(folder) for folder in folders]
    labels = np.repeat(np.arange(len(per_class)), [len(paths) for paths in per_class])
    return ImageFiles(tuple(path for paths in per_class for path in paths), labels, class_names)
