"""A restricted unpickler, which creates only the objects that its caller allows."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import IO, Any


class RefusedPickleError(pickle.UnpicklingError):
    """A pickle contains something that is not allowed; no code was run."""


def _refuse_bytearray(_unpickler: object) -> None:
    raise RefusedPickleError("it asks for a bytearray")


def _checking(opcode: bytes, hashed: Callable[[list[Any]], list[Any]]) -> Callable[[Any], None]:
    """Make an opcode refuse to hash tuples: a few bytes can describe a nested tuple whose hash takes forever."""

    def load(unpickler: Any) -> None:
        if any(isinstance(item, tuple | frozenset) for item in hashed(unpickler.stack)):
            raise RefusedPickleError("it asks for a key of several parts")
        pickle._Unpickler.dispatch[opcode[0]](unpickler)

    return load


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
