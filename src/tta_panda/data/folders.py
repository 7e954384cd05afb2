"""Image files in class folders; clean, or a tree of corruptions.

    root/<class>/**/*.jpg                            clean; the folders of ImageNet-V2 are numbers
    root/<corruption>/<severity>/<class>/**/*.jpg    corrupted, as ImageNet-C and `tta-panda corrupt` lay it out

`classes.txt` beside the class folders names the classes, a line `folder<TAB>name` for each.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from tta_panda.data import CLEAN
from tta_panda.data.corruptions import ALL_CORRUPTIONS, ALL_GROUPS, CORRUPTIONS
from tta_panda.data.dataset import ImageFiles
from tta_panda.data.listing import SUFFIXES, Found, find_images, read_lines
from tta_panda.data.source import Archive, DataSource, Finding, Status, parse_classes, published_classes
from tta_panda.errors import DataError, TtaPandaWarning
from tta_panda.escapes import path_text
from tta_panda.images import AS_PUBLISHED, AS_SHOWN, Decoding

CLASS_LIST = "classes.txt"


@dataclass(frozen=True, kw_only=True)
class ImageFolders(DataSource):
    """Image files in class folders, identified in records by their content."""

    image_files: ClassVar[bool] = True

    layout: str = "<class>/*.jpg"
    domains: tuple[str, ...] = ()  # whatever is there, if none are named
    classes: str | None = None  # list in `class_names` of the class folders, or of what some of them are; any if None
    numbered: bool = False  # whether class folders are named by the place of the class in that list, from 0
    folder: str = ""  # may be around the corruptions
    clean: tuple[str, ...] = ("",)  # where clean images may be; the first of these folders that exists
    decoding: Decoding = AS_SHOWN

    def load(self, root: Path | None, corruption: str, severity: int) -> ImageFiles:
        root = self.required_root(root)
        folder = self.domain(root, corruption, severity)
        if self.classes is not None:
            return self._load_published(folder)
        folders, names = named_classes(folder, root)
        if not folders:
            raise DataError(
                f"{folder} holds no class folders; expected {folder}/<class>/*.jpg, found {found_in(folder)}. Images "
                "without labels can be predicted: tta-panda predict FOLDER --classes cat,dog"
            )
        return self._labelled(folder, folders, names)

    def _load_published(self, folder: Path) -> ImageFiles:
        found = {path.name for path in class_folders(folder)}
        classes, count = self._published()
        unknown, missing = sorted(found - classes.keys()), sorted(classes.keys() - found)
        if unknown or len(found) != count:
            problem = f"{len(found) - count} too many"
            if len(found) < count:
                named = f": {', '.join(missing[:5])}" if count == len(classes) else ""
                problem = f"{count - len(found)} missing{named}"
            if unknown:
                problem = f"{len(unknown)} unknown: {', '.join(unknown[:5])}"
            raise DataError(
                f"{folder} should hold the {count:,} class folders of {self.name} ({shortened(list(classes))}); "
                f"found {found_in(folder)}; {problem}. For some of the classes, or others, use --data folder."
            )
        classes = {name: title for name, title in classes.items() if name in found}
        files = self._labelled(folder, [folder / name for name in classes], tuple(classes.values()))
        if not len(files):
            raise DataError(f"The class folders of {folder} hold no images; expected {self.layout}.")
        return files

    def _published(self) -> tuple[dict[str, str], int]:
        """All class folders that there may be, with the names of the classes, and how many of them there are."""
        assert self.classes is not None and self.size is not None
        classes = published_classes(self.classes)
        if self.numbered:
            classes = {str(number): name for number, name in enumerate(classes.values())}
        return classes, min(self.size[1], len(classes))

    def _labelled(self, folder: Path, classes: Sequence[Path], class_names: tuple[str, ...]) -> ImageFiles:
        """The images in the class folders of `folder`, sorted by class; a warning says what is skipped."""
        per_class = [find_images([each]) for each in classes]
        beside = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()]
        skipped = {path: reason for found in per_class for path, reason in found.skipped.items()}
        skipped |= dict.fromkeys(beside, "beside the class folders")
        found = Found(tuple(path for found in per_class for path in found.paths), skipped)
        if skipped:
            warnings.warn(f"{path_text(folder)}: {found}", TtaPandaWarning, stacklevel=1)  # shown once, whoever calls
        labels = np.repeat(np.arange(len(per_class)), [len(found.paths) for found in per_class])
        return ImageFiles(found.paths, labels, class_names, self.decoding)

    def domain(self, root: Path, corruption: str, severity: int) -> Path:
        """The folder that holds the class folders, or the images, of a domain."""
        self.check_is_clean(corruption)
        if corruption == CLEAN:
            for place in self.clean:
                if (root / place).is_dir():
                    return root / place
            raise DataError(
                f"No clean images in {root}: expected {root / self.clean[0]}/<class>/*. To run without clean images, "
                "use --corruption all."
            )
        if (root / self.folder).is_dir():
            root = root / self.folder
        folders = corruption_folders(root, corruption)
        for folder in folders:
            if (folder / str(severity)).is_dir():
                return folder / str(severity)
        found = f"severities {found_in(folders[0])} of {corruption}" if folders else found_in(root)
        raise DataError(
            f"There is no {root / corruption / str(severity)}. Expected <corruption>/<severity>/<class>/*.jpg in "
            f"{root}; found {found}. Make it from clean images with: tta-panda corrupt CLEAN {root} --corruption "
            f"{corruption} --severity {severity}"
        )

    def available(self, root: Path | None) -> tuple[str, ...]:
        """The domains of the data set, or whatever is there; `clean` if nothing is, so that loading it says why."""
        if self.domains:
            return self.domains
        root = self.required_root(root)
        there = tuple(name for name in ALL_CORRUPTIONS if any(map(_is_corruption, corruption_folders(root, name))))
        return (CLEAN, *there) if class_folders(root) or not there else there

    def fingerprint(
        self, root: Path | None, corruption: str, severity: int, *, skip_broken: bool = False
    ) -> str | None:
        """A digest of the class names, and of names and bytes of the images."""
        if root is None:
            return None
        try:
            files = self.load(root, corruption, severity)
            used = files.without_broken() if skip_broken else files
            return used.fingerprint(self.domain(self.required_root(root), corruption, severity))
        except (DataError, OSError):  # loading the data will say what is wrong
            return None

    def check(self, root: Path) -> Iterator[Finding]:
        if self.classes is None:
            return
        if CORRUPTIONS[0] not in self.domains:
            for place in filter(None, self.clean):
                if (root / place).is_dir():
                    yield self.check_path(root / place, self._check_classes)
            return
        for folder in (root / self.folder, root):
            there = {name: places[0] for name in ALL_CORRUPTIONS if (places := corruption_folders(folder, name))}
            if any(name in there for name in CORRUPTIONS):
                for name in dict.fromkeys((*CORRUPTIONS, *there)):
                    yield self.check_path(there.get(name, folder / name), self._check_severities)
                return

    def _check_severities(self, folder: Path) -> tuple[Status, str]:
        there = [severity for severity in range(1, 6) if (folder / str(severity)).is_dir()]
        for severity in there:
            status, detail = self._check_classes(folder / str(severity))
            if status != "ok":
                return status, f"severity {severity}: {detail}"
        return "ok" if len(there) == 5 else "partial", f"severities {', '.join(map(str, there)) or 'none'}"

    def _check_classes(self, folder: Path) -> tuple[Status, str]:
        """Count class folders and their images; the images themselves are not decoded."""
        assert self.size is not None
        there = {path.name: path for path in class_folders(folder)}
        classes, count = self._published()
        if others := sorted(there.keys() - classes.keys()):
            return "damaged", f"folders that are not classes of {self.name}: {', '.join(others[:3])}"
        if len(there) > count:
            return "damaged", f"{len(there):,} class folders, expected {count:,}"
        if len(there) < count:
            return "partial", f"{len(there):,} of {count:,} class folders"
        images, expected = len(find_images(there.values()).paths), self.size[0]
        return "ok" if images == expected else "partial", f"{images:,} of {expected:,} images"

    def required_root(self, root: Path | None) -> Path:
        root = super().required_root(root)
        if not root.is_dir():
            raise DataError(
                f"There is no folder {root}. Give the folder that holds {self.name} ({self.layout}) with --data-root "
                "PATH."
            )
        return root


def named_classes(folder: Path, root: Path | None = None) -> tuple[list[Path], tuple[str, ...]]:
    """The class folders in a folder, and their names from the class list there or in the root, if there is one.

    Without class folders, the names are those of the list.
    """
    folders = class_folders(folder)
    found = tuple(path_text(path.name) for path in folders)
    lists = [path for path in (folder / CLASS_LIST, (root or folder) / CLASS_LIST) if path.is_file()]
    names = parse_classes(read_lines(lists[0])) if lists else {}
    if not folders or not names:
        return folders, found or tuple(names.values())
    absent = [name for name in found if name not in names]
    if absent:
        raise DataError(
            f"{lists[0]} has no line for the class folder(s) {', '.join(absent[:5])}. Expected one line per class "
            "folder: its name, a tab, and the class name for the prompt."
        )
    return folders, tuple(names[name] for name in found)


def corruption_folders(root: Path, corruption: str) -> list[Path]:
    """Folders of a corruption: in `root`, or in that of its group where archives were unpacked one by one."""
    group = next(group for group, names in ALL_GROUPS.items() if corruption in names)
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


def _archive(group: str, md5: str, gigabytes: float) -> Archive:
    holds = tuple(f"{name}/{severity}" for name in ALL_GROUPS[group] for severity in range(1, 6))
    return Archive(f"https://zenodo.org/records/2235448/files/{group}.tar", md5, gigabytes, holds, "ImageNet-C", group)


def _of_imagenet(name: str, about: str, images: int, classes: int, clean: tuple[str, ...]) -> ImageFolders:
    """Clean images in folders of ImageNet's classes, or of some of them, among which alone they are classified."""
    return ImageFolders(
        name=name,
        about=about,
        layout=f"{clean[0]}/<wnid>/*",
        domains=(CLEAN,),
        classes="imagenet",
        clean=(*clean, ""),
        decoding=AS_PUBLISHED,
        size=(images, classes),
    )


FOLDER = ImageFolders(name="folder", about="Your own images: folder/<class>/*.")
IMAGENET = _of_imagenet(
    "imagenet", "ImageNet's 50,000 validation images, <wnid>/*.JPEG.", 50_000, 1000, ("val", "validation")
)
IMAGENET_A = _of_imagenet(
    "imagenet-a", "ImageNet-A: 7,500 photographs that networks fail on, of 200 classes.", 7_500, 200,
    ("imagenet-a", "imagenet-adversarial/imagenet-a"),
)  # fmt: skip
IMAGENET_R = _of_imagenet(
    "imagenet-r", "ImageNet-R: 30,000 renditions, such as paintings and toys, of 200 classes.", 30_000, 200,
    ("imagenet-r", "imagenet-rendition/imagenet-r"),
)  # fmt: skip
IMAGENET_SKETCH = _of_imagenet(
    "imagenet-sketch", "ImageNet-Sketch: 50,889 sketches.", 50_889, 1000,
    ("sketch", "imagenet-sketch/images", "imagenet-sketch/sketch", "imagenet-sketch"),
)  # fmt: skip
IMAGENET_V2 = replace(
    _of_imagenet(
        "imagenet-v2", "ImageNet-V2, matched frequency: 10,000 new photographs, <number of the class>/*.jpeg.", 10_000,
        1000, ("imagenetv2-matched-frequency-format-val", "imagenet-v2"),
    ),
    layout="imagenetv2-matched-frequency-format-val/<0 to 999>/*.jpeg",
    numbered=True,
)  # fmt: skip
IMAGENET_C = ImageFolders(
    name="imagenet-c",
    about="ImageNet-C, <corruption>/<severity>/<wnid>/*.JPEG; clean images from val/ beside it.",
    layout="<corruption>/<severity>/<wnid>/*.JPEG",
    domains=(CLEAN, *CORRUPTIONS),
    classes="imagenet",
    folder="ImageNet-C",
    clean=("val", "validation"),
    decoding=AS_PUBLISHED,
    size=(50_000, 1000),
    archives=(
        _archive("noise", "e80562d7f6c3f8834afb1ecf27252745", 22),
        _archive("blur", "2d8e81fdd8e07fef67b9334fa635e45c", 7),
        _archive("weather", "33ffea4db4d93fe4a428c40a6ce0c25d", 13),
        _archive("digital", "89157860d7b10d5797849337ca2e5c03", 8),
        _archive("extra", "d492dfba5fc162d8ec2c3cd8ee672984", 16),
    ),
)
