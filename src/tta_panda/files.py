"""Read regular files, write files atomically, lock folders, and convert rows to CSV or Parquet."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import json
import os
import re
import secrets
import stat
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from tta_panda.errors import DataError, StoreError, missing_extra
from tta_panda.escapes import csv_text

if TYPE_CHECKING:
    import pandas

MAX_GROWTH = 10
"""Largest ratio of what a file describes to its own size."""

_MAX_STEM = 180  # bytes, of the 255 that a file name may have
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_PART_NAME = re.compile(r"\.(?P<stem>.*)\.[0-9a-f]{16}\.part(?P<suffix>(\..*)?)", re.DOTALL)


def expand(path: str | Path) -> Path:
    """Replace `~` by the home folder; leave the path as it is if there is no such user."""
    return Path(os.path.expanduser(path))


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading bytes. Pipes and devices, which could block or never end, raise an `OSError`."""
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_regular(path: Path) -> bytes:
    """Return the content of a file; see `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def open_archive(file: IO[bytes]) -> zipfile.ZipFile:
    """Open a zip file, or raise a `ValueError` if its members would take far more memory than the file."""
    archive = zipfile.ZipFile(file)
    unpacked, packed = sum(member.file_size for member in archive.infolist()), file.seek(0, os.SEEK_END)
    if unpacked > MAX_GROWTH * packed:
        raise ValueError(f"its {packed:,} bytes would become {unpacked:,}.")
    return archive


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Read a member of a zip file, and no more than its directory declares: `archive.read` would unpack all of it."""
    member = archive.getinfo(name)
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others ignore the size
        raise ValueError(f"{name} is compressed in another way than with deflate.")
    with archive.open(member) as file:
        return file.read(member.file_size)


@contextlib.contextmanager
def saving(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block ends, and is removed if the block fails.

    The file is in the same folder. Its name is hidden and random, because other processes, perhaps on other machines,
    may write to that folder. It keeps the suffix, from which numpy and Pillow infer the format. Missing folders are
    created, and failures raise a `StoreError`.
    """
    part = path.with_name(f".{_part_stem(path)}.{secrets.token_hex(8)}.part{path.suffix}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield part
            with part.open("rb+") as file:
                os.fsync(file.fileno())  # otherwise a crash can leave a renamed but empty file on some systems
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _part_stem(path: Path) -> str:
    """Return the name without its suffix, or a hash of it if the temporary name would be too long."""
    stem = os.fsencode(path.stem)
    return path.stem if len(stem) <= _MAX_STEM else hashlib.sha256(stem).hexdigest()


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an `OSError` into a `StoreError`."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"Cannot write {path} ({error.strerror or error}). What was written before is kept: "
            f"{'free some space, or ' if error.errno in _DISK_FULL else ''}choose another place, and run the command "
            "again."
        ) from error


def save_file(path: Path, content: str | bytes) -> Path:
    """Write text, encoded as UTF-8, or bytes atomically."""
    with saving(path) as part:
        # Text may contain file names, which need not be valid UTF-8.
        part.write_bytes(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
    return path


def make_writable(folder: Path, purpose: str, advice: str) -> None:
    """Create a folder and check that it is writable now, not only when there are results to lose."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StoreError(f"Cannot {purpose} {folder} ({error.strerror or error}). {advice}") from error


def remove_parts(folder: Path, of: Path | None = None, *, nested: bool = False) -> None:
    """Delete temporary files that killed processes left in a folder. No other process may be writing them.

    Args:
        folder: the folder.
        of: delete only the temporary files of this file.
        nested: search subfolders, too.
    """
    for part in folder.glob(f"{'**/' if nested else ''}.*.part*"):
        name = _PART_NAME.fullmatch(part.name)
        if name and (of is None or (name["stem"], name["suffix"]) == (_part_stem(of), of.suffix)):
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(
    target: Path, elsewhere: str = "another folder with -o PATH", lock_file: Path | None = None
) -> Iterator[None]:
    """Lock a folder or a file against other processes that write to it, or raise a `DataError`.

    The operating system releases the lock when a process dies.

    Args:
        target: the folder or file; a folder is created.
        elsewhere: what users can choose instead, for the message.
        lock_file: by default, a file in the folder.
    """
    path = lock_file or target / ".tta-panda.lock"
    lock = FileLock(path, timeout=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise DataError(f"Another process is writing to {target}; wait for it, or choose {elsewhere}.") from None
    except OSError as error:
        raise DataError(f"Cannot write to {target} ({error.strerror or error}); choose {elsewhere}.") from error
    try:
        yield
    finally:
        lock.release()


Row = Mapping[str, Any]


def flat(row: Row) -> dict[str, Any]:
    """Flatten a row: `{"options": {"lr": 1}}` becomes `{"options.lr": 1}`, and lists become JSON."""
    cells: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            cells |= {f"{name}.{key}": inner for key, inner in flat(value).items()}
        else:
            cells[name] = json.dumps(value) if isinstance(value, list | tuple) else value
    return cells


def to_dataframe(rows: Iterable[Row]) -> pandas.DataFrame:
    """Convert rows to a pandas DataFrame, flattened."""
    try:
        import pandas
    except ImportError as error:
        raise missing_extra("A DataFrame needs", "pandas") from error
    return pandas.DataFrame([flat(row) for row in rows])


def _columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns of all rows, which may differ."""
    return list(dict.fromkeys(name for row in rows for name in row))


def csv_line(cells: Iterable[Any]) -> str:
    """Format one line of a CSV file. Cells are not escaped against formulas; `csv_cell` does that."""
    line = io.StringIO()
    # This line terminator, which is replaced below, makes the writer quote carriage returns.
    csv.writer(line, lineterminator="\r\n").writerow(list(cells))
    return line.getvalue().removesuffix("\r\n") + "\n"


def csv_cell(cell: Any) -> Any:
    """Convert a cell for CSV: lists become JSON, and text is escaped so that no spreadsheet reads it as a formula."""
    if isinstance(cell, list):
        return json.dumps(cell) if cell else ""
    return csv_text(cell) if isinstance(cell, str) else cell


def csv_rows(rows: Sequence[Row]) -> str:
    """Convert flat rows to the text of a CSV file."""
    columns = _columns(rows)
    lines: list[list[Any]] = [list(columns), *([row.get(name) for name in columns] for row in rows)]
    return "".join(csv_line(map(csv_cell, line)) for line in lines)


def import_pyarrow() -> Any:
    """Import pyarrow and `pyarrow.parquet`, or raise an error that names the extra to install."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_extra("Parquet needs", "parquet") from error
    return pyarrow


def parquet_rows(rows: Sequence[Row]) -> bytes:
    """Convert flat rows to the content of a Parquet file."""
    pyarrow = import_pyarrow()
    columns = {name: _of_one_type([row.get(name) for row in rows]) for name in _columns(rows)}
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _of_one_type(values: list[Any]) -> list[Any]:
    """Return values unchanged if they have one type, else as text: beta, say, is a number or "auto"."""
    kinds = {float if type(value) is int else type(value) for value in values if value is not None}
    if len(kinds) <= 1 and str not in kinds:
        return values
    return [None if value is None else str(value).encode(errors="backslashreplace").decode() for value in values]
