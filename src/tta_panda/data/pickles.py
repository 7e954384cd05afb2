"""Clean CIFAR-10 and CIFAR-100 from the official pickles, read by an unpickler that admits nothing but arrays.

Unpickling runs whatever code a file asks for. These files ask for numpy arrays only, so nothing else is granted.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tta_panda.errors import DataError


class Archive(NamedTuple):
    """Where the test images of a data set are, and what they look like."""

    folder: str
    file: str
    labels: str
    md5: str


ARCHIVES = {
    10: Archive("cifar-10-batches-py", "test_batch", "labels", "40351d587109b95175f43aff81a1287e"),
    100: Archive("cifar-100-python", "test", "fine_labels", "f0ef6b0ae62326f3e7ffdfab6717acfc"),
}


def read_test_images(path: Path, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (N, 32, 32, 3) and labels (N,) of the official test pickle."""
    content = _unpickled(path)
    key = ARCHIVES[classes].labels.encode()
    if not isinstance(content, dict) or b"data" not in content or key not in content:
        keys = sorted(str(k) for k in content) if isinstance(content, dict) else type(content).__name__
        raise DataError(f"{path} is not the test pickle of CIFAR-{classes}: expected 'data' and {key!r}, found {keys}.")
    data, labels = content[b"data"], np.asarray(content[key], dtype=np.int64)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (len(labels), 3072):
        found = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise DataError(f"{path}: expected uint8 rows of 3,072 bytes for {len(labels)} labels, found {found}.")
    return np.ascontiguousarray(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels


def find_test_pickle(root: Path, classes: int) -> Path:
    """The pickle in `root`, in its folder below `root`, or `root` itself where that is the file."""
    archive = ARCHIVES[classes]
    candidates = [root, root / archive.file, root / archive.folder / archive.file]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise DataError(
        f"No clean CIFAR-{classes} in {root}: expected {root / archive.folder / archive.file}. Unpack the python "
        f"version of CIFAR-{classes} there, or fetch it with: tta-panda data download cifar{classes} --to {root}"
    )


def _unpickled(path: Path) -> Any:
    try:
        return _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except DataError:
        raise
    except Exception as error:
        # A damaged pickle can fail in any way: too short, an unknown opcode, arguments that make no array.
        raise DataError(f"{path} cannot be read as a pickle ({error}); download it again.") from error


def _empty_array(kind: type, shape: tuple[int, ...], dtype: bytes) -> NDArray[Any]:
    """What numpy's own function does for the one case that occurs: an empty array, filled by what follows."""
    if kind is not np.ndarray or tuple(shape) != (0,):
        raise DataError(f"a pickled array of kind {kind!r} and shape {shape!r}, which these data sets do not hold")
    return np.ndarray((0,), dtype="b")


class _ArraysOnly(pickle.Unpickler):
    _GRANTED = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"): _empty_array,
        ("numpy._core.multiarray", "_reconstruct"): _empty_array,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._GRANTED:
            raise DataError(
                f"The pickle asks for {module}.{name}, which no CIFAR file needs; it is not an official file and was "
                "not run. Download the data set again."
            )
        return self._GRANTED[module, name]
