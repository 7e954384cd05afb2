"""Labelled images in files, decoded on demand by several threads."""

from __future__ import annotations

import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import PIL
from numpy.typing import NDArray

from tta_panda.data.dataset import UNLABELLED, Indices, Labels, check_labels, checked_limit
from tta_panda.data.read.cache import remembered
from tta_panda.errors import BrokenImageError, DataError, TtaPandaWarning
from tta_panda.escapes import path_text
from tta_panda.executors import available_cores
from tta_panda.images import AS_SHOWN, Decoding, Framing, read_image

_MOST_THREADS = 16  # Pillow and hashlib release the interpreter's lock, so threads are enough
_SMALL = 32  # pixels a side: large JPEG files are checked in reduced size


@dataclass(frozen=True)
class ImageFiles:
    """Images of any size in files. Only paths and labels are held in memory."""

    paths: tuple[Path, ...]
    labels: Labels
    class_names: tuple[str, ...]
    decoding: Decoding = AS_SHOWN

    def __post_init__(self) -> None:
        if not (self.labels == UNLABELLED).all():
            check_labels(self.labels, len(self.paths), self.class_names)

    def __len__(self) -> int:
        return len(self.paths)

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
        """At most `limit` images, evenly spaced: images are sorted by class, so the first ones cover few classes."""
        count = min(checked_limit(limit) or len(self), len(self))
        return self.select(np.arange(count) * len(self) // max(1, count))

    def select(self, indices: Indices) -> ImageFiles:
        """These images only, in this order."""
        return replace(self, paths=tuple(self.paths[index] for index in indices), labels=self.labels[indices])

    def without_broken(self) -> ImageFiles:
        """The images that can be decoded; a warning names the others."""
        broken = self.broken()
        if broken:
            lines = (f"{path_text(self.paths[index])}: {reason}" for index, reason in broken.items())
            text = "\n  ".join((f"{len(broken):,} of {len(self):,} images skipped:", *lines))
            warnings.warn(text, TtaPandaWarning, stacklevel=1)  # from one place, so it is shown once
        return self.select(np.array([index for index in range(len(self)) if index not in broken], dtype=np.int64))

    def broken(self) -> dict[int, str]:
        """Indices of the images that cannot be decoded, with the reasons. It takes decoding them all, but only once."""
        text = remembered([f"broken {self.decoding} Pillow {PIL.__version__}"], self.paths, self._find_broken)
        return {int(index): reason for index, reason in json.loads(text).items()}

    def _find_broken(self) -> str:
        with reading_threads() as pool:
            reasons = pool.map(partial(_why_broken, decoding=self.decoding), self.paths)
            return json.dumps({index: reason for index, reason in enumerate(reasons) if reason is not None})


def _why_broken(path: Path, decoding: Decoding) -> str | None:
    try:
        read_image(path, _SMALL, decoding)
    except BrokenImageError as error:
        return error.reason
    return None


def reading_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_MOST_THREADS, available_cores()))
