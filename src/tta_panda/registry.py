"""Registries of objects by name, which are imported on first use.

A registry maps a name to `"module:attribute"`. Listing names, matching wildcards and suggesting similar names need no
imports, which keeps the command line fast.
"""

from __future__ import annotations

import ast
import fnmatch
import importlib.util
import pkgutil
from collections.abc import Iterator
from importlib import metadata
from importlib.abc import InspectLoader
from typing import Generic, TypeVar, cast

from tta_panda.errors import InvalidInputError, TtaPandaError, UnknownNameError

T = TypeVar("T")


class Registry(Generic[T]):
    """Objects by name, imported on first use.

    Args:
        kind: the kind of the objects, for messages.
        entries: names and their `"module:attribute"`.
        entry_points: a group of entry points with which installed packages add entries. They do not replace `entries`.
    """

    def __init__(self, kind: str, entries: dict[str, str], entry_points: str | None = None):
        self.kind = kind
        self._entries: dict[str, str | T] = dict(entries)
        self._group = entry_points

    @property
    def _targets(self) -> dict[str, str | T]:
        if self._group is not None:
            for point in metadata.entry_points(group=self._group):
                self._entries.setdefault(point.name, point.value)
            self._group = None
        return self._entries

    def register(self, name: str, target: str | T, *, replace: bool = False) -> None:
        """Add an entry: an object, or a string `"module:attribute"`."""
        if name in self._targets and not replace:
            raise InvalidInputError(f"The {self.kind} {name!r} is registered already; choose another name.")
        self._targets[name] = target

    def get(self, name: str) -> T:
        if name not in self._targets:
            raise UnknownNameError(self.kind, name, self._targets)
        target = self._targets[name]
        if isinstance(target, str):
            try:
                target = self._targets[name] = cast(T, pkgutil.resolve_name(target))
            except TtaPandaError:
                raise
            except (ImportError, AttributeError, ValueError) as error:
                raise InvalidInputError(
                    f"The {self.kind} {name!r} cannot be imported from {target!r}: {error}"
                ) from error
        return target

    def name_of(self, thing: T) -> str | None:
        """Return the name that a class or a function is registered under, if any, without importing anything."""
        place = f"{getattr(thing, '__module__', None)}:{getattr(thing, '__qualname__', None)}"
        return next((name for name, target in self._targets.items() if target is thing or target == place), None)

    def about(self, name: str) -> str:
        """Return the first line of the docstring of an entry's module, without importing the module."""
        target = self._targets[name]
        module = target.partition(":")[0] if isinstance(target, str) else target.__module__
        try:
            spec = importlib.util.find_spec(module)
            source = spec.loader.get_source(module) if spec and isinstance(spec.loader, InspectLoader) else None
            docstring = ast.get_docstring(ast.parse(source or ""))
        except (ImportError, ValueError, SyntaxError):  # another package is broken, or there is no source file
            docstring = None
        return (docstring or "").partition("\n")[0]

    def names(self, pattern: str = "*") -> list[str]:
        """Return registered names that match a shell wildcard, in order of registration."""
        return [name for name in self._targets if fnmatch.fnmatchcase(name, pattern)]

    def __contains__(self, name: object) -> bool:
        return name in self._targets

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)
