"""Pictures as they appear in a folder, from a camera say."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tta_panda.data.listing import find_images
from tta_panda.escapes import path_text
from tta_panda.prediction.reading import PAUSE, Pause


def watch_folder(
    folder: Path,
    seen: set[str] | None = None,
    *,
    every: float = 1.0,
    until_idle: float | None = None,
    stop: threading.Event | None = None,
) -> Iterator[str | Pause]:
    """Paths of pictures in a folder and those below it, the oldest first, with a pause when there are no more.

    A file counts as complete when two looks find the same size and time.

    Args:
        folder: where to look; it may be empty.
        seen: paths that were taken already, as rows spell them.
        every: seconds between looks.
        until_idle: end after this many seconds without a new picture; None goes on for ever.
        stop: end when this is set.
    """
    stop = stop or threading.Event()
    seen = set() if seen is None else seen
    growing: dict[str, tuple[int, int]] = {}
    last_found = time.monotonic()
    while not stop.is_set() and (until_idle is None or time.monotonic() - last_found < until_idle):
        now = _files(folder, seen)
        complete = [path for path, state in now.items() if growing.get(path) == state]
        for path in sorted(complete, key=lambda path: (now[path][1], path)):
            if stop.is_set():
                return
            seen.add(path_text(path))
            yield path
        if complete or now.keys() - growing.keys():
            last_found = time.monotonic()
        growing = {path: state for path, state in now.items() if path_text(path) not in seen}
        yield PAUSE
        stop.wait(every)


def _files(folder: Path, seen: set[str]) -> dict[str, tuple[int, int]]:
    """Size and time of every new picture; files may vanish between the two looks."""
    found = {}
    for path in find_images([folder]).paths:
        if path_text(path) not in seen:
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                found[str(path)] = stat.st_size, stat.st_mtime_ns
    return found
