"""Pictures for the explorer: of embedded data, of a folder, or uploaded, and corrupted on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tta_panda.data import CLEAN, DATASETS, load_data
from tta_panda.data.corruptions import ALL_CORRUPTIONS, corrupt_batch
from tta_panda.data.dataset import UNLABELLED
from tta_panda.data.listing import find_images
from tta_panda.data.stream import Stream
from tta_panda.errors import DataError, InvalidInputError
from tta_panda.models import Classifier, ImageModel, load_model, make_classifier
from tta_panda.models.base import framing_of
from tta_panda.prediction.reading import Decoder, find_classes, labels_by_folder

DOMAINS = (CLEAN, *ALL_CORRUPTIONS)


def embedded_data() -> list[str]:
    """Names of the data sets that come with the package."""
    return [name for name in DATASETS if DATASETS.get(name).embedded]


@lru_cache(maxsize=2)  # models may be large
def shared_model(name: str) -> ImageModel:
    """A model by name, loaded once for all who look at the page. Nothing that is done with it changes it."""
    return load_model(name, device="auto")


@lru_cache(maxsize=8)
def shared_classifier(model: str, class_names: tuple[str, ...]) -> Classifier:
    """The classifier of a model for these classes, made once."""
    return make_classifier(shared_model(model), class_names)


def split_names(text: str) -> list[str]:
    """Class names that were written with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]


@dataclass(frozen=True, eq=False)
class Pictures:
    """A batch of pictures of one size, with the classes that they may belong to."""

    images: NDArray[np.uint8]  # (B, H, W, 3)
    labels: Tensor  # (B,), `UNLABELLED` where the class is not known
    class_names: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """Files that cannot be read, each with the reason."""

    @property
    def tensor(self) -> Tensor:
        """Images as models take them (B, 3, H, W)."""
        return torch.tensor(self.images).permute(0, 3, 1, 2)


def of_data(name: str, corruption: str, severity: int, count: int, seed: int = 0) -> Pictures:
    """The first pictures of a shuffled stream of embedded data."""
    dataset = load_data(name, corruption, severity)
    chosen = Stream(dataset, count, seed).plan[:count]
    return Pictures(dataset.images_at(chosen), torch.from_numpy(dataset.labels[chosen]), dataset.class_names)


def of_folder(
    folder: str, class_names: Sequence[str], model: ImageModel, corruption: str, severity: int, count: int
) -> Pictures:
    """Some pictures of a folder, at random; its sub-folders tell the classes where `class_names` is empty."""
    if not folder:
        raise InvalidInputError("Name a folder of pictures first.")
    found = find_images([folder]).paths
    if not found:
        raise DataError(f"There are no pictures in {folder}.")
    try:
        names, folders = find_classes([Path(folder)], class_names or None, model)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"Which classes? {folder} has no sub-folders to tell them. Write them as in: cat, dog, bird."
        ) from error
    label_of = labels_by_folder(folders, names)
    chosen = [found[index] for index in np.random.default_rng(0).permutation(len(found))[:count]]
    known = {name: k for k, name in enumerate(names)}
    labels = [known.get(label_of(str(path)) or "", UNLABELLED) for path in chosen]
    return _read(chosen, labels, names, model, corruption, severity)


def of_files(
    files: Sequence[Path], class_names: Sequence[str], model: ImageModel, corruption: str, severity: int
) -> Pictures:
    """Pictures of unknown class."""
    if not files:
        raise InvalidInputError("Upload one picture or more first.")
    if len(class_names) < 2:
        raise InvalidInputError("Which classes? Write two or more, as in: cat, dog, bird.")
    return _read(files, [UNLABELLED] * len(files), class_names, model, corruption, severity)


def _read(
    files: Sequence[Path],
    labels: Sequence[int],
    class_names: Sequence[str],
    model: ImageModel,
    corruption: str,
    severity: int,
) -> Pictures:
    """Pictures cropped to the model's size, then corrupted; what cannot be read is left out and named."""
    decoded = list(map(Decoder(framing_of(model)), files))
    left_out = tuple(f"{Path(d.path or '').name}: {d.error.reason}" for d in decoded if d.error)
    images = [each.image for each in decoded if each.image is not None]
    if not images:
        raise DataError(f"None of the pictures can be read. {'; '.join(left_out)}.")
    known = [label for label, each in zip(labels, decoded, strict=True) if each.image is not None]
    pixels = torch.stack(images).permute(0, 2, 3, 1).numpy()
    if corruption != CLEAN:
        pixels = corrupt_batch(pixels, corruption, severity, seed=0)
    return Pictures(pixels, torch.tensor(known), tuple(class_names), left_out)
