"""Orders of a stream by name: the order of its domains, and the arrangement of the images in a domain.

The two are independent, and joined with a plus where neither is the default: `continual+correlated:0.1`.
"""

from __future__ import annotations

import fnmatch
import math
import re
import sys
from dataclasses import dataclass
from typing import NamedTuple, Self

from tta_panda.errors import InvalidInputError, UnknownNameError

RESET, SHUFFLED = "reset", "shuffled"


class Parameter(NamedTuple):
    """The parameter of an order, as in `correlated:0.1`."""

    default: float
    min: float = 0.0
    max: float = sys.float_info.max
    whole: bool = False


DOMAIN_ORDERS = {
    RESET: None,  # each domain is a separate stream, and methods are reset before it
    "continual": None,  # one domain after another, without a reset
    "recurring": Parameter(20, 1, 10_000, whole=True),  # as continual, repeated as often as the number says
    "gradual": None,  # as continual, but the severity of each corruption rises from 1 to the one set, and falls again
    "mixed": None,  # the images of all domains are pooled
}
ARRANGEMENTS = {  # of the images in a domain, implemented by `stream.arrange`
    SHUFFLED: None,
    "sequential": None,
    "correlated": Parameter(0.1),
    "imbalanced": Parameter(math.inf, 1.0, math.inf),
    "label_shift": Parameter(0.1),
    "few_classes": Parameter(5, 1, whole=True),
}


def list_orders(pattern: str = "*") -> list[str]:
    """Names of orders that match a shell wildcard: orders of domains, then arrangements of images."""
    return [name for name in fnmatch.filter((*DOMAIN_ORDERS, *ARRANGEMENTS), pattern) if name != RESET]


@dataclass(frozen=True)
class Order:
    """A parsed order; `str` returns its canonical name."""

    domains: str = RESET
    images: str = SHUFFLED
    value: float | None = None
    rounds: int = 1
    """How often the domains are repeated."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an order such as `"mixed"`, `"correlated:0.1"` or `"mixed+correlated:0.1"`."""
        domains: list[tuple[str, float | None]] = []
        images: list[tuple[str, float | None]] = []
        for word in re.split(r"(?<!\de)\+", text):  # not at the plus of an exponent
            name, colon, number = word.strip().partition(":")
            if name in DOMAIN_ORDERS or name in ARRANGEMENTS:
                found = domains if name in DOMAIN_ORDERS else images
                found.append((name, _value(name, number if colon else None)))
            else:
                raise UnknownNameError("order of a stream", word, (*DOMAIN_ORDERS, *ARRANGEMENTS))
        if len(domains) > 1 or len(images) > 1:
            raise InvalidInputError(
                f"An order is one of {', '.join(DOMAIN_ORDERS)}, one of {', '.join(ARRANGEMENTS)}, or one of each, "
                f"as in mixed+correlated:0.1; got {text!r}."
            )
        [(order, rounds)], [(arrangement, value)] = domains or [(RESET, None)], images or [(SHUFFLED, None)]
        if (order, arrangement) == ("mixed", "sequential"):
            raise InvalidInputError("Mixed domains cannot be sequential. Write mixed, or continual+sequential.")
        return cls(order, arrangement, value, int(rounds or 1))

    def __str__(self) -> str:
        # Without the plus of an exponent, which would separate words.
        images = self.images if self.value is None else f"{self.images}:{self.value:.15g}".replace("+", "")
        domains = f"recurring:{self.rounds}" if self.domains == "recurring" else self.domains
        return "+".join(word for word in (domains, images) if word not in (RESET, SHUFFLED)) or SHUFFLED

    @property
    def joins_domains(self) -> bool:
        """Whether all domains form a single stream."""
        return self.domains != RESET

    def severities(self, severity: int) -> list[int]:
        """The severities of a corruption in the order of the stream."""
        return [*range(1, severity), *range(severity, 0, -1)] if self.domains == "gradual" else [severity]


def _value(name: str, number: str | None) -> float | None:
    parameter = {**DOMAIN_ORDERS, **ARRANGEMENTS}[name]
    if number is None:
        return parameter.default if parameter else None
    try:
        value = float(number)
    except ValueError:
        value = float("nan")
    if parameter is None or not parameter.min <= value <= parameter.max or (parameter.whole and value % 1):
        example = "no number"
        if parameter:
            kind = "whole number" if parameter.whole else "number"
            example = f"a {kind} of at least {parameter.min:g}, as in {name}:{parameter.default:g}"
        raise InvalidInputError(f"The order {name} takes {example}; got {name}:{number}.")
    return value
