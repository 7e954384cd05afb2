"""Downloads from a server on this machine that breaks off, lies, or offers archives that reach out of their folder."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from data_files import write_clean_cifar

from tta_panda.data import DATASETS, download
from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.data.make import make_corrupted
from tta_panda.errors import DataError, UnknownNameError
from tta_panda.files import locked


def tar(members: dict[str, bytes], links: dict[str, str] | None = None, kind: bytes = tarfile.SYMTYPE) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
    return buffer.getvalue()


PIECE = 1 << 16  # answers are written in pieces of this size
FOG = bytes(range(256)) * 4000
FILES = {
    "CIFAR-10-C/labels.npy": b"labels",
    **{f"CIFAR-10-C/{name}.npy": FOG if name == "fog" else name.encode() for name in CORRUPTIONS},
}
CONTENT = tar(FILES)


class Server:
    """Serves one file; `cuts` says after how many bytes successive answers break off, `refusals` with what status."""

    def __init__(self) -> None:
        self.content = CONTENT
        self.cuts: list[int] = []
        self.refusals: list[int] = []
        self.ranges = self.lengths = True
        self.requests: list[str | None] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = self.headers.get("Range")
                owner.requests.append(asked)
                if owner.refusals:
                    self.send_error(owner.refusals.pop(0))
                    return
                first = int(asked.removeprefix("bytes=").rstrip("-")) if asked and owner.ranges else 0
                if first >= len(owner.content):
                    self.send_error(416)
                    return
                rest = owner.content[first:]
                self.send_response(206 if first else 200)
                if owner.lengths:
                    self.send_header("Content-Length", str(len(rest)))
                self.end_headers()
                self.wfile.write(rest[: owner.cuts.pop(0)] if owner.cuts else rest)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that a test would have waited."""
    waited: list[float] = []
    monkeypatch.setattr("urllib3.util.retry.time.sleep", waited.append)
    return waited


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    served = Server()
    thread = threading.Thread(target=served.http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    offer(monkeypatch, served, CONTENT)
    yield served
    served.http.shutdown()
    served.http.server_close()


def offer(monkeypatch: pytest.MonkeyPatch, server: Server, content: bytes) -> None:
    """Serve an archive, and have it count as the published one."""
    server.content = content
    publish(monkeypatch, "cifar10-c", 0, content)


def publish(monkeypatch: pytest.MonkeyPatch, name: str, number: int, content: bytes, gigabytes: float = 2.9) -> None:
    """Give one archive of a data set the md5 sum of `content`, and about a size."""
    source = DATASETS.get(name)
    archives = list(source.archives)
    archives[number] = archives[number]._replace(md5=hashlib.md5(content).hexdigest(), gigabytes=gigabytes)
    monkeypatch.setitem(DATASETS._targets, name, dataclasses.replace(source, archives=tuple(archives)))


def listed(folder: Path) -> list[str]:
    """What is in a folder, apart from the lock."""
    return [path.name for path in folder.iterdir() if path.name != ".tta-panda.lock"]


def test_fetches_verifies_and_unpacks(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    said: list[str] = []
    rows = download.download(
        "cifar10-c",
        tmp_path,
        mirror=server.url,
        announce=said.append,
        progress=lambda what, done, total: seen.append((what, done, total)),
    )
    assert said == [f"Fetching CIFAR-10-C.tar (2.9 GB) into {tmp_path}"]
    assert [row["status"] for row in rows] == ["fetched"]
    assert (tmp_path / "CIFAR-10-C" / "fog.npy").read_bytes() == FOG
    assert listed(tmp_path) == ["CIFAR-10-C"]  # neither archive nor leftovers
    assert ("fetching CIFAR-10-C.tar", len(CONTENT), len(CONTENT)) in seen
    again = download.download("cifar10-c", tmp_path, mirror=server.url, announce=said.append)
    assert len(said) == 1
    assert [row["status"] for row in again] == ["there already"]
    assert len(server.requests) == 1


def test_a_broken_off_answer_is_continued(server: Server, tmp_path: Path) -> None:
    server.cuts = [4 * PIECE, 3 * PIECE]
    download.download("cifar10-c", tmp_path, mirror=server.url)
    assert server.requests == [None, f"bytes={4 * PIECE}-", f"bytes={7 * PIECE}-"]
    assert (tmp_path / "CIFAR-10-C" / "labels.npy").read_bytes() == b"labels"


def test_the_next_run_goes_on(server: Server, tmp_path: Path) -> None:
    server.cuts = [6 * PIECE, 0]
    with pytest.raises(DataError, match="run the same command again to go on"):
        download.download("cifar10-c", tmp_path, mirror=server.url)
    assert (tmp_path / "CIFAR-10-C.tar.part").stat().st_size == 6 * PIECE
    assert not (tmp_path / "CIFAR-10-C").exists()
    server.requests.clear()
    download.download("cifar10-c", tmp_path, mirror=server.url)
    assert server.requests == [f"bytes={6 * PIECE}-"]
    assert (tmp_path / "CIFAR-10-C" / "fog.npy").is_file()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipes_in_the_place_of_files_are_replaced(server: Server, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "CIFAR-10-C.tar.part")
    os.mkfifo(tmp_path / "CIFAR-10-C.tar")
    download.download("cifar10-c", tmp_path, mirror=server.url)
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == FILES


def test_a_part_that_is_whole_already_is_only_verified(server: Server, tmp_path: Path) -> None:
    (tmp_path / "CIFAR-10-C.tar.part").write_bytes(CONTENT)
    download.download("cifar10-c", tmp_path, mirror=server.url)
    assert server.requests == [f"bytes={len(CONTENT)}-"]
    assert (tmp_path / "CIFAR-10-C" / "labels.npy").read_bytes() == b"labels"


def test_an_archive_from_elsewhere_is_verified_and_unpacked(server: Server, tmp_path: Path) -> None:
    (tmp_path / "CIFAR-10-C.tar").write_bytes(CONTENT)
    download.download("cifar10-c", tmp_path, mirror=server.url)
    assert server.requests == []
    assert (tmp_path / "CIFAR-10-C").is_dir()


def test_a_server_without_ranges_is_asked_for_all(server: Server, tmp_path: Path) -> None:
    server.ranges, server.cuts = False, [4 * PIECE]
    download.download("cifar10-c", tmp_path, mirror=server.url)
    assert (tmp_path / "CIFAR-10-C" / "fog.npy").read_bytes() == FOG


def test_a_wrong_file_is_refused_and_not_kept(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(DataError, match="is not the published file: expected md5"):
        download.download("cifar10-c", tmp_path, mirror=server.url)
    assert listed(tmp_path) == []
    server.content = CONTENT
    download.download("cifar10-c", tmp_path, mirror=server.url)
    assert (tmp_path / "CIFAR-10-C").is_dir()


@pytest.mark.parametrize(
    "there",
    [[], ["CIFAR-10-C/"], ["CIFAR-10-C/labels.npy", "CIFAR-10-C/fog.npy"], ["backup/CIFAR-10-C/"]],
    ids=["nothing", "empty", "partial", "elsewhere"],
)
def test_what_is_not_whole_is_fetched(server: Server, tmp_path: Path, there: list[str]) -> None:
    for name in there:
        if name.endswith("/"):
            (tmp_path / name).mkdir(parents=True)
        else:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(FILES[name])
    assert download.download("cifar10-c", tmp_path, mirror=server.url)[0]["status"] == "fetched"
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == FILES


def test_files_that_differ_are_neither_kept_nor_overwritten(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    (folder / "fog.npy").write_bytes(FOG[:100])
    with pytest.raises(DataError, match=r"differ from those in CIFAR-10-C\.tar: CIFAR-10-C/fog\.npy\..*Delete them"):
        download.download("cifar10-c", tmp_path, mirror=server.url)
    assert [path.name for path in folder.iterdir()] == ["fog.npy"]
    (folder / "fog.npy").unlink()
    download.download("cifar10-c", tmp_path, mirror=server.url)
    assert (folder / "fog.npy").read_bytes() == FOG
    assert len(server.requests) == 1  # the archive was kept


@pytest.mark.parametrize("corruptions", [["fog"], ["all"]])
def test_made_files_are_not_taken_for_published_ones(server: Server, tmp_path: Path, corruptions: list[str]) -> None:
    write_clean_cifar(tmp_path, count=10)
    make_corrupted("cifar10-c", tmp_path, tmp_path, corruptions, [5])
    with pytest.raises(DataError, match=r"data make made .*tta-panda data download cifar10-c -o OTHER"):
        download.download("cifar10-c", tmp_path, mirror=server.url)
    assert server.requests == []
    assert np.load(tmp_path / "CIFAR-10-C" / "fog.npy").shape == (50, 32, 32, 3)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_after_growing_pauses(
    server: Server, tmp_path: Path, pauses: list[float], status: int
) -> None:
    server.refusals = [status, status, status]
    download.download("cifar10-c", tmp_path, mirror=server.url)
    assert len(server.requests) == 4
    assert pauses == [1, 2]  # the first time, it is asked at once
    server.refusals = [404]
    with pytest.raises(DataError, match="404"):
        download.download("cifar10-c", tmp_path / "other", mirror=server.url)
    assert len(server.requests) == 5


def test_a_full_disk_is_explained(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(tarfile.TarFile, "makefile", full)
        with pytest.raises(DataError, match=r"No space left.*It needs about .* GB there"):
            download.download("cifar10-c", tmp_path, mirror=server.url)
    assert listed(tmp_path) == ["CIFAR-10-C.tar"]
    download.download("cifar10-c", tmp_path, mirror=server.url)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "content",
    [
        tar({"CIFAR-10-C/labels.npy": b"", "../escaped": b"out"}),
        tar({"CIFAR-10-C/labels.npy": b"", "CIFAR-10-C/../../escaped": b"out"}),
        tar({"CIFAR-10-C/labels.npy": b""}, links={"CIFAR-10-C/link": "../../escaped"}),
        tar({"CIFAR-10-C/labels.npy": b""}, links={"CIFAR-10-C/link": "/etc"}),
        tar({"CIFAR-10-C/labels.npy": b""}, links={"CIFAR-10-C/link": "../escaped"}, kind=tarfile.LNKTYPE),
        tar({"CIFAR-10-C/labels.npy": b""}, links={"CIFAR-10-C/link": ""}, kind=tarfile.CHRTYPE),
        tar({"CIFAR-10-C/labels.npy": b""}, links={"CIFAR-10-C/link": ""}, kind=tarfile.FIFOTYPE),
    ],
    ids=["parent", "inner parent", "link", "absolute link", "hard link", "device", "pipe"],
)
def test_archives_that_reach_out_are_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    offer(monkeypatch, server, content)
    root = tmp_path / "deep" / "root"
    with pytest.raises(DataError, match="would land outside"):
        download.download("cifar10-c", root, mirror=server.url)
    assert not list(tmp_path.rglob("escaped"))
    assert not (root / "CIFAR-10-C").exists()


def test_absolute_paths_stay_within_the_folder(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, server, tar({**FILES, f"{tmp_path}/escaped": b"out"}))
    download.download("cifar10-c", tmp_path / "root", mirror=server.url)
    assert [path for path in tmp_path.rglob("escaped") if not path.is_relative_to(tmp_path / "root")] == []


@pytest.mark.parametrize("declared", [True, False])
def test_a_server_without_end_does_not_fill_the_disk(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: bool
) -> None:
    server.content, server.lengths = bytes(40 * PIECE), declared
    publish(monkeypatch, "cifar10-c", 0, CONTENT, gigabytes=10 * PIECE / 1e9)
    sizes: list[int] = []
    with pytest.raises(DataError, match="is not the published file, which has less than"):
        download.download("cifar10-c", tmp_path, mirror=server.url, progress=lambda _what, done, _: sizes.append(done))
    assert max(sizes) <= 13 * PIECE and listed(tmp_path) == [] and len(server.requests) == 1


def test_archives_of_something_else_are_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, server, tar({"README": b""}))
    with pytest.raises(DataError, match=r"should hold CIFAR-10-C/labels\.npy, .* and 11 more; found README"):
        download.download("cifar10-c", tmp_path, mirror=server.url)
    offer(monkeypatch, server, b"no archive at all" * 100)
    with pytest.raises(DataError, match="cannot be unpacked"):
        download.download("cifar10-c", tmp_path / "other", mirror=server.url)


def test_errors_of_the_server_and_the_user(server: Server, tmp_path: Path) -> None:
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(DataError, match=r"Cannot fetch http://127\.0\.0\.1"):
        download.download("cifar10-c", tmp_path, mirror=server.url)
    with pytest.raises(UnknownNameError, match="cifar10-c"):
        download.download("cifar10c", tmp_path)
    with pytest.raises(UnknownNameError, match="blur"):
        download.download("imagenet-c", tmp_path, parts=("blurr",))


def test_parts_of_imagenet_c(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur")
    severities = range(1, 6)
    server.content = tar({f"{name}/{severity}/n01440764/a.JPEG": b"image" for name in names for severity in severities})
    publish(monkeypatch, "imagenet-c", 1, server.content)
    download.download("imagenet-c", tmp_path, parts=("blur",), mirror=server.url)
    folder = tmp_path / "ImageNet-C"
    assert {path.name for path in folder.iterdir()} == set(names)
    (folder / "blur").mkdir()
    (folder / "zoom_blur").rename(folder / "blur" / "zoom_blur")  # as the loader finds it, too
    assert download.download("imagenet-c", tmp_path, parts=("blur",), mirror=server.url)[0]["status"] == "there already"
    (folder / "blur").rename(folder / "backup")
    download.download("imagenet-c", tmp_path, parts=("blur",), mirror=server.url)
    assert {path.name for path in folder.iterdir()} == {*names, "backup"}


def test_published_archives_are_well_formed() -> None:
    archives = [archive for name in DATASETS for archive in DATASETS.get(name).archives]
    assert len(archives) == 9
    for archive in archives:
        assert archive.url.startswith("https://")
        assert len(bytes.fromhex(archive.md5)) == 16


def test_two_processes_do_not_write_to_one_folder(server: Server, tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(DataError, match="Another process is writing to"):
        download.download("cifar10-c", tmp_path, mirror=server.url)
    assert server.requests == []
    download.download("cifar10-c", tmp_path, mirror=server.url)


def test_a_damaged_archive_that_is_there_is_fetched_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "CIFAR-10-C.tar").write_bytes(CONTENT[:-1])
    download.download("cifar10-c", tmp_path, mirror=server.url)
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == FILES
