"""Fine-grained data sets with a split of CoOp: image files with `split_zhou_<Name>.json` next to them.

The file holds `{"train": ..., "val": ..., "test": [["path of an image", label, "name of its class"], ...]}`; paths are
relative to a folder next to it, such as `images`. The test images are used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tta_panda.data import CLEAN
from tta_panda.data.dataset import ImageFiles
from tta_panda.data.folders import ImageFolders, shortened
from tta_panda.data.source import Finding, Status
from tta_panda.errors import DataError
from tta_panda.files import read_regular
from tta_panda.images import AS_PUBLISHED

_FILES = "split_zhou_*.json"


@dataclass(frozen=True, kw_only=True)
class CoopSplit(ImageFolders):
    """The test images of the split in the root folder."""

    def load(self, root: Path | None, corruption: str, severity: int) -> ImageFiles:
        root = self.domain(self.required_root(root), corruption, severity)
        found = sorted(root.glob(_FILES))
        if len(found) != 1:
            raise DataError(f"Expected one {_FILES} in {root}, found {shortened([path.name for path in found])}.")
        rows, class_names = _read_split(found[0])
        places = [root, *sorted(path for path in (*root.glob("*"), *root.glob("*/*")) if path.is_dir())]
        first = [path for path, _, _ in rows[:100]]
        place = next((place for place in places if any(os.path.isfile(place / path) for path in first)), root)
        paths = [place / path for path, _, _ in rows]
        if missing := [str(path) for path in paths if not os.path.isfile(path)]:
            raise DataError(
                f"{len(missing):,} of the {len(paths):,} test images of {found[0].name} are not in {root}: "
                f"{shortened(missing)}. Unpack the images there, as CoOp describes."
            )
        labels = np.array([label for _, label, _ in rows], dtype=np.int64)
        return ImageFiles(tuple(paths), labels, class_names, self.decoding)

    def domain(self, root: Path, corruption: str, severity: int) -> Path:
        self.check_is_clean(corruption)
        return root

    def check(self, root: Path) -> Iterator[Finding]:
        for path in sorted(root.glob(_FILES)):
            yield self.check_path(path, self._check_split)

    def _check_split(self, path: Path) -> tuple[Status, str]:
        try:
            files = self.load(path.parent, CLEAN, 0)
        except DataError as error:
            return "partial", str(error)
        return "ok", f"{len(files):,} images of {len(files.class_names):,} classes"


def _read_split(path: Path) -> tuple[list[tuple[str, int, str]], tuple[str, ...]]:
    """Read the rows of the test images, and the names of all classes in label order."""
    try:
        content = json.loads(read_regular(path))
        parts: dict[str, list[Any]] = {name: content[name] for name in ("train", "val", "test") if name in content}
        rows = {name: [_checked_row(row) for row in part] for name, part in parts.items()}
        names = {label: name for part in rows.values() for _, label, name in part}
        if not rows["test"] or sorted(names) != list(range(len(names))):
            raise ValueError("it names no test images, or labels are missing")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} is not a split of CoOp ({error}); expected lists of [path, label, class name] as train, val and "
            "test, with labels from 0."
        ) from error
    return rows["test"], tuple(names[label].replace("_", " ") for label in sorted(names))


def _checked_row(row: Any) -> tuple[str, int, str]:
    path, label, name = row
    if not (isinstance(path, str) and type(label) is int and isinstance(name, str)):
        raise ValueError(f"found the row {row}"[:80])
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ValueError(f"the path {path!r} leads out of the folder")
    return path, label, name


COOP = CoopSplit(
    name="coop",
    about="A fine-grained data set with CoOp's split: the test images of split_zhou_<Name>.json.",
    layout="split_zhou_<Name>.json and the images that it names",
    domains=(CLEAN,),
    decoding=AS_PUBLISHED,
)
