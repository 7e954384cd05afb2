"""A data set as test-time adaptation meets it: batches in a seeded order, one pass."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from tta_panda.data.dataset import Dataset, Indices
from tta_panda.errors import DataError, InvalidInputError
from tta_panda.framing import Framing

Batch = tuple[Tensor, Tensor]


class Stream:
    """Shuffled batches of (images uint8 (B, 3, H, W), labels (B,)); the last one may be short.

    The order depends on `seed` and the number of images only, so every method sees the same stream. With `fit`, images
    are resized and cropped one by one with Pillow, to that many pixels a side or as a model's framing says; image files
    of several sizes need it.
    """

    def __init__(self, dataset: Dataset, batch_size: int, seed: int, fit: int | Framing | None = None):
        if batch_size < 1:
            raise InvalidInputError(f"batch_size must be at least 1, got {batch_size}.")
        if len(dataset) == 0:
            raise DataError("The data set holds no image.")
        self.dataset, self.batch_size, self.seed, self.fit = dataset, batch_size, seed, fit

    def __len__(self) -> int:
        """Number of batches."""
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        order = np.random.default_rng(self.seed).permutation(len(self.dataset))
        parts = [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]
        with ThreadPoolExecutor(1) as reader:  # one batch ahead, while the model is at work
            coming = reader.submit(self._read, parts[0])
            for part in parts[1:]:
                batch, coming = coming.result(), reader.submit(self._read, part)
                yield batch
            yield coming.result()

    def _read(self, chosen: Indices) -> Batch:
        images = torch.from_numpy(self.dataset.images_at(chosen, self.fit)).permute(0, 3, 1, 2)
        return images, torch.from_numpy(self.dataset.labels[chosen].astype(np.int64))
