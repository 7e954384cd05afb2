"""The `Dataset` interface, and data sets stored as one array or as image files."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

from tta_panda.errors import (
    BrokenImageError,
    DataError,
    InvalidInputError,
    StoreError,
    TtaPandaWarning,
    UnknownNameError,
)
from tta_panda.escapes import path_text
from tta_panda.executors import available_cores
from tta_panda.files import read_regular, save_file
from tta_panda.images import AS_SHOWN, Decoding, Framing, StoredImage, fit_picture, read_image

Labels = NDArray[Any]  # (N,) integers
Indices = NDArray[np.int64]

UNKNOWN = -1
"""The label of images of none of the classes."""

_MAX_THREADS = 16  # Pillow and hashlib release the GIL, so threads suffice
_FILES_PER_TASK = 256  # whose digests one thread computes at a time
_CHECK_SIZE = 32  # pixels; large JPEG files are decoded at reduced size to check them
_CLOCK_TICK = 3_000_000_000  # nanoseconds; some file systems keep times in steps of two seconds


class Dataset(ABC):
    """N images of one domain (one corruption at one severity, or none) with their labels, read on demand."""

    labels: Labels
    class_names: tuple[str, ...]

    @abstractmethod
    def images_at(self, indices: Indices, fit: int | Framing | None = None) -> NDArray[np.uint8]:
        """Read images (B, H, W, 3); with `fit`, resize and crop each with Pillow. Images of different sizes need it."""

    @abstractmethod
    def head(self, limit: int | None) -> Self:
        """Select at most `limit` images, always the same ones; None selects all."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        """One image and its label, as in torchvision's data sets."""
        place = range(len(self))[index]  # an `IndexError` beyond the end
        return Image.fromarray(self.images_at(np.array([place]))[0]), int(self.labels[place])

    def __iter__(self) -> Iterator[tuple[Image.Image, int]]:
        return (self[index] for index in range(len(self)))


@dataclass(frozen=True)
class ImageDataset(Dataset):
    """Labelled images of one size in an array, in memory or memory-mapped."""

    images: NDArray[np.uint8]  # (N, H, W, 3)
    labels: Labels
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.shape[3] != 3 or self.images.dtype != np.uint8:
            found = f"{self.images.dtype} {self.images.shape}"
            raise DataError(f"Images must be a uint8 array of shape (N, H, W, 3), found {found}.")
        _check_labels(self.labels, len(self.images), self.class_names)

    def images_at(self, indices: Indices, fit: int | Framing | None = None) -> NDArray[np.uint8]:
        images = np.ascontiguousarray(self.images[indices])
        if fit is None:
            return images
        return np.stack([np.asarray(fit_picture(Image.fromarray(image), fit)) for image in images])

    def head(self, limit: int | None) -> ImageDataset:
        chosen = slice(checked_limit(limit))
        return replace(self, images=self.images[chosen], labels=self.labels[chosen])


@dataclass(frozen=True)
class ImageFiles(Dataset):
    """Images of any size in files, decoded by several threads. Only paths and labels are held in memory.

    A path may also be that of an image inside another file, such as a shard of a WebDataset.
    """

    paths: tuple[Path | StoredImage, ...]
    labels: Labels
    class_names: tuple[str, ...]
    decoding: Decoding = AS_SHOWN

    def __post_init__(self) -> None:
        _check_labels(self.labels, len(self.paths), self.class_names, self.paths)

    def images_at(self, indices: Indices, fit: int | Framing | None = None) -> NDArray[np.uint8]:
        read = partial(read_image, fit=fit, decoding=self.decoding)
        with reading_threads() as pool:
            images = list(pool.map(read, (self.paths[index] for index in indices)))
        sizes = {image.shape[:2] for image in images}
        if len(sizes) > 1:
            found = ", ".join(f"{height} x {width}" for height, width in sorted(sizes)[:5])
            raise DataError(
                f"Images of different sizes ({found}) cannot be stacked; give the size to fit them to, as in "
                "Stream(dataset, batch_size, seed, fit=model.image_size)."
            )
        return np.stack(images)

    def head(self, limit: int | None) -> ImageFiles:
        """Select at most `limit` images, evenly spaced: images are sorted by class, so the first cover few classes."""
        count = min(checked_limit(limit) or len(self), len(self))
        return self.select(np.arange(count) * len(self) // max(1, count))

    def select(self, indices: Sequence[int] | Indices) -> ImageFiles:
        """Select images by index, in the given order."""
        chosen = np.asarray(indices, dtype=np.int64)
        return replace(self, paths=tuple(self.paths[index] for index in chosen), labels=self.labels[chosen])

    def select_listed(self, names: Sequence[str]) -> ImageFiles:
        """Select images by name, `folder/stem` or `stem`, in the order of the data set."""
        wanted = set(names)
        found: dict[str, int] = {}
        for index, path in enumerate(map(Path, self.paths)):
            for name in (f"{path.parent.name}/{path.stem}", path.stem):
                if name in wanted:
                    found.setdefault(name, index)
        absent = sorted(wanted - found.keys())
        if absent:
            raise DataError(
                f"{len(absent)} of the {len(wanted)} listed images are not in {Path(self.paths[0]).parent.parent}: "
                f"{', '.join(absent[:3])}{' ...' if len(absent) > 3 else ''}."
            )
        return self.select(sorted(set(found.values())))

    def without_broken(self) -> ImageFiles:
        """Select the images that can be decoded, and warn about the others. The result of the check is cached."""
        text = cached_text([f"broken {self.decoding} Pillow {PIL.__version__}"], self.paths, self._find_broken)
        broken = {int(index): reason for index, reason in json.loads(text).items()}
        if broken:
            lines = (f"{path_text(self.paths[index])}: {reason}" for index, reason in broken.items())
            message = "\n  ".join((f"{len(broken):,} of {len(self):,} images skipped:", *lines))
            warnings.warn(message, TtaPandaWarning, stacklevel=1)  # from one place, so it is shown once
        return self.select([index for index in range(len(self)) if index not in broken])

    def _find_broken(self) -> str:
        with reading_threads() as pool:
            reasons = pool.map(partial(_why_broken, decoding=self.decoding), self.paths)
            return json.dumps({index: reason for index, reason in enumerate(reasons) if reason is not None})

    def fingerprint(self) -> str:
        """Digest of the class names, and of the names, labels and bytes of the images, wherever they are stored."""
        key = ["fingerprint", *self.class_names, _sha256(list(map(str, self.labels)))]
        return cached_text(key, self.paths, self._digest)

    def _digest(self) -> str:
        folder = os.path.commonpath([Path(path).parent for path in self.paths]) if self.paths else ""
        parts = [self.paths[first : first + _FILES_PER_TASK] for first in range(0, len(self), _FILES_PER_TASK)]
        with reading_threads() as pool:
            digests = itertools.chain.from_iterable(pool.map(partial(_file_digests, folder), parts))
            lines = (f"{label} {digest}" for label, digest in zip(self.labels, digests, strict=True))
            return _sha256([*self.class_names, *lines])[:12]


class OpenSet(Dataset):
    """Another data set without some of its classes: their images are kept, with the label -1."""

    def __init__(self, dataset: Dataset, unknown_classes: Sequence[str]):
        for name in unknown_classes:
            if name not in dataset.class_names:
                raise UnknownNameError("class of the data", name, dataset.class_names)
        self.dataset = dataset
        self.unknown_classes = tuple(unknown_classes)
        self.class_names = tuple(name for name in dataset.class_names if name not in unknown_classes)
        new = {name: k for k, name in enumerate(self.class_names)}
        self.labels = np.array([new.get(name, UNKNOWN) for name in dataset.class_names])[dataset.labels]

    def images_at(self, indices: Indices, fit: int | Framing | None = None) -> NDArray[np.uint8]:
        return self.dataset.images_at(indices, fit)

    def head(self, limit: int | None) -> OpenSet:
        return OpenSet(self.dataset.head(limit), self.unknown_classes)


def _why_broken(path: Path | StoredImage, decoding: Decoding) -> str | None:
    try:
        read_image(path, _CHECK_SIZE, decoding)
    except BrokenImageError as error:
        return error.reason
    return None


def _file_digests(folder: str, paths: Sequence[Path | StoredImage]) -> list[str]:
    contents = (path.read() if isinstance(path, StoredImage) else read_regular(path) for path in paths)
    return [
        f"{Path(path).relative_to(folder).as_posix()}\0{hashlib.sha256(content).hexdigest()}"
        for path, content in zip(paths, contents, strict=True)
    ]


def reading_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_MAX_THREADS, available_cores()))


def cached_text(key: Sequence[str], paths: Sequence[Path | StoredImage], compute: Callable[[], str]) -> str:
    """Return `compute()`, a text about some files, from a cache while none of the files has changed.

    The text is stored in the user's cache folder, in a file named after a digest of `key`, which distinguishes texts
    about the same files, and of the path, size, times and inode of each file. A missing, damaged or read-only cache
    only costs time.
    """
    now = time.time_ns()
    try:
        states = [os.stat(path.file if isinstance(path, StoredImage) else path) for path in paths]
    except OSError:  # a file has vanished, which `compute` reports
        return compute()
    # The times of a folder do not suffice: they do not change when a file is written in place.
    file_states = (f"{s.st_size} {s.st_mtime_ns} {s.st_ctime_ns} {s.st_ino}" for s in states)
    cached = _cache_folder() / _sha256([*key, *map(os.fspath, paths), *file_states])
    with contextlib.suppress(OSError, ValueError):
        text, _, check = read_regular(cached).decode().rpartition("\n")
        if check == _sha256([text]):
            return text
    text = compute()
    # A file that has just been written could be written again within the same tick of the file system's clock.
    if max((max(s.st_mtime_ns, s.st_ctime_ns) for s in states), default=0) < now - _CLOCK_TICK:
        with contextlib.suppress(StoreError):
            save_file(cached, f"{text}\n{_sha256([text])}")
    return text


def _sha256(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def _cache_folder() -> Path:
    """The package's cache folder, next to those of torch and huggingface_hub on every system."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tta-panda" / "files"
    except RuntimeError:  # without a home directory, nothing can be cached
        return Path(os.devnull)


def _check_labels(
    labels: Labels, images: int, class_names: Sequence[str], paths: Sequence[Path | StoredImage] = ()
) -> None:
    """Raise `DataError` unless every image has a label, and every label a class."""
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"Labels must be whole numbers, found {labels.dtype}; convert them with labels.astype(int).")
    if labels.shape != (images,):
        raise DataError(f"Expected {images} labels, one for each image, found the shape {labels.shape}.")
    if len(outside := np.flatnonzero((labels < 0) | (labels >= len(class_names)))):
        first = outside[0]
        of = f" for {path_text(paths[first])}" if paths else ""
        raise DataError(
            f"Labels must lie in 0..{len(class_names) - 1} for {len(class_names)} classes, found {labels[first]}{of} "
            f"({len(outside):,} of {len(labels):,} are outside). Correct them, or name every class."
        )


def checked_limit(limit: int | None) -> int | None:
    if limit is not None and limit < 1:
        raise InvalidInputError(f"limit must be at least 1 image, got {limit}.")
    return limit
