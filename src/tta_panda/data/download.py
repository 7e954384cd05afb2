"""Download published archives: resume interrupted downloads, verify md5 sums, and unpack safely."""

from __future__ import annotations

import filecmp
import functools
import gzip
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from tta_panda.data import DATASETS
from tta_panda.data.cifar import LABELS, note_path
from tta_panda.data.corruptions import ALL_CORRUPTIONS
from tta_panda.data.listing import shortened
from tta_panda.data.source import Archive, file_md5
from tta_panda.errors import DataError, UnknownNameError
from tta_panda.files import locked, writing

Progress = Callable[[int, int | None], None]
"""Called with the number of bytes done, and the total, if known."""

_CHUNK = 1 << 16  # bytes; at most this much is lost when the connection breaks
_TIMEOUT = (10, 60)  # seconds to connect, and between two chunks
_MARGIN = 1.25  # a file may exceed its approximate size by this factor
# For requests that get no answer, or one from a busy server; the pauses grow from one second.
_RETRY = Retry(5, backoff_factor=0.5, status_forcelist=(429, 503), raise_on_status=False)


def download(
    name: str,
    root: Path,
    *,
    parts: tuple[str, ...] = (),
    mirror: str | None = None,
    announce: Callable[[str], None] = lambda _line: None,
    progress: Callable[[str, int, int | None], None] = lambda _what, _done, _total: None,
) -> list[dict[str, Any]]:
    """Download and unpack the archives of a data set that are missing in `root`. Returns a row per archive.

    Args:
        name: a data set that has archives.
        root: folder of the data sets.
        parts: archives to fetch (`blur`, `noise`), if there are several; all by default.
        mirror: address of a folder that holds the same archives.
        announce: called with a message before an archive is fetched.
        progress: called with what is being done, the number of bytes done, and the total, if known.
    """
    rows = []
    for archive in _select_archives(name, parts):
        folder = root / archive.folder
        _refuse_made_files(name, folder, archive)
        if archive.is_complete(folder):
            rows.append({"archive": archive.file, "status": "there already", "folder": str(folder)})
            continue
        with locked(root):
            path = root / archive.file
            if not path.is_file() or file_md5(path) != archive.md5:
                announce(f"Fetching {archive.file} ({archive.gigabytes:g} GB) into {root}")
                url = f"{mirror.rstrip('/')}/{archive.file}" if mirror else archive.url
                _fetch(url, archive, path, functools.partial(progress, f"fetching {archive.file}"))
            unpack(path, archive, folder, functools.partial(progress, f"unpacking {archive.file}"))
            path.unlink()
        rows.append({"archive": archive.file, "status": "fetched", "folder": str(folder)})
    return rows


def _select_archives(name: str, parts: tuple[str, ...]) -> tuple[Archive, ...]:
    sources = {one: DATASETS.get(one).archives for one in DATASETS if DATASETS.get(one).archives}
    if name not in sources:
        raise UnknownNameError("data set to download", name, sources)
    archives = {archive.file.partition(".")[0]: archive for archive in sources[name]}
    for part in parts:
        if part not in archives:
            raise UnknownNameError(f"part of {name}", part, archives)
    return tuple(archives[part] for part in parts or archives)


def _refuse_made_files(name: str, folder: Path, archive: Archive) -> None:
    """Raise `DataError` if files of `tta-panda data make` could be mixed up with published ones of the same name."""
    places = {(folder / path).parent for path in archive.holds if path.endswith(".npy")}
    files = [place / f"{corruption}.npy" for place in places for corruption in ALL_CORRUPTIONS]
    made = [path for path in files if note_path(path).exists()]
    if made:
        raise DataError(
            f"{made[0].parent} holds files that tta-panda data make made ({shortened([path.name for path in made])}), "
            "which would be mixed with the published ones. Fetch those into another folder: tta-panda data download "
            f"{name} -o OTHER; or first delete the made files, the .json notes next to them, and {LABELS}."
        )


def _fetch(url: str, archive: Archive, target: Path, progress: Progress) -> None:
    """Download a file to `<file>.part`, which a later call resumes, and rename it when it is complete."""
    part = target.with_name(f"{target.name}.part")
    if not part.is_file():
        part.unlink(missing_ok=True)  # a named pipe would never end
    complete = False
    while not complete:
        before = _bytes_in(part)
        try:
            _append(url, part, _MARGIN * archive.gigabytes * 1e9, progress)
            complete = True
        except requests.RequestException as error:
            if _bytes_in(part) > before:  # the connection broke: go on from there
                continue
            raise DataError(
                f"Cannot fetch {url} ({error}). The part that was downloaded is kept: run the same command again to "
                f"go on, or fetch the file in another way, put it into {target.parent}, and run it again to unpack it."
            ) from error
    found = file_md5(part)
    if found != archive.md5:
        part.unlink()
        raise DataError(
            f"{url} is not the published file: expected md5 {archive.md5}, found {found}. It was deleted; run the "
            "command again, or try another --mirror."
        )
    os.replace(part, target)


def _append(url: str, part: Path, max_bytes: float, progress: Progress) -> None:
    """Append the rest of the file to `part`; start over if the server does not support range requests.

    At most `max_bytes` are accepted, so that a server that never stops sending cannot fill the disk.
    """
    done = _bytes_in(part)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
    with requests.Session() as session:
        session.mount("http://", HTTPAdapter(max_retries=_RETRY))
        session.mount("https://", HTTPAdapter(max_retries=_RETRY))
        response = session.get(url, headers=headers, stream=True, timeout=_TIMEOUT)
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            return  # the part is at least as long as the file; the md5 sum shows whether it is right
        response.raise_for_status()
        if response.status_code != requests.codes.partial_content:
            done = 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        progress(done, total)
        with part.open("ab" if done else "wb") as file:
            for chunk in response.iter_content(_CHUNK):
                done += len(chunk)
                if done > max_bytes:
                    part.unlink()
                    raise DataError(
                        f"{url} is not the published file, which has less than {max_bytes / 1e9:.2g} GB. It was "
                        "deleted; try another --mirror."
                    )
                with writing(part):
                    file.write(chunk)
                progress(done, total)
    if total is not None and done < total:
        raise requests.ConnectionError(f"the connection ended after {done:,} of {total:,} bytes")


def _bytes_in(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def unpack(file: Path, archive: Archive, folder: Path, progress: Progress) -> None:
    """Unpack the file of an archive into `folder`, which may contain other files.

    Nothing is overwritten: an existing file of the same name with different content is an error.
    """
    if not hasattr(tarfile, "data_filter"):
        raise DataError("This Python cannot unpack archives safely; use Python 3.11.4 or newer.")
    staging = folder / f".unpacking-{file.name}"
    try:
        shutil.rmtree(staging, ignore_errors=True)  # left by a run that was interrupted
        staging.mkdir(parents=True)
        _extract(file, staging, progress)
        if not archive.is_complete(staging):
            found = sorted(path.relative_to(staging).as_posix() for path in (*staging.glob("*"), *staging.glob("*/*")))
            raise DataError(f"{file} should hold {shortened(archive.holds)}; found {shortened(found)}.")
        fresh = [path.relative_to(staging) for path in sorted(staging.rglob("*")) if not path.is_dir()]
        there = [path for path in fresh if os.path.lexists(folder / path)]
        others = [path.as_posix() for path in there if not filecmp.cmp(staging / path, folder / path, shallow=False)]
        if others:
            raise DataError(
                f"{folder} holds files that differ from those in {file.name}: {shortened(others)}. Nothing was "
                "overwritten. Delete them, or move them, and run the same command again: the archive is kept, and not "
                "fetched again."
            )
        for path in set(fresh).difference(there):
            (folder / path.parent).mkdir(parents=True, exist_ok=True)
            os.replace(staging / path, folder / path)
    except OSError as error:
        raise DataError(
            f"Cannot unpack {file} into {folder} ({error.strerror or error}). It needs about "
            f"{file.stat().st_size / 1e9:.1f} GB there. Make room and run the same command again: the archive is kept, "
            "and not fetched again."
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _extract(file: Path, staging: Path, progress: Progress) -> None:
    size = file.stat().st_size

    def admit(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        progress(min(member.offset, size), size)
        return tarfile.data_filter(member, path)  # refuses absolute paths, "..", links that lead outside, and devices

    try:
        with tarfile.open(file) as tar:
            tar.extractall(staging, filter=admit)
    except tarfile.FilterError as error:
        raise DataError(
            f"{file} was not unpacked: a file would land outside {staging}, or is not a regular file ({error})."
        ) from error
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{file} cannot be unpacked ({error}); delete it and fetch it again.") from error
