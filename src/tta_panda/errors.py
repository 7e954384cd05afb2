"""All exceptions that tta-panda raises.

    TtaPandaError
    ├── InvalidInputError   an argument or an image is invalid                              (also a ValueError)
    │   └── UnsupportedModelError   a method needs something that the model does not have
    ├── UnknownNameError    no method, model, data set, ... is registered under that name    (also a LookupError)
    ├── ModelLoadError      weights or a configuration cannot be found or do not match
    ├── MissingExtraError   an optional package is not installed                             (also an ImportError)
    ├── DataError           a data set is missing or its files are invalid
    │   └── BrokenImageError        an image cannot be decoded
    ├── StoreError          results or states cannot be written or read back
    ├── WorkerError         worker processes or a cluster cannot be started or reached, or a task failed there
    └── NumericalError      a computation returned NaN or infinity                           (also an ArithmeticError)

A message names what was given, what is expected, and what to do. The command line prints it without a traceback, and
prints a `TtaPandaWarning` as a note.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TtaPandaError(Exception):
    """Base class of all errors of this package."""


class InvalidInputError(TtaPandaError, ValueError):
    """An argument or an image is invalid."""


class UnsupportedModelError(InvalidInputError):
    """A method needs something that this model does not have; other methods may work with the model."""


class UnknownNameError(TtaPandaError, LookupError):
    """A name that is not registered; the message suggests the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]):
        known = sorted(known)
        self._arguments = (kind, name, known)
        near = difflib.get_close_matches(name, known, n=4, cutoff=0.5)
        hint = f"Did you mean {' or '.join(repr(n) for n in near)}?" if near else f"Known: {', '.join(known)}."
        super().__init__(f"Unknown {kind} {name!r}. {hint}")

    def __reduce__(self) -> tuple[type[UnknownNameError], tuple[str, str, list[str]]]:
        # Worker processes pickle their errors; by default, exceptions are rebuilt from the message alone.
        return type(self), self._arguments


class ModelLoadError(TtaPandaError):
    """Weights or a configuration cannot be found, or do not match."""


class MissingExtraError(TtaPandaError, ImportError):
    """An optional package is not installed; the message includes the command that installs it."""


def missing_extra(what: str, extra: str) -> MissingExtraError:
    """Return the error for a missing optional package, as in `missing_extra("Parquet needs", "parquet")`."""
    return MissingExtraError(f'{what} a missing package. Run: pip install "tta-panda[{extra}]"')


class TtaPandaWarning(UserWarning):
    """A warning for the user, which the command line prints as a note."""


class DataError(TtaPandaError):
    """A data set is missing, or its files are invalid."""


class BrokenImageError(DataError):
    """An image cannot be decoded, for the given `reason`."""

    def __init__(self, image: str, reason: str):
        self.image, self.reason = image, reason
        super().__init__(
            f"Cannot read the image {image} ({reason}). Download it again, remove it, or skip it with --skip-broken."
        )

    def __reduce__(self) -> tuple[type[BrokenImageError], tuple[str, str]]:
        return type(self), (self.image, self.reason)  # see UnknownNameError


class StoreError(TtaPandaError):
    """Results or states cannot be written, or read back."""


class WorkerError(TtaPandaError):
    """Worker processes or a cluster cannot be started or reached, or a task failed there.

    Attributes:
        traceback: the traceback of the failed task, if there is one.
    """

    def __init__(self, message: str, traceback: str = ""):
        super().__init__(message)
        self.traceback = traceback


class NumericalError(TtaPandaError, ArithmeticError):
    """A computation returned NaN or infinity."""
