"""Unpack an archive safely: nothing is written outside the folder, and only a complete data set is moved into place."""

from __future__ import annotations

import filecmp
import gzip
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from tta_panda.data.read.folders import shortened
from tta_panda.data.source import Archive
from tta_panda.errors import DataError


def unpack(file: Path, archive: Archive, folder: Path, progress: Callable[[int, int | None], None]) -> None:
    """Unpack the file of an archive into `folder`, beside what is there already.

    Nothing is overwritten: files of the same name with another content are an error.
    """
    if not hasattr(tarfile, "data_filter"):
        raise DataError("This Python cannot unpack archives safely; use Python 3.11.4 or newer.")
    staging = folder / f".unpacking-{file.name}"
    try:
        shutil.rmtree(staging, ignore_errors=True)  # left by a run that was interrupted
        staging.mkdir(parents=True)
        _extract(file, staging, progress)
        if not archive.is_whole(staging):
            found = sorted(path.relative_to(staging).as_posix() for path in (*staging.glob("*"), *staging.glob("*/*")))
            raise DataError(f"{file} should hold {shortened(archive.holds)}; found {shortened(found)}.")
        others = [path.relative_to(folder).as_posix() for path in _differing(staging, folder)]
        if others:
            raise DataError(
                f"{folder} holds files that differ from those in {file.name}: {shortened(others)}. Nothing was "
                "overwritten. Delete them, or move them, and run the same command again: the archive is kept, and not "
                "fetched again."
            )
        _move(staging, folder)
    except OSError as error:
        raise DataError(_no_room(file, folder, error)) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _extract(file: Path, staging: Path, progress: Callable[[int, int | None], None]) -> None:
    size = file.stat().st_size

    def admit(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        progress(min(member.offset, size), size)
        return tarfile.data_filter(member, path)  # refuses absolute paths, "..", links that lead out, and devices

    try:
        with tarfile.open(file) as tar:
            tar.extractall(staging, filter=admit)
    except tarfile.FilterError as error:
        raise DataError(
            f"{file} was not unpacked: something in it would land outside {staging}, or is no plain file ({error})."
        ) from error
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{file} cannot be unpacked ({error}); delete it and fetch it again.") from error


def _differing(fresh: Path, folder: Path) -> Iterator[Path]:
    """Paths in `folder` that have the name of something in `fresh`, but another content."""
    for entry in sorted(fresh.iterdir()):
        there = folder / entry.name
        if entry.is_dir() and there.is_dir():
            yield from _differing(entry, there)
        elif there.exists() and (entry.is_dir() or there.is_dir() or not filecmp.cmp(entry, there, shallow=False)):
            yield there


def _move(fresh: Path, folder: Path) -> None:
    for entry in sorted(fresh.iterdir()):
        there = folder / entry.name
        if entry.is_dir() and there.is_dir():
            _move(entry, there)
        elif not there.exists():
            os.replace(entry, there)


def _no_room(file: Path, folder: Path, error: OSError) -> str:
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    needed, free = file.stat().st_size / 1e9, shutil.disk_usage(place).free / 1e9
    return (
        f"Cannot unpack {file} into {folder} ({error.strerror or error}). It needs about {needed:.1f} GB there, and "
        f"{free:.1f} GB are free. Make room and run the same command again: the archive is kept, and not fetched again."
    )
