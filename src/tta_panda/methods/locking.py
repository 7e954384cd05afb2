"""One thread at a time in a method object, whose state is that of one stream."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


class Locked(Protocol):
    """An object with a lock of its own, one that its owner may take again."""

    @property
    def _lock(self) -> AbstractContextManager[Any]: ...


S = TypeVar("S", bound=Locked)
P = ParamSpec("P")
R = TypeVar("R")


def one_at_a_time(call: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let threads that call the methods of an object wait for each other."""

    @functools.wraps(call)
    def locked(self: S, /, *args: P.args, **keywords: P.kwargs) -> R:
        with self._lock:
            return call(self, *args, **keywords)

    return locked
