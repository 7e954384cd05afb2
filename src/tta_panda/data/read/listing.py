"""Find image files: by name, by wildcards, or in folders and the folders in them; and say what is not used."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tta_panda.errors import DataError
from tta_panda.escapes import path_text

SUFFIXES = frozenset(
    {".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)
_EMPTY = "empty folder"


@dataclass(frozen=True)
class Found:
    """Image files, and what was found and is not used."""

    paths: tuple[Path, ...]
    left_out: dict[Path, str]
    """With the reason: the suffix of a file that is no image, say."""

    def __str__(self) -> str:
        """As in `5 of 10 files used: 3 .heic, 2 .txt left out; 1 empty folder`."""
        reasons = Counter(self.left_out.values())
        empty = reasons.pop(_EMPTY, 0)
        text = f"{len(self.paths):,} of {len(self.paths) + reasons.total():,} files used"
        if reasons:
            text += f": {', '.join(f'{count:,} {reason}' for reason, count in reasons.most_common())} left out"
        return text + (f"; {empty:,} {_EMPTY}{'s' if empty > 1 else ''}" if empty else "")


def find_images(places: Iterable[str | Path]) -> Found:
    """The image files at some places, each once, sorted within their folder.

    Args:
        places: files, which are taken whatever their suffix; folders; or wildcards, as `photos/**/*.jpg`. Hidden files
            and folders are left out unless they are named here.
    """
    found: dict[str, Path] = {}
    left_out: dict[Path, str] = {}
    for place in places:
        for path, reason in _look(Path(place).expanduser()):
            if reason is None:
                found.setdefault(os.path.abspath(path), path)
            else:
                left_out[path] = reason
    return Found(tuple(found.values()), left_out)


def images_in(folder: Path, *, nested: bool = True) -> Found:
    """The image files in a folder; unlike `find_images`, it does not look for duplicates, which takes time."""
    seen = list(_walk(folder, nested))
    unused = {path: reason for path, reason in seen if reason is not None}
    return Found(tuple(path for path, reason in seen if reason is None), unused)


def _look(place: Path) -> Iterator[tuple[Path, str | None]]:
    """What is at a place: paths, each with the reason if it is not used."""
    if place.is_dir():
        yield from _walk(place)
    elif place.is_file():
        yield place, None
    elif matches := sorted(glob.glob(str(place), recursive=True)):
        for path in map(Path, matches):
            yield from _walk(path) if path.is_dir() else [(path, _unused(path))]
    else:
        raise DataError(f"There is no file or folder {path_text(place)}, nor does it match any as a wildcard.")


def _walk(folder: Path, nested: bool = True) -> Iterator[tuple[Path, str | None]]:
    waiting, seen = [folder], set()
    while waiting:
        folder = waiting.pop()
        try:
            identity = (status := folder.stat()).st_dev, status.st_ino
            if identity in seen:  # links can lead round in circles
                continue
            seen.add(identity)
            # `os.DirEntry` is faster than `Path` for many files.
            with os.scandir(folder) as entries:
                visible = sorted((each for each in entries if each.name[0] != "."), key=lambda each: each.name)
        except OSError as error:
            yield folder, f"folder that cannot be read ({error.strerror})"
            continue
        if not visible:
            yield folder, _EMPTY
        is_folder = {each.name: _is(each.is_dir) for each in visible}
        yield from ((folder / each.name, _unused(each)) for each in visible if not is_folder[each.name])
        if nested:
            waiting += [folder / each.name for each in reversed(visible) if is_folder[each.name]]


def _unused(entry: Path | os.DirEntry[str]) -> str | None:
    """Why a file is not used; None for images."""
    suffix = os.path.splitext(entry.name)[1].lower()
    if suffix not in SUFFIXES:
        return suffix or "without suffix"
    return None if _is(entry.is_file) else "unreadable"


def _is(kind: Callable[[], bool]) -> bool:
    """What `is_file` or `is_dir` says; False for a link that leads to itself."""
    try:
        return kind()
    except OSError:
        return False
