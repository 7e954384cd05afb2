"""Arrangements of labelled images: each takes labels (N,), its parameter and a generator, and returns indices.

Where classes are drawn, N images are: those of a class in random order, and again from the first when it is used up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tta_panda.data.dataset import Indices, Labels

Rng = np.random.Generator


def shuffled(labels: Labels, value: None, rng: Rng) -> Indices:
    return rng.permutation(np.arange(len(labels)))


def sequential(labels: Labels, value: None, rng: Rng) -> Indices:
    return np.arange(len(labels))


def correlated(labels: Labels, concentration: float, rng: Rng) -> Indices:
    """Classes in runs: each is spread by Dirichlet(concentration) over as many slots as there are classes.

    A slot that holds its share of the images takes no more. Within a slot the classes follow each other.
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


def imbalanced(labels: Labels, ratio: float, rng: Rng) -> Indices:
    """A part of the stream for each class, in which it is drawn `ratio` times as often as any other class."""
    pools = _pools(labels, rng)
    count = len(pools)
    favourite = rng.permutation(count)[np.arange(len(labels)) * count // len(labels)]  # (N,)
    others = (favourite + 1 + rng.integers(max(1, count - 1), size=len(labels))) % count
    is_favourite = rng.random(len(labels)) < 1 / (1 + (count - 1) / ratio)  # = ratio / (ratio + count - 1)
    return _draw(pools, np.where(is_favourite, favourite, others))


def label_shift(labels: Labels, concentration: float, rng: Rng) -> Indices:
    """Classes drawn with frequencies from Dirichlet(concentration), the same for the whole stream."""
    pools = _pools(labels, rng)
    one = np.eye(len(pools))[rng.integers(len(pools))]  # what concentration 0 means
    frequencies = rng.dirichlet(np.full(len(pools), concentration)) if concentration else one
    return _draw(pools, rng.choice(len(pools), len(labels), p=frequencies))


ARRANGEMENTS: dict[str, Callable[[Labels, Any, Rng], Indices]] = {
    arrange.__name__: arrange for arrange in (shuffled, sequential, correlated, imbalanced, label_shift)
}


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
