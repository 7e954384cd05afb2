"""One process at a time writes data sets to a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from tta_panda.errors import DataError


@contextlib.contextmanager
def locked(folder: Path, elsewhere: str = "another folder with -o PATH") -> Iterator[None]:
    """Create a folder and keep other processes from writing to it; errors of the file system become a `DataError`.

    The system releases the lock when a process dies. `elsewhere` is what users can choose instead of this folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".tta-panda.lock", timeout=0):
            yield
    except Timeout:
        raise DataError(f"Another process is writing to {folder}; wait for it, or choose {elsewhere}.") from None
    except OSError as error:
        raise DataError(
            f"Cannot write to {folder} ({error.strerror or error}). Free some space, or choose {elsewhere}, and run "
            "the command again."
        ) from error
