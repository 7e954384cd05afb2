"""Any folder of images: one sub-folder per class, or none and a list of classes; clean, or a tree of corruptions.

    root/<class>/*.jpg                            clean
    root/<corruption>/<severity>/<class>/*.jpg    corrupted, as ImageNet-C and `tta-panda corrupt` lay it out
    root/*.jpg and root/classes.txt               without labels, to predict

`classes.txt` names the classes, one per line; beside class folders, a line is `folder<TAB>name`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tta_panda.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, GROUPS
from tta_panda.data.dataset import CLEAN, UNLABELLED
from tta_panda.data.files import ImageFiles, image_paths, labelled_files
from tta_panda.errors import DataError

CLASS_LIST = "classes.txt"


def load_folder(root: Path | None, corruption: str, severity: int) -> ImageFiles:
    """Your own images: folder/<class>/*, or folder/* and classes.txt."""
    root = required_root(root, "folder", "<class>/*.jpg")
    folder = domain_folder(root, corruption, severity)
    named = next((path for path in (folder / CLASS_LIST, root / CLASS_LIST) if path.is_file()), None)
    lines = _lines(named) if named else []
    classes = class_folders(folder)
    if classes:
        return labelled_files(classes, _names(classes, lines, named))
    paths = image_paths(folder)
    if not paths:
        raise DataError(
            f"No images in {folder}. Expected {folder}/<class>/*.jpg, or {folder}/*.jpg and a {CLASS_LIST} that "
            f"names the classes; found {found_in(folder)}."
        )
    if named is None:
        raise DataError(
            f"{folder} holds {len(paths)} images but no class folders. Sort them into {folder}/<class>/, or, to "
            f"predict only, name the classes one per line in {folder / CLASS_LIST}."
        )
    return ImageFiles(tuple(paths), np.full(len(paths), UNLABELLED), tuple(lines))


def _names(classes: list[Path], lines: list[str], named: Path | None) -> tuple[str, ...]:
    """Class names for the prompts, in the order of the folders: those of the list, where there is one."""
    if not lines:
        return tuple(folder.name for folder in classes)
    names = {folder: name or folder for folder, _, name in (line.partition("\t") for line in lines)}
    absent = [folder.name for folder in classes if folder.name not in names]
    if absent:
        raise DataError(
            f"{named} has no line for the class folder(s) {', '.join(absent[:5])}. Expected one line per class folder: "
            "its name, a tab, and the class name for the prompt."
        )
    return tuple(names[folder.name] for folder in classes)


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]


def required_root(root: Path | None, name: str, layout: str) -> Path:
    """The folder of a data set that is on disk, which exists."""
    if root is None:
        raise DataError(f"{name} has to be on disk ({layout}): give the folder that holds it with --data-root PATH.")
    if not root.is_dir():
        raise DataError(
            f"There is no folder {root}. Give the folder that holds {name} ({layout}) with --data-root PATH."
        )
    return root


def domain_folder(root: Path, corruption: str, severity: int) -> Path:
    """Where the class folders of a domain are: `root` itself, or the corruption's severity below it."""
    if corruption == CLEAN:
        return root
    group = next((group for group, names in GROUPS.items() if corruption in names), "extra")
    candidates = [root / corruption, root / group / corruption]  # unpacked together, or archive by archive
    for candidate in candidates:
        if (candidate / str(severity)).is_dir():
            return candidate / str(severity)
    there = next((candidate for candidate in candidates if candidate.is_dir()), None)
    found = f"severities {found_in(there)} of {corruption}" if there else found_in(root)
    raise DataError(
        f"There is no {root / corruption / str(severity)}. Expected <corruption>/<severity>/<class>/*.jpg in {root}; "
        f"found {found}. Make it from clean images with: tta-panda corrupt CLEAN {root} --corruption {corruption} "
        f"--severity {severity}"
    )


def class_folders(folder: Path) -> list[Path]:
    """Sub-folders that stand for a class: all but hidden ones and those of corruptions."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_dir() and not path.name.startswith(".") and not _is_corruption(path)
    )


def _is_corruption(folder: Path) -> bool:
    """By its name and a severity in it: the name alone could be that of a class, such as snow."""
    named = folder.name in CORRUPTIONS or folder.name in EXTRA_CORRUPTIONS
    return named and any((folder / str(severity)).is_dir() for severity in range(1, 6))


def found_in(folder: Path) -> str:
    """What a folder holds, shortened, for messages."""
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "nothing"
