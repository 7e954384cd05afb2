"""Write files all at once: no reader, second writer or crash ever leaves or sees half a file."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

_PART = ".part"


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, which replaces `path` when the block ends, and is removed if the block fails.

    Its name is hidden and random, because other processes, perhaps on other machines, may write to the same folder. It
    keeps the suffix, from which numpy and Pillow infer the format.
    """
    part = path.with_name(f".{path.stem}.{secrets.token_hex(8)}{_PART}{path.suffix}")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())  # some systems would otherwise rename first and lose the content in a crash
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write text, encoded as UTF-8, or bytes to a file."""
    with atomic_path(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def remove_parts(folder: Path) -> None:
    """Delete the temporary files of killed processes; no other process may be writing to the folder."""
    for part in folder.glob(f".*{_PART}*"):
        part.unlink(missing_ok=True)
