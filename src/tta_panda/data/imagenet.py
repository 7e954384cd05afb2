"""ImageNet's validation images and ImageNet-C: one folder per class, named by its WordNet number."""

from __future__ import annotations

import functools
from importlib import resources
from pathlib import Path

from tta_panda.data.dataset import CLEAN
from tta_panda.data.files import ImageFiles, labelled_files
from tta_panda.data.folders import class_folders, domain_folder, found_in, required_root
from tta_panda.errors import DataError

FOLDER = "ImageNet-C"
IMAGES_PER_CLASS = 50


@functools.cache
def imagenet_classes() -> dict[str, str]:
    """WordNet number to class name, in label order, with the names that CLIP's prompts use."""
    text = resources.files("tta_panda.data").joinpath("class_names", "imagenet.txt").read_text("utf-8")
    return dict(line.split("\t") for line in text.splitlines())


def load_imagenet(root: Path | None, corruption: str, severity: int) -> ImageFiles:
    """ImageNet's 50,000 validation images, <wnid>/*.JPEG."""
    root = required_root(root, "imagenet", "<wnid>/*.JPEG")
    if corruption != CLEAN:
        raise DataError(
            f"imagenet holds clean images only, not {corruption}; use --data imagenet-c for corrupted ones."
        )
    return _load(clean_folder(root))


def load_imagenet_c(root: Path | None, corruption: str, severity: int) -> ImageFiles:
    """ImageNet-C, <corruption>/<severity>/<wnid>/*.JPEG; clean images from val/ beside it."""
    root = required_root(root, "imagenet-c", "<corruption>/<severity>/<wnid>/*.JPEG")
    if corruption != CLEAN:
        return _load(domain_folder(corrupted_folder(root), corruption, severity))
    if clean_folder(root) == root:
        raise DataError(
            f"ImageNet-C holds corrupted images only. For clean ones, put ImageNet's validation images beside it, as "
            f"{root / 'val'}/<wnid>/*.JPEG; `run` and `bench` leave them out with --corruption all."
        )
    return _load(clean_folder(root))


def clean_folder(root: Path) -> Path:
    """Where the class folders of the validation images are."""
    return next((folder for folder in (root / "val", root / "validation") if folder.is_dir()), root)


def corrupted_folder(root: Path) -> Path:
    """Where the folders of the corruptions are."""
    return root / FOLDER if (root / FOLDER).is_dir() else root


def _load(folder: Path) -> ImageFiles:
    classes = imagenet_classes()
    there = {path.name for path in class_folders(folder)}
    unknown, missing = sorted(there - classes.keys()), sorted(classes.keys() - there)
    if unknown or missing:
        problem = f"not of ImageNet: {', '.join(unknown[:5])}" if unknown else f"missing: {', '.join(missing[:5])}"
        raise DataError(
            f"{folder} should hold the {len(classes):,} class folders of ImageNet (n01440764, n01443537, ...); found "
            f"{found_in(folder)}; {len(unknown or missing)} {problem}. For a part of the classes, or others, use "
            "--data folder."
        )
    files = labelled_files((folder / wnid for wnid in classes), tuple(classes.values()))
    if not len(files):
        raise DataError(
            f"The class folders of {folder} hold no images; expected {IMAGES_PER_CLASS} .JPEG files in each."
        )
    return files
