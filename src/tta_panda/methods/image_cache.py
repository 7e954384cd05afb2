"""A cache of the most certain images of each class: which images enter, and what each image of a batch finds in it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Entries = dict[str, Tensor]
"""Cached images, one per row: their `features`, `labels` and `entropies`, and what else a method keeps of them."""


class CacheUpdate(NamedTuple):
    """All entries that are in the cache at some time during a batch of B images: earlier ones, then E new ones."""

    entries: Entries  # of N rows
    entered: Tensor  # (E,), the images of the batch that enter
    evicted: Tensor  # (L,), the entries, earlier or new, that are replaced
    evicted_by: Tensor  # (L,), the images that replace them

    def attention(self, queries: Tensor, sharpness: float) -> tuple[Tensor, Tensor]:
        """Cosines (N, B) of entries with the unit queries (B, D) of the batch, and their weights from 0 to 1.

        An entry has no weight for images before it entered, nor from the image on that replaces it. An image that
        enters finds itself.
        """
        cosines = self.entries["features"] @ queries.T
        weights = cosines.sub(1).mul_(sharpness).exp_()
        turn = torch.arange(len(queries), device=queries.device)
        weights[len(weights) - len(self.entered) :].masked_fill_(turn < self.entered[:, None], 0.0)
        if len(self.evicted):
            before = weights.index_select(0, self.evicted).masked_fill_(turn >= self.evicted_by[:, None], 0.0)
            weights.index_copy_(0, self.evicted, before)
        return cosines, weights

    def apply(self) -> Entries:
        """What the cache holds after the batch."""
        kept = torch.ones(len(self.entries["labels"]), dtype=torch.bool, device=self.evicted.device)
        kept[self.evicted] = False
        return {name: rows[kept] for name, rows in self.entries.items()}


def empty_cache(features: Tensor) -> Entries:
    """A cache without entries, for features like these (..., D)."""
    labels = torch.empty(0, dtype=torch.long, device=features.device)
    return {"features": features[:0], "labels": labels, "entropies": features.new_empty(0)}


def update_cache(cache: Entries, batch: Entries, slots: int, eligible: Tensor | None = None) -> CacheUpdate:
    """Enter the images of a batch one by one, those that are `eligible` (B,) or all.

    An image takes one of the `slots` of its class, if one is free. Otherwise it replaces the least certain entry, if it
    is more certain itself. Nothing but labels and entropies decides, so all images of a batch can read the cache
    afterwards at once, each as it was at its turn.
    """
    before = len(cache["labels"])
    entered: list[int] = []
    evicted: dict[int, int] = {}
    entropies = cache["entropies"].tolist()
    labels, own_entropies = batch["labels"].tolist(), batch["entropies"].tolist()
    by_class: dict[int, list[int]] = {label: [] for label in labels}
    for entry, label in enumerate(cache["labels"].tolist()):
        if label in by_class:
            by_class[label].append(entry)
    for image in range(len(labels)) if eligible is None else eligible.nonzero()[:, 0].tolist():
        own = by_class[labels[image]]
        if len(own) >= slots:
            worst = max(own, key=entropies.__getitem__)
            if not own_entropies[image] < entropies[worst]:
                continue
            own.remove(worst)
            evicted[worst] = image
        own.append(before + len(entered))
        entered.append(image)
        entropies.append(own_entropies[image])
    device = batch["labels"].device
    new = _places(entered, device)
    entries = {name: torch.cat([rows, batch[name].index_select(0, new)]) for name, rows in cache.items()}
    return CacheUpdate(entries, new, _places(evicted, device), _places(evicted.values(), device))


def _places(numbers: Collection[int], device: torch.device) -> Tensor:
    return torch.from_numpy(np.fromiter(numbers, np.int64, len(numbers))).to(device)  # faster than from a list
