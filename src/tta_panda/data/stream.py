"""Batches of a data set in a fixed order, for one pass of test-time adaptation."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from tta_panda.data import Order
from tta_panda.data.dataset import Dataset, Indices
from tta_panda.errors import DataError, InvalidInputError, UnknownNameError
from tta_panda.framing import Framing

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Stream:
    """Batches of (images uint8 (B, 3, H, W), labels (B,)); the last one may be smaller.

    Args:
        dataset: the images.
        batch_size: images in a batch.
        seed: random seed of the order.
        fit: resize and crop each image with Pillow, to that many pixels a side or as a model's framing says; image
            files of several sizes need it.
        order: `"shuffled"`, which depends on `seed` and the number of images only, so that every method sees the same
            stream; or `"given"`, the order of the data set, in which image files are sorted by class.
    """

    dataset: Dataset
    batch_size: int
    seed: int = 0
    fit: int | Framing | None = None
    order: Order = "shuffled"

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InvalidInputError(f"batch_size must be at least 1, got {self.batch_size}.")
        if self.order not in get_args(Order):
            raise UnknownNameError("order of a stream", str(self.order), get_args(Order))
        if len(self.dataset) == 0:
            raise DataError("The data set holds no images.")

    def __len__(self) -> int:
        """Number of batches."""
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        order = np.arange(len(self.dataset))
        if self.order == "shuffled":
            order = np.random.default_rng(self.seed).permutation(order)
        parts = [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]
        with ThreadPoolExecutor(1) as reader:  # reads one batch ahead while the model works
            coming = reader.submit(self._read, parts[0])
            for part in parts[1:]:
                batch, coming = coming.result(), reader.submit(self._read, part)
                yield batch
            yield coming.result()

    def _read(self, chosen: Indices) -> Batch:
        images = torch.from_numpy(self.dataset.images_at(chosen, self.fit)).permute(0, 3, 1, 2)
        return images, torch.from_numpy(self.dataset.labels[chosen].astype(np.int64))
