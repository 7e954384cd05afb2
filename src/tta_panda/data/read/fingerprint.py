"""Fingerprints of data for records: a digest of image files, or the seed of CIFAR-C made by `tta-panda data make`.

The images of a domain are read once. The digest of their bytes is then kept in the user's cache folder, in a file named
after a digest of path, size, times and inode of every image, so they are not read again until one of these changes. A
missing, damaged or read-only cache costs time only.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tta_panda.atomic import write_atomically
from tta_panda.data.read.files import image_entries, reading_threads

_MADE = "made with seed"
_FINGERPRINT = re.compile(r"[0-9a-f]{12}")
_FILES_AT_ONCE = 256  # read by one thread
_SETTLED = 3_000_000_000  # nanoseconds; some file systems keep times in steps of two seconds


def made_fingerprint(note: Mapping[str, Any]) -> str:
    """The fingerprint of a file that `tta-panda data make` made, from the note beside it."""
    textures = f", {note['textures']} textures" if "textures" in note else ""
    return f"{_MADE} {note.get('seed')}{textures}"


def was_made(fingerprint: str | None) -> bool:
    """Whether a fingerprint is that of corrupted images made by `tta-panda data make`, not published ones."""
    return fingerprint is not None and fingerprint.startswith(_MADE)


def folder_fingerprint(folder: Path, class_folders: Sequence[Path], class_list: str) -> str:
    """A digest of the class list, the names of the class folders, and the names and bytes of their images."""
    now = time.time_ns()
    classes = [class_list, *(one.relative_to(folder).as_posix() for one in class_folders)]
    images = [image for one in class_folders for image in image_entries(one)]
    cached = _cache_folder() / _digest([*classes, *map(_state, images)])
    with contextlib.suppress(OSError, ValueError):
        if _FINGERPRINT.fullmatch(text := cached.read_text("ascii")):
            return text
    parts = [images[first : first + _FILES_AT_ONCE] for first in range(0, len(images), _FILES_AT_ONCE)]
    with reading_threads() as pool:
        contents = pool.map(functools.partial(_contents, folder), parts)
        fingerprint = _digest([*classes, *itertools.chain.from_iterable(contents)])[:12]
    # A file that has just been written could be written again within the same tick of the file system's clock.
    newest = max((max(image.stat().st_mtime_ns, image.stat().st_ctime_ns) for image in images), default=0)
    if newest < now - _SETTLED:
        with contextlib.suppress(OSError):
            cached.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(cached, fingerprint)
    return fingerprint


def _state(image: os.DirEntry[str]) -> str:
    """What changes when a file does. The times of its folder do not: they miss files that are written in place."""
    stat = image.stat()
    return f"{image.path}\0{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}"


def _contents(folder: Path, images: Sequence[os.DirEntry[str]]) -> list[str]:
    paths = [Path(image.path) for image in images]
    return [f"{path.relative_to(folder).as_posix()}\0{hashlib.sha256(path.read_bytes()).hexdigest()}" for path in paths]


def _cache_folder() -> Path:
    """Beside the caches of torch and huggingface_hub, on every system."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tta-panda" / "fingerprints"
    except RuntimeError:  # a user without a home directory: nothing can be kept
        return Path(os.devnull)


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
