"""Image files that lists name with their labels: CoOp's splits, FGVC-Aircraft's variants, and lines `path label`.

Paths in a list are relative to its folder or to a folder below that, such as `images`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tta_panda.data import CLEAN
from tta_panda.data.dataset import ImageFiles
from tta_panda.data.listing import CLASS_LIST, found_in, read_classes, read_lines, shortened
from tta_panda.data.source import Finding, ImageSource
from tta_panda.errors import DataError
from tta_panda.files import read_regular
from tta_panda.images import AS_PUBLISHED, AS_SHOWN

Row = tuple[str, int]
"""Path and label of an image."""
Names = dict[int, str]
"""Class names by label."""


_LABEL_DIGITS = 9


@dataclass(frozen=True, kw_only=True)
class ImageLists(ImageSource):
    """Images named in lists in the root folder: in one, or in one for each domain, `<domain>_list.txt`."""

    lists: str  # wildcard of their names
    read: Callable[[Path], tuple[list[Row], Names]]

    def load(self, root: Path | None, corruption: str, severity: int) -> ImageFiles:
        root = self.required_root(root)
        lists = self._lists(root)
        if corruption not in lists:
            self.check_is_clean(corruption)
            raise DataError(
                f"There is no list of {corruption} in {root}; found {shortened(list(lists))}. Add it, or name domains "
                "with --corruption NAMES."
            )
        contents = {name: self.read(path) for name, path in lists.items()}
        names = {label: name for _, own in contents.values() for label, name in own.items()}
        if sorted(names) != list(range(len(names))):
            raise DataError(
                f"Some labels are missing in {lists[corruption]}: expected all from 0 to {max(names)}. Name every "
                f"class in {root / CLASS_LIST}, one per line."
            )
        rows, _ = contents[corruption]
        labels = np.array([label for _, label in rows], dtype=np.int64)
        class_names = tuple(names[label] for label in range(len(names)))
        return ImageFiles(_find(lists[corruption], [path for path, _ in rows]), labels, class_names, self.decoding)

    def _lists(self, root: Path) -> dict[str, Path]:
        """The lists by domain; `clean` if there is a single one."""
        found = sorted(path for path in root.glob(self.lists) if path.name != CLASS_LIST)
        if not found or (len(found) > 1 and self.domains == (CLEAN,)):
            raise DataError(
                f"Expected {'one ' if self.domains == (CLEAN,) else ''}{self.lists} in {root}, found "
                f"{shortened([path.name for path in found]) if found else found_in(root)}. Give the folder that holds "
                f"{self.layout} with --data-root PATH."
            )
        if len(found) == 1 and self.domains in ((), (CLEAN,)):
            return {CLEAN: found[0]}
        return {path.stem.removesuffix("_list"): path for path in found}

    def available(self, root: Path | None) -> tuple[str, ...]:
        return self.domains or tuple(self._lists(self.required_root(root)))

    def check(self, root: Path) -> Iterator[Finding]:
        if self.domains and any(root.glob(self.lists)):
            yield from self.check_domains(root)


def _find(file: Path, images: list[str]) -> tuple[Path, ...]:
    """Find the folder that the images of a list are in."""
    for path in images:
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise DataError(f"{file}: the path {path!r} leads out of the folder.")
    root = file.parent
    places = [root, *sorted(path for path in (*root.glob("*"), *root.glob("*/*")) if path.is_dir())]
    place = next((place for place in places if any(os.path.isfile(place / path) for path in images[:100])), root)
    paths = tuple(place / path for path in images)
    if missing := [str(path) for path in paths if not os.path.isfile(path)]:
        raise DataError(
            f"{len(missing):,} of the {len(paths):,} images of {file.name} are not in {root}: {shortened(missing)}. "
            "Unpack the images there."
        )
    return paths


def read_split(path: Path) -> tuple[list[Row], Names]:
    """Read the test images of a split of CoOp, and the names of all classes.

    The file holds `{"train": ..., "val": ..., "test": [["path", label, "class name"], ...]}`.
    """
    try:
        content = json.loads(read_regular(path))
        parts: dict[str, list[Any]] = {name: content[name] for name in ("train", "val", "test") if name in content}
        rows = {name: [_checked_row(row) for row in part] for name, part in parts.items()}
        pairs = {(label, name) for part in rows.values() for _, label, name in part}
        names = dict(pairs)
        if len(names) < len(pairs):
            raise ValueError("a label has several class names")
        if not rows["test"] or sorted(names) != list(range(len(names))):
            raise ValueError("it names no test images, or labels are missing")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} is not a split of CoOp ({error}); expected lists of [path, label, class name] as train, val and "
            "test, with labels from 0."
        ) from error
    return [(image, label) for image, label, _ in rows["test"]], names


def _checked_row(row: Any) -> tuple[str, int, str]:
    path, label, name = row
    if not (isinstance(path, str) and type(label) is int and isinstance(name, str)):
        raise ValueError(f"found the row {row}"[:80])
    return path, label, name


def read_variants(path: Path) -> tuple[list[Row], Names]:
    """Read FGVC-Aircraft's list of test images, `<id> <variant>`, and the names of all variants in `variants.txt`."""
    variants = read_lines(path.parent / "variants.txt")
    rows = [line.partition(" ")[::2] for line in read_lines(path)]
    labels = {name: label for label, name in enumerate(variants)}
    if unknown := sorted({name for _, name in rows} - labels.keys()):
        raise DataError(f"{path} names variants that are not in variants.txt: {shortened(unknown)}.")
    return [(f"{image}.jpg", labels[name]) for image, name in rows], dict(enumerate(variants))


def read_labelled(path: Path) -> tuple[list[Row], Names]:
    """Read a list of lines `path label`. Classes are named by the folders of the images, or line by line in a file."""
    rows = []
    for number, line in enumerate(read_lines(path), 1):
        image, _, label = line.rpartition(" ")
        if not image or not (label.isascii() and label.isdigit() and len(label) <= _LABEL_DIGITS):
            raise DataError(f"Line {number} of {path} is {line[:80]!r}; expected the path of an image and its label.")
        rows.append((image.strip(), int(label)))
    if (file := path.parent / CLASS_LIST).is_file():
        names = dict(enumerate(read_classes(file).values()))
    else:
        names = {label: Path(image).parent.name for image, label in rows}
        if any(names[label] != Path(image).parent.name for image, label in rows) or len({*names.values()}) < len(names):
            raise DataError(
                f"The classes of {path} have no names: images of a label are in several folders, or a folder has "
                f"images of several labels. Name them in {file}, one per line."
            )
    if beyond := sorted({label for _, label in rows if label not in names}):
        raise DataError(f"{path} has the label {beyond[-1]}, but {file} names only {len(names)} classes.")
    return rows, names


COOP = ImageLists(
    name="coop",
    about="A fine-grained data set with CoOp's split: the test images of split_zhou_<Name>.json.",
    layout="split_zhou_<Name>.json and the images that it names",
    domains=(CLEAN,),
    lists="split_zhou_*.json",
    read=read_split,
    decoding=AS_PUBLISHED,
)
FGVC_AIRCRAFT = ImageLists(
    name="fgvc-aircraft",
    about="FGVC-Aircraft: 3,333 test images of 100 variants.",
    layout="variants.txt, images_variant_test.txt and images/<id>.jpg",
    domains=(CLEAN,),
    lists="images_variant_test.txt",
    read=read_variants,
    decoding=AS_PUBLISHED,
)
DOMAINNET_126 = ImageLists(
    name="domainnet-126",
    about="DomainNet-126: 126 classes, <domain>_list.txt.",
    layout="<clipart, painting, real, sketch>_list.txt with lines `path label`",
    domains=("clipart", "painting", "real", "sketch"),
    has_severities=False,
    lists="*_list.txt",
    read=read_labelled,
    decoding=AS_PUBLISHED,
)
LISTS = ImageLists(
    name="lists",
    about="Your own images: lists of lines `path label`, one list per domain.",
    layout="<domain>.txt with lines `path label`, and the images",
    domains=(),
    has_severities=False,
    lists="*.txt",
    read=read_labelled,
    decoding=AS_SHOWN,
)
