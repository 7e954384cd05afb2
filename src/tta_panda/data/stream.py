"""A data set as test-time adaptation meets it: batches in a seeded order, one pass."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from tta_panda.data.dataset import ImageDataset
from tta_panda.errors import DataError, InvalidInputError


class Stream:
    """Shuffled batches of (images uint8 (B, 3, H, W), labels (B,)); the last one may be short.

    The order depends on `seed` and the number of images only, so every method sees the same stream.
    """

    def __init__(self, dataset: ImageDataset, batch_size: int, seed: int):
        if batch_size < 1:
            raise InvalidInputError(f"batch_size must be at least 1, got {batch_size}.")
        if len(dataset) == 0:
            raise DataError("The data set holds no image.")
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed

    def __len__(self) -> int:
        """Number of batches."""
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = np.random.default_rng(self.seed).permutation(len(self.dataset))
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            images = torch.from_numpy(np.ascontiguousarray(self.dataset.images[chosen])).permute(0, 3, 1, 2)
            yield images, torch.from_numpy(self.dataset.labels[chosen].astype(np.int64))
