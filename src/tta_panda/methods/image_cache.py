"""A cache of the most certain images of each class, updated image by image and read for a whole batch at once."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tta_panda.chunks import in_chunks
from tta_panda.methods.losses import entropy, top_class
from tta_panda.transfers import select, to_device, to_host

FLOATS_PER_PASS = 2**22
"""Size of the intermediate tensors when prototypes are read, 16 MB: classes are split into chunks accordingly."""

Entries = dict[str, Tensor]
"""Cached images, one per row: their `features`, `labels` and `entropies`, and further tensors of a method.

Labels and entropies decide which images enter. They are on the CPU, so that a GPU need not be waited for.
"""


class CacheUpdate(NamedTuple):
    """All entries that the cache contains at some point during a batch of B images: earlier ones, then E new ones.

    Indices are on the CPU.
    """

    entries: Entries  # of N rows
    entered: Tensor  # (E,), the images of the batch that enter
    evicted: Tensor  # (L,), the entries, earlier or new, that are replaced
    evicted_by: Tensor  # (L,), the images that replace them

    def attention(self, queries: Tensor, sharpness: float) -> tuple[Tensor, Tensor]:
        """Return cosines (N, B) of entries with the unit queries (B, D) of the batch, and attention weights in [0, 1].

        The weight of an entry is zero for images before the one that enters it, and from the image on that replaces
        it. An image that enters also attends to itself.
        """
        cosines = self.entries["features"] @ queries.T
        weights = cosines.sub(1).mul_(sharpness).exp_()
        turn = torch.arange(len(queries), device=queries.device)
        entered, evicted, evicted_by = (to_device(index, queries.device) for index in self[1:])
        weights[len(weights) - len(entered) :].masked_fill_(turn < entered[:, None], 0.0)
        if len(evicted):
            before = weights.index_select(0, evicted).masked_fill_(turn >= evicted_by[:, None], 0.0)
            weights.index_copy_(0, evicted, before)
        return cosines, weights

    def prototype_cosines(self, cosines: Tensor, weights: Tensor, classes: int, min_norm: float = 0.0) -> Tensor:
        """Return cosines (B, K) of the queries with the prototype of each class, or zero where it is short.

        A prototype is a sum of entries, weighted by the `attention` of the query. Its product with the query is a
        weighted sum of cosines, so only its norm needs the entries themselves. Prototypes with a norm of at
        most `min_norm` are short. `cosines` is overwritten.
        """
        features, labels, device = self.entries["features"], self.entries["labels"], weights.device
        own_class = to_device(labels, device)
        products = weights.new_zeros(classes, weights.shape[1])  # (K, B)
        products.index_add_(0, own_class, cosines.mul_(weights))
        squares = torch.zeros_like(products)  # squared norms
        order, counts = labels.argsort(stable=True), labels.bincount(minlength=classes)
        starts = counts.cumsum(0) - counts  # where each class starts among the ordered entries
        by_count = counts.argsort()  # classes with similar counts are read together, which needs little padding
        single = int((counts <= 1).sum())
        if single:  # the norm of a single entry is its weight; classes with more entries are overwritten below
            squares.index_add_(0, own_class, weights.square())

        def squared_norms(chunk: slice) -> Tensor:
            own = by_count[single:][chunk]
            place = torch.arange(int(counts[own[-1]]))  # (S,)
            rows = to_device(order[(starts[own, None] + place).clamp_(max=len(order) - 1)].flatten(), device)
            slots = features.index_select(0, rows).view(len(own), len(place), -1)  # (k, S, D)
            attention = weights.index_select(0, rows).view(len(own), len(place), -1)  # (k, S, B)
            attention.masked_fill_(to_device(place >= counts[own, None], device)[..., None], 0.0)
            return (slots @ slots.mT @ attention).mul_(attention).sum(dim=1)

        if single < classes:
            floats_per_class = max(weights.shape[1], int(counts.max())) * features.shape[1]
            chunk_size = max(1, FLOATS_PER_PASS // floats_per_class)
            found = in_chunks(squared_norms, classes - single, chunk_size)
            squares.index_copy_(0, to_device(by_count[single:], device), found)
        return (products / squares.masked_fill_(squares <= min_norm**2, torch.inf).sqrt_()).T

    def apply(self, until: float = math.inf) -> Entries:
        """Return the cache after the batch, or after image number `until` of it."""
        kept = torch.ones(len(self.entries["labels"]), dtype=torch.bool)
        kept[len(kept) - len(self.entered) :] = self.entered <= until
        kept[self.evicted[self.evicted_by <= until]] = False
        return {name: select(rows, kept.nonzero()[:, 0]) for name, rows in self.entries.items()}


def empty_cache(features: Tensor) -> Entries:
    """Return a cache without entries, for features like these (..., D)."""
    labels = torch.empty(0, dtype=torch.long, device="cpu")
    return {"features": features[:0], "labels": labels, "entropies": torch.empty_like(labels, dtype=features.dtype)}


def make_entries(features: Tensor, logits: Tensor) -> Entries:
    """Return images with these features (B, D), and with classes and entropies predicted by logits (B, K)."""
    labels, entropies = to_host(top_class(logits), entropy(logits))
    return {"features": features, "labels": labels, "entropies": entropies}


def update_cache(
    cache: Entries, batch: Entries, slots: int, eligible: Tensor | None = None, *, oldest_first: bool = False
) -> CacheUpdate:
    """Enter the images of a batch one by one, those that are `eligible` (B,) or all.

    An image takes one of the `slots` of its class if one is free. Otherwise it replaces the least certain entry, if
    that is less certain than the image, or with `oldest_first` the oldest entry. Only labels and entropies decide, so
    afterwards all images of a batch can read the cache in parallel, each in its state at that image's turn.
    """
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
            worst = own[0] if oldest_first else max(own, key=entropies.__getitem__)
            if not (oldest_first or own_entropies[image] < entropies[worst]):
                continue
            own.remove(worst)
            evicted[worst] = image
        own.append(len(cache["labels"]) + len(entered))
        entered.append(image)
        entropies.append(own_entropies[image])
    new = _as_tensor(entered)
    entries = {name: torch.cat([rows, select(batch[name], new)]) for name, rows in cache.items()}
    return CacheUpdate(entries, new, _as_tensor(evicted), _as_tensor(evicted.values()))


def _as_tensor(numbers: Collection[int]) -> Tensor:
    return torch.from_numpy(np.fromiter(numbers, np.int64, len(numbers)))  # faster than from a list
