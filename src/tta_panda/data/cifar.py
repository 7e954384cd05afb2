"""CIFAR-10 and CIFAR-100, and their corrupted forms as published: `<corruption>.npy` and `labels.npy`.

Clean images are stored in pickles, which can call any function when they are loaded. The official files use three
names of numpy, for which there are stand-ins: with numpy's own, a malicious file could make arrays of forged pointers.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import reprlib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tta_panda.data import CLEAN
from tta_panda.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from tta_panda.data.dataset import ImageDataset
from tta_panda.data.source import Archive, DataSource, Finding, Status, file_md5, published_classes
from tta_panda.errors import DataError
from tta_panda.files import expand, open_archive, open_regular, read_member, read_regular
from tta_panda.pickles import RefusedPickleError, RestrictedUnpickler

SEVERITIES = 5
TEST_IMAGES = 10_000
LABELS = "labels.npy"
_MADE = "made with seed"


@dataclass(frozen=True, kw_only=True)
class Cifar(DataSource):
    """Clean test images in a published file, and one `.npy` file per corruption, with five severities."""

    classes: str  # list in `class_names`
    clean: str  # path of the published file below the root: a pickle, `.npz`, or `_data.npy` beside `_labels.npy`
    label_key: str = "labels"
    md5: str = ""  # of the published file
    folder: str = ""  # of the corruptions, below the root; empty for clean images only

    def load(self, root: Path | None, corruption: str, severity: int) -> ImageDataset:
        self.check_is_clean(corruption)
        root = self.required_root(root)
        if corruption == CLEAN:
            return self.load_clean(root)
        folder = self._find(root)
        labels = open_array(folder / LABELS)
        path = folder / f"{corruption}.npy"
        images = open_array(path)
        if images.shape[1:] != (32, 32, 3) or images.dtype != np.uint8:
            raise DataError(f"{path} should hold uint8 images (N, 32, 32, 3), found {images.dtype} {images.shape}.")
        if len(images) != len(labels) or len(images) % SEVERITIES:
            raise DataError(
                f"{path} should hold {SEVERITIES} severities of as many images as {LABELS} has rows; "
                f"found {len(images)} images and {len(labels)} labels."
            )
        note = read_note(path)
        if note is not None and severity not in note["severities"]:
            made = ", ".join(map(str, note["severities"])) or "none yet"
            raise DataError(
                f"{path} holds no images of severity {severity}; made so far: {made}. Add it with: tta-panda data make "
                f"{self.name} --from CLEAN -o {path.parent.parent} --corruption {path.stem} --severity {severity}"
            )
        rows = len(images) // SEVERITIES
        chosen = slice(rows * (severity - 1), rows * severity)
        return ImageDataset(images[chosen], labels[chosen], self.class_names())

    def load_clean(self, root: Path) -> ImageDataset:
        """Load the published file, from its folder below `root` or from `root`, which may also be the file itself."""
        root = root.parent if self.folder and root.name == self.folder else root
        official = root / self.clean
        for path in (root, root / official.name, official):
            if path.is_file():
                return ImageDataset(*self._read_clean(path), self.class_names())
        hint = "as published."
        if self.md5:
            hint = (
                f"Unpack the python version of {self.classes} there, or fetch it with: tta-panda data download "
                f"{self.classes} -o {root}"
            )
        hint += "\nTo run without clean images, use --corruption all." if self.folder else ""
        raise DataError(f"No clean images of {self.classes} in {root}: expected {official}. {hint}")

    def _read_clean(self, path: Path) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        if path.suffix == ".npz":
            with readable(path, ".npz"), open_regular(path) as file, open_archive(file) as archive:
                return _read_array(archive, "images"), _read_array(archive, self.label_key)
        if path.suffix == ".npy":
            return open_array(path), open_array(path.with_name(path.name.replace("_data", "_labels")))
        return _read_pickle(path, self.label_key)

    def class_names(self) -> tuple[str, ...]:
        return tuple(published_classes(self.classes))

    def fingerprint(
        self, root: Path | None, corruption: str, severity: int, *, skip_broken: bool = False
    ) -> str | None:
        """Settings of files made by `tta-panda data make`; for data without a published checksum, a digest.

        None for other published files, which the name identifies.
        """
        if root is not None and not self.archives:
            with contextlib.suppress(DataError):  # raised again, and reported, when the data are loaded
                data = self.load(root, corruption, severity)
                content = data.images.tobytes() + data.labels.astype(np.int64).tobytes()
                return hashlib.sha256(content).hexdigest()[:12]
        elif root is not None and corruption != CLEAN:
            for folder in (expand(root), expand(root) / self.folder):
                if note := read_note(folder / f"{corruption}.npy"):
                    textures = f", {note['textures']} textures" if "textures" in note else ""
                    return f"{_MADE} {note.get('seed')}{textures}"
        return None

    def check(self, root: Path) -> Iterator[Finding]:
        if not self.folder:
            path = root / self.clean
            path = path if path.exists() else root / path.name
            if path.exists() or (self.md5 and path.parent != root and (root / self.clean).parent.is_dir()):
                yield self.check_path(path, self._check_md5 if self.md5 else self._check_size, f"no {path}")
            return
        folder = root if root.name == self.folder else root / self.folder
        if folder.is_dir():
            yield self.check_path(folder / LABELS, self._check_labels, "no corruption can be read without it")
            extra = [name for name in EXTRA_CORRUPTIONS if (folder / f"{name}.npy").exists()]
            for name in dict.fromkeys((*self.expand(["all"], root), *extra)):
                yield self.check_path(folder / f"{name}.npy", _check_images)

    def _check_md5(self, path: Path) -> tuple[Status, str]:
        found = file_md5(path)
        return ("ok", "md5 as published") if found == self.md5 else ("damaged", f"md5 {found}, expected {self.md5}")

    def _check_size(self, path: Path) -> tuple[Status, str]:
        assert self.size is not None
        found, expected = self.load_clean(path).images.shape, (self.size[0], 32, 32, 3)
        return ("ok", f"{found[0]:,} images") if found == expected else ("damaged", f"{found}, expected {expected}")

    def _check_labels(self, path: Path) -> tuple[Status, str]:
        labels, expected = open_array(path), (SEVERITIES * TEST_IMAGES,)
        if labels.shape != expected:
            return "damaged", f"shape {labels.shape}, expected {expected}"
        if not np.issubdtype(labels.dtype, np.integer):
            return "damaged", f"{labels.dtype} labels, expected whole numbers"
        rounds = labels.reshape(SEVERITIES, TEST_IMAGES)
        classes = len(self.class_names())
        balanced = np.repeat(np.arange(classes), TEST_IMAGES // classes)
        if (rounds != rounds[0]).any() or not np.array_equal(np.sort(rounds[0]), balanced):
            return "damaged", f"not the labels of the test set repeated {SEVERITIES} times"
        return "ok", f"{SEVERITIES} x {TEST_IMAGES:,} labels"

    def _find(self, root: Path) -> Path:
        for folder in (root, root / self.folder):
            if (folder / LABELS).is_file():
                return folder
        made = ""
        if self.archives:
            made = (
                f" To fetch it: tta-panda data download {self.name} -o {root}; to make it from clean images: tta-panda "
                f"data make {self.name} --from CLEAN -o {root}"
            )
        raise DataError(
            f"No {LABELS} in {root} or {root / self.folder}. Unpack {self.folder}.tar and pass the folder with its "
            f".npy files (or the folder above it) as --data-root PATH.{made}"
        )


def _check_images(path: Path) -> tuple[Status, str]:
    """Check shape, type and length; md5 sums of single files are not published."""
    array, note = open_array(path), read_note(path)
    expected = (SEVERITIES * TEST_IMAGES, 32, 32, 3)
    if array.shape != expected or array.dtype != np.uint8:
        return "damaged", f"{array.dtype} {array.shape}, expected uint8 {expected}"
    if note is None:
        return "ok", f"{SEVERITIES} x {TEST_IMAGES:,} images"
    made = ", ".join(map(str, note["severities"])) or "none"
    whole = len(note["severities"]) == SEVERITIES
    return "ok" if whole else "partial", f"severities made: {made}; seed {note.get('seed')}"


def was_made(fingerprint: str | None) -> bool:
    """Whether a fingerprint is that of images made by `tta-panda data make`, rather than of published ones."""
    return fingerprint is not None and fingerprint.startswith(_MADE)


def note_path(path: Path) -> Path:
    """Path of the note that `tta-panda data make` writes next to a file; published files have none."""
    return path.with_suffix(".json")


def read_note(path: Path) -> dict[str, Any] | None:
    """Read the note of a file; None for a published file."""
    note = note_path(path)
    try:
        content = json.loads(read_regular(note))
        return {**content, "severities": [int(severity) for severity in content["severities"]]}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, OverflowError, TypeError, KeyError, RecursionError) as error:
        raise DataError(f"Cannot read {note} ({error}). Delete it and {path.name}, and make the file again.") from error


def open_array(path: Path) -> NDArray[Any]:
    """Open the array of a `.npy` file as a memory map, so that only the part in use is read."""
    if not path.is_file():
        found = ", ".join(sorted(p.stem for p in path.parent.glob("[!.]*.npy") if p.name != LABELS)) or "none"
        raise DataError(f"There is no {path}. Corruptions in that folder: {found}.")
    with readable(path, ".npy"):
        return np.lib.format.open_memmap(path, mode="r")


@contextlib.contextmanager
def readable(path: Path, kind: str) -> Iterator[None]:
    """Turn the exceptions of numpy into a `DataError`."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"Cannot read {path} ({error.strerror or error}). Check its permissions with: ls -l {path}"
        ) from error
    except Exception as error:  # numpy raises many types of exceptions for forged headers
        raise DataError(f"{path} is not a readable {kind} file ({error}); download it again.") from error


def _read_array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    return np.lib.format.read_array(io.BytesIO(read_member(archive, f"{name}.npy")), allow_pickle=False)


def _read_pickle(path: Path, label_key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read images (N, 32, 32, 3) and labels (N,) from the official test pickle."""
    content = _unpickle(path)
    key = label_key.encode()
    if not isinstance(content, dict) or b"data" not in content or key not in content:
        names = [name for name in content if isinstance(name, str | bytes)] if isinstance(content, dict) else None
        raise DataError(
            f"{path} is not the test pickle of CIFAR: expected 'data' and {key!r}, "
            f"found {type(content).__name__ if names is None else reprlib.repr(names)}."
        )
    array, labels = content[b"data"], content[key]
    if not isinstance(labels, list) or not all(isinstance(label, int) and label.bit_length() < 32 for label in labels):
        kinds = sorted({type(label).__name__ for label in labels}) if isinstance(labels, list) else []
        found = f"{type(labels).__name__}{' of ' if kinds else ''}{', '.join(kinds)}"
        raise DataError(f"{path}: expected a list of whole numbers below 2**31 as {key!r}, found {found}.")
    pixels = array.pixels if isinstance(array, _NumpyStandIn) else None
    if pixels is None or pixels.shape != (len(labels), 3072):
        found = type(array).__name__ if pixels is None else str(pixels.shape)
        raise DataError(f"{path}: expected rows of 3,072 bytes for {len(labels)} labels, found {found}.")
    images = np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return images, np.array(labels, dtype=np.int64)


def _unpickle(path: Path) -> Any:
    try:
        content = io.BytesIO(read_regular(path))
        return RestrictedUnpickler(content, lambda *name: _ALLOWED.get(name), encoding="bytes").load()
    except RefusedPickleError as error:
        raise DataError(
            f"{path}: {error}, which no CIFAR file does; it is not an official file and was not run. Download the data "
            "set again."
        ) from error
    except Exception as error:
        # A damaged pickle can fail in any way: it may be too short, or have unknown opcodes or wrong arguments.
        raise DataError(f"{path} cannot be read as a pickle ({error}); download it again.") from error


class _NumpyStandIn:
    """Stand-in for numpy's names in a pickle, and for the dtype and the array that are made with them.

    It supports only what an array of unsigned bytes needs. The state of a dtype (byte order and flags) is ignored, so
    that it cannot become another one.
    """

    def __init__(self, what: str, pixels: NDArray[np.uint8] | None = None):
        self.what, self.pixels = what, pixels

    def __call__(self, *arguments: object) -> _NumpyStandIn:
        match self.what, arguments:
            case "numpy.dtype", ("u1" | b"u1", *_):  # the official files have the bytes of Python 2
                return _NumpyStandIn("dtype")
            case "numpy.dtype", (code, *_):
                raise RefusedPickleError(f"it asks for an array of {_short(code)}")
            case "numpy's _reconstruct", (_NumpyStandIn(what="numpy.ndarray"), (0,), _):
                return _NumpyStandIn("array")
            case "numpy's _reconstruct", (kind, shape, *_):
                raise RefusedPickleError(f"it asks for an array of kind {_short(kind)} and shape {_short(shape)}")
        raise RefusedPickleError(f"it asks for a call of {self.what}")

    def __setstate__(self, state: Any) -> None:
        match self.what, state:
            case "dtype", _:
                pass
            case "array", (_, shape, _NumpyStandIn(what="dtype"), by_columns, bytes(content)):
                self.pixels = np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_columns else "C")
            case "array", (*_, content):
                raise RefusedPickleError(f"it asks for an array of {type(content).__name__}")
            case _:
                raise RefusedPickleError(f"it asks for a change of {self.what}")


def _short(item: object) -> str:
    """Shorten the text of an object for messages: a pickle can build a tuple whose full text never ends."""
    return reprlib.repr(item.decode("latin1") if isinstance(item, bytes) else item)


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _NumpyStandIn("numpy's _reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"): _NumpyStandIn("numpy's _reconstruct"),
    ("numpy", "ndarray"): _NumpyStandIn("numpy.ndarray"),
    ("numpy", "dtype"): _NumpyStandIn("numpy.dtype"),
}


def _clean(number: int, pickle: str, label_key: str, md5: str, archive_md5: str) -> Cifar:
    url = f"https://www.cs.toronto.edu/~kriz/cifar-{number}-python.tar.gz"
    return Cifar(
        name=f"cifar{number}",
        about=f"The 10,000 clean test images of CIFAR-{number}, {pickle}.",
        layout=pickle,
        domains=(CLEAN,),
        archives=(Archive(url, archive_md5, 0.17, (pickle,)),),
        size=(TEST_IMAGES, number),
        classes=f"cifar{number}",
        clean=pickle,
        label_key=label_key,
        md5=md5,
    )


def _corrupted(clean: Cifar, folder: str, record: int, archive_md5: str) -> Cifar:
    url = f"https://zenodo.org/records/{record}/files/{folder}.tar"
    holds = tuple(f"{folder}/{name}.npy" for name in ("labels", *CORRUPTIONS))
    return replace(
        clean,
        name=f"{clean.name}-c",
        about=f"{folder}/<corruption>.npy; clean images from {clean.clean} next to it.",
        layout=f"{folder}/<corruption>.npy",
        domains=(CLEAN, *CORRUPTIONS),
        archives=(Archive(url, archive_md5, 2.9, holds),),
        folder=folder,
    )


CIFAR10 = _clean(
    10,
    "cifar-10-batches-py/test_batch",
    "labels",
    md5="40351d587109b95175f43aff81a1287e",
    archive_md5="c58f30108f718f92721af3b95e74349a",
)
CIFAR100 = _clean(
    100,
    "cifar-100-python/test",
    "fine_labels",
    md5="f0ef6b0ae62326f3e7ffdfab6717acfc",
    archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
)
CIFAR10_1 = Cifar(
    name="cifar10.1",
    about="CIFAR-10.1 v6: 2,000 new test images of CIFAR-10's classes.",
    layout="cifar10.1_v6_data.npy and cifar10.1_v6_labels.npy",
    domains=(CLEAN,),
    size=(2_000, 10),
    classes="cifar10",
    clean="CIFAR-10.1/cifar10.1_v6_data.npy",
)
CIFAR10_2 = replace(
    CIFAR10_1,
    name="cifar10.2",
    about="CIFAR-10.2: 2,000 other new test images of CIFAR-10's classes.",
    layout="cifar102_test.npz",
    clean="CIFAR-10.2/cifar102_test.npz",
)
CIFAR10_C = _corrupted(CIFAR10, "CIFAR-10-C", 2535967, "56bf5dcef84df0e2308c6dcbcbbd8499")
CIFAR100_C = _corrupted(CIFAR100, "CIFAR-100-C", 3555552, "11f0ed0f1191edbf9fa23466ae6021d3")
CIFAR10_C_BAR = replace(
    CIFAR10_C,
    name="cifar10-c-bar",
    about="CIFAR-10-C-bar: ten other corruptions, <corruption>.npy, as the authors' script makes them.",
    layout="CIFAR-10-C-Bar/<corruption>.npy",
    domains=(
        CLEAN, "blue_noise_sample", "brownish_noise", "checkerboard_cutout", "circular_motion_blur",
        "inverse_sparkles", "lines", "pinch_and_twirl", "ripple", "sparkles", "transverse_chromatic_abberation",
    ),
    archives=(),
    folder="CIFAR-10-C-Bar",
)  # fmt: skip
