"""Data sets by name. Each has domains: `clean`, or one of the corruptions at a severity from 1 to 5."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tta_panda.errors import InvalidInputError
from tta_panda.registry import Registry

if TYPE_CHECKING:
    from tta_panda.data.dataset import Dataset

Loader = Callable[[Path | None, str, int], "Dataset"]
"""(root folder, corruption, severity) -> images of that domain."""

DATASETS: Registry[Loader] = Registry(
    "data set",
    {
        "glyphs-c": "tta_panda.data.glyphs:load_glyphs",
        "glyphs-val-c": "tta_panda.data.glyphs:load_validation_glyphs",
        "cifar10-c": "tta_panda.data.cifar:load_cifar10_c",
        "cifar100-c": "tta_panda.data.cifar:load_cifar100_c",
        "imagenet-c": "tta_panda.data.imagenet:load_imagenet_c",
        "cifar10": "tta_panda.data.cifar:load_cifar10",
        "cifar100": "tta_panda.data.cifar:load_cifar100",
        "imagenet": "tta_panda.data.imagenet:load_imagenet",
        "folder": "tta_panda.data.folders:load_folder",
    },
)

IMAGE_FILE_DATASETS = frozenset({"imagenet-c", "imagenet", "folder"})
"""Data sets whose images are files of any size, decoded and fitted to the model one by one."""


def load_data(
    name: str,
    corruption: str = "clean",
    severity: int = 5,
    *,
    root: Path | str | None = None,
    limit: int | None = None,
    image_list: Path | str | None = None,
) -> Dataset:
    """One domain of a data set.

    Args:
        name: one of `DATASETS`; the embedded ones are `glyphs-c` and, to choose settings on, `glyphs-val-c`.
        corruption: `clean` or a corruption's name.
        severity: 1 to 5; has no meaning for `clean`.
        root: folder of data sets that are on disk.
        limit: use only so many images.
        image_list: use only the images that this text file names, one per line; for data sets of image files.
    """
    loader = DATASETS.get(name)
    dataset = loader(Path(root).expanduser() if root is not None else None, corruption, severity)
    if image_list is not None:
        dataset = _listed(dataset, name, Path(image_list).expanduser())
    return dataset.head(limit)


def _listed(dataset: Dataset, name: str, image_list: Path) -> Dataset:
    from tta_panda.data.files import ImageFiles
    from tta_panda.data.lists import read_image_list, select_listed

    if not isinstance(dataset, ImageFiles):
        raise InvalidInputError(
            f"{name} is no data set of image files, so the list {image_list} cannot choose from it."
        )
    return select_listed(dataset, read_image_list(image_list))
