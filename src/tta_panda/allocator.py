"""What the C library does with memory that is freed: keep it for the next batch, or give it back to the system."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of mallopt, in malloc.h


def keep_freed_memory() -> None:
    """Let this process keep the memory that tensors free.

    By default, glibc takes every tensor of more than 32 MB from the system and gives it back at once, so that each
    layer of each batch begins with thousands of page faults. It changes the whole process, so the command line does it.
    """
    with contextlib.suppress(OSError, TypeError, AttributeError):
        libc = _libc()
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, -1)


def give_back_freed_memory() -> None:
    """Return to the system what is free now."""
    with contextlib.suppress(OSError, TypeError, AttributeError):
        _libc().malloc_trim(0)


def _libc() -> Any:
    """The C library of this process. Where it is not glibc, there is none of these functions, and nothing to do."""
    return ctypes.CDLL(None)
