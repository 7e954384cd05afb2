"""Write files all at once: no reader, second writer or crash ever leaves or sees half a file."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tta_panda.errors import StoreError

_PART = ".part"
_PART_NAME = re.compile(rf"\.(?P<stem>.*)\.[0-9a-f]{{16}}{re.escape(_PART)}(\..*)?", re.DOTALL)


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
        part.write_bytes(_as_bytes(content))


def _as_bytes(content: str | bytes) -> bytes:
    # Names of files need not be valid text.
    return content.encode(errors="backslashreplace") if isinstance(content, str) else content


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Have a failure to write a result be a `StoreError`."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"Cannot write {path} ({error.strerror or error}). What was written before is kept: make room there, or "
            "choose another place, and run the command again."
        ) from error


@contextlib.contextmanager
def saving(path: Path) -> Iterator[Path]:
    """`atomic_path` for a result: makes the folders that it lies in, and a failure is a `StoreError`."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as part:
            yield part


def save_file(path: Path, content: str | bytes) -> Path:
    """Write a result, as text or bytes."""
    with saving(path) as part:
        part.write_bytes(_as_bytes(content))
    return path


def make_writable(folder: Path, purpose: str, advice: str) -> None:
    """Make a folder, and find out now, rather than when there is something to lose, whether it can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StoreError(f"Cannot {purpose} {folder} ({error.strerror or error}). {advice}") from error


def remove_parts(folder: Path, of: Path | None = None, *, nested: bool = False) -> None:
    """Delete temporary files of killed processes, all or those of one file; no other process may be writing these.

    With `nested`, those in the folders below, too.
    """
    for part in folder.glob(f"{'**/' if nested else ''}.*{_PART}*"):
        name = _PART_NAME.fullmatch(part.name)
        if name and (of is None or name["stem"] == of.stem):
            part.unlink(missing_ok=True)
