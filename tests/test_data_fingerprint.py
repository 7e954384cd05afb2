"""Fingerprints see the bytes of images, and read them again only when a file has changed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from data_files import write_cifar_c, write_clean_cifar, write_image

from tta_panda.data import DATASETS
from tta_panda.data import dataset as module
from tta_panda.data.cifar import was_made
from tta_panda.data.make import make_corrupted

pytestmark = pytest.mark.filterwarnings("ignore::tta_panda.errors.TtaPandaWarning")
Cache = Callable[[], list[Path]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """What the cache holds; files count as settled at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_CLOCK_TICK", 0)
    return lambda: sorted((tmp_path / "cache").rglob("*"))[2:]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the images that were read."""
    read: list[str] = []
    contents = module._file_digests

    def recorded(folder: Path, paths: list[Path]) -> list[str]:
        read.extend(path.name for path in paths)
        return contents(folder, paths)

    monkeypatch.setattr(module, "_file_digests", recorded)
    return read


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number, name in enumerate(("cat/0.png", "cat/1.png", "dog/0.png")):
        write_image(tmp_path / "photos" / name, seed=number)
    return tmp_path / "photos"


def fingerprint(root: Path | None, corruption: str = "clean", name: str = "folder") -> str | None:
    return DATASETS.get(name).fingerprint(root, corruption, 0 if corruption == "clean" else 5)


def overwrite(path: Path) -> None:
    """Other bytes, of the same number, in place."""
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    with path.open("r+b") as file:
        file.write(content)


def test_unchanged_images_are_read_once(photos: Path, reads: list[str], cache: Cache) -> None:
    first = fingerprint(photos)
    assert first is not None and len(first) == 12
    assert reads == ["0.png", "1.png", "0.png"]
    assert [path.read_text().split("\n")[0] for path in cache()] == [first]
    assert fingerprint(photos) == first
    assert len(reads) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda root: overwrite(root / "cat" / "1.png"),
        lambda root: (root / "cat" / "1.png").rename(root / "cat" / "2.png"),
        lambda root: (root / "cat" / "1.png").rename(root / "dog" / "1.png"),
        lambda root: (root / "cat" / "1.png").unlink(),
        lambda root: shutil.copy(root / "cat" / "1.png", root / "cat" / "2.png"),
        lambda root: (root / "cat").rename(root / "cow"),
        lambda root: (root / "bird").mkdir(),
        lambda root: (root / "classes.txt").write_text("cat\ta small cat\ndog\n"),
    ],
    ids=["bytes", "name", "label", "fewer", "more", "class", "empty class", "class list"],
)
def test_whatever_changes_the_data_changes_the_fingerprint(photos: Path, change: Callable[[Path], object]) -> None:
    before = fingerprint(photos)
    change(photos)
    after = fingerprint(photos)
    assert after is not None and after != before


def test_what_is_no_image_changes_nothing(photos: Path) -> None:
    before = fingerprint(photos)
    (photos / "cat" / "notes.txt").write_text("no image")
    (photos / "cat" / ".DS_Store").write_text("hidden")
    write_image(photos / "fog" / "5" / "cat" / "0.png")  # another domain
    assert fingerprint(photos) == before


def test_copies_are_equal_wherever_they_are(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(photos, tmp_path / "elsewhere")
    assert fingerprint(tmp_path / "elsewhere") == fingerprint(photos)
    monkeypatch.chdir(tmp_path)
    assert fingerprint(Path("photos")) == fingerprint(photos)


def test_an_earlier_time_does_not_hide_a_change(photos: Path) -> None:
    path = photos / "cat" / "1.png"
    before, times = fingerprint(photos), path.stat()
    overwrite(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_mtime_ns == times.st_mtime_ns
    assert fingerprint(photos) != before


def test_files_written_just_now_are_not_cached(photos: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """They could be written again within the same tick of the clock."""
    monkeypatch.setattr(module, "_CLOCK_TICK", 3_000_000_000)
    now = time.time_ns
    fingerprint(photos)
    assert cache() == []
    monkeypatch.setattr(module.time, "time_ns", lambda: now() + 60 * 10**9)
    fingerprint(photos)
    assert len(cache()) == 1


@pytest.mark.parametrize("content", [b"", b"half a finge", b"\xff\xfe" * 6, b"0123456789ab\n0123456789abcdef"])
def test_a_damaged_cache_costs_time_only(photos: Path, reads: list[str], cache: Cache, content: bytes) -> None:
    first = fingerprint(photos)
    (entry,) = cache()
    entry.write_bytes(content)
    assert fingerprint(photos) == first
    assert len(reads) == 6
    assert entry.read_text().startswith(first)


def test_without_a_cache_it_is_slower(
    photos: Path, reads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fingerprint(photos)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert fingerprint(photos) == fingerprint(photos) == first
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "expanduser", homeless)
    assert module._cache_folder() == Path(os.devnull)
    assert len(reads) == 9


def homeless(_path: Path) -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_absent_data_have_none(photos: Path, tmp_path: Path) -> None:
    assert fingerprint(photos, "fog") is None
    assert fingerprint(tmp_path / "absent") is None
    assert fingerprint(None) is None


def test_made_files_are_told_from_published_ones(tmp_path: Path) -> None:
    published = write_cifar_c(tmp_path / "published")
    assert fingerprint(published, "fog", "cifar10-c") is None  # the name says it all
    assert fingerprint(None, "fog", "glyphs-c") is None
    write_clean_cifar(tmp_path, count=10)
    make_corrupted("cifar10-c", tmp_path, tmp_path, ["fog", "frost"], [5], seed=3)
    for root in (tmp_path, tmp_path / "CIFAR-10-C"):
        made = fingerprint(root, "fog", "cifar10-c")
        assert made == "made with seed 3"
        assert was_made(made)
    assert fingerprint(tmp_path, "frost", "cifar10-c") == "made with seed 3, generated textures"
    assert fingerprint(tmp_path, "clean", "cifar10-c") is None
    assert not was_made(None) and not was_made("0123456789ab")
