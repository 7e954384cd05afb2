"""Data sets of Hugging Face: by name, or a local folder of Parquet files. Their images stay on disk.

The package `datasets` keeps a data set as files that are mapped into memory, so only the labels are loaded.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tta_panda.data import CLEAN
from tta_panda.data.dataset import ImageFiles
from tta_panda.data.listing import CLASS_LIST, read_classes, shortened
from tta_panda.data.source import ImageSource
from tta_panda.errors import DataError, TtaPandaError, missing_extra
from tta_panda.files import read_regular
from tta_panda.images import StoredImage

IMAGE_COLUMNS, LABEL_COLUMNS = ("image", "img", "pixel_values", "images"), ("label", "labels", "fine_label")
_SPLITS = ("test", "validation", "val", "train")  # the first that exists is used


@dataclass(frozen=True, slots=True)
class TableRow(StoredImage):
    """An image in a row of a table."""

    file: Path
    table: Any
    index: int
    name: str
    folder: Path  # of images outside the table

    def __fspath__(self) -> str:
        return f"{self.name}/{self.index}"

    def read(self) -> bytes:
        [value] = self.table[self.index].values()
        if isinstance(value, dict):
            path, value = value.get("path"), value.get("bytes")
            if value is None and isinstance(path, str):
                if not Path(path).resolve().is_relative_to(self.folder.resolve()):
                    raise DataError(f"{os.fspath(self)} is {path}, outside of {self.folder}.")
                return read_regular(Path(path))
        if not isinstance(value, bytes):
            raise DataError(f"{os.fspath(self)} holds no encoded image.")
        return value


@dataclass(frozen=True, kw_only=True)
class HuggingFace(ImageSource):
    """A data set with an image and a label in each row. Its configurations are domains."""

    def load(self, root: Path | None, corruption: str, severity: int) -> ImageFiles:
        place = self.required_root(root)
        table = _load(place, None if corruption == CLEAN else corruption)
        image = _column(table, IMAGE_COLUMNS, place)
        label = _column(table, LABEL_COLUMNS, place)
        labels, names = _labels(table, label, place)
        pictures = table.select_columns([image])
        if type(pictures.features[image]).__name__ == "Image":
            pictures = pictures.cast_column(image, type(pictures.features[image])(decode=False))
        elif not isinstance(pictures[0][image], dict | bytes):
            raise DataError(
                f"The column {image!r} of {place} holds {pictures.features[image]}; expected encoded images. Convert "
                "it with datasets: data.cast_column('image', datasets.Image())."
            )
        file = Path(table.cache_files[0]["filename"]) if table.cache_files else place
        folder = place if place.is_dir() else Path(import_datasets().config.HF_CACHE_HOME)
        rows = tuple(TableRow(file, pictures, index, str(place), folder) for index in range(len(table)))
        return ImageFiles(rows, labels, names, self.decoding)

    def available(self, root: Path | None) -> tuple[str, ...]:
        datasets, place = import_datasets(), self.required_root(root)
        with _explained(str(place)):
            names = tuple(datasets.get_dataset_config_names(str(place)))
        return names if len(names) > 1 else (CLEAN,)

    def required_root(self, root: Path | None) -> Path:
        if root is None:
            raise DataError("Name the data set, as in --data hf:cifar10, or a local folder of Parquet files.")
        return root  # a name on the hub is no path on disk


def import_datasets() -> Any:
    """Import `datasets`, or raise an error that names the extra to install."""
    try:
        import datasets
    except ImportError as error:
        raise missing_extra("Data sets of Hugging Face need", "datasets") from error
    return datasets


def _load(place: Path, config: str | None) -> Any:
    """Load the test split, or the one that takes its place."""
    datasets = import_datasets()
    with _explained(str(place)):
        builder = datasets.load_dataset_builder(str(place), config)
        for file in itertools.chain.from_iterable((builder.config.data_files or {}).values()):
            # The README of a data set may name any file or address.
            if not _is_own(str(file), place):
                raise DataError(f"{place} names data elsewhere: {file}.")
        builder.download_and_prepare()
        splits = list(builder.info.splits)
        split = next((each for each in _SPLITS if each in splits), splits[0])
        table = builder.as_dataset(split)
    if not len(table):
        raise DataError(f"The split {split} of {place} has no rows.")
    return table


def _is_own(file: str, place: Path) -> bool:
    if place.is_dir():
        return "://" not in file and Path(file).resolve().is_relative_to(place.resolve())
    return file.startswith("hf://datasets/")


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except TtaPandaError:
        raise
    except Exception as error:  # `datasets` raises those of pyarrow, of the hub and of its own
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(
            f"Cannot load {name} with the package datasets: {reason} Check the name on "
            "https://huggingface.co/datasets, or give a folder of Parquet files as --data hf:FOLDER."
        ) from error


def _column(table: Any, names: tuple[str, ...], place: Path) -> str:
    found = next((name for name in names if name in table.column_names), None)
    if found is None:
        raise DataError(
            f"{place} has the columns {shortened(table.column_names)}; expected one of {', '.join(names)}. Rename it "
            "with datasets: data.rename_column(OLD, NEW)."
        )
    return found


def _labels(table: Any, column: str, place: Path) -> tuple[np.ndarray[Any, Any], tuple[str, ...]]:
    """The labels of all rows, and the names of the classes: the column's own, its texts, or those of a file."""
    values, feature = table.with_format("numpy")[column][:], table.features[column]
    values = np.asarray(values)
    if names := getattr(feature, "names", None):
        if (values < 0).all():
            raise DataError(
                f"The split {table.split} of {place} has no labels. Save one that has: datasets.load_dataset("
                f"{str(place)!r}, split='validation').to_parquet('labelled/test.parquet'); then --data hf:labelled."
            )
        return values, tuple(names)
    if values.dtype.kind in "US":
        classes, labels = np.unique(values, return_inverse=True)
        return labels.astype(np.int64), tuple(map(str, classes))
    if values.dtype.kind not in "iu":
        raise DataError(f"The column {column!r} of {place} holds {feature}; expected whole numbers or class names.")
    if (file := place / CLASS_LIST).is_file():
        return values, tuple(read_classes(file).values())
    raise DataError(
        f"The column {column!r} of {place} has no class names: expected a ClassLabel, texts, or {file} with one name "
        "per line."
    )


HUGGING_FACE = HuggingFace(
    name="hf",
    about="A data set of Hugging Face, or a folder of Parquet files: --data hf:name (needs tta-panda[datasets]).",
    domains=(),
    has_severities=False,
)
