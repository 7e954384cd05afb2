"""ImageNet's validation images and ImageNet-C: one folder per class, named after its WordNet number."""

from __future__ import annotations

import functools
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import ClassVar

from tta_panda.data import CLEAN
from tta_panda.data.corruptions import EXTRA_CORRUPTIONS, GROUPS
from tta_panda.data.read.files import ImageFiles
from tta_panda.data.read.folders import ImageFileSource, class_folders, domain_folder, found_in, labelled_files
from tta_panda.data.source import Archive, Size
from tta_panda.errors import DataError
from tta_panda.images import AS_PUBLISHED

FOLDER = "ImageNet-C"
IMAGES_PER_CLASS = 50


@functools.cache
def imagenet_classes() -> dict[str, str]:
    """WordNet number to class name, in label order, with the names that CLIP's prompts use."""
    text = resources.files("tta_panda.data.read").joinpath("class_names", "imagenet.txt").read_text("utf-8")
    return dict(line.split("\t") for line in text.splitlines())


class ImageNet(ImageFileSource):
    """The validation images."""

    clean_only: ClassVar[bool] = True
    layout: ClassVar[str] = "<wnid>/*.JPEG"

    def load(self, root: Path | None, corruption: str, severity: int) -> ImageFiles:
        return _load_classes(self.domain(self.given(root, self.layout), corruption, severity))

    def domain(self, root: Path, corruption: str, severity: int) -> Path:
        if corruption != CLEAN:
            raise DataError(
                f"{self.name} holds clean images only, not {corruption}; use --data imagenet-c for corrupted ones."
            )
        return _validation_folder(root) or root


class ImageNetC(ImageNet):
    """The corrupted images, with the clean ones beside them."""

    clean_only: ClassVar[bool] = False
    layout: ClassVar[str] = "<corruption>/<severity>/<wnid>/*.JPEG"

    def domain(self, root: Path, corruption: str, severity: int) -> Path:
        if corruption != CLEAN:
            return domain_folder(root / FOLDER if (root / FOLDER).is_dir() else root, corruption, severity)
        if clean := _validation_folder(root):
            return clean
        raise DataError(
            "ImageNet-C holds corrupted images only. For clean ones, put ImageNet's validation images beside it, "
            f"as {root / 'val'}/<wnid>/*.JPEG. To run without clean images, use --corruption all."
        )


def _validation_folder(root: Path) -> Path | None:
    return next((folder for folder in (root / "val", root / "validation") if folder.is_dir()), None)


def _archive(group: str, md5: str, gigabytes: float) -> Archive:
    names = EXTRA_CORRUPTIONS if group == "extra" else GROUPS[group]
    holds = tuple(f"{name}/{severity}" for name in names for severity in range(1, 6))
    return Archive(f"https://zenodo.org/records/2235448/files/{group}.tar", md5, gigabytes, holds, FOLDER, group)


_SIZE = Size(images=50_000, classes=1000)

IMAGENET = ImageNet(name="imagenet", about="ImageNet's 50,000 validation images, <wnid>/*.JPEG.", size=_SIZE)
IMAGENET_C = ImageNetC(
    name="imagenet-c",
    about="ImageNet-C, <corruption>/<severity>/<wnid>/*.JPEG; clean images from val/ beside it.",
    size=_SIZE,
    archives=(
        _archive("noise", "e80562d7f6c3f8834afb1ecf27252745", 22),
        _archive("blur", "2d8e81fdd8e07fef67b9334fa635e45c", 7),
        _archive("weather", "33ffea4db4d93fe4a428c40a6ce0c25d", 13),
        _archive("digital", "89157860d7b10d5797849337ca2e5c03", 8),
        _archive("extra", "d492dfba5fc162d8ec2c3cd8ee672984", 16),
    ),
)


def _load_classes(folder: Path) -> ImageFiles:
    classes = imagenet_classes()
    there = {path.name for path in class_folders(folder)}
    unknown, missing = sorted(there - classes.keys()), sorted(classes.keys() - there)
    if unknown or missing:
        problem = f"not of ImageNet: {', '.join(unknown[:5])}" if unknown else f"missing: {', '.join(missing[:5])}"
        raise DataError(
            f"{folder} should hold the {len(classes):,} class folders of ImageNet (n01440764, n01443537, ...); found "
            f"{found_in(folder)}; {len(unknown or missing)} {problem}. For some of the classes, or others, use "
            "--data folder."
        )
    files = labelled_files(folder, [folder / wnid for wnid in classes], tuple(classes.values()))
    if not len(files):
        raise DataError(
            f"The class folders of {folder} hold no images; expected {IMAGES_PER_CLASS} .JPEG files in each."
        )
    return replace(files, decoding=AS_PUBLISHED)
