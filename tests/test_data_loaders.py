"""Loaders of published formats and of folders: what they read, and what they say when it does not fit."""

from __future__ import annotations

import datetime
import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from data_files import random_images, real_data, write_cifar_c, write_clean_cifar, write_image
from PIL import Image

from tta_panda.data import DATASETS, load_data
from tta_panda.data.cifar import load_clean
from tta_panda.data.dataset import UNLABELLED, ImageDataset
from tta_panda.data.fingerprint import data_fingerprint
from tta_panda.data.stream import Stream
from tta_panda.errors import DataError

# CIFAR


@pytest.mark.parametrize("classes", [10, 100])
def test_clean_cifar_comes_from_the_official_pickle(tmp_path: Path, classes: int) -> None:
    images, labels = write_clean_cifar(tmp_path, classes)
    for name in (f"cifar{classes}", f"cifar{classes}-c"):
        dataset = load_data(name, root=tmp_path)
        assert np.array_equal(dataset.images_at(np.arange(20)), images)
        assert dataset.labels.tolist() == labels
        assert len(dataset.class_names) == classes


def test_real_cifar_test_batch() -> None:
    root = real_data("cifar-10-batches-py")
    dataset = load_data("cifar10", root=root.parent)
    assert len(dataset) == 10_000
    assert np.bincount(dataset.labels).tolist() == [1_000] * 10
    assert [dataset.class_names[label] for label in dataset.labels[:4]] == ["cat", "ship", "ship", "airplane"]
    assert hashlib.md5((root / "test_batch").read_bytes()).hexdigest() == "40351d587109b95175f43aff81a1287e"


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (eval, ("open('pwned', 'w')",))


@pytest.mark.parametrize("guest", [Evil(), datetime.date(2020, 1, 1)], ids=["code", "harmless"])
def test_pickles_with_anything_but_arrays_are_refused(
    tmp_path: Path, guest: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": guest, b"labels": [0]}, protocol=3))
    with pytest.raises(DataError, match=r"asks for .*(eval|date)"):
        load_clean(tmp_path, 10)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a pickle", "cannot be read as a pickle"),
        (b"", "cannot be read as a pickle"),
        (pickle.dumps([1, 2], protocol=3), "expected 'data'"),
        (
            pickle.dumps({b"data": np.zeros((3, 3072), np.uint8), b"labels": [1]}, protocol=3),
            r"found uint8 \(3, 3072\)",
        ),
        (pickle.dumps({b"data": np.zeros((1, 3072)), b"labels": [1]}, protocol=3), "found float64"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}, protocol=3), r"0\.\.9 for 10 classes"),
    ],
)
def test_damaged_pickles_are_explained(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_clean(tmp_path, 10)


def test_corrupted_cifar_is_mapped_not_loaded(tmp_path: Path) -> None:
    folder = write_cifar_c(tmp_path)
    for root in (tmp_path, folder):
        for severity in (1, 5):
            dataset = load_data("cifar10-c", "fog", severity, root=root, limit=7)
            assert isinstance(dataset, ImageDataset)
            assert isinstance(dataset.images, np.memmap)
            assert len(dataset) == 7
            assert (dataset.images_at(np.array([0, 3])) == severity).all()


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((99, 32, 32, 3), "uint8", "found 99 images and 100 labels"),
        ((100, 3, 32, 32), "uint8", r"found uint8 \(100, 3, 32, 32\)"),
        ((100, 32, 32, 3), "float32", "found float32"),
    ],
)
def test_wrong_arrays_are_explained(tmp_path: Path, shape: tuple[int, ...], dtype: str, message: str) -> None:
    folder = write_cifar_c(tmp_path)
    np.save(folder / "fog.npy", np.zeros(shape, dtype))
    with pytest.raises(DataError, match=message):
        load_data("cifar10-c", "fog", root=tmp_path)


def test_truncated_and_pickled_arrays_are_refused(tmp_path: Path) -> None:
    folder = write_cifar_c(tmp_path)
    content = (folder / "fog.npy").read_bytes()
    (folder / "fog.npy").write_bytes(content[:-1000])
    (folder / "snow.npy").write_bytes(b"")
    np.save(folder / "frost.npy", np.array([{}]), allow_pickle=True)
    for name in ("fog", "snow", "frost"):
        with pytest.raises(DataError, match=r"is not a readable \.npy file"):
            load_data("cifar10-c", name, root=tmp_path)
    (folder / "contrast.npy").unlink()
    with pytest.raises(DataError, match=r"There is no .*contrast\.npy.*jpeg_compression"):
        load_data("cifar10-c", "contrast", root=tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "cifar100-c", "imagenet", "imagenet-c", "folder"])
def test_absent_data_say_what_to_type(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--data-root PATH"):
        load_data(name, "clean" if name in ("cifar10", "imagenet", "folder") else "fog")
    with pytest.raises(DataError, match=r"tta-panda|--data-root"):
        load_data(name, "fog", root=tmp_path / "absent")


# Folders


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


def test_flat_folders_are_for_prediction(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"name the classes one per line in .*classes\.txt"):
        load_data("folder", root=tmp_path)
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    dataset = load_data("folder", root=tmp_path)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.labels.tolist() == [UNLABELLED]


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    tree(tmp_path)
    content = (tmp_path / "dog" / "1.png").read_bytes()
    (tmp_path / "dog" / "1.png").write_bytes(content[: len(content) // 2])
    dataset = load_data("folder", root=tmp_path)
    with pytest.raises(DataError, match=r"Cannot read the image .*1\.png"):
        list(Stream(dataset, 2, seed=0, fit=8))


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


def test_every_data_set_says_what_it_is() -> None:
    for name in DATASETS:
        assert DATASETS.get(name).__doc__


def test_fingerprints_tell_data_of_one_name_apart(tmp_path: Path) -> None:
    tree(tmp_path / "a")
    tree(tmp_path / "b", images=2)
    first = data_fingerprint("folder", tmp_path / "a", "clean", 0)
    assert first is not None
    assert first == data_fingerprint("folder", tmp_path / "a", "clean", 0)
    assert first != data_fingerprint("folder", tmp_path / "b", "clean", 0)
    (tmp_path / "a" / "classes.txt").write_text("cat\ndog\n")
    assert first != data_fingerprint("folder", tmp_path / "a", "clean", 0)
    write_cifar_c(tmp_path)
    assert data_fingerprint("cifar10-c", tmp_path, "fog", 5) is None  # published: the name says it all
    assert data_fingerprint("folder", tmp_path / "a", "fog", 5) is None  # not there
    assert data_fingerprint("glyphs-c", None, "fog", 5) is None
