"""Folders of images: classes, corruptions, what is not used, what is broken, and how pictures lie in them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from data_files import random_images, write_image
from PIL import Image

from tta_panda.data import DATASETS, load_data
from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.data.dataset import ImageDataset, ImageFiles
from tta_panda.data.stream import Stream
from tta_panda.errors import DataError, InvalidInputError, TtaPandaWarning
from tta_panda.images import AS_PUBLISHED

pytestmark = pytest.mark.filterwarnings("ignore::tta_panda.errors.TtaPandaWarning")


def tree(root: Path, classes: tuple[str, ...] = ("cat", "dog"), images: int = 3) -> None:
    for label, name in enumerate(classes):
        for index in range(images):
            write_image(root / name / f"{index}.png", 20 + index, 30 + label, seed=label * 10 + index)


def test_folders_are_classes(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "cat" / "._0.png").write_text("hidden companion")
    dataset = load_data("folder", root=tmp_path)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.images_at(np.array([5, 0]), fit=8).shape == (2, 8, 8, 3)
    with pytest.raises(DataError, match="different sizes"):
        dataset.images_at(np.array([0, 5]))
    (tmp_path / "classes.txt").write_text("dog\ta good dog\ncat\tsmall cat\nbird\n")
    assert load_data("folder", root=tmp_path).class_names == ("small cat", "a good dog")
    (tmp_path / "classes.txt").write_text("dog\n")
    with pytest.raises(DataError, match=r"no line for the class folder\(s\) cat"):
        load_data("folder", root=tmp_path)


def test_folders_of_corruptions(tmp_path: Path) -> None:
    tree(tmp_path)
    tree(tmp_path / "fog" / "5", images=2)
    assert len(load_data("folder", "clean", root=tmp_path)) == 6
    assert len(load_data("folder", "fog", 5, root=tmp_path)) == 4
    with pytest.raises(DataError, match="found severities 5 of fog"):
        load_data("folder", "fog", 3, root=tmp_path)
    with pytest.raises(DataError, match=r"tta-panda corrupt CLEAN .* --corruption snow --severity 5"):
        load_data("folder", "snow", 5, root=tmp_path)


def test_any_severity_makes_a_folder_one_of_corruptions(tmp_path: Path) -> None:
    tree(tmp_path, ("cat", "snow"))
    tree(tmp_path / "fog" / "3")
    assert load_data("folder", root=tmp_path).class_names == ("cat", "snow")


def test_folders_in_class_folders_are_used_and_the_rest_is_said(tmp_path: Path) -> None:
    tree(tmp_path)
    write_image(tmp_path / "cat" / "2021" / "may" / "a.gif")
    for name in ("cat/b.heic", "dog/deep/c.heic", "dog/d.mov"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("no image")
    (tmp_path / "bird").mkdir()
    write_image(tmp_path / "e.png")
    said = r": 7 of 11 files used: 2 \.heic, 1 \.mov, 1 outside the class folders skipped; 1 empty folder$"
    with pytest.warns(TtaPandaWarning, match=said):
        dataset = load_data("folder", root=tmp_path)
    assert dataset.class_names == ("bird", "cat", "dog")
    assert dataset.labels.tolist() == [1, 1, 1, 1, 2, 2, 2]


def test_a_folder_of_corruptions_is_no_class(tmp_path: Path) -> None:
    tree(tmp_path)
    tree(tmp_path / "made" / "fog" / "5")
    tree(tmp_path / "noise" / "shot_noise" / "3")
    assert load_data("folder", root=tmp_path).class_names == ("cat", "dog")


def test_runs_use_what_is_available(tmp_path: Path) -> None:
    folder = DATASETS.get("folder")
    (tmp_path / "empty").mkdir()
    assert folder.available(tmp_path / "empty") == ("clean",)
    tree(tmp_path / "both", ("cat", "snow"))
    assert folder.available(tmp_path / "both") == ("clean",)  # this snow is a class
    for name in ("spatter/5", "fog/3", "noise/shot_noise/5"):
        tree(tmp_path / "both" / name)
    assert folder.available(tmp_path / "both") == ("clean", "shot_noise", "fog", "spatter")
    tree(tmp_path / "corrupted" / "fog" / "5")
    assert folder.available(tmp_path / "corrupted") == ("fog",)
    with pytest.raises(DataError, match="--data-root PATH"):
        folder.available(None)
    for name in ("cifar10", "imagenet"):
        assert DATASETS.get(name).available(None) == ("clean",)
    for name in ("glyphs-c", "cifar10-c", "imagenet-c"):
        assert DATASETS.get(name).available(None) == ("clean", *CORRUPTIONS)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
def test_class_lists_in_other_encodings(tmp_path: Path, encoding: str) -> None:
    tree(tmp_path)
    mark = b"\xff\xfe" if encoding == "utf-16-le" else b""
    (tmp_path / "classes.txt").write_bytes(mark + "cat\tchat\r\ndog\tchien fidèle\r\n".encode(encoding))
    if encoding == "latin-1":
        with pytest.raises(DataError, match=r"classes\.txt is not UTF-8 .*iconv -f LATIN1 -t UTF-8"):
            load_data("folder", root=tmp_path)
        assert DATASETS.get("folder").fingerprint(tmp_path, "clean", 0) is None
    else:
        assert load_data("folder", root=tmp_path).class_names == ("chat", "chien fidèle")


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux only")
def test_class_folders_that_are_not_utf8(tmp_path: Path) -> None:
    tree(tmp_path, ("cat", os.fsdecode(b"caf\xe9")), images=1)
    dataset = load_data("folder", root=tmp_path)
    assert dataset.class_names == ("caf\\xe9", "cat")
    assert dataset.images_at(np.array([0, 1]), 8).shape == (2, 8, 8, 3)
    assert DATASETS.get("folder").fingerprint(tmp_path, "clean", 0) is not None
    (tmp_path / "classes.txt").write_text("caf\\xe9\tcafé\ncat\n", "utf-8")
    assert load_data("folder", root=tmp_path).class_names == ("café", "cat")


def test_a_limit_takes_images_of_all_classes(tmp_path: Path) -> None:
    tree(tmp_path, ("bird", "cat", "dog"), images=4)
    for limit, labels in ((1, [0]), (3, [0, 1, 2]), (6, [0, 0, 1, 1, 2, 2]), (5, [0, 0, 1, 1, 2]), (100, [0, 1, 2])):
        dataset = load_data("folder", root=tmp_path, limit=limit)
        assert isinstance(dataset, ImageFiles)
        assert dataset.labels.tolist() == (labels if limit < 100 else np.repeat(labels, 4).tolist())
        assert len(set(dataset.paths)) == len(dataset)
    with pytest.raises(InvalidInputError, match="at least 1"):
        load_data("folder", root=tmp_path, limit=0)


def test_files_that_vanish_are_explained(tmp_path: Path) -> None:
    tree(tmp_path)
    dataset = load_data("folder", root=tmp_path)
    assert isinstance(dataset, ImageFiles)
    (tmp_path / "cat" / "0.png").unlink()
    with pytest.warns(TtaPandaWarning, match="0.png: No such file"):
        assert len(dataset.without_broken()) == 5


def test_labels_are_whole_numbers() -> None:
    with pytest.raises(DataError, match="Labels must be whole numbers, found float64"):
        ImageDataset(random_images(2), np.array([0.5, 1]), ("cat", "dog"))


def test_links_that_lead_to_themselves_are_no_classes(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "cat" / "round.png").symlink_to("round.png")
    (tmp_path / "cat" / "up").symlink_to(tmp_path / "cat", target_is_directory=True)
    assert len(load_data("folder", root=tmp_path)) == 6
    for root in (tmp_path / "loop", Path("~nobody-of-this-name/photos")):
        with pytest.raises(DataError, match="There is no folder"):
            load_data("folder", root=root)


def test_flat_folders_are_for_prediction(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    with pytest.raises(DataError, match=r"no class folders; .* found a\.png, classes\.txt\. .*tta-panda predict"):
        load_data("folder", root=tmp_path)


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    tree(tmp_path)
    content = (tmp_path / "dog" / "1.png").read_bytes()
    (tmp_path / "dog" / "1.png").write_bytes(content[: len(content) // 2])
    dataset = load_data("folder", root=tmp_path)
    with pytest.raises(DataError, match=r"Cannot read the image .*1\.png"):
        list(Stream(dataset, 2, seed=0, fit=8))


def test_broken_images_can_be_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root, folder = tmp_path / "photos", DATASETS.get("folder")
    tree(root)
    (root / "dog" / "1.png").write_bytes(b"")
    (root / "cat" / "2.png").write_text("not an image")
    everything = folder.fingerprint(root, "clean", 0)
    said = r"2 of 6 images skipped:\n  .*cat/2\.png: not a picture.*\n  .*dog/1\.png: empty file$"
    with pytest.warns(TtaPandaWarning, match=said):
        dataset = load_data("folder", root=root, skip_broken=True)
    assert dataset.labels.tolist() == [0, 0, 1, 1]
    assert sum(len(labels) for _, labels in Stream(dataset, 3, fit=8)) == 4
    with pytest.warns(TtaPandaWarning, match=said):
        skipping = folder.fingerprint(root, "clean", 0, skip_broken=True)
    assert len(load_data("folder", root=root, limit=3, skip_broken=True)) == 3
    for name in ("dog/1.png", "cat/2.png"):
        (root / name).unlink()
    assert skipping == folder.fingerprint(root, "clean", 0) != everything
    assert skipping == folder.fingerprint(root, "clean", 0, skip_broken=True)


def test_files_are_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tta_panda.data.dataset._CLOCK_TICK", 0)
    tree(tmp_path / "photos")
    (tmp_path / "photos" / "dog" / "1.png").write_bytes(b"")
    files = load_data("folder", root=tmp_path / "photos")
    assert isinstance(files, ImageFiles)
    with pytest.warns(TtaPandaWarning, match="empty file"):
        whole = files.without_broken()
    monkeypatch.setattr(ImageFiles, "_find_broken", lambda _self: pytest.fail("checked again"))
    with pytest.warns(TtaPandaWarning, match="empty file"):
        assert files.without_broken().paths == whole.paths == (*files.paths[:4], *files.paths[5:])


def test_orientation_is_for_your_own_images(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = Image.fromarray(random_images(1, 20, 30)[0])
    (tmp_path / "cat").mkdir()
    stored.save(tmp_path / "cat" / "a.png", exif=exif)
    turned = load_data("folder", root=tmp_path).images_at(np.array([0]))[0]
    assert np.array_equal(turned, np.rot90(stored, -1))
    ignored = load_data("folder", root=tmp_path, ignore_orientation=True).images_at(np.array([0]))[0]
    assert np.array_equal(ignored, np.asarray(stored))
    published = ImageFiles((tmp_path / "cat" / "a.png",), np.array([0]), ("cat",), AS_PUBLISHED)
    assert np.array_equal(published.images_at(np.array([0]))[0], np.asarray(stored))


def test_streams_of_files_and_arrays_agree(tmp_path: Path) -> None:
    images = random_images(7)
    for index, image in enumerate(images):
        path = tmp_path / f"class{index % 2}" / f"{index}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(path)
    files = load_data("folder", root=tmp_path)
    order = [0, 2, 4, 6, 1, 3, 5]
    arrays = ImageDataset(images[order], files.labels, files.class_names)
    for fit in (None, 48):
        for (a, labels_a), (b, labels_b) in zip(Stream(files, 3, 5, fit), Stream(arrays, 3, 5, fit), strict=True):
            assert a.equal(b)
            assert labels_a.equal(labels_b)
