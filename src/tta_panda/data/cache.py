"""Remember what was computed from files until one of them changes.

Texts are kept in the user's cache folder, each in a file named after a digest of path, size, times and inode of all
files that it was computed from. A missing, damaged or read-only cache costs time only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tta_panda.errors import StoreError
from tta_panda.files import read_regular, save_file

_CLOCK_TICK = 3_000_000_000  # nanoseconds; some file systems keep times in steps of two seconds


def remembered(what: Sequence[str], paths: Sequence[Path], compute: Callable[[], str]) -> str:
    """The text that `compute` makes of some files; `what` tells it from other texts about the same files."""
    now = time.time_ns()
    states = [os.stat(path) for path in paths]
    # The times of a folder are not enough: they miss files that are written in place.
    keys = (f"{s.st_size} {s.st_mtime_ns} {s.st_ctime_ns} {s.st_ino}" for s in states)
    cached = _cache_folder() / digest([*what, *map(str, paths), *keys])
    with contextlib.suppress(OSError, ValueError):
        text, _, check = read_regular(cached).decode().rpartition("\n")
        if check == digest([text]):
            return text
    text = compute()
    # A file that has just been written could be written again within the same tick of the file system's clock.
    if max((max(s.st_mtime_ns, s.st_ctime_ns) for s in states), default=0) < now - _CLOCK_TICK:
        with contextlib.suppress(StoreError):
            save_file(cached, f"{text}\n{digest([text])}")
    return text


def digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _cache_folder() -> Path:
    """Beside the caches of torch and huggingface_hub, on every system."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tta-panda" / "files"
    except RuntimeError:  # a user without a home directory: nothing can be kept
        return Path(os.devnull)
