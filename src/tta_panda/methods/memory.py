"""A memory of the most certain images of each class: which images enter, and when they are in it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

Entries = dict[str, Tensor]
"""Remembered images, one per row: their `features`, `labels` and `entropies`, and what else a method keeps of them."""


class Stay(NamedTuple):
    """All that is in the memory at some time during a batch of B images: N entries of before, then E new ones."""

    memory: Entries
    entered: Entries
    since: Tensor  # (N+E,), the first image of the batch that finds the entry
    until: Tensor  # (N+E,), the first that does not find it any more, or B
    size: int  # B

    @property
    def is_held(self) -> Tensor:
        """Which image of the batch finds which entry (B, N+E). An image that enters finds itself."""
        turn = torch.arange(self.size, device=self.since.device)[:, None]
        return (self.since <= turn) & (turn < self.until)

    def column(self, name: str) -> Tensor:
        """One column of all entries (N+E, ...)."""
        return torch.cat([self.memory[name], self.entered[name]])

    def rows(self, name: str, index: Tensor) -> Tensor:
        """Some rows of a column, which may be too large to copy."""
        before, entered = self.memory[name], self.entered[name]
        if not len(before):
            return entered[index]
        found = before[index.clamp(max=len(before) - 1)]
        is_new = index >= len(before)
        found[is_new] = entered[index[is_new] - len(before)]
        return found

    def settle(self) -> Entries:
        """What the memory holds after the batch. New entries are written in the place of those that made room."""
        stays = self.until == self.size
        free, new = (~stays[: len(self.memory["labels"])]).nonzero()[:, 0], stays[len(self.memory["labels"]) :]
        for name, before in self.memory.items():
            rows = self.entered[name][new]
            before[free] = rows[: len(free)]
            self.memory[name] = torch.cat([before, rows[len(free) :]]) if len(rows) > len(free) else before
        return self.memory


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
    before, size = len(memory["labels"]), len(batch["labels"])
    entered: list[int] = []
    left: dict[int, int] = {}
    entropies = memory["entropies"].tolist()
    labels, offered = batch["labels"].tolist(), batch["entropies"].tolist()
    by_class: dict[int, list[int]] = {label: [] for label in labels}
    for entry, label in enumerate(memory["labels"].tolist()):
        if label in by_class:
            by_class[label].append(entry)
    for image in range(size) if eligible is None else eligible.nonzero()[:, 0].tolist():
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
    images = memory["labels"].new_tensor(entered)
    since = torch.cat([images.new_zeros(before), images])
    until = torch.full_like(since, size)
    if left:
        until[list(left)] = images.new_tensor(list(left.values()))
    return Stay(memory, {name: batch[name][images] for name in memory}, since, until, size)
