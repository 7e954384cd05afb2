"""CIFAR-10-C and CIFAR-100-C as published: `<corruption>.npy` with five severities of the images, and `labels.npy`."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tta_panda.data.dataset import CLEAN, ImageDataset
from tta_panda.errors import DataError

SEVERITIES = 5
FOLDERS = {10: "CIFAR-10-C", 100: "CIFAR-100-C"}


def load_cifar10_c(root: Path | None, corruption: str, severity: int) -> ImageDataset:
    """CIFAR-10-C: 10,000 images of ten classes per corruption and severity, on disk."""
    return _load(root, 10, corruption, severity)


def load_cifar100_c(root: Path | None, corruption: str, severity: int) -> ImageDataset:
    """CIFAR-100-C: 10,000 images of a hundred classes per corruption and severity, on disk."""
    return _load(root, 100, corruption, severity)


def class_names(classes: int) -> tuple[str, ...]:
    """The names in label order, as prompts use them."""
    text = resources.files("tta_panda.data").joinpath("class_names", f"cifar{classes}.txt").read_text("utf-8")
    return tuple(text.split("\n")[:classes])


def _load(root: Path | None, classes: int, corruption: str, severity: int) -> ImageDataset:
    folder = _folder(root, FOLDERS[classes])
    if corruption == CLEAN:
        raise DataError(f"{FOLDERS[classes]} holds corrupted images only; name a corruption instead of {CLEAN!r}.")
    labels = _open(folder / "labels.npy")
    images = _open(folder / f"{corruption}.npy")
    if len(images) != len(labels) or len(images) % SEVERITIES:
        raise DataError(
            f"{folder / corruption}.npy should hold {SEVERITIES} severities of as many images as labels.npy has rows; "
            f"found {len(images)} images and {len(labels)} labels."
        )
    rows = len(images) // SEVERITIES
    chosen = slice(rows * (severity - 1), rows * severity)
    return ImageDataset(images[chosen], labels[chosen], class_names(classes))


def _folder(root: Path | None, name: str) -> Path:
    if root is None:
        raise DataError(f"{name} has to be on disk: give the folder that holds it with --data-root PATH.")
    for folder in (root, root / name):
        if (folder / "labels.npy").is_file():
            return folder
    raise DataError(
        f"No labels.npy in {root} or {root / name}. Unpack {name}.tar and pass the folder with its .npy files "
        "(or the folder above it) as --data-root PATH."
    )


def _open(path: Path) -> NDArray[Any]:
    if not path.is_file():
        found = ", ".join(sorted(p.stem for p in path.parent.glob("*.npy") if p.stem != "labels")) or "none"
        raise DataError(f"There is no {path}. Corruptions in that folder: {found}.")
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise DataError(f"{path} is not a readable .npy file ({error}); download it again.") from error
    return array
