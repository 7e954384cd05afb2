"""Batches of one or several data sets in a given order, for one pass of test-time adaptation."""

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
"""Data sets by domain name; a sequence of them for a domain whose severity changes."""


@dataclass(frozen=True, eq=False)
class Stream:
    """Batches of (images uint8 (B, 3, H, W), labels (B,)); the last one may be smaller.

    With several domains, a batch also contains the domain name of each image, and `evaluate` measures each domain.

    Args:
        dataset: a data set; or several domains by name, each with a data set, or with one per severity in turn.
        batch_size: images in a batch.
        seed: random seed of the order.
        fit: resize and crop each image with Pillow, to a square of this size or according to a model's framing;
            required for image files of different sizes.
        order: order of the images (`"shuffled"`, `"sequential"`, `"correlated:0.1"`, `"imbalanced:inf"`,
            `"label_shift:0.1"`, or `"few_classes:5"` per batch), order of several domains (`"continual"`; `"gradual"`,
            which is the same with changing severities; `"recurring:20"`, which is the same twenty times; or `"mixed"`),
            or both, as in `"mixed+correlated:0.1"`. It depends only on the labels, `seed` and, for few classes, the
            batch size, so that every method sees the same stream.
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
                f"Several data sets need an order that joins them, such as {joined!r}; got {self.order!r}. To reset "
                "methods before each, make one stream per data set."
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
        """Data sets with their domain names, in the order of the stream unless domains are mixed."""
        if not isinstance(self.dataset, Mapping):
            return [("", self.dataset)]
        named = {name: found if isinstance(found, Sequence) else [found] for name, found in self.dataset.items()}
        if self._order.domains != "recurring":
            return [(name, dataset) for name, several in named.items() for dataset in several]
        return [(name, several[i % len(several)]) for i in range(self._order.rounds) for name, several in named.items()]

    @functools.cached_property
    def labels(self) -> Labels:
        """Labels of all visits, concatenated."""
        return np.concatenate([np.empty(0, np.int64), *(dataset.labels for _, dataset in self.visits)])

    @functools.cached_property
    def plan(self) -> Indices:
        """Indices (N,) into `labels`, in the order of the stream. Unless mixed, each domain is ordered on its own."""
        starts = [0] if self._order.domains == "mixed" else self._starts
        parts = np.split(self.labels, starts[1:])
        per_round = len(parts) // self._order.rounds
        seeds = [(self.seed, i // per_round) if i >= per_round else self.seed for i in range(len(parts))]
        arranged = [
            arrange(self._order, part, np.random.default_rng(seed), self.batch_size)
            for part, seed in zip(parts, seeds, strict=True)
        ]
        return np.concatenate([start + indices for start, indices in zip(starts, arranged, strict=True)])

    @functools.cached_property
    def _starts(self) -> list[int]:
        """Index into `labels` at which each visit begins."""
        return [0, *itertools.accumulate(len(dataset) for _, dataset in self.visits[:-1])]

    def __len__(self) -> int:
        """Number of batches."""
        return -(-len(self.plan) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        parts = [self.plan[start : start + self.batch_size] for start in range(0, len(self.plan), self.batch_size)]
        with ThreadPoolExecutor(1) as reader:  # reads one batch ahead while the model works
            upcoming = reader.submit(self._read, parts[0])
            for part in parts[1:]:
                batch, upcoming = upcoming.result(), reader.submit(self._read, part)
                yield batch
            yield upcoming.result()

    def _read(self, chosen: Indices) -> Batch:
        visits = np.searchsorted(self._starts, chosen, side="right") - 1  # (B,)
        read = [
            self.visits[visit][1].images_at(chosen[visits == visit] - self._starts[visit], self.fit)
            for visit in np.unique(visits)
        ]
        order = visits.argsort(kind="stable").argsort()  # from visit by visit to that of the plan
        pixels = torch.from_numpy(np.concatenate(read)[order]).permute(0, 3, 1, 2)
        labels = torch.from_numpy(self.labels[chosen].astype(np.int64))
        if not isinstance(self.dataset, Mapping):
            return pixels, labels
        return pixels, labels, [self.visits[visit][0] for visit in visits]


def arrange(order: Order, labels: Labels, rng: Rng, batch_size: int) -> Indices:
    """Arrange the images of one domain, or of all if they are mixed; returns N indices.

    Arrangements that draw classes use the images of a class in random order, and repeat them once all are used.
    """
    if order.images == "sequential":
        return np.arange(len(labels))
    if order.images == "shuffled":
        return rng.permutation(np.arange(len(labels)))
    if order.images == "few_classes":
        return _few_classes(labels, int(cast(float, order.value)), rng, batch_size)
    draw = {"correlated": _correlated, "imbalanced": _imbalanced, "label_shift": _label_shift}[order.images]
    return draw(labels, cast(float, order.value), rng)


def _correlated(labels: Labels, concentration: float, rng: Rng) -> Indices:
    """Order images in runs of one class: the smaller the concentration, the longer the runs.

    Each class is spread by Dirichlet(concentration) over as many slots as there are classes. A slot that has its share
    of the images receives no more. Within a slot, classes follow one another. With 0, images are sorted by class.
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
    """Draw classes: each dominates one part of the stream, where it is `ratio` times as frequent as any other."""
    pools = _pools(labels, rng)
    count = len(pools)
    dominant = rng.permutation(count)[np.arange(len(labels)) * count // len(labels)]  # (N,)
    others = (dominant + 1 + rng.integers(max(1, count - 1), size=len(labels))) % count
    is_dominant = rng.random(len(labels)) < 1 / (1 + (count - 1) / ratio)  # = ratio / (ratio + count - 1)
    return _draw(pools, np.where(is_dominant, dominant, others))


def _label_shift(labels: Labels, concentration: float, rng: Rng) -> Indices:
    """Draw classes with frequencies from Dirichlet(concentration), the same for the whole stream."""
    pools = _pools(labels, rng)
    one = np.eye(len(pools))[rng.integers(len(pools))]  # the limit at concentration 0
    frequencies = rng.dirichlet(np.full(len(pools), concentration)) if concentration else one
    return _draw(pools, rng.choice(len(pools), len(labels), p=frequencies))


def _few_classes(labels: Labels, count: int, rng: Rng, batch_size: int) -> Indices:
    """Draw `count` classes for each batch, counted from the first image of the domain, and its images among them."""
    pools = _pools(labels, rng)
    sizes = [min(batch_size, len(labels) - start) for start in range(0, len(labels), batch_size)]
    chosen = [rng.permutation(len(pools))[:count] for _ in sizes]
    drawn = [rng.choice(classes, size) for classes, size in zip(chosen, sizes, strict=True)]
    return _draw(pools, np.concatenate([np.empty(0, np.int64), *drawn]))


def _pools(labels: Labels, rng: Rng) -> list[Indices]:
    """Indices of the images of each class that occurs, in random order."""
    return [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]


def _draw(pools: list[Indices], classes: Indices) -> Indices:
    """Indices of images of the given classes (N,), taken from the pool of each class in turn."""
    drawn = np.empty(len(classes), np.int64)
    for index, pool in enumerate(pools):
        places = np.flatnonzero(classes == index)
        drawn[places] = pool[np.arange(len(places)) % len(pool)]
    return drawn
