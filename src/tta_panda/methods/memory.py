"""A memory of the most certain images of each class: which images enter, and when they are in it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Entries = dict[str, Tensor]
"""Remembered images, one per row: their `features`, `labels` and `entropies`, and what else a method keeps of them."""


class Stay(NamedTuple):
    """All that is in the memory at some time during a batch of B images: entries of before, then E new ones."""

    entries: Entries  # of N rows
    since: Tensor  # (E,), the images of the batch that entered
    left: Tensor  # (L,), the entries, old or new, that made room
    until: Tensor  # (L,), the images that they made room for

    def attention(self, queries: Tensor, sharpness: float) -> tuple[Tensor, Tensor]:
        """Cosines (N, B) of entries with the unit queries (B, D) of the batch, and their weights from 0 to 1.

        An image gives no weight to what is not in the memory at its turn. One that enters finds itself.
        """
        cosines = self.entries["features"] @ queries.T
        weights = cosines.sub(1).mul_(sharpness).exp_()
        turn = torch.arange(len(queries), device=queries.device)
        weights[len(weights) - len(self.since) :].masked_fill_(turn < self.since[:, None], 0.0)
        if len(self.left):
            passing = weights.index_select(0, self.left).masked_fill_(turn >= self.until[:, None], 0.0)
            weights.index_copy_(0, self.left, passing)
        return cosines, weights

    def settle(self) -> Entries:
        """What the memory holds after the batch. New entries are written in the place of those that made room."""
        if not len(self.left):
            return self.entries
        left, before = set(self.left.tolist()), len(self.entries["labels"]) - len(self.since)
        free = _places(sorted(entry for entry in left if entry < before), self.left.device)
        new = [before + place for place in range(len(self.since)) if before + place not in left]
        moved, added = _places(new, self.left.device).tensor_split([len(free)])
        order = torch.cat([torch.arange(before, device=free.device).index_copy_(0, free, moved), added])
        return {name: rows.index_select(0, order) for name, rows in self.entries.items()}


def empty_memory(features: Tensor) -> Entries:
    """A memory without entries, for features like these (..., D)."""
    labels = torch.empty(0, dtype=torch.long, device=features.device)
    return {"features": features[:0], "labels": labels, "entropies": features.new_empty(0)}


def offer(memory: Entries, batch: Entries, slots: int, eligible: Tensor | None = None) -> Stay:
    """Offer the images of a batch to the memory one by one, those that are `eligible` (B,) or all.

    An image takes one of the `slots` of its class, if one is free. Otherwise it replaces the least certain entry, if it
    is more certain itself. Nothing but labels and entropies decides, so all images of a batch can read the memory
    afterwards at once, each as it was at its turn.
    """
    before = len(memory["labels"])
    entered: list[int] = []
    left: dict[int, int] = {}
    entropies = memory["entropies"].tolist()
    labels, offered = batch["labels"].tolist(), batch["entropies"].tolist()
    by_class: dict[int, list[int]] = {label: [] for label in labels}
    for entry, label in enumerate(memory["labels"].tolist()):
        if label in by_class:
            by_class[label].append(entry)
    for image in range(len(labels)) if eligible is None else eligible.nonzero()[:, 0].tolist():
        own = by_class[labels[image]]
        if len(own) >= slots:
            worst = max(own, key=entropies.__getitem__)
            if not offered[image] < entropies[worst]:
                continue
            own.remove(worst)
            left[worst] = image
        own.append(before + len(entered))
        entered.append(image)
        entropies.append(offered[image])
    since, gone, until = (_places(numbers, batch["labels"].device) for numbers in (entered, left, left.values()))
    entries = {name: torch.cat([rows, batch[name].index_select(0, since)]) for name, rows in memory.items()}
    return Stay(entries, since, gone, until)


def _places(numbers: Collection[int], device: torch.device) -> Tensor:
    return torch.from_numpy(np.fromiter(numbers, np.int64, len(numbers))).to(device)  # faster than from a list
