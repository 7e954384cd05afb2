"""Text files with one name per line: of classes, or of some images of a data set, such as 5,000 of ImageNet."""

from __future__ import annotations

import codecs
import hashlib
from pathlib import Path, PurePosixPath

import numpy as np

from tta_panda.data.read.files import ImageFiles
from tta_panda.errors import DataError

_ENCODINGS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank. UTF-8, or what a byte order mark at its beginning says."""
    try:
        content = path.read_bytes()
        encoding = next((name for mark, name in _ENCODINGS.items() if content.startswith(mark)), "utf-8")
        return [line.strip() for line in content.decode(encoding).splitlines() if line.strip()]
    except OSError as error:
        raise DataError(f"Cannot read {path} ({error.strerror}); expected a text file, one name per line.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 ({error}). Save it as UTF-8, in an editor or with: iconv -f LATIN1 -t UTF-8 FILE"
        ) from error


def read_image_list(path: Path) -> list[str]:
    """One name per line: `n01440764/ILSVRC2012_val_00000293.JPEG`, or without the folder, or without the suffix."""
    names = [_name(line) for line in read_lines(path) if not line.startswith("#")]
    if not names:
        raise DataError(f"The image list {path} names no image; expected one file name per line.")
    return sorted(set(names))


def list_digest(names: list[str]) -> str:
    """A short digest for records, of the names only: where the list is stored does not matter."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]


def select_listed(files: ImageFiles, names: list[str]) -> ImageFiles:
    """The images that a list names, in the order of the data set."""
    wanted = set(names)
    found: dict[str, int] = {}
    for index, path in enumerate(files.paths):
        for name in (f"{path.parent.name}/{path.stem}", path.stem):
            if name in wanted:
                found.setdefault(name, index)
    absent = sorted(wanted - found.keys())
    if absent:
        raise DataError(
            f"{len(absent)} of the {len(wanted)} listed images are not in {files.paths[0].parent.parent}: "
            f"{', '.join(absent[:3])}{' ...' if len(absent) > 3 else ''}."
        )
    return files.select(np.array(sorted(set(found.values())), dtype=np.int64))


def _name(line: str) -> str:
    """The last folder and the file's stem, which is all that lists agree on."""
    path = PurePosixPath(line.split()[0])  # some lists carry a label after the name
    stem = path.stem if path.suffix.lower() in (".jpeg", ".jpg", ".png") else path.name
    return f"{path.parent.name}/{stem}" if path.parent.name else stem
