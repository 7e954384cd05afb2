"""A restricted unpickler, which creates only the objects that its caller allows."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import IO, Any


class RefusedPickleError(pickle.UnpicklingError):
    """A pickle contains something that is not allowed; no code was run."""


def _refuse_bytearray(_unpickler: object) -> None:
    raise RefusedPickleError("it asks for a bytearray")


def hashable(item: Any) -> Any:
    """Return a key or member, or refuse a tuple: a few bytes can describe a nested one whose hash takes forever."""
    if isinstance(item, tuple | frozenset):
        raise RefusedPickleError("it asks for a key of several parts")
    return item


def make_dict(items: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = ()) -> OrderedDict[Any, Any]:
    """Make a dictionary from the arguments in a pickle."""
    pairs = items.items() if isinstance(items, Mapping) else items
    return OrderedDict((hashable(key), value) for key, value in pairs)


def make_set(items: Iterable[Any] = ()) -> set[Any]:
    """Make a set from the arguments in a pickle."""
    return set(map(hashable, items))


def _checking(opcode: bytes, hashed: Callable[[list[Any]], list[Any]]) -> Callable[[Any], None]:
    """Make an opcode check what it hashes."""

    def load(unpickler: Any) -> None:
        for item in hashed(unpickler.stack):
            hashable(item)
        pickle._Unpickler.dispatch[opcode[0]](unpickler)

    return load


def _build(unpickler: Any) -> None:
    """Set attributes of an object, but not of a class or function, which the next pickle would use, too."""
    if isinstance(unpickler.stack[-2], type | FunctionType):
        raise RefusedPickleError("it asks for a change of a class or function")
    pickle._Unpickler.dispatch[pickle.BUILD[0]](unpickler)


_CHECKED = {
    pickle.SETITEM: lambda stack: stack[-2:-1],
    pickle.SETITEMS: lambda stack: stack[::2],
    pickle.DICT: lambda stack: stack[::2],
    pickle.ADDITEMS: lambda stack: stack,
    pickle.FROZENSET: lambda stack: stack,
}


class RestrictedUnpickler(pickle._Unpickler):  # the C version allocates as much memory as a file declares
    """Reads plain values, and the objects that `allowed` returns.

    Args:
        file: the pickle.
        allowed: returns the object for a module and a name, or None to refuse the pickle. If the object is callable,
            the pickle may call it with any arguments.
        encoding: encoding of strings from Python 2; `"bytes"` keeps them as bytes.
        load_persistent: returns the object for a reference to something outside the pickle; without it, such
            references are refused.
    """

    dispatch = {  # noqa: RUF012
        **pickle._Unpickler.dispatch,
        # The only opcode that allocates the declared size before reading that many bytes.
        pickle.BYTEARRAY8[0]: _refuse_bytearray,
        pickle.BUILD[0]: _build,
        **{opcode[0]: _checking(opcode, hashed) for opcode, hashed in _CHECKED.items()},
    }

    def __init__(
        self,
        file: IO[bytes],
        allowed: Callable[[str, str], Any],
        encoding: str = "ASCII",
        load_persistent: Callable[[Any], Any] | None = None,
    ):
        super().__init__(file, encoding=encoding)
        self._allowed = allowed
        self._load_persistent = load_persistent

    def find_class(self, module: str, name: str) -> Any:
        found = self._allowed(module, name)
        if found is None:
            raise RefusedPickleError(f"it asks for {module}.{name}")
        return found

    def persistent_load(self, pid: Any) -> Any:
        if self._load_persistent is None:
            raise RefusedPickleError("it asks for something outside the pickle")
        return self._load_persistent(pid)
