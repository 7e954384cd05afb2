"""Find image files by name, wildcard or folder, and report skipped files; read lists of names and classes."""

from __future__ import annotations

import codecs
import glob
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tta_panda.errors import DataError
from tta_panda.escapes import path_text
from tta_panda.files import expand, read_regular

SUFFIXES = frozenset(
    {".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)
CLASS_LIST = "classes.txt"
_EMPTY = "empty folder"
_ENCODINGS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


@dataclass(frozen=True)
class Found:
    """Image files that were found, and other files and folders that were skipped."""

    paths: tuple[Path, ...]
    skipped: dict[Path, str]
    """With the reason, such as the suffix of a file that is not an image."""

    def __str__(self) -> str:
        """Summary, as in `5 of 10 files used: 3 .heic, 2 .txt skipped; 1 empty folder`."""
        reasons = Counter(self.skipped.values())
        empty = reasons.pop(_EMPTY, 0)
        text = f"{len(self.paths):,} of {len(self.paths) + reasons.total():,} files used"
        if reasons:
            text += f": {', '.join(f'{count:,} {reason}' for reason, count in reasons.most_common())} skipped"
        return text + (f"; {empty:,} {_EMPTY}{'s' if empty > 1 else ''}" if empty else "")


def find_images(places: Iterable[str | Path]) -> Found:
    """Find image files, each once, sorted within their folder.

    Args:
        places: files, with any suffix; folders; or wildcards, such as `photos/**/*.jpg`. Hidden files and folders are
            skipped unless they are named here.
    """
    found: dict[str, Path] = {}
    skipped: dict[Path, str] = {}
    for place in places:
        for path, reason in _files_at(expand(place)):
            if reason is None:
                found.setdefault(os.path.abspath(path), path)
            else:
                skipped[path] = reason
    return Found(tuple(found.values()), skipped)


def _files_at(place: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield the paths at a place, each with the reason why it is skipped, or None."""
    if os.path.isdir(place):
        yield from _walk(place)
    elif os.path.isfile(place):
        yield place, None
    elif matches := sorted(glob.glob(str(place), recursive=True)):
        for path in map(Path, matches):
            yield from _walk(path) if os.path.isdir(path) else [(path, _why_skipped(path))]
    else:
        raise DataError(f"There is no file or folder {path_text(place)}, nor does it match any as a wildcard.")


def _walk(top: Path) -> Iterator[tuple[Path, str | None]]:
    seen = set()
    errors: list[OSError] = []
    for name, folders, files in os.walk(top, followlinks=True, onerror=errors.append):
        folder, status = Path(name), os.stat(name)
        visible = sorted(file for file in files if file[0] != ".")
        folders[:] = sorted(each for each in folders if each[0] != ".")  # where `os.walk` goes next
        if (status.st_dev, status.st_ino) in seen:  # symbolic links can form cycles
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        if not visible and not folders:
            yield folder, _EMPTY
        yield from ((path, _why_skipped(path)) for path in map(folder.joinpath, visible))
    for error in errors:
        yield Path(error.filename), f"folder that cannot be read ({error.strerror})"


def _why_skipped(path: Path) -> str | None:
    """Why a file is skipped; None for images."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        return suffix or "without suffix"
    return None if os.path.isfile(path) else "unreadable"


def read_lines(path: Path) -> list[str]:
    """Read the non-blank lines of a text file, in UTF-8 or the encoding of its byte order mark."""
    try:
        content = read_regular(path)
        encoding = next((name for mark, name in _ENCODINGS.items() if content.startswith(mark)), "utf-8")
        return [line.strip() for line in content.decode(encoding).splitlines() if line.strip()]
    except OSError as error:
        raise DataError(f"Cannot read {path} ({error.strerror}); expected a text file, one name per line.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 ({error}). Save it as UTF-8, in an editor or with: iconv -f LATIN1 -t UTF-8 FILE"
        ) from error


def read_classes(path: Path) -> dict[str, str]:
    """Read class names by folder, in label order."""
    lines = read_lines(path)
    classes = parse_classes(lines)
    if len(classes) < len(lines):  # the labels of later lines would shift
        counts = Counter(line.partition("\t")[0] for line in lines)
        repeated = shortened([name for name, count in counts.items() if count > 1])
        raise DataError(f"{path} names classes twice: {repeated}. Give every class a name of its own.")
    return classes


def parse_classes(lines: Iterable[str]) -> dict[str, str]:
    """Parse lines `folder<TAB>name` into class names by folder, in label order; a line without a tab is both."""
    return {folder: name or folder for folder, _, name in (line.partition("\t") for line in lines)}


def found_in(folder: Path) -> str:
    """Summarize the content of a folder, for messages."""
    return shortened(sorted(path_text(path.name) for path in folder.iterdir()))


def shortened(names: Sequence[str]) -> str:
    """List the first names and the number of the others, for messages."""
    return (", ".join(names[:5]) or "nothing") + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def read_image_list(path: Path) -> list[str]:
    """Read image names, one per line: `n01440764/ILSVRC2012_val_00000293.JPEG`, with optional folder and suffix."""
    names = [_name(line) for line in read_lines(path) if not line.startswith("#")]
    if not names:
        raise DataError(f"The image list {path} contains no names; expected one file name per line.")
    return sorted(set(names))


def list_digest(names: list[str]) -> str:
    """Short digest of the names for records; it does not depend on where the list is stored."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]


def _name(line: str) -> str:
    """The last folder and the stem of a file, the only parts that all published lists have."""
    path = PurePosixPath(line.split()[0])  # some lists carry a label after the name
    stem = path.stem if path.suffix.lower() in (".jpeg", ".jpg", ".png") else path.name
    return f"{path.parent.name}/{stem}" if path.parent.name else stem
