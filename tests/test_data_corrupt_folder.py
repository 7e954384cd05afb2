"""Corrupting folders: every image, the same bytes however many workers, going on after an end."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from data_files import random_images, write_image
from PIL import Image

from tta_panda.data import make
from tta_panda.data.listing import Found
from tta_panda.data.make import corrupt_folder
from tta_panda.errors import DataError, InvalidInputError, TtaPandaWarning, UnknownNameError
from tta_panda.images import read_image

pytestmark = pytest.mark.filterwarnings("ignore::tta_panda.errors.TtaPandaWarning")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    root = tmp_path / "in"
    for number, name in enumerate(("top.png", "a/one.jpg", "a/deep/two.PNG", "b/three.webp")):
        write_image(root / name, 40 + number, 50, seed=number)
    (root / "notes.txt").write_text("no image")
    return root


def files(root: Path) -> dict[str, bytes]:
    """All files but the notes of settings, and the lock."""
    found = (path for path in sorted(root.rglob("*")) if path.is_file() and path.suffix not in (".json", ".lock"))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


def test_tree_and_bytes_are_the_same_for_any_number_of_workers(images: Path, tmp_path: Path) -> None:
    photo = write_image(tmp_path / "photos" / "frost.png", 60, 60).parent
    done, skipped = corrupt_folder(images, tmp_path / "one", ["frost", "gaussian_noise"], [3, 5], frost=photo)
    assert (done, skipped) == (4, {})
    made = files(tmp_path / "one")
    names = ("top.png", "a/one.jpg", "a/deep/two.PNG", "b/three.webp")
    assert set(made) == {f"{c}/{s}/{n}" for c in ("frost", "gaussian_noise") for s in (3, 5) for n in names}
    corrupt_folder(images, tmp_path / "two", ["gaussian_noise", "frost"], [5, 3], frost=photo, workers=2)
    assert files(tmp_path / "two") == made
    corrupt_folder(images, tmp_path / "other", ["gaussian_noise"], [3], seed=1)
    assert files(tmp_path / "other")["gaussian_noise/3/top.png"] != made["gaussian_noise/3/top.png"]
    corrupt_folder(images, tmp_path / "generated", ["frost"], [3])
    assert files(tmp_path / "generated")["frost/3/top.png"] != made["frost/3/top.png"]
    assert read_image(tmp_path / "one" / "frost" / "3" / "a" / "one.jpg").shape == (41, 50, 3)


def test_other_images_change_nothing(images: Path, tmp_path: Path) -> None:
    corrupt_folder(images, tmp_path / "before", ["snow"], [5])
    write_image(images / "a" / "additional.png", 40, 40)
    corrupt_folder(images, tmp_path / "after", ["snow"], [5])
    before, after = files(tmp_path / "before"), files(tmp_path / "after")
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 1


def test_broken_images_cost_only_themselves(images: Path, tmp_path: Path) -> None:
    (images / "a" / "broken.png").write_bytes((images / "top.png").read_bytes()[:200])
    (images / "a" / "text.jpg").write_text("not an image")
    write_image(images / "tiny.png", 4, 4)
    done, skipped = corrupt_folder(images, tmp_path / "out", ["contrast"], [5])
    assert done == 4
    assert list(skipped) == ["a/broken.png", "a/text.jpg", "tiny.png"]
    assert "truncated" in skipped["a/broken.png"] and "not a picture" in skipped["a/text.jpg"]
    assert "at least 8 x 8" in skipped["tiny.png"]
    assert len(files(tmp_path / "out")) == 4


def test_results_inside_the_source_are_not_corrupted_again(images: Path) -> None:
    for _ in range(2):
        done, _skipped = corrupt_folder(images, images / "out", ["contrast"], [5])
        assert done == 4


def test_wrong_requests_are_explained(images: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no folder"):
        corrupt_folder(tmp_path / "absent", tmp_path / "out", ["fog"], [5])
    with pytest.raises(InvalidInputError, match="same folder"):
        corrupt_folder(images, images, ["fog"], [5])
    with pytest.raises(UnknownNameError, match="fog"):
        corrupt_folder(images, tmp_path / "out", ["frog"], [5])
    with pytest.raises(InvalidInputError, match="at least 1"):
        corrupt_folder(images, tmp_path / "out", ["fog"], [5], workers=0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        corrupt_folder(tmp_path / "empty", tmp_path / "out", ["fog"], [5])
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="Cannot write to"):
        corrupt_folder(images, tmp_path / "file", ["fog"], [5])


def test_what_is_wrong_for_all_images_is_noticed_before_workers_start(images: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"Unknown parameter set 'cfar'\. Did you mean 'cifar'"):
        corrupt_folder(images, tmp_path / "out", ["fog"], [5], parameters="cfar", workers=2)
    with pytest.raises(DataError, match="Frost photographs: no image files in"):
        corrupt_folder(images, tmp_path / "out", ["frost"], [5], frost=tmp_path / "absent", workers=2)
    assert not (tmp_path / "out").exists()


def test_what_exists_is_not_made_again(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    corrupt_folder(images, out, ["fog"], [5], clean=True)
    made = files(out)
    path = out / "fog" / "5" / "a" / "one.jpg"
    times = path.stat()
    path.write_bytes(b"kept")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    (out / "fog" / "5" / "top.png").unlink()
    corrupt_folder(images, out, ["fog", "contrast"], [5], clean=True)
    assert path.read_bytes() == b"kept"
    assert files(out)["fog/5/top.png"] == made["fog/5/top.png"]
    assert "contrast/5/top.png" in files(out)
    later = (images / "a" / "one.jpg").stat().st_mtime_ns + 10**12
    os.utime(images / "a" / "one.jpg", ns=(later, later))
    corrupt_folder(images, out, ["fog"], [5])
    assert path.read_bytes() == made["fog/5/a/one.jpg"]


def test_an_image_replaced_by_an_older_one_is_corrupted_again(images: Path, tmp_path: Path) -> None:
    older = write_image(tmp_path / "older.png", 40, 50, seed=9)
    os.utime(older, (10**9, 10**9))
    corrupt_folder(images, tmp_path / "out", ["contrast"], [5], clean=True)
    before = files(tmp_path / "out")
    older.replace(images / "top.png")
    corrupt_folder(images, tmp_path / "out", ["contrast"], [5], clean=True)
    after = files(tmp_path / "out")
    assert {name for name in before if before[name] != after[name]} == {"top.png", "contrast/5/top.png"}
    assert after["top.png"] == (images / "top.png").read_bytes()


def test_long_names_and_images_that_vanish_cost_only_themselves(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_image(images / "a.gif").rename(images / f"{'a' * 250}.gif")  # with .png after it, too long
    write_image(images / "b.png").rename(images / f"{'b' * 251}.png")  # as long as names may be
    found = make.find_images([images])
    gone = Found((*found.paths, images / "gone.png"), found.skipped)
    monkeypatch.setattr(make, "find_images", lambda _places: gone)
    done, skipped = corrupt_folder(images, tmp_path / "out", ["contrast"], [5], clean=True)
    assert done == 5
    assert skipped == {f"{'a' * 250}.gif": "File name too long", "gone.png": "No such file or directory"}
    assert (tmp_path / "out" / "contrast" / "5" / f"{'b' * 251}.png").is_file()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipes_are_skipped_and_replaced(images: Path, tmp_path: Path) -> None:
    os.mkfifo(images / "pipe.png")
    (tmp_path / "out" / "contrast" / "5").mkdir(parents=True)
    corrupt_folder(images, tmp_path / "before", ["contrast"], [5])
    (tmp_path / "before" / "contrast.json").replace(tmp_path / "out" / "contrast.json")
    os.mkfifo(tmp_path / "out" / "contrast" / "5" / "top.png")
    assert corrupt_folder(images, tmp_path / "out", ["contrast"], [5]) == (4, {})
    assert files(tmp_path / "out") == files(tmp_path / "before")


def test_links_that_lead_to_themselves_are_skipped(images: Path, tmp_path: Path) -> None:
    (images / "round.png").symlink_to("round.png")
    (images / "circle").symlink_to(images, target_is_directory=True)
    assert corrupt_folder(images, tmp_path / "out", ["contrast"], [5]) == (4, {})
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(DataError, match="There is no folder"):
        corrupt_folder(tmp_path / "loop", tmp_path / "out", ["contrast"], [5])
    with pytest.raises(DataError, match="Cannot write to"):
        corrupt_folder(images, tmp_path / "loop", ["contrast"], [5])


def test_other_settings_are_not_mixed(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    corrupt_folder(images, out, ["fog"], [5], clean=True)
    corrupt_folder(images, out, ["snow"], [5], seed=1)  # each corruption has its own
    assert json.loads((out / "snow.json").read_text())["seed"] == 1
    with pytest.raises(DataError, match="fog was made with seed 0, not 1"):
        corrupt_folder(images, out, ["fog"], [3], seed=1)
    others = write_image(tmp_path / "others" / "top.png", 40, 50).parent
    with pytest.raises(DataError, match="was made with images"):
        corrupt_folder(others, out, [], [], clean=True)
    (out / "fog.json").unlink()
    with pytest.raises(DataError, match="fog was not made by tta-panda corrupt"):
        corrupt_folder(images, out, ["fog"], [5])
    photo = write_image(tmp_path / "photos" / "frost.png", 60, 60).parent
    corrupt_folder(images, out, ["frost"], [5], frost=photo)
    write_image(photo / "frost.png", 60, 60, seed=1)
    with pytest.raises(DataError, match="photographs"):
        corrupt_folder(images, out, ["frost"], [3], frost=photo)


def test_clean_images_and_their_classes_are_copied(images: Path, tmp_path: Path) -> None:
    (images / "classes.txt").write_text("a\tfirst\nb\n")
    (images / "a" / "broken.png").write_bytes(b"")
    write_image(images / "b" / "moving.gif")
    with pytest.warns(TtaPandaWarning, match=r"in: 6 of 7 files used: 1 \.txt skipped"):
        corrupt_folder(images, tmp_path / "out", ["contrast"], [5], clean=True)
    made = files(tmp_path / "out")
    assert {name for name in made if "/5/" not in name} == {
        "classes.txt", "top.png", "a/one.jpg", "a/deep/two.PNG", "b/three.webp", "b/moving.gif",
    }  # fmt: skip
    assert all(made[name] == (images / name).read_bytes() for name in made if "/5/" not in name)
    assert "contrast/5/b/moving.gif.png" in made


def test_pictures_are_turned_before_they_are_corrupted(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "in").mkdir()
    Image.fromarray(random_images(1, 40, 50)[0]).save(tmp_path / "in" / "a.png", exif=exif)
    corrupt_folder(tmp_path / "in", tmp_path / "out", ["contrast"], [5])
    assert read_image(tmp_path / "out" / "contrast" / "5" / "a.png").shape == (50, 40, 3)


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux only")
def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    source = tmp_path / os.fsdecode(b"\xe9t\xe9")
    write_image(source / "a.png", 40, 40).rename(source / os.fsdecode(b"caf\xe9.png"))
    (source / os.fsdecode(b"no\xebl.png")).write_bytes(b"")
    out = tmp_path / os.fsdecode(b"out\xe9")
    done, skipped = corrupt_folder(source, out, ["contrast"], [5], clean=True)
    assert (done, skipped) == (1, {"no\\xebl.png": "empty file"})
    assert (out / "contrast" / "5" / os.fsdecode(b"caf\xe9.png")).is_file()
