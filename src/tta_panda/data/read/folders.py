"""Any folder of images: one sub-folder per class, or a list of classes instead; clean, or a tree of corruptions.

    root/<class>/**/*.jpg                            clean
    root/<corruption>/<severity>/<class>/**/*.jpg    corrupted, as ImageNet-C and `tta-panda corrupt` lay it out
    root/*.jpg and root/classes.txt                  without labels, to predict

`classes.txt` names the classes, one per line; beside class folders, a line is `folder<TAB>name`.
"""

from __future__ import annotations

import os
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from tta_panda.data import CLEAN
from tta_panda.data.corruptions import ALL_CORRUPTIONS, GROUPS
from tta_panda.data.dataset import UNLABELLED
from tta_panda.data.read.files import ImageFiles
from tta_panda.data.read.fingerprint import files_fingerprint
from tta_panda.data.read.listing import Found, images_in
from tta_panda.data.read.lists import read_lines
from tta_panda.data.source import DataSource
from tta_panda.errors import DataError, TtaPandaWarning
from tta_panda.escapes import path_text

CLASS_LIST = "classes.txt"


class ImageFileSource(DataSource):
    """A data set of image files, identified in records by the content of its files."""

    image_files: ClassVar[bool] = True

    @abstractmethod
    def load(self, root: Path | None, corruption: str, severity: int) -> ImageFiles:
        """The images of one domain."""

    @abstractmethod
    def domain(self, root: Path, corruption: str, severity: int) -> Path:
        """The folder that holds the class folders, or the images, of a domain."""

    def given(self, root: Path | None, layout: str) -> Path:
        root = super().given(root, layout)
        if not root.is_dir():
            raise DataError(
                f"There is no folder {root}. Give the folder that holds {self.name} ({layout}) with --data-root PATH."
            )
        return root

    def fingerprint(
        self, root: Path | None, corruption: str, severity: int, *, skip_broken: bool = False
    ) -> str | None:
        """A digest of the class names, and of names and bytes of the images."""
        if root is None:
            return None
        root = root.expanduser().absolute()
        try:
            files = self.load(root, corruption, severity)
            used = files.without_broken() if skip_broken else files
            return files_fingerprint(self.domain(root, corruption, severity), used)
        except (DataError, OSError):  # loading the data will say what is wrong
            return None


class FolderSource(ImageFileSource):
    """Any folder of images."""

    def domain(self, root: Path, corruption: str, severity: int) -> Path:
        return domain_folder(root, corruption, severity)

    def load(self, root: Path | None, corruption: str, severity: int) -> ImageFiles:
        root = self.given(root, "<class>/*.jpg")
        folder = self.domain(root, corruption, severity)
        named, lines = _class_list(folder, root)
        if classes := class_folders(folder):
            return labelled_files(folder, classes, _names(classes, lines, named))
        paths = images_in(folder, nested=False).paths
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
        return ImageFiles(paths, np.full(len(paths), UNLABELLED), tuple(lines))

    def available(self, root: Path | None) -> tuple[str, ...]:
        """Whatever is there; `clean` if nothing is, so that loading it says what is expected."""
        root = self.given(root, "<class>/*.jpg")
        there = tuple(name for name in ALL_CORRUPTIONS if any(map(_is_corruption, corruption_folders(root, name))))
        clean = class_folders(root) or images_in(root, nested=False).paths
        return (CLEAN, *there) if clean or not there else there


FOLDER = FolderSource(name="folder", about="Your own images: folder/<class>/*, or folder/* and classes.txt.")


def labelled_files(folder: Path, classes: Sequence[Path], class_names: tuple[str, ...]) -> ImageFiles:
    """The images in the class folders of `folder`, sorted by class; a warning says what is not used."""
    per_class = [images_in(each) for each in classes]
    beside = dict.fromkeys(images_in(folder, nested=False).paths, "beside the class folders")
    left_out = {path: reason for found in per_class for path, reason in found.left_out.items()} | beside
    found = Found(tuple(path for found in per_class for path in found.paths), left_out)
    if left_out:
        warnings.warn(f"{path_text(folder)}: {found}", TtaPandaWarning, stacklevel=2)
    labels = np.repeat(np.arange(len(per_class)), [len(found.paths) for found in per_class])
    return ImageFiles(found.paths, labels, class_names)


def named_classes(folder: Path) -> tuple[list[Path], tuple[str, ...]]:
    """The class folders in a folder, and the names of the classes; these alone where only a class list has them."""
    named, lines = _class_list(folder, folder)
    classes = class_folders(folder)
    return classes, _names(classes, lines, named) if classes else tuple(lines)


def _class_list(folder: Path, root: Path) -> tuple[Path | None, list[str]]:
    """The class list in the folder or in the root, and its lines; None and no lines if there is none."""
    for path in (folder / CLASS_LIST, root / CLASS_LIST):
        if path.is_file():
            return path, read_lines(path)
    return None, []


def _names(classes: list[Path], lines: list[str], named: Path | None) -> tuple[str, ...]:
    """Class names for the prompts, in the order of the folders; from the class list, if there is one."""
    there = tuple(path_text(folder.name) for folder in classes)
    if not lines:
        return there
    names = {folder: name or folder for folder, _, name in (line.partition("\t") for line in lines)}
    absent = [folder for folder in there if folder not in names]
    if absent:
        raise DataError(
            f"{named} has no line for the class folder(s) {', '.join(absent[:5])}. Expected one line per class folder: "
            "its name, a tab, and the class name for the prompt."
        )
    return tuple(names[folder] for folder in there)


def domain_folder(root: Path, corruption: str, severity: int) -> Path:
    """Where the class folders of a domain are: `root` itself, or the corruption's severity below it."""
    if corruption == CLEAN:
        return root
    folders = corruption_folders(root, corruption)
    for folder in folders:
        if (folder / str(severity)).is_dir():
            return folder / str(severity)
    found = f"severities {found_in(folders[0])} of {corruption}" if folders else found_in(root)
    raise DataError(
        f"There is no {root / corruption / str(severity)}. Expected <corruption>/<severity>/<class>/*.jpg in {root}; "
        f"found {found}. Make it from clean images with: tta-panda corrupt CLEAN {root} --corruption {corruption} "
        f"--severity {severity}"
    )


def corruption_folders(root: Path, corruption: str) -> list[Path]:
    """Folders of a corruption: in `root`, or in that of its group where archives were unpacked one by one."""
    group = next((group for group, names in GROUPS.items() if corruption in names), "extra")
    return [folder for folder in (root / corruption, root / group / corruption) if folder.is_dir()]


def class_folders(folder: Path) -> list[Path]:
    """Sub-folders of classes: all but hidden ones, those of corruptions, and those that hold some of these."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_dir()
        and not path.name.startswith(".")
        and not _is_corruption(path)
        and not any(os.path.isdir(f"{path}/{name}") and _is_corruption(path / name) for name in ALL_CORRUPTIONS)
    )


def _is_corruption(folder: Path) -> bool:
    """Whether it is named after a corruption and holds a severity; the name alone may be a class, such as snow."""
    return folder.name in ALL_CORRUPTIONS and any((folder / str(severity)).is_dir() for severity in range(1, 6))


def found_in(folder: Path) -> str:
    """What a folder holds, shortened, for messages."""
    return shortened(sorted(path_text(path.name) for path in folder.iterdir()))


def shortened(names: Sequence[str]) -> str:
    """The first names, and the number of further ones, for messages."""
    return (", ".join(names[:5]) or "nothing") + (f" and {len(names) - 5} more" if len(names) > 5 else "")
