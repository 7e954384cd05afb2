"""Downloads from a server on this machine that breaks off, lies, or offers archives that reach out of their folder."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tta_panda.data import archives, download
from tta_panda.data.archives import Archive
from tta_panda.errors import DataError, UnknownNameError


def tar(members: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return buffer.getvalue()


PIECE = 1 << 16  # answers are written in pieces of this size
CONTENT = tar({"CIFAR-10-C/labels.npy": b"labels", "CIFAR-10-C/fog.npy": bytes(range(256)) * 4000})


class Server:
    """Serves one file; `cuts` says after how many bytes successive answers break off."""

    def __init__(self) -> None:
        self.content = CONTENT
        self.cuts: list[int] = []
        self.ranges = True
        self.requests: list[str | None] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = self.headers.get("Range")
                owner.requests.append(asked)
                first = int(asked.removeprefix("bytes=").rstrip("-")) if asked and owner.ranges else 0
                if first >= len(owner.content):
                    self.send_error(416)
                    return
                rest = owner.content[first:]
                self.send_response(206 if first else 200)
                self.send_header("Content-Length", str(len(rest)))
                self.end_headers()
                self.wfile.write(rest[: owner.cuts.pop(0)] if owner.cuts else rest)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


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
    published = archives.ARCHIVES["cifar10-c"][0]
    known = Archive(published.url, hashlib.md5(content).hexdigest(), "", "", ("CIFAR-10-C",))
    monkeypatch.setitem(archives.ARCHIVES, "cifar10-c", (known,))


def test_fetches_verifies_and_unpacks(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    rows = download.download(
        "cifar10-c", tmp_path, mirror=server.url, progress=lambda what, done, total: seen.append((what, done, total))
    )
    assert [row["status"] for row in rows] == ["fetched"]
    assert (tmp_path / "CIFAR-10-C" / "fog.npy").read_bytes() == bytes(range(256)) * 4000
    assert [path.name for path in tmp_path.iterdir()] == ["CIFAR-10-C"]  # neither archive nor leftovers
    assert ("fetching CIFAR-10-C.tar", len(CONTENT), len(CONTENT)) in seen
    again = download.download("cifar10-c", tmp_path, mirror=server.url)
    assert [row["status"] for row in again] == ["there already"]
    assert len(server.requests) == 1


def test_a_broken_off_answer_is_continued(server: Server, tmp_path: Path) -> None:
    server.cuts = [4 * PIECE, 3 * PIECE]
    download.download("cifar10-c", tmp_path, mirror=server.url)
    assert server.requests == [None, f"bytes={4 * PIECE}-", f"bytes={7 * PIECE}-"]
    assert (tmp_path / "CIFAR-10-C" / "labels.npy").read_bytes() == b"labels"


def test_the_next_run_goes_on(server: Server, tmp_path: Path) -> None:
    server.cuts = [6 * PIECE, 0, 0, 0, 0, 0]
    with pytest.raises(DataError, match="run the same command again to go on"):
        download.download("cifar10-c", tmp_path, mirror=server.url)
    assert (tmp_path / "CIFAR-10-C.tar.part").stat().st_size == 6 * PIECE
    assert not (tmp_path / "CIFAR-10-C").exists()
    server.requests.clear()
    download.download("cifar10-c", tmp_path, mirror=server.url)
    assert server.requests == [f"bytes={6 * PIECE}-"]
    assert (tmp_path / "CIFAR-10-C" / "fog.npy").is_file()


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
    assert (tmp_path / "CIFAR-10-C" / "fog.npy").read_bytes() == bytes(range(256)) * 4000


def test_a_wrong_file_is_refused_and_not_kept(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(DataError, match="is not the published file: expected md5"):
        download.download("cifar10-c", tmp_path, mirror=server.url)
    assert list(tmp_path.iterdir()) == []
    server.content = CONTENT
    download.download("cifar10-c", tmp_path, mirror=server.url)
    assert (tmp_path / "CIFAR-10-C").is_dir()


@pytest.mark.parametrize(
    "content",
    [
        tar({"CIFAR-10-C/labels.npy": b"", "../escaped": b"out"}),
        tar({"CIFAR-10-C/labels.npy": b"", "CIFAR-10-C/../../escaped": b"out"}),
        tar({"CIFAR-10-C/labels.npy": b""}, links={"CIFAR-10-C/link": "../../escaped"}),
    ],
    ids=["parent", "inner parent", "link"],
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


def test_archives_of_something_else_are_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, server, tar({"README": b""}))
    with pytest.raises(DataError, match="should hold CIFAR-10-C; found README"):
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
    server.content = tar({f"{name}/5/n01440764/a.JPEG": b"image" for name in names})
    blur = archives.ARCHIVES["imagenet-c"][1]
    known = blur._replace(md5=hashlib.md5(server.content).hexdigest())
    monkeypatch.setitem(archives.ARCHIVES, "imagenet-c", (archives.ARCHIVES["imagenet-c"][0], known))
    download.download("imagenet-c", tmp_path, parts=("blur",), mirror=server.url)
    assert {path.name for path in (tmp_path / "ImageNet-C").iterdir()} == set(names)


def test_published_archives_are_well_formed() -> None:
    for group in archives.ARCHIVES.values():
        for archive in group:
            assert archive.url.startswith("https://")
            assert len(bytes.fromhex(archive.md5)) == 16
