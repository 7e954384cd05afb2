"""Every error that tta-panda raises on purpose.

    TtaPandaError
    ├── InvalidInputError   an argument or an image is not what the call can work with      (also a ValueError)
    ├── UnknownNameError    no method, model, data set, ... of that name is registered       (also a LookupError)
    ├── ModelLoadError      weights or a configuration cannot be found or do not fit
    ├── DataError           a data set is absent or its files are not what they should be
    ├── StoreError          results cannot be written or read back
    └── MissingExtraError   a feature needs an optional dependency that is not installed

Messages say what was given, what is expected, and what to type. The command line prints them without a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TtaPandaError(Exception):
    """Base class of all errors of this package."""


class InvalidInputError(TtaPandaError, ValueError):
    """An argument or an image is not what the call can work with."""


class UnknownNameError(TtaPandaError, LookupError):
    """A name that is not registered; the message suggests the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]):
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(repr(n) for n in near)}?" if near else f"Known: {', '.join(known)}."
        super().__init__(f"Unknown {kind} {name!r}. {hint}")
        self.kind, self.name, self.suggestions = kind, name, near


class ModelLoadError(TtaPandaError):
    """Weights or a configuration cannot be found, or do not fit together."""


class DataError(TtaPandaError):
    """A data set is absent, or its files are not what they should be."""


class StoreError(TtaPandaError):
    """Results cannot be written, or read back."""


class MissingExtraError(TtaPandaError, ImportError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, feature: str, extra: str):
        super().__init__(f"{feature} needs an optional dependency. Install it with: pip install 'tta-panda[{extra}]'")
