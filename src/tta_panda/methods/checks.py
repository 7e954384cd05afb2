"""Checks of options that several methods have."""

from __future__ import annotations

import math

from tta_panda.errors import InvalidInputError


def check_range(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Refuse a number outside of [low, high], and NaN."""
    if not low <= value <= high:
        expected = f"a number >= {low:g}" if high == math.inf else f"a number from {low:g} to {high:g}"
        raise InvalidInputError(f"{name} must be {expected}, got {value!r}.")
