"""Data sets by name. Each has domains: `clean`, or one of the corruptions at a severity from 1 to 5."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tta_panda.registry import Registry

if TYPE_CHECKING:
    from tta_panda.data.dataset import ImageDataset

Loader = Callable[[Path | None, str, int], "ImageDataset"]
"""(root folder, corruption, severity) -> images of that domain."""

DATASETS: Registry[Loader] = Registry(
    "data set",
    {
        "glyphs-c": "tta_panda.data.glyphs:load_glyphs",
        "glyphs-val-c": "tta_panda.data.glyphs:load_validation_glyphs",
        "cifar10-c": "tta_panda.data.cifar:load_cifar10_c",
        "cifar100-c": "tta_panda.data.cifar:load_cifar100_c",
    },
)


def load_data(
    name: str, corruption: str = "clean", severity: int = 5, *, root: Path | str | None = None, limit: int | None = None
) -> ImageDataset:
    """One domain of a data set.

    Args:
        name: one of `DATASETS`; the embedded ones are `glyphs-c` and, to choose settings on, `glyphs-val-c`.
        corruption: `clean` or a corruption's name.
        severity: 1 to 5; has no meaning for `clean`.
        root: folder of data sets that are on disk.
        limit: use the first so many images only.
    """
    loader = DATASETS.get(name)
    return loader(Path(root).expanduser() if root is not None else None, corruption, severity).head(limit)
