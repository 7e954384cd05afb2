"""Orders of a stream: how its domains follow each other, and how the images of a domain are arranged.

The two are independent, and written with a plus where neither is the default: `continual+correlated:0.1`. An
arrangement takes labels (N,), its parameter and a generator, and returns indices. Where classes are drawn, N images
are: those of a class in random order, and again from the first when all are used.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from tta_panda.data.dataset import Indices, Labels
from tta_panda.errors import InvalidInputError, UnknownNameError

Rng = np.random.Generator

RESET, SHUFFLED = "reset", "shuffled"

DOMAIN_ORDERS = (
    RESET,  # each domain is a stream of its own, and methods start afresh with it
    "continual",  # one domain after another, without a reset
    "gradual",  # as continual, and each corruption rises from severity 1 to the one that is set, and falls again
    "mixed",  # the images of all domains are pooled
)


@dataclass(frozen=True)
class Order:
    """A parsed order; `str` gives its one spelling."""

    domains: str = RESET
    images: str = SHUFFLED
    value: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """`"mixed"`, `"correlated:0.1"` or `"mixed+correlated:0.1"`."""
        domains: list[str] = []
        images: list[tuple[str, float | None]] = []
        for word in re.split(r"(?<!\de)\+", text):  # not at the plus of an exponent
            name, colon, number = word.strip().partition(":")
            if name in DOMAIN_ORDERS and not colon:
                domains.append(name)
            elif name in ARRANGEMENTS:
                images.append((name, _value(name, number if colon else None)))
            else:
                raise UnknownNameError("order of a stream", word, (*DOMAIN_ORDERS, *ARRANGEMENTS))
        if len(domains) > 1 or len(images) > 1:
            raise InvalidInputError(
                f"An order is one of {', '.join(DOMAIN_ORDERS)}, one of {', '.join(ARRANGEMENTS)}, or one of each, "
                f"as in mixed+correlated:0.1; got {text!r}."
            )
        [order], [(arrangement, value)] = domains or [RESET], images or [(SHUFFLED, None)]
        if (order, arrangement) == ("mixed", "sequential"):
            raise InvalidInputError("Mixed domains cannot be sequential. Write mixed, or continual+sequential.")
        return cls(order, arrangement, value)

    def __str__(self) -> str:
        # Without the plus of an exponent, which would separate words.
        images = self.images if self.value is None else f"{self.images}:{self.value:.15g}".replace("+", "")
        return "+".join(word for word in (self.domains, images) if word not in (RESET, SHUFFLED)) or SHUFFLED

    @property
    def joins_domains(self) -> bool:
        """Whether several domains are one stream."""
        return self.domains != RESET

    def severities(self, severity: int) -> list[int]:
        """The severities of a corruption, one after another."""
        return [*range(1, severity), *range(severity, 0, -1)] if self.domains == "gradual" else [severity]

    def arrange(self, labels: Labels, rng: Rng) -> Indices:
        """Indices of the images of one domain, or of the pool of all, in this order."""
        return ARRANGEMENTS[self.images].function(labels, self.value, rng)


def shuffled(labels: Labels, value: None, rng: Rng) -> Indices:
    return rng.permutation(np.arange(len(labels)))


def sequential(labels: Labels, value: None, rng: Rng) -> Indices:
    """As the data set has them; image files are sorted by class."""
    return np.arange(len(labels))


def correlated(labels: Labels, concentration: float, rng: Rng) -> Indices:
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


class Arrangement(NamedTuple):
    """An order of images: the function, and the values of its parameter; the default is None if it has none."""

    function: Callable[[Labels, Any, Rng], Indices]
    default: float | None = None
    min: float = 0.0
    max: float = sys.float_info.max


ARRANGEMENTS = {
    SHUFFLED: Arrangement(shuffled),
    "sequential": Arrangement(sequential),
    "correlated": Arrangement(correlated, 0.1),
    "imbalanced": Arrangement(imbalanced, math.inf, 1.0, math.inf),
    "label_shift": Arrangement(label_shift, 0.1),
}


def _value(name: str, number: str | None) -> float | None:
    order = ARRANGEMENTS[name]
    if number is None:
        return order.default
    try:
        value = float(number)
    except ValueError:
        value = float("nan")
    if order.default is None or not order.min <= value <= order.max:
        example = f"a number of at least {order.min:g}, as {name}:{order.default:g}" if order.default else "no number"
        raise InvalidInputError(f"The order {name} takes {example}; got {name}:{number}.")
    return value


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
