"""Batches of one or several data sets in an order, for one pass of test-time adaptation."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from tta_panda.data.dataset import Dataset, Indices, Labels
from tta_panda.data.order import Order
from tta_panda.errors import DataError, InvalidInputError
from tta_panda.images import Framing

Rng = np.random.Generator
Batch = tuple[Any, ...]
"""(images, labels), or (images, labels, names of the images' domains)."""
Domains = Mapping[str, Dataset | Sequence[Dataset]]
"""Data sets by the names of their domains; several, one after another, for a domain whose severity changes."""


@dataclass(frozen=True, eq=False)
class Stream:
    """Batches of (images uint8 (B, 3, H, W), labels (B,)); the last one may be smaller.

    Of several domains, a batch also has the name of each image's domain, and `evaluate` measures each of them.

    Args:
        dataset: the images; or several domains by name, each a data set, or one for each severity in turn.
        batch_size: images in a batch.
        seed: random seed of the order.
        fit: resize and crop each image with Pillow, to that many pixels a side or as a model's framing says; image
            files of several sizes need it.
        order: of the images: `"shuffled"`, `"sequential"`, `"correlated:0.1"`, `"imbalanced:inf"` or
            `"label_shift:0.1"`; of several domains: `"continual"`, `"gradual"` (the same with changing severities) or
            `"mixed"`; or both, as `"mixed+correlated:0.1"`. It depends on labels and `seed` only, so that every method
            sees the same stream.
    """

    dataset: Dataset | Domains
    batch_size: int
    seed: int = 0
    fit: int | Framing | None = None
    order: str = "shuffled"

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InvalidInputError(f"batch_size must be at least 1, got {self.batch_size}.")
        if not self._order.joins_domains and len(self.visits) > 1:
            joined = str(replace(self._order, domains="continual"))
            raise InvalidInputError(
                f"Several data sets need an order that joins them, such as {joined!r}; got {self.order!r}. To start "
                "afresh with each, make a stream of each."
            )
        if not len(self.labels):
            raise DataError("The data set holds no images.")
        if len({dataset.class_names for _, dataset in self.visits}) > 1:
            raise DataError("The domains of a stream must have the same classes, in the same order.")

    @functools.cached_property
    def _order(self) -> Order:
        return Order.parse(self.order)

    @functools.cached_property
    def visits(self) -> list[tuple[str, Dataset]]:
        """Data sets with the names of their domains, in the order in which they are seen unless they are mixed."""
        if not isinstance(self.dataset, Mapping):
            return [("", self.dataset)]
        named = {name: found if isinstance(found, Sequence) else [found] for name, found in self.dataset.items()}
        return [(name, dataset) for name, several in named.items() for dataset in several]

    @functools.cached_property
    def labels(self) -> Labels:
        """Of all visits, one after another."""
        return np.concatenate([np.empty(0, np.int64), *(dataset.labels for _, dataset in self.visits)])

    @functools.cached_property
    def plan(self) -> Indices:
        """Places (N,) in `labels`, in the order of the stream. Unless they are mixed, each visit is as it is alone."""
        starts = [0] if self._order.domains == "mixed" else self._starts
        parts = np.split(self.labels, starts[1:])
        arranged = [arrange(self._order, part, np.random.default_rng(self.seed)) for part in parts]
        return np.concatenate([start + indices for start, indices in zip(starts, arranged, strict=True)])

    @functools.cached_property
    def _starts(self) -> list[int]:
        """Where each visit begins in `labels`."""
        return [0, *itertools.accumulate(len(dataset) for _, dataset in self.visits[:-1])]

    def __len__(self) -> int:
        """Number of batches."""
        return -(-len(self.plan) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        parts = [self.plan[start : start + self.batch_size] for start in range(0, len(self.plan), self.batch_size)]
        with ThreadPoolExecutor(1) as reader:  # reads one batch ahead while the model works
            coming = reader.submit(self._read, parts[0])
            for part in parts[1:]:
                batch, coming = coming.result(), reader.submit(self._read, part)
                yield batch
            yield coming.result()

    def _read(self, chosen: Indices) -> Batch:
        visits = np.searchsorted(self._starts, chosen, side="right") - 1  # (B,)
        read = [
            self.visits[visit][1].images_at(chosen[visits == visit] - self._starts[visit], self.fit)
            for visit in np.unique(visits)
        ]
        images = np.concatenate(read)[
            visits.argsort(kind="stable").argsort()
        ]  # from visit by visit to the plan's order
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
        labels = torch.from_numpy(self.labels[chosen].astype(np.int64))
        if not isinstance(self.dataset, Mapping):
            return pixels, labels
        return pixels, labels, [self.visits[visit][0] for visit in visits]


def arrange(order: Order, labels: Labels, rng: Rng) -> Indices:
    """Indices of the images of one domain, or of the pool of all, in an order.

    Where classes are drawn, N images are: those of a class in random order, and again from the first when all are used.
    """
    if order.images == "sequential":
        return np.arange(len(labels))
    if order.images == "shuffled":
        return rng.permutation(np.arange(len(labels)))
    draw = {"correlated": _correlated, "imbalanced": _imbalanced, "label_shift": _label_shift}[order.images]
    return draw(labels, cast(float, order.value), rng)


def _correlated(labels: Labels, concentration: float, rng: Rng) -> Indices:
    """Classes in runs, the longer the smaller the concentration.

    Each class is spread by Dirichlet(concentration) over as many slots as there are classes. A slot that holds its
    share of the images takes no more. Within a slot the classes follow each other. With 0, images are sorted by class.
    """
    pools = _pools(labels, rng)
    rng.shuffle(pools)
    if concentration == 0:
        return np.concatenate(pools)
    slots: list[list[Indices]] = [[] for _ in pools]
    filled = np.zeros(len(slots))
    for pool in pools:
        is_open = (filled < len(labels) / len(slots)).astype(float)
        shares = rng.dirichlet(np.full(len(slots), concentration)) * is_open
        shares = shares if shares.sum() > 0 else is_open
        cuts = (shares.cumsum()[:-1] / shares.sum() * len(pool)).round().astype(int)
        parts = np.split(pool, cuts)
        filled += [len(part) for part in parts]
        for place in np.flatnonzero([len(part) for part in parts]):
            slots[place].append(parts[place])
    for slot in slots:
        rng.shuffle(slot)
    return np.concatenate([part for slot in slots for part in slot])


def _imbalanced(labels: Labels, ratio: float, rng: Rng) -> Indices:
    """A part of the stream for each class, in which it is drawn `ratio` times as often as any other class."""
    pools = _pools(labels, rng)
    count = len(pools)
    favourite = rng.permutation(count)[np.arange(len(labels)) * count // len(labels)]  # (N,)
    others = (favourite + 1 + rng.integers(max(1, count - 1), size=len(labels))) % count
    is_favourite = rng.random(len(labels)) < 1 / (1 + (count - 1) / ratio)  # = ratio / (ratio + count - 1)
    return _draw(pools, np.where(is_favourite, favourite, others))


def _label_shift(labels: Labels, concentration: float, rng: Rng) -> Indices:
    """Classes drawn with frequencies from Dirichlet(concentration), the same for the whole stream."""
    pools = _pools(labels, rng)
    one = np.eye(len(pools))[rng.integers(len(pools))]  # what concentration 0 means
    frequencies = rng.dirichlet(np.full(len(pools), concentration)) if concentration else one
    return _draw(pools, rng.choice(len(pools), len(labels), p=frequencies))


def _pools(labels: Labels, rng: Rng) -> list[Indices]:
    """The images of each class that occurs, in random order."""
    return [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]


def _draw(pools: list[Indices], classes: Indices) -> Indices:
    """Images of these classes (N,), each class's in turn."""
    drawn = np.empty(len(classes), np.int64)
    for index, pool in enumerate(pools):
        places = np.flatnonzero(classes == index)
        drawn[places] = pool[np.arange(len(places)) % len(pool)]
    return drawn
