"""Registry of data sets. A data set has domains: `clean`, and corruptions at severities from 1 to 5."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tta_panda.errors import DataError, InvalidInputError
from tta_panda.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tta_panda.data.dataset import Dataset
    from tta_panda.data.source import DataSource, Finding

CLEAN = "clean"
"""The domain without corruption; its severity is 0."""

AVAILABLE = "available"
"""Placeholder for every domain that a data set has, in a list of corruptions."""

DATASETS: Registry[DataSource] = Registry(
    "data set",
    {
        "glyphs-c": "tta_panda.data.glyphs:GLYPHS_C",
        "glyphs-val-c": "tta_panda.data.glyphs:GLYPHS_VAL_C",
        "cifar10-c": "tta_panda.data.cifar:CIFAR10_C",
        "cifar100-c": "tta_panda.data.cifar:CIFAR100_C",
        "imagenet-c": "tta_panda.data.folders:IMAGENET_C",
        "cifar10": "tta_panda.data.cifar:CIFAR10",
        "cifar100": "tta_panda.data.cifar:CIFAR100",
        "imagenet": "tta_panda.data.folders:IMAGENET",
        "cifar10.1": "tta_panda.data.cifar:CIFAR10_1",
        "imagenet-a": "tta_panda.data.folders:IMAGENET_A",
        "imagenet-r": "tta_panda.data.folders:IMAGENET_R",
        "imagenet-sketch": "tta_panda.data.folders:IMAGENET_SKETCH",
        "imagenet-v2": "tta_panda.data.folders:IMAGENET_V2",
        "cifar10.2": "tta_panda.data.cifar:CIFAR10_2",
        "cifar10-c-bar": "tta_panda.data.cifar:CIFAR10_C_BAR",
        "imagenet-c-bar": "tta_panda.data.folders:IMAGENET_C_BAR",
        "imagenet-3dcc": "tta_panda.data.folders:IMAGENET_3DCC",
        "tiny-imagenet-c": "tta_panda.data.folders:TINY_IMAGENET_C",
        "pacs": "tta_panda.data.folders:PACS",
        "vlcs": "tta_panda.data.folders:VLCS",
        "officehome": "tta_panda.data.folders:OFFICEHOME",
        "terra": "tta_panda.data.folders:TERRA",
        "domainnet": "tta_panda.data.folders:DOMAINNET",
        "visda": "tta_panda.data.folders:VISDA",
        "domains": "tta_panda.data.folders:DOMAINS",
        "coop": "tta_panda.data.lists:COOP",
        "fgvc-aircraft": "tta_panda.data.lists:FGVC_AIRCRAFT",
        "domainnet-126": "tta_panda.data.lists:DOMAINNET_126",
        "lists": "tta_panda.data.lists:LISTS",
        "wds": "tta_panda.data.shards:WEBDATASET",
        "ccc": "tta_panda.data.shards:CCC",
        "hf": "tta_panda.data.hub:HUGGING_FACE",
        "folder": "tta_panda.data.folders:FOLDER",
    },
)


def list_data(pattern: str = "*") -> list[str]:
    """Names of data sets that match a shell wildcard."""
    return DATASETS.names(pattern)


def find_source(name: str) -> DataSource:
    """Return the registry entry for a name, which may contain a place, as in `wds:shards/{000..009}.tar`."""
    return DATASETS.get(name.partition(":")[0])


def is_stored(place: str | Path) -> bool:
    """Whether a place is that of shards, or of a data set of Hugging Face."""
    return str(place).startswith(("wds:", "hf:"))


def split_place(name: str) -> tuple[str, Path | None]:
    """Split a name into the one for records and the place of the data, if it contains one."""
    from tta_panda.files import expand

    entry, _, place = name.partition(":")
    if not place or not is_stored(name):
        return entry, expand(place) if place else None
    is_local = entry == "wds" or expand(place).exists()
    return f"{entry}:{expand(place).name if is_local else place}", expand(place)


def load_data(
    name: str,
    corruption: str = "clean",
    severity: int = 5,
    *,
    root: Path | str | None = None,
    limit: int | None = None,
    image_list: Path | str | None = None,
    skip_broken: bool = False,
    ignore_orientation: bool = False,
    unknown_classes: Sequence[str] = (),
) -> Dataset:
    """Load one domain of a data set.

    Args:
        name: one of `list_data()`; `glyphs-c` and, for choosing settings, `glyphs-val-c` come with the package. Shards
            of a WebDataset are named as `wds:shards/{000..009}.tar`, data sets of Hugging Face as `hf:name`.
        corruption: `clean`, or the name of a corruption or another domain.
        severity: 1 to 5; ignored for `clean`.
        root: folder that holds the data set, unless it comes with the package.
        limit: use at most this many images.
        image_list: use only the images named in this text file, one per line; for data sets of image files.
        skip_broken: skip image files that cannot be decoded, with a warning that names them.
        ignore_orientation: ignore the EXIF orientation of image files.
        unknown_classes: omit these from the classes, but keep their images, with the label -1.
    """
    from tta_panda.data.dataset import ImageFiles, OpenSet
    from tta_panda.data.listing import read_image_list
    from tta_panda.files import expand

    root = root if root is not None else split_place(name)[1]
    dataset = find_source(name).load(None if root is None else expand(root), corruption, severity)
    if image_list is not None:
        if not isinstance(dataset, ImageFiles):
            raise InvalidInputError(
                f"{name} is not a data set of image files, so the image list {image_list} cannot be used with it."
            )
        dataset = dataset.select_listed(read_image_list(expand(image_list)))
    if isinstance(dataset, ImageFiles) and ignore_orientation:
        dataset = replace(dataset, decoding=replace(dataset.decoding, upright=False))
    if isinstance(dataset, ImageFiles) and skip_broken:
        dataset = dataset.without_broken()
    chosen = dataset.head(limit)
    return OpenSet(chosen, unknown_classes) if unknown_classes else chosen


def check_data(root: Path, name: str | None = None) -> list[Finding]:
    """Check a data set by name, or every published one found in a folder; raise `DataError` if there is none."""
    if name is not None:
        return list(find_source(name).check_domains(root / (split_place(name)[1] or "")))
    if not root.is_dir():
        raise DataError(f"There is no folder {root}. Give the folder that holds CIFAR-10-C, ImageNet-C, ...")
    findings = [finding for name in DATASETS for finding in DATASETS.get(name).check(root)]
    if not findings:
        raise DataError(
            f"{root} holds no published data set; expected CIFAR-10-C, cifar-10-batches-py, ImageNet-C, ... in it. "
            f"Fetch one with: tta-panda data download cifar10-c -o {root}; or name your own, as in --data folder."
        )
    return findings
