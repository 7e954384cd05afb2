"""Loaders of published formats: what they read, and what they say when it does not fit."""

from __future__ import annotations

import datetime
import hashlib
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from data_files import real_data, write_cifar_c, write_clean_cifar

from tta_panda.data import load_data
from tta_panda.data.cifar import CIFAR10
from tta_panda.data.dataset import ImageDataset
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


@pytest.mark.parametrize("protocol", [3, 4])
def test_pickles_of_today_are_read_as_well(tmp_path: Path, protocol: int) -> None:
    images = np.arange(6144, dtype=np.uint8).reshape(2, 3072)
    for rows in (images, np.asfortranarray(images)):
        (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": rows, b"labels": [3, 8]}, protocol=protocol))
        dataset = CIFAR10.load_clean(tmp_path)
        assert np.array_equal(dataset.images.transpose(0, 3, 1, 2).reshape(2, 3072), images)
        assert dataset.labels.tolist() == [3, 8]


def test_pickles_of_python_2_are_read_as_the_official_ones(tmp_path: Path) -> None:
    pixels = bytes(range(256)) * 12
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01(K\x01M\x00\x0ct" + dtype
    content = b"\x80\x02}(U\x04data" + array + state + b"\x89T\x00\x0c\x00\x00" + pixels + b"tbU\x06labels](K\x07eu."
    (tmp_path / "test_batch").write_bytes(content)
    dataset = CIFAR10.load_clean(tmp_path)
    assert dataset.images.transpose(0, 3, 1, 2).tobytes() == pixels
    assert dataset.labels.tolist() == [7]


class Request:
    """Pickled as the wish to call something, and to set its state."""

    def __init__(self, *parts: object):
        self.parts = parts

    def __reduce__(self) -> tuple[object, ...]:
        return self.parts


class Bare:
    """Pickled as a name only, to which a state is then given."""

    def __init__(self, name: bytes):
        self.content = b"\x80\x03}(C\x04data" + name + b"}X\x01\x00\x00\x00aK\x01sbC\x06labels](K\x00eu."


OBJECTS = np.dtype("O")
BYTES = np.dtype("u1")
ARRAY = np.zeros((0,), "b").__reduce__()[:2]


@pytest.mark.parametrize(
    ("guest", "asked"),
    [
        (Request(eval, ("open('pwned', 'w')",)), "eval"),
        (datetime.date(2020, 1, 1), "date"),
        (Request(np.ndarray, ((1,), OBJECTS, b"A" * 8)), "an array of 'O8'"),
        (Request(np.ndarray, ((1,), BYTES, b"A" * 8)), r"a call of numpy\.ndarray"),
        (OBJECTS, "an array of 'O8'"),
        (np.dtype([("a", "O")]), "an array of 'V8'"),
        (np.array([None]), "an array of 'O8'"),
        (np.zeros((1, 3072)), "an array of 'f8'"),
        (Request(ARRAY[0], (int, (0,), b"b")), "builtins.int"),
        (Request(ARRAY[0], (np.ndarray, (1,), b"O")), r"shape \(1,\)"),
        (Request(*ARRAY, (1, (1,), BYTES, False, ["a"])), "an array of list"),
        (Bare(b"cnumpy\ndtype\n"), r"a change of numpy\.dtype"),
        (Bare(b"cnumpy\nndarray\n"), r"a change of numpy\.ndarray"),
        (Bare(b"cnumpy.core.multiarray\n_reconstruct\n"), "a change of numpy's _reconstruct"),
    ],
)
def test_pickles_with_anything_but_bytes_are_refused(
    tmp_path: Path, guest: object, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = guest.content if isinstance(guest, Bare) else pickle.dumps({b"data": guest, b"labels": [0]}, protocol=3)
    (tmp_path / "test_batch").write_bytes(whole)
    with pytest.raises(DataError, match=f"asks for .*{asked}.*was not run"):
        CIFAR10.load_clean(tmp_path)
    assert not (tmp_path / "pwned").exists()


def test_bytes_cannot_be_turned_into_objects_later(tmp_path: Path) -> None:
    """A dtype that was granted as bytes is given the state of objects, and stays bytes."""
    disguised = Request(np.dtype, ("u1", False, True), (3, "|", None, None, None, -1, -1, 63))
    array = Request(*ARRAY, (1, (1, 3072), disguised, False, b"A" * 3072))
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": array, b"labels": [0]}, protocol=3))
    images = CIFAR10.load_clean(tmp_path).images
    assert images.dtype == np.uint8
    assert (images == ord("A")).all()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02Nr\x00\x00\x00\x01.",
        b"\x80\x04\x8e\x00\x00\x00\x10\x00\x00\x00\x00.",
        b"\x80\x04\x95\x00\x00\x00\x10\x00\x00\x00\x00N.",
        b"\x80\x05\x96\x00\x00\x00\x10\x00\x00\x00\x00.",
    ],
    ids=["place in the memo", "bytes", "frame", "bytearray"],
)
def test_a_pickle_takes_no_more_memory_than_it_has(tmp_path: Path, content: bytes) -> None:
    """A few bytes that ask for a quarter of a gigabyte."""
    (tmp_path / "test_batch").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"test_batch(:| cannot be read| is not the test pickle)"):
        CIFAR10.load_clean(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


TREE = b"\x80\x04)" + b"2\x86" * 60  # a tuple that holds another twice, which holds another twice, sixty times


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TREE + b".", "expected 'data'"),
        (b"\x80\x04}" + TREE[2:] + b"Ns.", "a key of several parts"),
        (b"\x80\x04}(" + TREE[2:] + b"Nu.", "a key of several parts"),
        (b"\x80\x04(" + TREE[2:] + b"Nd.", "a key of several parts"),
        (b"\x80\x04\x8f(" + TREE[2:] + b"\x90.", "a key of several parts"),
        (b"\x80\x04(" + TREE[2:] + b"\x91.", "a key of several parts"),
        (b"\x80\x04}(C\x04dataNC\x06labels](" + TREE[2:] + b"eu.", "whole numbers .* found list of tuple"),
        (b"\x80\x04}(C\x04dataNC\x06labels" + TREE[2:] + b"u.", "whole numbers .* found tuple"),
        (b"\x80\x04cnumpy\ndtype\n" + TREE[2:] + b"\x85R.", "asks for an array of"),
        (b"\x80\x04cnumpy.core.multiarray\n_reconstruct\n" + TREE[2:] + b"NN\x87R.", "asks for an array of"),
    ],
    ids=["alone", "item", "items", "dict", "set", "frozenset", "label", "labels", "dtype", "array"],
)
def test_values_that_hold_themselves_over_and_over_do_not_take_forever(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match=message):
        CIFAR10.load_clean(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a pickle", "cannot be read as a pickle"),
        (b"", "cannot be read as a pickle"),
        (pickle.dumps([1, 2], protocol=3), "expected 'data'"),
        (
            pickle.dumps({b"data": np.zeros((3, 3072), np.uint8), b"labels": [1]}, protocol=3),
            r"for 1 labels, found \(3, 3072\)",
        ),
        (pickle.dumps({b"data": [1], b"labels": [1]}, protocol=3), "found list"),
        (
            pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": ["cat"]}, protocol=3),
            "list of whole numbers",
        ),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [1 << 70]}, protocol=3), "whole numbers"),
        (pickle.dumps({b"data": b"", b"labels": [1 << 100_000]}, protocol=3), "whole numbers"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}, protocol=3), r"0\.\.9 for 10 classes"),
    ],
)
def test_damaged_pickles_are_explained(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match=message):
        CIFAR10.load_clean(tmp_path)


def test_corrupted_cifar_is_mapped_not_loaded(tmp_path: Path) -> None:
    folder = write_cifar_c(tmp_path)
    for root in (tmp_path, folder):
        for severity in (1, 5):
            dataset = load_data("cifar10-c", "fog", severity, root=root, limit=7)
            assert isinstance(dataset, ImageDataset)
            assert isinstance(dataset.images, np.memmap)
            assert dataset.labels.tolist() == list(range(7))
            assert dataset.class_names[:3] == ("airplane", "automobile", "bird")
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


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776, 32, 32, 3)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (9223372036854775808, 32, 32, 3)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-5, 32, 32, 3)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (100, 32, 32, 3)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': __import__('os').getcwd()}",
        "(" * 5000,
        "{'descr': '|u1'}" + " " * 60_000,
    ],
    ids=["terabytes", "overflowing", "negative", "objects", "a call", "nested", "long"],
)
def test_forged_headers_of_arrays_are_refused(tmp_path: Path, header: str) -> None:
    folder = write_cifar_c(tmp_path)
    size = len(header).to_bytes(2, "little")
    (folder / "fog.npy").write_bytes(b"\x93NUMPY\x01\x00" + size + header.encode() + bytes(1000))
    with pytest.raises(DataError, match=r"fog\.npy"):
        load_data("cifar10-c", "fog", root=tmp_path)


def test_archives_of_arrays_are_refused(tmp_path: Path) -> None:
    folder = write_cifar_c(tmp_path)
    np.savez_compressed(folder / "fog.npz", np.zeros(2**20, np.uint8))
    (folder / "fog.npz").rename(folder / "fog.npy")
    with pytest.raises(DataError, match=r"is not a readable \.npy file"):
        load_data("cifar10-c", "fog", root=tmp_path)


def test_unreadable_arrays_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    write_cifar_c(tmp_path)
    monkeypatch.setattr(np.lib.format, "open_memmap", locked)
    with pytest.raises(DataError, match=r"Cannot read .*labels\.npy \(Permission denied\)"):
        load_data("cifar10-c", "fog", root=tmp_path)


def test_clean_images_can_be_omitted(tmp_path: Path) -> None:
    folder = write_cifar_c(tmp_path)
    for root in (tmp_path, folder):
        message = rf"data download cifar10 -o {tmp_path}\nTo run without clean images, use --corruption all"
        with pytest.raises(DataError, match=message):
            load_data("cifar10-c", "clean", root=root)


@pytest.mark.parametrize("name", ["cifar10", "cifar100-c", "imagenet", "imagenet-c", "folder"])
def test_absent_data_say_what_to_type(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--data-root PATH"):
        load_data(name, "clean" if name in ("cifar10", "imagenet", "folder") else "fog")
    what = {"cifar10": "clean images only", "cifar100-c": r"CIFAR-100-C\.tar.*data download cifar100-c -o"}
    with pytest.raises(DataError, match=what.get(name, "There is no folder .*absent.*--data-root PATH")):
        load_data(name, "fog", root=tmp_path / "absent")
