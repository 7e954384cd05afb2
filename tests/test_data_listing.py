"""Finding image files: places of every kind, what is skipped and why, and names that are not UTF-8."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from data_files import write_image

from tta_panda.data.listing import Found, find_images
from tta_panda.errors import DataError
from tta_panda.escapes import path_text


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five images of ten files, in folders within folders."""
    monkeypatch.chdir(tmp_path)
    for name in ("b.png", "a.jpg", "deep/er/c.webp", "deep/d.gif", "z.PNG"):
        write_image(tmp_path / "photos" / name)
    for name in ("1.heic", "2.HEIC", "deep/3.heic", "notes.txt", "deep/more.txt"):
        (tmp_path / "photos" / name).write_text("no image")
    (tmp_path / "photos" / ".hidden.png").write_bytes(b"")
    write_image(tmp_path / "photos" / ".thumbnails" / "a.png")
    return Path("photos")


def names(found: Found) -> list[str]:
    return [path.as_posix() for path in found.paths]


def test_folders_are_searched_with_the_folders_in_them(photos: Path) -> None:
    found = find_images([photos])
    assert names(found) == [f"photos/{name}" for name in ("a.jpg", "b.png", "z.PNG", "deep/d.gif", "deep/er/c.webp")]
    assert str(found) == "5 of 10 files used: 3 .heic, 2 .txt skipped"
    assert found.skipped[photos / "deep" / "3.heic"] == ".heic"


def test_empty_folders_are_said(photos: Path) -> None:
    for name in ("none", "nothing"):
        (photos / name).mkdir()
    (photos / "none" / ".DS_Store").write_text("hidden")
    assert str(find_images([photos])) == "5 of 10 files used: 3 .heic, 2 .txt skipped; 2 empty folders"
    assert str(find_images([photos / "none"])) == "0 of 0 files used; 1 empty folder"


def test_what_is_found_twice_is_used_once(photos: Path) -> None:
    again = ["photos/b.png", photos, photos.absolute(), "photos/deep/../a.jpg", "photos/*.png", photos / "deep"]
    found = find_images(again)
    assert names(found)[0] == "photos/b.png"
    assert sorted(names(found)) == sorted(names(find_images([photos])))


def test_wildcards(photos: Path) -> None:
    assert names(find_images(["photos/*.*g"])) == ["photos/a.jpg", "photos/b.png"]
    assert set(names(find_images(["photos/**/*.[gw]*"]))) == {"photos/deep/d.gif", "photos/deep/er/c.webp"}
    everything = find_images(["photos/*"])
    assert sorted(names(everything)) == sorted(names(find_images([photos])))
    assert str(everything) == "5 of 10 files used: 3 .heic, 2 .txt skipped"
    write_image(photos / "odd[1].png")
    assert names(find_images(["photos/odd[1].png"])) == ["photos/odd[1].png"]


def test_files_that_are_named_are_used_whatever_their_suffix(photos: Path) -> None:
    write_image(photos / "b.png").rename(photos / "no-suffix")
    assert names(find_images(["photos/no-suffix", "photos/.hidden.png"])) == ["photos/no-suffix", "photos/.hidden.png"]
    assert find_images([photos]).skipped[photos / "no-suffix"] == "without suffix"


def test_places_that_do_not_exist_are_an_error(photos: Path) -> None:
    for place in ("photos/absent.png", "absent", "photos/*.bmp", "~nobody-of-this-name/a.png", "a" * 300):
        with pytest.raises(DataError, match="There is no file or folder"):
            find_images([photos, place])


def test_folders_may_be_called_like_images_and_links_lead_anywhere(photos: Path) -> None:
    write_image(photos / "folder.png" / "e.png")
    (photos / "round").symlink_to(photos.absolute(), target_is_directory=True)
    (photos / "gone.png").symlink_to("nowhere.png")
    found = find_images([photos])
    assert len(found.paths) == 6 and "photos/folder.png/e.png" in names(found)
    assert found.skipped[photos / "gone.png"] == "unreadable"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="everything is readable for this user")
def test_folders_that_cannot_be_read_are_said(photos: Path) -> None:
    (photos / "deep").chmod(0)
    try:
        assert "folder that cannot be read (Permission denied)" in str(find_images([photos]))
    finally:
        (photos / "deep").chmod(0o755)


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux only")
def test_names_that_are_not_utf8(photos: Path) -> None:
    path = photos / os.fsdecode(b"caf\xe9.png")
    write_image(photos / "b.png").rename(path)
    assert path in find_images([photos]).paths
    assert find_images([path, "photos/caf*"]).paths == (path,)
    assert path_text(path) == "photos/caf\\xe9.png"
    assert path_text("photos/café.png") == "photos/café.png"
