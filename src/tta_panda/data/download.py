"""Fetch the published archives: goes on where it was broken off, verifies the md5 sum, unpacks safely.

pooch decides whether a file has to be fetched and verifies it; the resuming downloader below is what it fetches with.
"""

from __future__ import annotations

import functools
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import pooch
import requests

from tta_panda.data.archives import ARCHIVES, Archive
from tta_panda.data.cifar import LABELS, note_path
from tta_panda.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from tta_panda.data.unpack import shortened, unpack
from tta_panda.errors import DataError, UnknownNameError

Progress = Callable[[str, int, int | None], None]
"""Called with what is going on, how many bytes are done, and of how many, where that is known."""

_CHUNK = 1 << 16  # what is lost at most when the connection breaks
_TIMEOUT = (10, 60)  # seconds to connect, and between two pieces
_ATTEMPTS = 5  # in a row without a single byte
_SHORTEST_PAUSE = 0.5  # seconds, doubled with every attempt in vain
_BUSY = (requests.codes.too_many_requests, requests.codes.service_unavailable)


def download(
    name: str,
    root: Path,
    *,
    parts: tuple[str, ...] = (),
    mirror: str | None = None,
    keep_archives: bool = False,
    announce: Callable[[str], None] = lambda _line: None,
    progress: Progress = lambda _what, _done, _total: None,
) -> list[dict[str, Any]]:
    """Fetch and unpack a data set into `root`; what is there already is left alone. Returns a row per archive.

    Args:
        name: one of `ARCHIVES`.
        root: folder of the data sets.
        parts: archives to fetch (`blur`, `noise`), for data sets of several; all by default.
        mirror: address of a folder that holds the same archives.
        keep_archives: do not delete archives that have been unpacked.
        announce: called with a line for people before an archive is fetched.
    """
    rows = []
    for archive in _chosen(name, parts):
        folder = root / archive.folder
        _refuse_made_files(name, folder, archive)
        if archive.is_whole(folder):
            rows.append({"archive": archive.file, "status": "there already", "folder": str(folder)})
            continue
        url = f"{mirror.rstrip('/')}/{archive.file}" if mirror else archive.url
        if not (root / archive.file).exists():
            announce(f"Fetching {archive.file} ({archive.size}) into {root}")
        path = _fetched(url, archive, root, progress)
        unpack(path, archive, folder, functools.partial(progress, f"unpacking {archive.file}"))
        if not keep_archives:
            path.unlink()
        rows.append({"archive": archive.file, "status": "fetched", "folder": str(folder)})
    return rows


def _chosen(name: str, parts: tuple[str, ...]) -> tuple[Archive, ...]:
    if name not in ARCHIVES:
        raise UnknownNameError("data set to download", name, ARCHIVES)
    archives = {archive.file.partition(".")[0]: archive for archive in ARCHIVES[name]}
    for part in parts:
        if part not in archives:
            raise UnknownNameError(f"part of {name}", part, archives)
    return tuple(archives[part] for part in parts or archives)


def _refuse_made_files(name: str, folder: Path, archive: Archive) -> None:
    """Files of `tta-panda data make` and published ones of one name would be mixed, or taken for each other."""
    names = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
    places = {(folder / path).parent for path in archive.holds if path.endswith(".npy")}
    made = [path for place in places for path in (place / f"{one}.npy" for one in names) if note_path(path).exists()]
    if made:
        raise DataError(
            f"{made[0].parent} holds files that tta-panda data make made ({shortened([path.name for path in made])}), "
            "which would mix with the published ones. Fetch those into another folder: tta-panda data download "
            f"{name} --to OTHER; or first delete the made files, the .json notes beside them, and {LABELS}."
        )


def _fetched(url: str, archive: Archive, root: Path, progress: Progress) -> Path:
    pooch.get_logger().setLevel(logging.WARNING)
    try:
        root.mkdir(parents=True, exist_ok=True)
        downloader = ResumingDownloader(functools.partial(progress, f"fetching {archive.file}"))
        return Path(pooch.retrieve(url, f"md5:{archive.md5}", archive.file, root, downloader=downloader))
    except requests.RequestException as error:
        raise DataError(
            f"Cannot fetch {url} ({error}). What has arrived is kept: run the same command again to go on, or fetch "
            f"the file in another way, put it into {root}, and run the command again to unpack it."
        ) from error
    except ValueError as error:  # pooch: the hash does not match
        raise DataError(
            f"{url} is not the published file: expected md5 {archive.md5} ({error}). It was deleted; run the command "
            "again, or try another --mirror."
        ) from error
    except OSError as error:
        raise DataError(f"Cannot write to {root} ({error.strerror or error}). Choose another --to PATH.") from error


class ResumingDownloader:
    """A downloader for pooch that keeps what has arrived in `<file>.part`, and asks the server for the rest only."""

    def __init__(self, progress: Callable[[int, int | None], None] = lambda _done, _total: None):
        self._progress = progress

    def __call__(self, url: str, output_file: str, pooch: object, check_only: bool = False) -> None:
        part = Path(output_file).parent / f"{url.rpartition('/')[2]}.part"
        failures = 0
        while True:
            before = part.stat().st_size if part.exists() else 0
            try:
                self._fetch(url, part)
                break
            except requests.RequestException as error:
                gained = part.exists() and part.stat().st_size > before
                failures = 0 if gained else failures + 1
                if failures == _ATTEMPTS or not _may_pass(error):
                    raise
                sleep(_SHORTEST_PAUSE * 2**failures)
        shutil.move(part, output_file)

    def _fetch(self, url: str, part: Path) -> None:
        """Append the rest of the file to `part`; start anew where the server gives no rest."""
        done = part.stat().st_size if part.exists() else 0
        headers = (
            {"Range": f"bytes={done}-", "Accept-Encoding": "identity"} if done else {"Accept-Encoding": "identity"}
        )
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                # The part is as long as the file, or longer: whole, or of another file. The md5 sum will tell.
                return
            response.raise_for_status()
            if response.status_code != requests.codes.partial_content:
                done = 0
            length = response.headers.get("Content-Length")
            total = done + int(length) if length else None
            self._progress(done, total)
            with part.open("ab" if done else "wb") as file:
                for chunk in response.iter_content(_CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    self._progress(done, total)
        if total is not None and done < total:
            raise requests.ConnectionError(f"the connection ended after {done:,} of {total:,} bytes")


def _may_pass(error: requests.RequestException) -> bool:
    """Whether it is worth trying again: the connection broke, or the server is busy."""
    if error.response is not None:
        return error.response.status_code in _BUSY
    return isinstance(error, (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError))
