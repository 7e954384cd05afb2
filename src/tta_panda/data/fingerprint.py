"""What tells data of one name apart, for records: folders of images, and CIFAR-C that was made, not published."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tta_panda.data.cifar import FOLDERS, read_note
from tta_panda.data.dataset import CLEAN
from tta_panda.data.files import is_image
from tta_panda.data.folders import CLASS_LIST, domain_folder
from tta_panda.data.imagenet import clean_folder, corrupted_folder
from tta_panda.errors import DataError

MADE = "made with seed"
"""Begins the fingerprint of corrupted images that did not come from the benchmark's authors."""

_MADE = {"cifar10-c": FOLDERS[10], "cifar100-c": FOLDERS[100]}


def data_fingerprint(name: str, root: Path | None, corruption: str, severity: int) -> str | None:
    """None where the name says it all, or the data are not there (loading them will say so)."""
    if root is None:
        return None
    root = root.expanduser()
    if name in _MADE:
        return None if corruption == CLEAN else _of_made_file(root, _MADE[name], corruption)
    if name == "imagenet" or (name == "imagenet-c" and corruption == CLEAN):
        return _of_folder(clean_folder(root), CLEAN, 0)
    if name == "imagenet-c":
        return _of_folder(corrupted_folder(root), corruption, severity)
    return _of_folder(root, corruption, severity) if name == "folder" else None


def _of_made_file(root: Path, folder: str, corruption: str) -> str | None:
    for path in (root / f"{corruption}.npy", root / folder / f"{corruption}.npy"):
        note = read_note(path)
        if note is not None:
            textures = f", {note['textures']} textures" if "textures" in note else ""
            return f"{MADE} {note.get('seed')}{textures}"
    return None


def _of_folder(root: Path, corruption: str, severity: int) -> str | None:
    """A digest of names and sizes of the images, and of the class list: enough to tell folders apart, and quick."""
    try:
        folder = domain_folder(root, corruption, severity)
        images = sorted(path for pattern in ("*", "*/*") for path in folder.glob(pattern) if is_image(path))
        lines = [f"{path.relative_to(folder).as_posix()} {path.stat().st_size}" for path in images]
        lists = [path.read_text("utf-8") for path in (folder / CLASS_LIST, root / CLASS_LIST) if path.is_file()]
    except (DataError, OSError):
        return None
    return hashlib.sha256("\n".join(lines + lists[:1]).encode()).hexdigest()[:12]
