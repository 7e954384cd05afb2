"""Orders of a stream by name: how its domains follow each other, and in which order the images of a domain come.

The two are independent, and written with a plus where neither is the usual one: `continual+correlated:0.1`.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from typing import NamedTuple, Self

from tta_panda.errors import InvalidInputError, UnknownNameError

RESET, SHUFFLED = "reset", "shuffled"

DOMAIN_ORDERS = {
    RESET: "each domain is a stream of its own, and methods start afresh with it",
    "continual": "one domain after another, without a reset",
    "gradual": "as continual, and each corruption rises from severity 1 to the one that is set, and falls again",
    "mixed": "the images of all domains are pooled",
}


class ImageOrder(NamedTuple):
    """What the images of a domain, or of the pool of all, are arranged by."""

    about: str
    value: float | None = None
    """Of its parameter, unless another is given; None where it has none."""
    least: float = 0.0
    most: float = sys.float_info.max


IMAGE_ORDERS = {
    SHUFFLED: ImageOrder("random"),
    "sequential": ImageOrder("as the data set has them; image files are sorted by class"),
    "correlated": ImageOrder("classes come in runs: the smaller the number, the longer; 0 sorts by class", 0.1),
    "imbalanced": ImageOrder(
        "one part per class, in which that class is so many times as likely as any other", math.inf, 1.0, math.inf
    ),
    "label_shift": ImageOrder(
        "unequal class frequencies: the smaller the number, the fewer classes; 0 is a single one", 0.1
    ),
}


@dataclass(frozen=True)
class Order:
    """An order taken apart; its string is the one spelling of it."""

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
            elif name in IMAGE_ORDERS:
                images.append((name, _value(name, number if colon else None)))
            else:
                raise UnknownNameError("order of a stream", word, (*DOMAIN_ORDERS, *IMAGE_ORDERS))
        if len(domains) > 1 or len(images) > 1:
            raise InvalidInputError(
                f"An order is one of {', '.join(DOMAIN_ORDERS)}, one of {', '.join(IMAGE_ORDERS)}, or one of each, "
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
        """Those that a corruption goes through, one after another."""
        return [*range(1, severity), *range(severity, 0, -1)] if self.domains == "gradual" else [severity]


def _value(name: str, number: str | None) -> float | None:
    order = IMAGE_ORDERS[name]
    if number is None:
        return order.value
    try:
        value = float(number)
    except ValueError:
        value = float("nan")
    if order.value is None or not order.least <= value <= order.most:
        takes = (
            "no number" if order.value is None else f"a number of at least {order.least:g}, as {name}:{order.value:g}"
        )
        raise InvalidInputError(f"The order {name} takes {takes}; got {name}:{number}.")
    return value
