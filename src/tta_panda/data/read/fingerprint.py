"""Fingerprints of data for records: a digest of image files, or the seed of CIFAR-C made by `tta-panda data make`."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tta_panda.data.read.cache import digest, remembered
from tta_panda.data.read.files import ImageFiles, reading_threads

_MADE = "made with seed"
_FILES_AT_ONCE = 256  # read by one thread


def made_fingerprint(note: Mapping[str, Any]) -> str:
    """The fingerprint of a file that `tta-panda data make` made, from the note beside it."""
    textures = f", {note['textures']} textures" if "textures" in note else ""
    return f"{_MADE} {note.get('seed')}{textures}"


def was_made(fingerprint: str | None) -> bool:
    """Whether a fingerprint is that of corrupted images made by `tta-panda data make`, not published ones."""
    return fingerprint is not None and fingerprint.startswith(_MADE)


def files_fingerprint(folder: Path, files: ImageFiles) -> str:
    """A digest of the class names, and of the names below `folder` and the bytes of the images."""
    return remembered(["fingerprint", *files.class_names], files.paths, partial(_fingerprint, folder, files))


def _fingerprint(folder: Path, files: ImageFiles) -> str:
    parts = [files.paths[first : first + _FILES_AT_ONCE] for first in range(0, len(files), _FILES_AT_ONCE)]
    with reading_threads() as pool:
        contents = pool.map(partial(_contents, folder), parts)
        return digest([*files.class_names, *itertools.chain.from_iterable(contents)])[:12]


def _contents(folder: Path, paths: Sequence[Path]) -> list[str]:
    return [f"{path.relative_to(folder).as_posix()}\0{hashlib.sha256(path.read_bytes()).hexdigest()}" for path in paths]
