"""Unpack an archive so that nothing lands outside the folder, and nothing half unpacked is taken for the data."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tta_panda.errors import DataError


def unpack(
    archive: Path,
    folder: Path,
    expected: Sequence[str],
    progress: Callable[[int, int | None], None] = lambda _done, _total: None,
) -> None:
    """Put what the archive holds into `folder`; entries that are there already are kept."""
    if not hasattr(tarfile, "data_filter"):
        raise DataError("This Python cannot unpack archives safely; use Python 3.11.4 or newer.")
    staging = folder / f".unpacking-{archive.name}"
    shutil.rmtree(staging, ignore_errors=True)  # of a run that was broken off
    staging.mkdir(parents=True)
    try:
        _extract(archive, staging, progress)
        found = {path.name for path in staging.iterdir()} | {path.name for path in staging.glob("*/*")}
        if not found.issuperset(expected):
            raise DataError(f"{archive} should hold {', '.join(expected)}; found {', '.join(sorted(found)[:8])}.")
        for entry in sorted(staging.iterdir()):
            if not (folder / entry.name).exists():
                os.replace(entry, folder / entry.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _extract(archive: Path, staging: Path, progress: Callable[[int, int | None], None]) -> None:
    size = archive.stat().st_size

    def admit(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        progress(min(member.offset, size), size)
        return tarfile.data_filter(member, path)  # refuses absolute paths, "..", links that lead out, and devices

    try:
        with tarfile.open(archive) as tar:
            tar.extractall(staging, filter=admit)
    except tarfile.FilterError as error:
        raise DataError(
            f"{archive} was not unpacked, because a file in it would land outside {staging}: {error}"
        ) from error
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{archive} cannot be unpacked ({error}); delete it and fetch it again.") from error
