"""Verify the data sets in a folder: what is there, what is missing, what is not as it should be."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tta_panda.data import cifar
from tta_panda.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, GROUPS
from tta_panda.data.files import is_image
from tta_panda.data.folders import class_folders, required_root
from tta_panda.data.imagenet import FOLDER, IMAGES_PER_CLASS, imagenet_classes
from tta_panda.data.pickles import OFFICIAL_PICKLES
from tta_panda.errors import DataError

Status = Literal["ok", "partial", "missing", "damaged"]
TEST_IMAGES = 10_000


@dataclass(frozen=True)
class Finding:
    """One file or folder of a data set."""

    data: str
    item: str
    status: Status
    detail: str

    def row(self) -> dict[str, Any]:
        return asdict(self)


def check_root(root: Path) -> list[Finding]:
    """Findings on every data set of which `root` holds something; a `DataError` where it holds none."""
    required_root(root, "the data sets", "CIFAR-10-C, ImageNet-C, ...")
    findings = [finding for check in (_cifar, _imagenet) for finding in check(root)]
    if not findings:
        places = [official.folder for official in OFFICIAL_PICKLES.values()] + [*cifar.FOLDERS.values(), FOLDER]
        raise DataError(
            f"{root} holds none of the data sets; expected one of {', '.join(places)} in it. Fetch one with: tta-panda "
            f"data download cifar10-c --to {root}"
        )
    return findings


def file_md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _cifar(root: Path) -> Iterator[Finding]:
    for classes, official in OFFICIAL_PICKLES.items():
        path = root / official.folder / official.file
        if path.parent.is_dir():
            yield _clean(f"cifar{classes}", path, official.md5)
    for classes, name in cifar.FOLDERS.items():
        folder = root if root.name == name else root / name
        if folder.is_dir():
            yield from _corrupted(f"cifar{classes}-c", folder, classes)


def _clean(data: str, path: Path, md5: str) -> Finding:
    if not path.is_file():
        return Finding(data, path.name, "missing", f"no {path}")
    found = file_md5(path)
    if found != md5:
        return Finding(data, path.name, "damaged", f"md5 {found}, expected {md5}")
    return Finding(data, path.name, "ok", "md5 as published")


def _corrupted(data: str, folder: Path, classes: int) -> Iterator[Finding]:
    yield _labels(data, folder / cifar.LABELS, classes)
    for name in CORRUPTIONS:
        yield _array(data, folder / f"{name}.npy")
    for name in EXTRA_CORRUPTIONS:
        if (folder / f"{name}.npy").exists():
            yield _array(data, folder / f"{name}.npy")


def _labels(data: str, path: Path, classes: int) -> Finding:
    if not path.is_file():
        return Finding(data, path.name, "missing", "without it no corruption can be read")
    try:
        labels = cifar.open_array(path)
    except DataError as error:
        return Finding(data, path.name, "damaged", str(error))
    if labels.shape != (cifar.SEVERITIES * TEST_IMAGES,):
        return Finding(
            data, path.name, "damaged", f"shape {labels.shape}, expected ({cifar.SEVERITIES * TEST_IMAGES},)"
        )
    if not np.issubdtype(labels.dtype, np.integer):
        return Finding(data, path.name, "damaged", f"{labels.dtype} labels, expected whole numbers")
    rounds = labels.reshape(cifar.SEVERITIES, TEST_IMAGES)
    of_each_class_as_many = np.repeat(np.arange(classes), TEST_IMAGES // classes)
    if (rounds != rounds[0]).any() or not np.array_equal(np.sort(rounds[0]), of_each_class_as_many):
        return Finding(data, path.name, "damaged", f"not the labels of the test set, {cifar.SEVERITIES} times over")
    return Finding(data, path.name, "ok", f"{cifar.SEVERITIES} x {TEST_IMAGES:,} labels")


def _array(data: str, path: Path) -> Finding:
    """Shape, type and length: md5 sums of the single files are not published."""
    expected = (cifar.SEVERITIES * TEST_IMAGES, 32, 32, 3)
    if not path.is_file():
        return Finding(data, path.name, "missing", "")
    try:
        array, note = cifar.open_array(path), cifar.read_note(path)
    except DataError as error:
        return Finding(data, path.name, "damaged", str(error))
    if array.shape != expected or array.dtype != np.uint8:
        return Finding(data, path.name, "damaged", f"{array.dtype} {array.shape}, expected uint8 {expected}")
    if note is None:
        return Finding(data, path.name, "ok", f"{cifar.SEVERITIES} x {TEST_IMAGES:,} images")
    made = ", ".join(map(str, note["severities"])) or "none"
    status: Status = "ok" if len(note["severities"]) == cifar.SEVERITIES else "partial"
    return Finding(data, path.name, status, f"severities made: {made}; seed {note.get('seed')}")


def _imagenet(root: Path) -> Iterator[Finding]:
    folder = next((f for f in (root / FOLDER, root) if any(_domain(f, name).is_dir() for name in CORRUPTIONS)), None)
    if folder is not None:
        for name in (*CORRUPTIONS, *(extra for extra in EXTRA_CORRUPTIONS if _domain(folder, extra).is_dir())):
            yield _tree(_domain(folder, name))
    if (root / "val").is_dir():
        yield Finding("imagenet", "val", *_classes(root / "val"))


def _domain(folder: Path, name: str) -> Path:
    group = next((group for group, names in GROUPS.items() if name in names), "extra")
    return folder / group / name if (folder / group / name).is_dir() else folder / name


def _tree(domain: Path) -> Finding:
    if not domain.is_dir():
        return Finding("imagenet-c", domain.name, "missing", "")
    there = [severity for severity in range(1, 6) if (domain / str(severity)).is_dir()]
    for severity in there:
        status, detail = _classes(domain / str(severity))
        if status != "ok":
            return Finding("imagenet-c", domain.name, status, f"severity {severity}: {detail}")
    listed = ", ".join(map(str, there)) or "none"
    return Finding("imagenet-c", domain.name, "ok" if len(there) == 5 else "partial", f"severities {listed}")


def _classes(folder: Path) -> tuple[Status, str]:
    """Counts of class folders and of their images; the images themselves are not decoded."""
    classes = imagenet_classes()
    there = {path.name: path for path in class_folders(folder)}
    if there.keys() - classes.keys():
        return (
            "damaged",
            f"folders that are no class of ImageNet: {', '.join(sorted(there.keys() - classes.keys())[:3])}",
        )
    if len(there) < len(classes):
        return "partial", f"{len(there):,} of {len(classes):,} class folders"
    images = sum(is_image(path) for wnid in classes for path in there[wnid].iterdir())
    expected = len(classes) * IMAGES_PER_CLASS
    return ("ok" if images == expected else "partial"), f"{images:,} of {expected:,} images"
