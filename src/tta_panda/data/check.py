"""Check the data sets in a folder: what is there, what is missing, and what is damaged."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from tta_panda.data import cifar
from tta_panda.data.corruptions import ALL_CORRUPTIONS, CORRUPTIONS, EXTRA_CORRUPTIONS
from tta_panda.data.folders import IMAGENET_C, class_folders, corruption_folders
from tta_panda.data.listing import images_in
from tta_panda.data.source import published_classes
from tta_panda.errors import DataError

Status = Literal["ok", "partial", "missing", "damaged"]
Verdict = tuple[Status, str]
"""The status of a file or folder, and a detail."""

TEST_IMAGES = 10_000  # of CIFAR
IMAGES_PER_CLASS = 50  # of ImageNet

_CLEAN, _CORRUPTED = (cifar.CIFAR10, cifar.CIFAR100), (cifar.CIFAR10_C, cifar.CIFAR100_C)


class Finding(NamedTuple):
    """One file or folder of a data set."""

    data: str
    item: str
    status: Status
    detail: str


def check_root(root: Path) -> list[Finding]:
    """Check every data set of which `root` holds something; it is a `DataError` if it holds none."""
    if not root.is_dir():
        raise DataError(f"There is no folder {root}. Give the folder that holds CIFAR-10-C, ImageNet-C, ...")
    findings = [*_cifar(root), *_imagenet(root)]
    if not findings:
        places = [source.layout.partition("/")[0] for source in (*_CLEAN, *_CORRUPTED)] + [IMAGENET_C.folder]
        raise DataError(
            f"{root} holds none of the data sets; expected one of {', '.join(places)} in it. Fetch one with: tta-panda "
            f"data download cifar10-c -o {root}"
        )
    return findings


def file_md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _checked(data: str, path: Path, check: Callable[[Path], Verdict], if_missing: str = "") -> Finding:
    if not path.exists():
        return Finding(data, path.name, "missing", if_missing)
    try:
        return Finding(data, path.name, *check(path))
    except DataError as error:
        return Finding(data, path.name, "damaged", str(error))


def _cifar(root: Path) -> Iterator[Finding]:
    for clean in _CLEAN:
        path = root / clean.pickle
        if path.parent.is_dir():
            yield _checked(clean.name, path, partial(_check_md5, clean.md5), f"no {path}")
    for source in _CORRUPTED:
        folder = root if root.name == source.folder else root / source.folder
        if folder.is_dir():
            labels = partial(_check_labels, len(source.class_names()))
            yield _checked(source.name, folder / cifar.LABELS, labels, "without it no corruption can be read")
            extra = [name for name in EXTRA_CORRUPTIONS if (folder / f"{name}.npy").exists()]
            for name in (*CORRUPTIONS, *extra):
                yield _checked(source.name, folder / f"{name}.npy", _check_images)


def _check_md5(expected: str, path: Path) -> Verdict:
    found = file_md5(path)
    return ("ok", "md5 as published") if found == expected else ("damaged", f"md5 {found}, expected {expected}")


def _check_labels(classes: int, path: Path) -> Verdict:
    labels, expected = cifar.open_array(path), (cifar.SEVERITIES * TEST_IMAGES,)
    if labels.shape != expected:
        return "damaged", f"shape {labels.shape}, expected {expected}"
    if not np.issubdtype(labels.dtype, np.integer):
        return "damaged", f"{labels.dtype} labels, expected whole numbers"
    rounds = labels.reshape(cifar.SEVERITIES, TEST_IMAGES)
    balanced = np.repeat(np.arange(classes), TEST_IMAGES // classes)
    if (rounds != rounds[0]).any() or not np.array_equal(np.sort(rounds[0]), balanced):
        return "damaged", f"not the labels of the test set, {cifar.SEVERITIES} times over"
    return "ok", f"{cifar.SEVERITIES} x {TEST_IMAGES:,} labels"


def _check_images(path: Path) -> Verdict:
    """Check shape, type and length; md5 sums of the single files are not published."""
    array, note = cifar.open_array(path), cifar.read_note(path)
    expected = (cifar.SEVERITIES * TEST_IMAGES, 32, 32, 3)
    if array.shape != expected or array.dtype != np.uint8:
        return "damaged", f"{array.dtype} {array.shape}, expected uint8 {expected}"
    if note is None:
        return "ok", f"{cifar.SEVERITIES} x {TEST_IMAGES:,} images"
    made = ", ".join(map(str, note["severities"])) or "none"
    whole = len(note["severities"]) == cifar.SEVERITIES
    return "ok" if whole else "partial", f"severities made: {made}; seed {note.get('seed')}"


def _imagenet(root: Path) -> Iterator[Finding]:
    for folder in (root / IMAGENET_C.folder, root):
        there = {name: places[0] for name in ALL_CORRUPTIONS if (places := corruption_folders(folder, name))}
        if any(name in there for name in CORRUPTIONS):
            for name in dict.fromkeys((*CORRUPTIONS, *there)):
                yield _checked("imagenet-c", there.get(name, folder / name), _check_severities)
            break
    if (root / "val").is_dir():
        yield _checked("imagenet", root / "val", _check_classes)


def _check_severities(folder: Path) -> Verdict:
    there = [severity for severity in range(1, 6) if (folder / str(severity)).is_dir()]
    for severity in there:
        status, detail = _check_classes(folder / str(severity))
        if status != "ok":
            return status, f"severity {severity}: {detail}"
    return "ok" if len(there) == 5 else "partial", f"severities {', '.join(map(str, there)) or 'none'}"


def _check_classes(folder: Path) -> Verdict:
    """Count class folders and their images; the images themselves are not decoded."""
    classes = published_classes("imagenet")
    there = {path.name: path for path in class_folders(folder)}
    if others := sorted(there.keys() - classes.keys()):
        return "damaged", f"folders that are not classes of ImageNet: {', '.join(others[:3])}"
    if len(there) < len(classes):
        return "partial", f"{len(there):,} of {len(classes):,} class folders"
    images = sum(len(images_in(path).paths) for path in there.values())
    expected = len(classes) * IMAGES_PER_CLASS
    return "ok" if images == expected else "partial", f"{images:,} of {expected:,} images"
