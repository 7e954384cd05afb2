"""Names for things that are imported only when somebody asks for them.

A registry maps a name to `"module:attribute"`. Listing names, matching wildcards and suggesting what was meant need no
import at all, which keeps the command line quick.
"""

from __future__ import annotations

import fnmatch
import importlib
from collections.abc import Iterator
from typing import Generic, TypeVar

from tta_panda.errors import InvalidInputError, UnknownNameError

T = TypeVar("T")


class Registry(Generic[T]):
    """Name to object, resolved on first use."""

    def __init__(self, kind: str, entries: dict[str, str]):
        self.kind = kind
        self._targets: dict[str, str | T] = dict(entries)

    def register(self, name: str, target: str | T) -> None:
        """Add an entry: an object, or the string `"module:attribute"` that leads to one."""
        if name in self._targets:
            raise InvalidInputError(f"The {self.kind} {name!r} is registered already; choose another name.")
        self._targets[name] = target

    def get(self, name: str) -> T:
        if name not in self._targets:
            raise UnknownNameError(self.kind, name, self._targets)
        target = self._targets[name]
        if isinstance(target, str):
            module, _, attribute = target.partition(":")
            target = getattr(importlib.import_module(module), attribute)
            self._targets[name] = target
        return target

    def names(self, pattern: str = "*") -> list[str]:
        """Registered names that match a shell wildcard, in the order of registration."""
        return [name for name in self._targets if fnmatch.fnmatchcase(name, pattern)]

    def __contains__(self, name: object) -> bool:
        return name in self._targets

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)
