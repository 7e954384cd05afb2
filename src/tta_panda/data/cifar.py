"""CIFAR-10 and CIFAR-100, and their corrupted forms as published: `<corruption>.npy` and `labels.npy`."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tta_panda.data.dataset import CLEAN, ImageDataset
from tta_panda.data.pickles import find_test_pickle, read_test_images
from tta_panda.errors import DataError

SEVERITIES = 5
FOLDERS = {10: "CIFAR-10-C", 100: "CIFAR-100-C"}
LABELS = "labels.npy"


def load_cifar10(root: Path | None, corruption: str, severity: int) -> ImageDataset:
    """The 10,000 clean test images of CIFAR-10, cifar-10-batches-py/test_batch."""
    return _load_clean_only(root, 10, corruption)


def load_cifar100(root: Path | None, corruption: str, severity: int) -> ImageDataset:
    """The 10,000 clean test images of CIFAR-100, cifar-100-python/test."""
    return _load_clean_only(root, 100, corruption)


def load_cifar10_c(root: Path | None, corruption: str, severity: int) -> ImageDataset:
    """CIFAR-10-C/<corruption>.npy; clean images from cifar-10-batches-py beside it."""
    return _load(root, 10, corruption, severity)


def load_cifar100_c(root: Path | None, corruption: str, severity: int) -> ImageDataset:
    """CIFAR-100-C/<corruption>.npy; clean images from cifar-100-python beside it."""
    return _load(root, 100, corruption, severity)


def class_names(classes: int) -> tuple[str, ...]:
    """The names in label order, as prompts use them."""
    text = resources.files("tta_panda.data").joinpath("class_names", f"cifar{classes}.txt").read_text("utf-8")
    return tuple(text.split("\n")[:classes])


def load_clean(root: Path, classes: int) -> ImageDataset:
    images, labels = read_test_images(find_test_pickle(root, classes), classes)
    return ImageDataset(images, labels, class_names(classes))


def _load_clean_only(root: Path | None, classes: int, corruption: str) -> ImageDataset:
    name = f"cifar{classes}"
    if corruption != CLEAN:
        raise DataError(
            f"{name} holds clean images only, not {corruption}: add --corruption clean, or use --data {name}-c (made "
            f"with: tta-panda data make {name}-c --from ROOT --to ROOT)."
        )
    return load_clean(_given(root, name), classes)


def _load(root: Path | None, classes: int, corruption: str, severity: int) -> ImageDataset:
    root = _given(root, FOLDERS[classes])
    if corruption == CLEAN:
        return load_clean(_beside(root, classes), classes)
    folder = _folder(root, FOLDERS[classes])
    labels = open_array(folder / LABELS)
    path = folder / f"{corruption}.npy"
    images = open_array(path)
    if images.shape[1:] != (32, 32, 3) or images.dtype != np.uint8:
        raise DataError(f"{path} should hold uint8 images (N, 32, 32, 3), found {images.dtype} {images.shape}.")
    if len(images) != len(labels) or len(images) % SEVERITIES:
        raise DataError(
            f"{path} should hold {SEVERITIES} severities of as many images as {LABELS} has rows; "
            f"found {len(images)} images and {len(labels)} labels."
        )
    _check_made(path, severity, classes)
    rows = len(images) // SEVERITIES
    chosen = slice(rows * (severity - 1), rows * severity)
    return ImageDataset(images[chosen], labels[chosen], class_names(classes))


def _beside(root: Path, classes: int) -> Path:
    """The folder of the clean images that belong to corrupted ones."""
    beside = root.parent if root.name == FOLDERS[classes] else root
    try:
        find_test_pickle(beside, classes)
    except DataError as error:
        raise DataError(f"{error}, or leave clean images out with --corruption all.") from None
    return beside


def note_path(path: Path) -> Path:
    """The note beside a file that `tta-panda data make` writes; published files have none."""
    return path.with_suffix(".json")


def read_note(path: Path) -> dict[str, Any] | None:
    """What the note beside `path` says of it; None for a published file."""
    note = note_path(path)
    try:
        content = json.loads(note.read_text("utf-8"))
        return {**content, "severities": [int(severity) for severity in content["severities"]]}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"Cannot read {note} ({error}). Delete it and {path.name}, and make the file again.") from error


def _check_made(path: Path, severity: int, classes: int) -> None:
    note = read_note(path)
    if note is not None and severity not in note["severities"]:
        made = ", ".join(map(str, note["severities"])) or "none yet"
        raise DataError(
            f"{path} holds no images of severity {severity}; made so far: {made}. Add it with: tta-panda data make "
            f"cifar{classes}-c --from CLEAN --to {path.parent.parent} "
            f"--corruption {path.stem} --severity {severity}"
        )


def _given(root: Path | None, name: str) -> Path:
    if root is None:
        raise DataError(f"{name} has to be on disk: give the folder that holds it with --data-root PATH.")
    return root


def _folder(root: Path, name: str) -> Path:
    for folder in (root, root / name):
        if (folder / LABELS).is_file():
            return folder
    short = name.lower().replace("-", "", 1)
    raise DataError(
        f"No {LABELS} in {root} or {root / name}. Unpack {name}.tar and pass the folder with its .npy files (or the "
        f"folder above it) as --data-root PATH. To fetch it: tta-panda data download {short} --to {root}; to make it "
        f"from clean images: tta-panda data make {short} --from CLEAN --to {root}"
    )


def open_array(path: Path) -> NDArray[Any]:
    """Memory-mapped: what is not used is not read."""
    try:
        if not path.is_file():
            found = ", ".join(sorted(p.stem for p in path.parent.glob("*.npy") if p.name != LABELS)) or "none"
            raise DataError(f"There is no {path}. Corruptions in that folder: {found}.")
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise DataError(
            f"Cannot read {path} ({error.strerror or error}). It has to be readable: see its rights with ls -l {path}"
        ) from error
    except (ValueError, EOFError) as error:
        raise DataError(f"{path} is not a readable .npy file ({error}); download it again.") from error
    return array
